"""What a study asks for: one job per checkpoint, with its documents, shards and fingerprints."""

import hashlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ropewalk.capture.checks import check_models
from ropewalk.capture.corpus import Documents, expect, prepare
from ropewalk.capture.manifest import manifest_facts
from ropewalk.capture.settings import scope_of, settings_fingerprint
from ropewalk.capture.shards import (
    Provenance,
    capture_folder,
    missing_shards,
    split_documents,
)
from ropewalk.capture.texts import check_corpus
from ropewalk.capture.tokenizers import Tokenizers
from ropewalk.capture.work import Order
from ropewalk.corpora import Corpus
from ropewalk.digests import Digests
from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import local_origin
from ropewalk.models.device import compute_dtype
from ropewalk.models.hub import model_folder
from ropewalk.models.identity import model_fingerprint, model_origin
from ropewalk.models.loading import load_config
from ropewalk.models.source import TokenizerLocation
from ropewalk.ownership import claimed
from ropewalk.progress import logger
from ropewalk.statistics.base import Scope, Statistic
from ropewalk.statistics.registry import build, loaded_plugins
from ropewalk.study import Capture, Checkpoint, Study

TOKENS = "tokens"
"""Folder of the token files beside the results."""

Found = TypeVar("Found")
Check = Callable[[int], object]


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
class Draft:
    """A checkpoint whose documents are not tokenized yet: what a plan can know of its job.

    `documents` is how many are asked for, None for all that are long enough.
    """

    checkpoint: Checkpoint
    config: Any
    documents: int | None
    shards: int
    scope: Scope
    statistics: tuple[Statistic, ...]
    folder: Path
    model: str
    settings: str

    def missing(self) -> list[int]:
        """Numbers of the shards still to be computed; those that are there are taken to be of the same documents."""
        expected = Provenance(self.model, None, self.settings)
        return missing_shards(self.folder, dict.fromkeys(range(self.shards), expected), self.shards, self.documents)


@dataclass(frozen=True)
class Inputs:
    """What checkpoints with a model are made from, as far as it was checked before anything is written."""

    statistics: tuple[Statistic, ...]
    checkpoints: tuple[Checkpoint, ...]
    configs: tuple[Any, ...]
    tokenizers: Tokenizers


def check_inputs(study: Study, wanted: Container[str] | None = None) -> Inputs:
    """Check everything that can be checked without reading weights and documents; nothing is written.

    `wanted` names the checkpoints that are looked at, in place of all.
    """
    statistics, tokenizers = tuple(build(study.capture.statistics)), Tokenizers()
    checkpoints = tuple(one for one in _with_model(study) if wanted is None or one.name in wanted)
    if not checkpoints:
        return Inputs(statistics, (), (), tokenizers)
    check_corpus(study.corpus)
    configs = tuple(load_config(checkpoint, checkpoint.context) for checkpoint in checkpoints)
    check_models(study, checkpoints, configs)
    for checkpoint in checkpoints:
        tokenizers.of(checkpoint)
    return Inputs(statistics, checkpoints, configs, tokenizers)


def prepare_jobs(study: Study, inputs: Inputs | None = None, *, adopt: bool = False) -> list[Job]:
    """Tokenize the corpus, and cut it into shards.

    The same documents serve all checkpoints of one tokenizer: those as long as the longest of their contexts, in the
    whole study. Tokens are kept in the results folder, which becomes the study's (see `claimed`). `inputs` is what
    `check_inputs` gave, if it is at hand.
    """
    inputs = check_inputs(study) if inputs is None else inputs
    with claimed(study.folder, study.owner, adopt=adopt):
        documents, digests = _documents(study, inputs, prepare), Digests(study.folder)
        for one in dict.fromkeys(documents):
            logger.info("corpus: %s", one.describe())
        jobs = [
            _job(study, inputs, checkpoint, config, own, digests)
            for checkpoint, config, own in zip(inputs.checkpoints, inputs.configs, documents, strict=True)
        ]
        digests.write()
        return jobs


def draft_jobs(study: Study, inputs: Inputs) -> list[Job | Draft]:
    """What `prepare_jobs` would give, without tokenizing anything: drafts of jobs whose documents are not there yet."""
    documents, digests = _documents(study, inputs, expect), Digests(study.folder)
    return [
        _draft(study, inputs, checkpoint, config, digests)
        if own is None
        else _job(study, inputs, checkpoint, config, own, digests)
        for checkpoint, config, own in zip(inputs.checkpoints, inputs.configs, documents, strict=True)
    ]


def _with_model(study: Study) -> list[Checkpoint]:
    return [checkpoint for checkpoint in study.checkpoints if checkpoint.source is None]


def _documents(study: Study, inputs: Inputs, find: Callable[[Corpus, Any, int, Path, Check], Found]) -> list[Found]:
    """The documents of each checkpoint of the inputs; they are found once for each tokenizer, whatever its location."""
    found: dict[str, Found] = {}
    tokenizers, models = inputs.tokenizers, list(zip(inputs.checkpoints, inputs.configs, strict=True))
    for checkpoint in inputs.checkpoints:
        vocabulary = tokenizers.vocabulary(checkpoint)
        if vocabulary not in found:
            length = tokenizers.length(checkpoint, _with_model(study))
            sharing = [(one, config) for one, config in models if tokenizers.vocabulary(one) == vocabulary]
            check = partial(_check_vocabulary, sharing)
            found[vocabulary] = find(study.corpus, tokenizers.of(checkpoint), length, study.folder / TOKENS, check)
    return [found[tokenizers.vocabulary(checkpoint)] for checkpoint in inputs.checkpoints]


def _check_vocabulary(models: Sequence[tuple[Checkpoint, Any]], largest: int) -> None:
    """Stop at a token id that a model does not know, of those that a tokenizer is for."""
    for checkpoint, config in models:
        size = getattr(config.get_text_config(decoder=True), "vocab_size", None)
        if size is not None and largest >= size:
            raise RopewalkError(
                f"the tokenizer of {checkpoint.label!r} gives token {largest} and the model knows {size}: they do not "
                "belong together; name the model's own as `tokenizer`"
            )


def _job(
    study: Study, inputs: Inputs, checkpoint: Checkpoint, config: Any, documents: Documents, digests: Digests
) -> Job:
    scope = scope_of(study, checkpoint, documents.documents)
    origin = model_origin(checkpoint, digests)
    return Job(
        checkpoint=checkpoint,
        config=config,
        documents=documents,
        shards=split_documents(documents.documents, study.capture.shards),
        scope=scope,
        statistics=inputs.statistics,
        folder=capture_folder(study.folder, checkpoint.slug),
        origins={
            "checkpoint": checkpoint.name,
            "model": f"{origin}, untrained" if checkpoint.random_weights else origin,
            "tokenizer": _tokenizer_origin(checkpoint.tokenizer_location, inputs.tokenizers.vocabulary(checkpoint)),
        },
        model=model_fingerprint(checkpoint, config, origin),
        settings=settings_fingerprint(study.capture, scope, inputs.statistics),
    )


def _draft(study: Study, inputs: Inputs, checkpoint: Checkpoint, config: Any, digests: Digests) -> Draft:
    asked, shards = study.corpus.documents, study.capture.shards
    shards = shards if asked is None else min(shards, asked)
    # Of all that are long enough there is at least one for each shard, or there would be fewer of those.
    scope = scope_of(study, checkpoint, shards if asked is None else asked)
    return Draft(
        checkpoint=checkpoint,
        config=config,
        documents=asked,
        shards=shards,
        scope=scope,
        statistics=inputs.statistics,
        folder=capture_folder(study.folder, checkpoint.slug),
        model=model_fingerprint(checkpoint, config, model_origin(checkpoint, digests)),
        settings=settings_fingerprint(study.capture, scope, inputs.statistics),
    )


def _tokenizer_origin(location: TokenizerLocation, vocabulary: str) -> str:
    repo = str(location.repo)
    folder = model_folder(repo, location.revision)
    return local_origin(vocabulary) if folder == Path(repo) else f"{repo}@{folder.name}"
