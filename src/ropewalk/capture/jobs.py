"""What a study asks for: one job per checkpoint, with its documents, shards and fingerprints."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.capture.corpus import Documents, check_corpus, prepare, vocabulary_hash
from ropewalk.capture.settings import scope_of, settings_fingerprint
from ropewalk.capture.shards import Provenance, capture_folder, is_done, manifest_facts, shard_path, split_documents
from ropewalk.errors import RopewalkError
from ropewalk.models.hub import model_folder
from ropewalk.models.loading import load_config, load_tokenizer, model_fingerprint
from ropewalk.models.source import TokenizerLocation
from ropewalk.models.weights import check_present
from ropewalk.progress import logger
from ropewalk.statistics.base import Scope, Statistic
from ropewalk.statistics.registry import build
from ropewalk.study import Checkpoint, Study


@dataclass(frozen=True)
class Job:
    """One checkpoint with its documents and the fingerprints of its shards."""

    checkpoint: Checkpoint
    config: Any
    documents: Documents
    shards: tuple[range, ...]
    scope: Scope
    statistics: tuple[Statistic, ...]
    folder: Path
    model: str
    settings: str

    @property
    def tokens(self) -> int:
        """Tokens of all shards together."""
        return self.documents.documents * self.checkpoint.context

    def provenance(self, number: int) -> Provenance:
        """Fingerprints of one shard."""
        return Provenance(self.model, tokens_fingerprint(self.rows(number), self.shards[number]), self.settings)

    def rows(self, number: int) -> Any:
        """Tokens [documents, context] of one shard."""
        shard = self.shards[number]
        return self.documents.tokens()[shard.start : shard.stop, : self.checkpoint.context]

    def missing(self, wanted: Sequence[int] | None = None) -> list[int]:
        """Numbers of the shards still to be computed."""
        numbers = range(len(self.shards)) if wanted is None else wanted
        return [number for number in numbers if not is_done(shard_path(self.folder, number), self.provenance(number))]

    def manifest(self) -> dict[str, Any]:
        """What a manifest says of a job without its model."""
        provenances = [self.provenance(number) for number in range(len(self.shards))]
        return {"checkpoint": self.checkpoint.name, **manifest_facts(self.scope, provenances, self.statistics)}


def tokens_fingerprint(rows: Any, documents: range) -> str:
    """Hash of the tokens [documents, context] of a shard and of the documents' numbers."""
    digest = hashlib.sha256(np.ascontiguousarray(rows, dtype=np.int32).tobytes())
    digest.update(f"{documents}".encode())
    return digest.hexdigest()


def prepare_jobs(study: Study) -> list[Job]:
    """Check everything that can be checked without weights, tokenize the corpus, and cut it into shards.

    The same documents serve all checkpoints of one tokenizer: those as long as the longest of their contexts.
    """
    statistics = tuple(build(study.capture.statistics))
    checkpoints = [checkpoint for checkpoint in study.checkpoints if checkpoint.source is None]
    if not checkpoints:
        return []
    check_corpus(study.corpus)
    configs = [load_config(checkpoint, checkpoint.context) for checkpoint in checkpoints]
    for checkpoint in checkpoints:
        if not checkpoint.random_weights and not checkpoint.gguf_file:
            repo = str(checkpoint.repo)
            check_present(repo, model_folder(repo, checkpoint.revision))
    tokenizers = {one.tokenizer_location: load_tokenizer(one) for one in _by_tokenizer(checkpoints).values()}
    # Known by what they are: a tokenizer that stands beside every revision is one tokenizer.
    vocabularies = {location: vocabulary_hash(tokenizer) for location, tokenizer in tokenizers.items()}
    lengths: dict[str, int] = {}
    for checkpoint in checkpoints:
        vocabulary = vocabularies[checkpoint.tokenizer_location]
        lengths[vocabulary] = max(checkpoint.context, lengths.get(vocabulary, 0))
    documents: dict[str, Documents] = {}
    jobs = []
    for checkpoint, config in zip(checkpoints, configs, strict=True):
        vocabulary = vocabularies[checkpoint.tokenizer_location]
        if vocabulary not in documents:
            tokenizer = tokenizers[checkpoint.tokenizer_location]
            documents[vocabulary] = prepare(study.corpus, tokenizer, lengths[vocabulary], study.folder / "tokens")
            logger.info("corpus: %s", documents[vocabulary].describe())
        _check_vocabulary(checkpoint, config, documents[vocabulary])
        jobs.append(_job(study, checkpoint, config, documents[vocabulary], statistics))
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
    study: Study, checkpoint: Checkpoint, config: Any, documents: Documents, statistics: tuple[Statistic, ...]
) -> Job:
    scope = scope_of(study.capture, checkpoint, documents.documents)
    return Job(
        checkpoint=checkpoint,
        config=config,
        documents=documents,
        shards=split_documents(documents.documents, study.capture.shards),
        scope=scope,
        statistics=statistics,
        folder=capture_folder(study.folder, checkpoint.slug),
        model=model_fingerprint(checkpoint, config),
        settings=settings_fingerprint(study.capture, scope, statistics),
    )
