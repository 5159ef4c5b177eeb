"""For a researcher with a model in hand: from Python objects to results, without files."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from ropewalk.capture.collector import Collection, collect
from ropewalk.capture.corpus import encode
from ropewalk.capture.jobs import tokens_fingerprint
from ropewalk.capture.readiness import make_ready
from ropewalk.capture.settings import choose_heads, scope_of, settings_fingerprint
from ropewalk.capture.shards import Provenance, split_documents
from ropewalk.capture.stored import MemoryCapture
from ropewalk.errors import RopewalkError
from ropewalk.models.tap import evaluating
from ropewalk.progress import Progress
from ropewalk.results import Results, from_captures
from ropewalk.statistics.registry import build
from ropewalk.studyfile import check_study


def measure(
    model: nn.Module,
    documents: Iterable[str] | Iterable[Iterable[int]],
    tokenizer: Any = None,
    *,
    context: int,
    label: str = "model",
    step: int | None = None,
    phase: str = "",
    family: str = "",
    **capture: Any,
) -> Results:
    """Measure a loaded model over documents: texts with a tokenizer, or rows of token ids without.

    Documents shorter than `context` tokens are left out, longer ones cut. `label`, `step`, `phase` and `family` say
    what the model is among others (see `ropewalk.concat`). `capture` takes the fields of a study's `capture`: heads,
    seed, layers, pairs, statistics, skip_first, pre_rope, shards, batch_tokens, components, ... The model is left as
    it was, and the numbers are those that `ropewalk run` gives for the same documents. Before the first document the
    model proves that what is captured is what its attention uses (see `ropewalk doctor`).

    >>> r = measure(model, texts, tokenizer, context=2048)  # doctest: +SKIP
    >>> r.figure("phase_portraits")  # doctest: +SKIP
    """
    checkpoint_data = {
        "repo": type(model).__name__,
        "name": label,
        "label": label,
        "step": step,
        "phase": phase,
        "family": family,
        "context": context,
    }
    study = check_study(
        {"name": "measured", "checkpoints": [checkpoint_data], "corpus": {"source": "memory"}, "capture": capture},
        "measure()",
    )
    checkpoint, settings = study.checkpoints[0], study.capture
    tokens = _rows(documents, tokenizer, context)
    statistics = build(settings.statistics)
    scope = scope_of(study, checkpoint, len(tokens))
    fingerprint = settings_fingerprint(settings, scope, statistics)
    with evaluating(model):
        ready = make_ready(model, label, context, settings.pre_rope)
        heads = choose_heads(ready.layout, settings)
        collection = Collection(ready.layout, heads, statistics, scope, settings.pre_rope)
        shards, provenances = [], []
        with Progress(label, tokens.size) as progress:
            for part in split_documents(len(tokens), settings.shards):
                rows = tokens[part.start : part.stop]
                batch = max(1, settings.batch_tokens // context)
                shards.append(
                    collect(model, collection, rows, first_document=part.start, batch=batch, advance=progress.advance)
                )
                provenances.append(
                    Provenance(_model_mark(model), tokens_fingerprint(rows, part, len(tokens)), fingerprint)
                )
    options = {one.name: one.model_dump(mode="json") for one in statistics}
    captured = MemoryCapture(
        ready.layout, heads, scope, options, provenances, shards, dtype=ready.dtype, proof=ready.proof
    )
    return from_captures({checkpoint.name: captured}, study)


def _rows(documents: Iterable[Any], tokenizer: Any, context: int) -> Any:
    """Tokens [documents, context] of the documents that are long enough."""
    if isinstance(documents, str):
        raise RopewalkError("documents are one text: give a list of texts, such as measure(model, [text], ...)")
    found = [_ids(document, tokenizer, context) for document in documents]
    tokens = [row[:context] for row in found if len(row) >= context]
    if not tokens:
        raise RopewalkError(
            f"none of the {len(found)} documents has {context} tokens: lower `context` or give longer documents"
        )
    return np.stack(tokens).astype(np.int32)


def _ids(document: Any, tokenizer: Any, context: int) -> Any:
    if isinstance(document, str):
        if tokenizer is None:
            raise RopewalkError(
                "documents are text, so a tokenizer is needed: measure(model, texts, tokenizer, context=...)"
            )
        return encode(tokenizer, document, context)
    ids = np.asarray(document.cpu() if isinstance(document, torch.Tensor) else list(document))
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise RopewalkError("a document is neither text nor a row of token ids: give one or the other")
    return ids


def _model_mark(model: nn.Module) -> str:
    """What can be said of a model in memory without reading all its weights: it is marked, not proven."""
    shapes = [(name, tuple(weights.shape), str(weights.dtype)) for name, weights in model.named_parameters()]
    return f"memory:{hashlib.sha256(repr((type(model).__name__, shapes)).encode()).hexdigest()}"
