"""What a study asks for: one job per checkpoint, with its documents, shards and fingerprints."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.capture.checks import check_models
from ropewalk.capture.corpus import Documents, prepare, vocabulary_hash
from ropewalk.capture.manifest import manifest_facts
from ropewalk.capture.settings import scope_of, settings_fingerprint
from ropewalk.capture.shards import (
    Provenance,
    capture_folder,
    missing_shards,
    split_documents,
)
from ropewalk.capture.texts import check_corpus
from ropewalk.capture.work import Order
from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import local_origin
from ropewalk.models.device import compute_dtype
from ropewalk.models.hub import model_folder
from ropewalk.models.identity import model_fingerprint, model_origin
from ropewalk.models.loading import load_config, load_tokenizer
from ropewalk.models.source import TokenizerLocation
from ropewalk.ownership import claimed
from ropewalk.progress import logger
from ropewalk.statistics.base import Scope, Statistic
from ropewalk.statistics.registry import build, loaded_plugins
from ropewalk.study import Capture, Checkpoint, Study

TOKENS = "tokens"
"""Folder of the token files beside the results."""


@dataclass(frozen=True)
class Job:
    """One checkpoint with its documents and the fingerprints of its shards.

    `origins` says where its model and tokenizer come from: `repo@commit`, or the contents of a folder.
    """

    checkpoint: Checkpoint
    config: Any
    documents: Documents
    shards: tuple[range, ...]
    scope: Scope
    statistics: tuple[Statistic, ...]
    folder: Path
    origins: Mapping[str, str]
    model: str
    settings: str

    @property
    def tokens(self) -> int:
        """Tokens of all shards together."""
        return self.documents.documents * self.checkpoint.context

    def provenance(self, number: int) -> Provenance:
        """Fingerprints of one shard."""
        tokens = tokens_fingerprint(self.rows(number), self.shards[number], self.documents.documents)
        return Provenance(self.model, tokens, self.settings)

    def order(self, capture: Capture, label: str) -> Order:
        """The checkpoint as an order for any process, `label` being how progress calls it."""
        repo = str(self.checkpoint.repo)
        folder = model_folder(repo, self.checkpoint.revision)
        return Order(
            label=label,
            checkpoint=self.checkpoint,
            capture=capture,
            scope=self.scope,
            folder=self.folder.absolute(),
            model=self.model,
            commit=None if folder == Path(repo) else folder.name,
            dtype=compute_dtype(self.checkpoint, self.config),
            manifest=self.manifest(),
            shards=len(self.shards),
            plugins=loaded_plugins(),
        )

    def rows(self, number: int) -> Any:
        """Tokens [documents, context] of one shard."""
        shard = self.shards[number]
        return self.documents.tokens()[shard.start : shard.stop, : self.checkpoint.context]

    def missing(self, wanted: Sequence[int] | None = None) -> list[int]:
        """Numbers of the shards still to be computed."""
        numbers = range(len(self.shards)) if wanted is None else wanted
        provenances = {number: self.provenance(number) for number in numbers}
        return missing_shards(self.folder, provenances, len(self.shards), self.documents.documents)

    def manifest(self) -> dict[str, Any]:
        """What a manifest says of a job without its model."""
        provenances = [self.provenance(number) for number in range(len(self.shards))]
        return {"checkpoint": self.checkpoint.name, **manifest_facts(self.scope, provenances, self.statistics)}


def tokens_fingerprint(rows: Any, documents: range, total: int) -> str:
    """Hash of the tokens [documents, context] of a shard, of its documents' numbers, and of how many there are."""
    digest = hashlib.sha256(np.ascontiguousarray(rows, dtype=np.int32).tobytes())
    digest.update(f"{documents} of {total}".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Inputs:
    """What a study's checkpoints with a model are made from, as far as it was checked before anything is written."""

    statistics: tuple[Statistic, ...]
    checkpoints: tuple[Checkpoint, ...]
    configs: tuple[Any, ...]
    tokenizers: Mapping[TokenizerLocation, Any]


def check_inputs(study: Study) -> Inputs:
    """Check everything that can be checked without reading weights and documents; nothing is written."""
    statistics = tuple(build(study.capture.statistics))
    checkpoints = tuple(checkpoint for checkpoint in study.checkpoints if checkpoint.source is None)
    if not checkpoints:
        return Inputs(statistics, (), (), {})
    check_corpus(study.corpus)
    configs = tuple(load_config(checkpoint, checkpoint.context) for checkpoint in checkpoints)
    check_models(study, checkpoints, configs)
    tokenizers = {one.tokenizer_location: load_tokenizer(one) for one in _by_tokenizer(checkpoints).values()}
    return Inputs(statistics, checkpoints, configs, tokenizers)


def prepare_jobs(
    study: Study, inputs: Inputs | None = None, *, adopt: bool = False, scratch: Path | None = None
) -> list[Job]:
    """Tokenize the corpus, and cut it into shards.

    The same documents serve all checkpoints of one tokenizer: those as long as the longest of their contexts. Tokens
    are kept in the results folder, which becomes the study's (see `claimed`), or in `scratch` where nothing is to be
    written there. `inputs` is what `check_inputs` gave, if it is at hand.
    """
    inputs = check_inputs(study) if inputs is None else inputs
    if scratch is not None:
        return _jobs(study, inputs, scratch)
    with claimed(study.folder, study.owner, adopt=adopt):
        return _jobs(study, inputs, None)


def _jobs(study: Study, inputs: Inputs, scratch: Path | None) -> list[Job]:
    checkpoints, tokenizers = inputs.checkpoints, inputs.tokenizers
    # Known by what they are: a tokenizer that stands beside every revision is one tokenizer.
    vocabularies = {location: vocabulary_hash(tokenizer) for location, tokenizer in tokenizers.items()}
    lengths: dict[str, int] = {}
    for checkpoint in checkpoints:
        vocabulary = vocabularies[checkpoint.tokenizer_location]
        lengths[vocabulary] = max(checkpoint.context, lengths.get(vocabulary, 0))
    kept = study.folder / TOKENS
    documents: dict[str, Documents] = {}
    jobs = []
    for checkpoint, config in zip(checkpoints, inputs.configs, strict=True):
        vocabulary = vocabularies[checkpoint.tokenizer_location]
        if vocabulary not in documents:
            tokenizer = tokenizers[checkpoint.tokenizer_location]
            documents[vocabulary] = prepare(study.corpus, tokenizer, lengths[vocabulary], kept, scratch)
            logger.info("corpus: %s", documents[vocabulary].describe())
        _check_vocabulary(checkpoint, config, documents[vocabulary])
        jobs.append(_job(study, checkpoint, config, documents[vocabulary], inputs.statistics, vocabulary))
    return jobs


def _by_tokenizer(checkpoints: Sequence[Checkpoint]) -> dict[TokenizerLocation, Checkpoint]:
    return {checkpoint.tokenizer_location: checkpoint for checkpoint in checkpoints}


def _check_vocabulary(checkpoint: Checkpoint, config: Any, documents: Documents) -> None:
    size = getattr(config.get_text_config(decoder=True), "vocab_size", None)
    if size is not None and documents.largest >= size:
        raise RopewalkError(
            f"the tokenizer of {checkpoint.label!r} gives token {documents.largest} and the model knows {size}: "
            "they do not belong together; name the model's own as `tokenizer`"
        )


def _job(
    study: Study,
    checkpoint: Checkpoint,
    config: Any,
    documents: Documents,
    statistics: tuple[Statistic, ...],
    vocabulary: str,
) -> Job:
    scope = scope_of(study, checkpoint, documents.documents)
    origin = model_origin(checkpoint)
    return Job(
        checkpoint=checkpoint,
        config=config,
        documents=documents,
        shards=split_documents(documents.documents, study.capture.shards),
        scope=scope,
        statistics=statistics,
        folder=capture_folder(study.folder, checkpoint.slug),
        origins={
            "checkpoint": checkpoint.name,
            "model": f"{origin}, untrained" if checkpoint.random_weights else origin,
            "tokenizer": _tokenizer_origin(checkpoint.tokenizer_location, vocabulary),
        },
        model=model_fingerprint(checkpoint, config, origin),
        settings=settings_fingerprint(study.capture, scope, statistics),
    )


def _tokenizer_origin(location: TokenizerLocation, vocabulary: str) -> str:
    repo = str(location.repo)
    folder = model_folder(repo, location.revision)
    return local_origin(vocabulary) if folder == Path(repo) else f"{repo}@{folder.name}"
