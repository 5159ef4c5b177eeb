"""Turning datasets of vectors into shards, as a capture would."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.capture.settings import scope_of
from ropewalk.capture.shards import (
    Provenance,
    is_done,
    manifest_facts,
    model_facts,
    shard_path,
    split_documents,
    write_manifest,
    write_shard,
)
from ropewalk.capture.sources import Dataset, batches, open_dataset
from ropewalk.errors import RopewalkError
from ropewalk.geometry.moments import Moments, stack
from ropewalk.progress import logger
from ropewalk.statistics.base import Scope, Sums, layers_of
from ropewalk.statistics.moments import MomentSums, moment_sums
from ropewalk.study import Capture, Checkpoint


def capture_source(checkpoint: Checkpoint, capture: Capture, folder: Path) -> None:
    """Turn a dataset of vectors into shards of moments, as a capture would: documents are grouped by `example_id`.

    The other statistics need a model: a dataset does not hold every token of every head.
    """
    if capture.pre_rope:
        raise RopewalkError(
            f"pre_rope does not go with `source` of {checkpoint.label!r}: its vectors are what they are"
        )
    dataset = open_dataset(str(checkpoint.source), capture, checkpoint.revision, checkpoint.key_heads)
    documents = _documents(dataset)
    groups = split_documents(len(documents), capture.shards)
    settings = json.dumps([capture.skip_first, checkpoint.context, [list(head) for head in dataset.heads]])
    provenances = [
        Provenance(*map(_hash, (dataset.mark, repr(documents[group.start : group.stop]), settings))) for group in groups
    ]
    done = [is_done(shard_path(folder, number), provenance) for number, provenance in enumerate(provenances)]
    scope = scope_of(capture, checkpoint, len(documents))
    manifest = {
        "checkpoint": checkpoint.name,
        **manifest_facts(scope, provenances, [MomentSums()]),
        **model_facts(dataset.layout, dataset.heads),
    }
    write_manifest(folder, manifest)
    if all(done):
        logger.info("%s: %d shards were there already", checkpoint.label, len(groups))
        return
    owners = {
        document: number for number, group in enumerate(groups) for document in documents[group.start : group.stop]
    }
    chosen = layers_of(dataset.layout, dataset.heads)
    shards: list[dict[tuple[str, int], Sums]] = [{} for _ in groups]
    for heads in chosen:
        layer = heads.layer.layer
        q, k = (
            [
                _grouped(dataset.files[layer, number, kind], owners, len(groups), heads.layer.head_dim, scope)
                for number in numbers
            ]
            for kind, numbers in (("q", heads.heads), ("k", heads.key_heads))
        )
        for group, shard in enumerate(shards):
            shard[MomentSums.name, layer] = moment_sums(
                stack([parts[group] for parts in q]), stack([parts[group] for parts in k])
            )
    for number, provenance in enumerate(provenances):
        write_shard(shard_path(folder, number), shards[number], chosen, provenance)
    logger.info(
        "%s: %d shards of %d heads read from %s", checkpoint.label, len(groups), len(dataset.heads), checkpoint.source
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _documents(dataset: Dataset) -> list[Any]:
    """Sorted ids of the documents: a sample of vectors may leave some of them out of some files."""
    found: set[Any] = set()
    for path in dataset.files.values():
        for batch in batches(path, ("example_id",)):
            found |= set(np.unique(batch["example_id"]).tolist())
    return sorted(found)


def _grouped(path: Path, owners: dict[Any, int], groups: int, head_dim: int, scope: Scope) -> list[Moments]:
    """Moments of one head per group of documents, read a few thousand rows at a time."""
    totals: list[Moments | None] = [None] * groups
    for batch in batches(path, ("position", "example_id", "vector")):
        position, vector = batch["position"], batch["vector"]
        if vector.shape[1] != head_dim:
            raise RopewalkError(
                f"{path} holds vectors of {vector.shape[1]} numbers where the others of its layer have {head_dim}: "
                "capture it again"
            )
        if position.min() < 0 or position.max() >= scope.context:
            beyond = int(position.min() if position.min() < 0 else position.max())
            raise RopewalkError(
                f"{path} holds position {beyond}, which is outside the context {scope.context}: "
                "set `context` to the length of its documents"
            )
        documents, which = np.unique(batch["example_id"], return_inverse=True)
        owner = np.array([owners[document] for document in documents.tolist()])[which]
        for group in np.unique(owner):
            rows = (owner == group) & (position >= scope.skip_first)
            if rows.any():
                part = Moments.of(vector[None, rows], position[rows])
                before = totals[group]
                totals[group] = part if before is None else before.merge(part)
    whole = [total for total in totals if total is not None]
    if not whole:
        raise RopewalkError(f"{path} holds no vectors: capture this head again")
    if len(whole) < groups:
        raise RopewalkError(f"{path} has no vectors of some of the {groups} groups of documents: lower capture.shards")
    return whole
