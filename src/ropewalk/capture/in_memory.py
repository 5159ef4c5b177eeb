"""Capturing a model that is in memory, over rows of tokens: what `measure` and live observations share."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ropewalk.capture.collector import Collection, collect
from ropewalk.capture.encoding import encode
from ropewalk.capture.jobs import tokens_fingerprint
from ropewalk.capture.readiness import Ready
from ropewalk.capture.settings import choose_heads, scope_of, settings_fingerprint
from ropewalk.capture.shards import Provenance, ShardSums, split_documents
from ropewalk.capture.stored import MemoryCapture
from ropewalk.errors import RopewalkError
from ropewalk.statistics.base import Scope, Statistic
from ropewalk.statistics.registry import build
from ropewalk.study import Capture, Checkpoint, Study


@dataclass(frozen=True)
class MemoryJob:
    """What is captured of a model in memory: tokens [documents, context], cut into shards, and the settings."""

    settings: Capture
    statistics: tuple[Statistic, ...]
    scope: Scope
    tokens: NDArray[np.int32]
    shards: tuple[range, ...]
    fingerprint: str

    @classmethod
    def of(cls, study: Study, checkpoint: Checkpoint, tokens: NDArray[np.int32]) -> "MemoryJob":
        """The job of one checkpoint of a study over these tokens."""
        settings, statistics = study.capture, tuple(build(study.capture.statistics))
        scope = scope_of(study, checkpoint, len(tokens))
        return cls(
            settings,
            statistics,
            scope,
            tokens,
            split_documents(len(tokens), settings.shards),
            settings_fingerprint(settings, scope, statistics),
        )

    def collect(
        self, model: nn.Module, ready: Ready, number: int, advance: Callable[[int], None] = lambda _: None
    ) -> ShardSums:
        """The sums of one shard. `advance` is told the tokens done."""
        heads = choose_heads(ready.layout, self.settings)
        part = self.shards[number]
        return collect(
            model,
            Collection(ready.layout, heads, self.statistics, self.scope, self.settings.pre_rope),
            self.tokens[part.start : part.stop],
            first_document=part.start,
            batch=max(1, self.settings.batch_tokens // self.scope.context),
            advance=advance,
        )

    def provenances(self, mark: str) -> list[Provenance]:
        """Fingerprints of every shard, of the model with this mark."""
        tokens = [tokens_fingerprint(self.tokens[one.start : one.stop], one, len(self.tokens)) for one in self.shards]
        return [Provenance(mark, one, self.fingerprint) for one in tokens]

    def captured(self, ready: Ready, mark: str, sums: Sequence[ShardSums]) -> MemoryCapture:
        """The capture that the sums of all shards make up, of the model with this mark."""
        return MemoryCapture(
            ready.layout,
            choose_heads(ready.layout, self.settings),
            self.scope,
            {one.name: one.model_dump(mode="json") for one in self.statistics},
            self.provenances(mark),
            sums,
            dtype=ready.dtype,
            proof=ready.proof,
        )


def token_rows(documents: Iterable[Any], tokenizer: Any, context: int) -> NDArray[np.int32]:
    """Tokens [documents, context] of the documents that are long enough: texts, or rows of token ids."""
    if isinstance(documents, str):
        raise RopewalkError("documents are one text: give a list of texts, such as [text]")
    found = [_ids(document, tokenizer, context) for document in documents]
    tokens = [row[:context] for row in found if len(row) >= context]
    if not tokens:
        raise RopewalkError(
            f"none of the {len(found)} documents has {context} tokens: lower `context` or give longer documents"
        )
    return np.stack(tokens).astype(np.int32)


def model_mark(model: nn.Module) -> str:
    """What a model in memory is known by: names, shapes and types of its weights, their sums and sizes.

    It is marked, not proven: reading all weights as bytes would take as long as a forward pass.
    """
    with torch.no_grad():
        parts = [
            (name, tuple(weights.shape), str(weights.dtype), *_sums(weights))
            for name, weights in model.named_parameters()
        ]
    return f"memory:{hashlib.sha256(repr((type(model).__name__, parts)).encode()).hexdigest()}"


def _sums(weights: torch.Tensor) -> tuple[float, float]:
    if weights.device.type == "meta" or not weights.is_floating_point():
        return 0.0, 0.0
    return float(weights.sum(dtype=torch.float32)), float(torch.linalg.vector_norm(weights, dtype=torch.float32))


def _ids(document: Any, tokenizer: Any, context: int) -> Any:
    if isinstance(document, str):
        if tokenizer is None:
            raise RopewalkError("documents are text, so a tokenizer is needed: give it, or rows of token ids")
        return encode(tokenizer, document, context)
    ids = np.asarray(document.cpu() if isinstance(document, torch.Tensor) else list(document))
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise RopewalkError("a document is neither text nor a row of token ids: give one or the other")
    return ids
