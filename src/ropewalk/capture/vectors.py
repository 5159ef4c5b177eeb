"""Turning datasets of vectors into shards, as a capture would."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.capture.manifest import NO_MODEL, manifest_facts, model_facts, write_manifest
from ropewalk.capture.settings import described, scope_of
from ropewalk.capture.shards import (
    Provenance,
    capture_folder,
    missing_shards,
    shard_path,
    split_documents,
    write_shard,
)
from ropewalk.capture.sources import Dataset, open_dataset
from ropewalk.capture.vector_files import batches
from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import fingerprint
from ropewalk.geometry.moments import Moments, no_moments, stack
from ropewalk.progress import logger
from ropewalk.statistics.base import KINDS, Scope, Sums, layers_of
from ropewalk.statistics.moments import MomentSums, cuts, moment_sums
from ropewalk.statistics.stream import shuffle
from ropewalk.study import Checkpoint, Study
from ropewalk.text import count


@dataclass(frozen=True)
class SourceJob:
    """One checkpoint whose vectors are on disk: its files, its documents by `example_id`, and their groups."""

    checkpoint: Checkpoint
    dataset: Dataset
    documents: list[Any]
    shards: tuple[range, ...]
    scope: Scope
    folder: Path
    provenances: tuple[Provenance, ...]

    @property
    def origins(self) -> dict[str, str]:
        """Where its vectors come from: `repo@commit`, or the contents of a folder."""
        return {"checkpoint": self.checkpoint.name, "vectors": self.dataset.origin}

    def missing(self) -> list[int]:
        """Numbers of the shards still to be computed."""
        return missing_shards(self.folder, dict(enumerate(self.provenances)), len(self.shards), len(self.documents))

    @property
    def lacks_heads(self) -> bool:
        """Whether there are fewer heads than the study asks for."""
        return len(self.dataset.heads) < self.dataset.asked

    def describe_heads(self) -> str:
        """How many of the heads that the study asks for are there."""
        return f"{len(self.dataset.heads):,} of the {count(self.dataset.asked, 'head')} asked for"


def prepare_sources(study: Study, is_wanted: Callable[[Checkpoint], bool] = lambda _: True) -> list[SourceJob]:
    """Open the datasets of vectors of a study, and say where one has fewer heads than asked for."""
    jobs = [_job(study, one) for one in study.checkpoints if one.source is not None and is_wanted(one)]
    for job in jobs:
        if job.lacks_heads:
            logger.info("%s: %s are in %s", job.checkpoint.label, job.describe_heads(), job.checkpoint.source)
    return jobs


def _job(study: Study, checkpoint: Checkpoint) -> SourceJob:
    capture = study.capture
    if capture.pre_rope:
        raise RopewalkError(
            f"pre_rope does not go with `source` of {checkpoint.label!r}: its vectors are what they are"
        )
    dataset = open_dataset(checkpoint, capture)
    documents = _documents(dataset, checkpoint.context)
    groups = split_documents(len(documents), capture.shards)
    # The context decides nothing but which positions are refused: shards of a longer one may hold such.
    settings = [capture.skip_first, capture.seed, checkpoint.context, dataset.heads, described([MomentSums()])]
    return SourceJob(
        checkpoint=checkpoint,
        dataset=dataset,
        documents=documents,
        shards=groups,
        scope=scope_of(study, checkpoint, len(documents)),
        folder=capture_folder(study.folder, checkpoint.slug),
        provenances=tuple(
            Provenance(*map(fingerprint, (dataset.origin, documents[group.start : group.stop], settings)))
            for group in groups
        ),
    )


def run_source(job: SourceJob) -> None:
    """Turn a dataset of vectors into the missing shards of moments, as a capture would.

    The other statistics need a model: a dataset does not hold every token of every head.
    """
    missing, dataset, scope = job.missing(), job.dataset, job.scope
    manifest = {
        "checkpoint": job.checkpoint.name,
        **manifest_facts(scope, job.provenances, [MomentSums()]),
        **model_facts(dataset.layout, dataset.heads, None, NO_MODEL),
    }
    if not missing:
        write_manifest(job.folder, manifest)
        logger.info("%s: %d shards were there already", job.checkpoint.label, len(job.shards))
        return
    owners = {
        document: number
        for number, group in enumerate(job.shards)
        for document in job.documents[group.start : group.stop]
    }
    chosen = layers_of(dataset.layout, dataset.heads)
    shards: list[dict[tuple[str, int], Sums]] = [{} for _ in job.shards]
    for heads in chosen:
        layer = heads.layer.layer
        q, k = (
            [
                _grouped(dataset.files[layer, number, kind], owners, len(shards), heads.layer.head_dim, scope)
                for number in heads.numbers(kind)
            ]
            for kind in KINDS
        )
        for group, shard in enumerate(shards):
            own = {kind: [parts[group] for parts in files] for kind, files in (("q", q), ("k", k))}
            whole = {kind: stack([one.whole for one in sums]) for kind, sums in own.items()}
            leading = {
                cut: {kind: stack([one.leading[cut] for one in sums]) for kind, sums in own.items()}
                for cut in cuts(scope)
            }
            shuffled = {kind: np.stack([one.shuffled for one in sums]) for kind, sums in own.items()}
            shard[MomentSums.name, layer] = moment_sums(whole, shuffled, leading)
    # Not before all files were read: what is wrong in one shows only then.
    write_manifest(job.folder, manifest)
    for number in missing:
        write_shard(shard_path(job.folder, number), shards[number], chosen, job.provenances[number])
    logger.info(
        "%s: %d shards of %d heads read from %s",
        job.checkpoint.label,
        len(missing),
        len(dataset.heads),
        job.checkpoint.source,
    )


def _documents(dataset: Dataset, context: int) -> list[Any]:
    """Sorted ids of the documents: a sample of vectors may leave some of them out of some files."""
    found: set[Any] = set()
    kinds: dict[type, Path] = {}
    for path in dataset.files.values():
        for batch in batches(path, ("position", "example_id")):
            _check_positions(path, batch["position"], context)
            found |= set(np.unique(batch["example_id"]).tolist())
            kinds.setdefault(str if batch["example_id"].dtype == object else int, path)
    if len(kinds) > 1:
        raise RopewalkError(
            f"{kinds[str]} has text in the column 'example_id' and {kinds[int]} numbers: give documents the same ids "
            "in all files"
        )
    if not found:
        raise RopewalkError(f"{next(iter(dataset.files.values()))} holds no vectors: capture this head again")
    return sorted(found)


def _check_positions(path: Path, position: Any, context: int) -> None:
    if position.min() < 0 or position.max() >= context:
        beyond = int(position.min() if position.min() < 0 else position.max())
        raise RopewalkError(
            f"{path} holds position {beyond}, which is outside the context {context}: "
            "set `context` to the length of its documents"
        )


class _GroupSums:
    """Moments of one head over a group of documents, added up a batch at a time."""

    def __init__(self, head_dim: int, scope: Scope) -> None:
        self.whole = no_moments(head_dim)
        self.leading = {cut: no_moments(head_dim) for cut in cuts(scope)}
        self.shuffled = np.zeros(head_dim)
        self._skip_first = scope.skip_first

    def add(self, vectors: Any, positions: Any, shuffled: Any) -> None:
        """Add vectors [tokens, d] at positions [tokens], and the same in another order."""
        self.whole = self.whole.merge(Moments.of(vectors[None], positions))
        self.shuffled = self.shuffled + (shuffled - positions).astype(np.float64) @ vectors.astype(np.float64)
        for cut, before in self.leading.items():
            near = positions < self._skip_first + cut
            if near.any():
                self.leading[cut] = before.merge(Moments.of(vectors[None, near], positions[near]))


def _grouped(path: Path, owners: dict[Any, int], groups: int, head_dim: int, scope: Scope) -> list[_GroupSums]:
    """Sums of one head per group of documents, read a few thousand rows at a time."""
    totals: list[_GroupSums] = []
    order = {document: number for number, document in enumerate(sorted(owners))}
    shuffled, start = _shuffled(path, order, scope), 0
    for batch in batches(path, ("position", "example_id", "vector")):
        position, vector = batch["position"], batch["vector"]
        labels, start = shuffled[start : start + len(position)], start + len(position)
        if vector.shape[1] != head_dim:
            raise RopewalkError(
                f"{path} holds vectors of {vector.shape[1]} numbers where the others of its layer have {head_dim}: "
                "capture it again"
            )
        # Made when the length of vectors is known to be true: it decides how much memory they take.
        totals = totals or [_GroupSums(head_dim, scope) for _ in range(groups)]
        _check_positions(path, position, scope.context)
        documents, which = np.unique(batch["example_id"], return_inverse=True)
        owner = np.array([owners[document] for document in documents.tolist()])[which]
        for group in np.unique(owner):
            rows = (owner == group) & (position >= scope.skip_first)
            if rows.any():
                totals[group].add(vector[rows], position[rows], labels[rows])
    empty = sum(total.whole.n[0] == 0 for total in totals)
    if empty == groups:
        raise RopewalkError(f"{path} holds no vectors: capture this head again")
    if empty:
        raise RopewalkError(f"{path} has no vectors of some of the {groups} groups of documents: lower capture.shards")
    return totals


def _shuffled(path: Path, order: dict[Any, int], scope: Scope) -> Any:
    """The position of every row of a file, those that count shuffled among the rows of its document."""
    columns = list(batches(path, ("position", "example_id")))
    if not columns:
        raise RopewalkError(f"{path} holds no vectors: capture this head again")
    positions = np.concatenate([batch["position"] for batch in columns])
    documents, which = np.unique(np.concatenate([batch["example_id"] for batch in columns]), return_inverse=True)
    labels = positions.copy()
    counting = np.flatnonzero(positions >= scope.skip_first)
    # By document, and within one in the order of the file.
    counting = counting[np.argsort(which[counting], kind="stable")]
    borders = np.searchsorted(which[counting], np.arange(len(documents) + 1))
    for number, document in enumerate(documents.tolist()):
        rows = counting[borders[number] : borders[number + 1]]
        labels[rows] = positions[rows][shuffle(scope.seed, order[document], len(rows))]
    return labels
