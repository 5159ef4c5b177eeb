"""Vectors as Parquet, one folder per head and kind: writing the kept sample, and turning such datasets into shards.

`l{LL}h{HH}{q|k}/data.parquet` with columns bucket, example_id, position, vector, sliding_window.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ropewalk.capture.shards import (
    Identity,
    is_done,
    layer_prefix,
    moments_arrays,
    open_shard,
    shard_path,
    split_documents,
    write_manifest,
    write_shard,
)
from ropewalk.capture.sources import LAYOUT, Dataset, batches, open_dataset
from ropewalk.errors import RopewalkError
from ropewalk.files import atomic_path, write_text
from ropewalk.geometry.moments import Moments, stack
from ropewalk.models.layout import Layout
from ropewalk.progress import say
from ropewalk.study import Capture, Checkpoint

MADE_FROM = "made_from.txt"

SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("example_id", pa.int64()),
        ("position", pa.int64()),
        ("vector", pa.list_(pa.float32())),
        ("sliding_window", pa.int64()),
    ]
)


def write_vectors(folder: Path, layout: Layout, tokens: Sequence[str], bucket_size: int) -> None:
    """Lay the kept vectors of finished shards out as Parquet below `folder`/vectors; done once for the same shards.

    `tokens` holds the shards' fingerprints of their documents.
    """
    target = folder / "vectors"
    mark, made_from = target / MADE_FROM, "".join(f"{one}\n" for one in tokens)
    if mark.is_file() and mark.read_text(encoding="utf-8") == made_from:
        return
    files = [open_shard(shard_path(folder, number)) for number in range(len(tokens))]
    for layer in layout.layers:
        for kind in ("q", "k"):
            prefix = layer_prefix(layer.layer, kind)
            if f"{prefix}.heads" not in files[0].keys():  # noqa: SIM118 - not a mapping
                continue
            position, document = (
                np.concatenate([f.get_tensor(f"{prefix}.kept.{name}") for f in files])
                for name in ("position", "document")
            )
            kept = np.concatenate([f.get_tensor(f"{prefix}.kept.vectors") for f in files], axis=1)
            for index, head in enumerate(files[0].get_tensor(f"{prefix}.heads")):
                table = pa.table(
                    {
                        "bucket": pa.array(position // bucket_size, pa.int32()),
                        "example_id": document,
                        "position": position,
                        "vector": _lists(kept[index]),
                        "sliding_window": pa.array([layer.window] * len(position), pa.int64()),
                    },
                    schema=SCHEMA,
                )
                with atomic_path(target / f"l{layer.layer:02d}h{head:02d}{kind}" / "data.parquet") as temporary:
                    pq.write_table(table, temporary, compression="zstd")
    write_text(target / LAYOUT, json.dumps(layout.to_dict(), indent=1) + "\n")
    # Last, because it says that everything else is there.
    write_text(mark, made_from)


def _lists(vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> pa.ListArray:
    count, d = vectors.shape
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * d), pa.array(vectors.ravel()))


def capture_source(checkpoint: Checkpoint, capture: Capture, folder: Path) -> None:
    """Turn a dataset of vectors into shards of moments, as a capture would: documents are grouped by `example_id`."""
    if capture.pre_rope:
        raise RopewalkError(
            f"pre_rope does not go with `source` of {checkpoint.label!r}: its vectors are what they are"
        )
    dataset = open_dataset(str(checkpoint.source), capture, checkpoint.revision, checkpoint.key_heads)
    documents = _documents(dataset)
    groups = split_documents(len(documents), capture.shards)
    settings = json.dumps(
        [capture.model_dump(include={"skip_first"}), checkpoint.context, [list(head) for head in dataset.heads]]
    )
    identities = [
        Identity(
            *(
                hashlib.sha256(part.encode()).hexdigest()
                for part in (dataset.mark, repr(documents[group.start : group.stop]), settings)
            )
        )
        for group in groups
    ]
    done = [is_done(shard_path(folder, number), identity) for number, identity in enumerate(identities)]
    manifest = {
        "checkpoint": checkpoint.name,
        "context": checkpoint.context,
        "documents": len(documents),
        "shards": len(groups),
        "tokens_of_shards": [identity.tokens for identity in identities],
        "heads": [list(head) for head in dataset.heads],
        "layout": dataset.layout.to_dict(),
        "model": identities[0].model,
        "settings": identities[0].settings,
    }
    write_manifest(folder, manifest)
    if all(done):
        say(f"{checkpoint.label}: {len(groups)} shards were there already")
        return
    owners = {
        document: number for number, group in enumerate(groups) for document in documents[group.start : group.stop]
    }
    arrays: list[dict[str, Any]] = [{} for _ in groups]
    for layer, kind in dict.fromkeys((layer, kind) for layer, _, kind in sorted(dataset.files)):
        numbers = sorted(head for number, head, own in dataset.files if (number, own) == (layer, kind))
        expected = dataset.layout[layer].head_dim
        parts = [
            _grouped(dataset.files[layer, number, kind], owners, len(groups), expected, checkpoint, capture)
            for number in numbers
        ]
        prefix = layer_prefix(layer, kind)
        for group, own in enumerate(zip(*parts, strict=True)):
            arrays[group] |= moments_arrays(prefix, stack(own)) | {f"{prefix}.heads": np.asarray(numbers)}
    for number, identity in enumerate(identities):
        write_shard(shard_path(folder, number), arrays[number], identity)
    say(f"{checkpoint.label}: {len(groups)} shards of {len(dataset.heads)} heads read from {checkpoint.source}")


def _documents(dataset: Dataset) -> list[Any]:
    """Sorted ids of the documents: a sample of vectors may leave some of them out of some files."""
    found: set[Any] = set()
    for path in dataset.files.values():
        for batch in batches(path, ("example_id",)):
            found |= set(np.unique(batch["example_id"]).tolist())
    return sorted(found)


def _grouped(
    path: Path, owners: dict[Any, int], groups: int, head_dim: int, checkpoint: Checkpoint, capture: Capture
) -> list[Moments]:
    """Moments of one head per group of documents, read a few thousand rows at a time."""
    totals: list[Moments | None] = [None] * groups
    for batch in batches(path, ("position", "example_id", "vector")):
        position, vector = batch["position"], batch["vector"]
        if vector.shape[1] != head_dim:
            raise RopewalkError(
                f"{path} holds vectors of {vector.shape[1]} numbers where the others of its layer have {head_dim}: "
                "capture it again"
            )
        if position.min() < 0 or position.max() >= checkpoint.context:
            beyond = int(position.min() if position.min() < 0 else position.max())
            raise RopewalkError(
                f"{path} holds position {beyond}, which is outside the context {checkpoint.context}: "
                "set `context` to the length of its documents"
            )
        documents, which = np.unique(batch["example_id"], return_inverse=True)
        owner = np.array([owners[document] for document in documents.tolist()])[which]
        for group in np.unique(owner):
            rows = (owner == group) & (position >= capture.skip_first)
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
