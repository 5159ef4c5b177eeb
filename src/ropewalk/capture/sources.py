"""Existing datasets of vectors in the layout `l{LL}h{HH}{q|k}/data.parquet`: finding heads, and streaming them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ropewalk.capture.manifest import MANIFEST
from ropewalk.capture.settings import choose_heads
from ropewalk.capture.shards import StoredCapture
from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import file_fingerprint, fingerprint, local_origin
from ropewalk.models.hub import dataset_folder, dataset_names
from ropewalk.models.layout import LAYOUT_FILE, AttentionLayer, Head, Layout
from ropewalk.models.source import OF_VECTORS
from ropewalk.statistics.sample import MADE_FROM
from ropewalk.study import Capture, Checkpoint

HeadKey = tuple[int, int, str]
"""(layer, number of the query or key head, kind)."""

FOLDER = re.compile(r"l(\d+)h(\d+)([qk])/data\.parquet")
UNKNOWN = "vectors"
"""Model type of a dataset that does not tell its model's layout."""

REQUIRED = ("position", "example_id", "vector")
ROWS = 4096
BUFFER = 1 << 20
"""Rows and bytes read at once: what bounds the memory, whatever the size of a file."""


@dataclass(frozen=True)
class Dataset:
    """The files of chosen heads: queries by (layer, head, "q"), keys by (layer, key head, "k").

    `origin` is `repo@commit`, or the contents of the files. `asked` counts the heads that the study asks for, which may
    be more than there are.
    """

    layout: Layout
    heads: list[Head]
    asked: int
    files: dict[HeadKey, Path]
    origin: str


def open_dataset(checkpoint: Checkpoint, capture: Capture) -> Dataset:
    """Find the files of the heads that `capture` picks, in a folder or in a hub dataset: nothing else is fetched.

    How query heads map to key heads, how deep the model is and which layers rotate comes from `layout.json` when it is
    there, else from the checkpoint, else from the highest numbers. A sample, or all heads, is of those that are there.
    Keys may be stored per key head or per query head: there, the first chosen query head that reads a key head gives
    its keys.
    """
    source = str(checkpoint.source)
    location = _Folder(Path(source)) if Path(source).is_dir() else _Hub(source, checkpoint.revision)
    if isinstance(location, _Folder):
        _check_current(location.folder)
    names = {
        (int(match[1]), int(match[2]), match[3]): name for name in location.names() if (match := FOLDER.fullmatch(name))
    }
    if not any(kind == "q" for _, _, kind in names) or not any(kind == "k" for _, _, kind in names):
        raise RopewalkError(
            f"{source} holds no vectors: it needs folders such as l00h00q and l00h00k, each with a data.parquet"
        )
    layout = _layout(location, checkpoint, names)
    if capture.full_attention_only and layout.model_type == UNKNOWN:
        firsts = {layer: (layer, head, kind) for layer, head, kind in sorted(names, reverse=True) if kind == "q"}
        layout = _described(layout, location.fetch({key: names[key] for key in firsts.values()}))
    present = {(layer, head) for layer, head, kind in names if kind == "q"}
    heads = choose_heads(layout, capture, present)
    whole = len(choose_heads(layout, capture.model_copy(update={"heads": "all"})))
    wanted = _wanted(source, layout, heads, names)
    files = location.fetch(wanted)
    return Dataset(
        layout=_described(layout, files),
        heads=heads,
        asked=whole if capture.heads == "all" or capture.pairs is not None else capture.heads,
        files=files,
        origin=location.origin(files),
    )


def _check_current(folder: Path) -> None:
    """Stop at vectors that a capture kept and that are not of the shards beside them any more."""
    mark = folder / MADE_FROM
    if not mark.is_file() or not (folder.parent / MANIFEST).is_file():
        return
    if mark.read_text(encoding="utf-8") != StoredCapture(folder.parent, folder.parent.name).provenance:
        raise RopewalkError(
            f"{folder} was kept by an earlier capture than the one in {folder.parent}: run `ropewalk capture` on its "
            "study, with `sample` among its statistics, to write it anew"
        )


def _layout(location: "_Folder | _Hub", checkpoint: Checkpoint, names: dict[HeadKey, str]) -> Layout:
    source, key_heads = checkpoint.source, checkpoint.key_heads
    if LAYOUT_FILE in location.names():
        stated = [field for field in OF_VECTORS if getattr(checkpoint, field) is not None]
        if stated:
            raise RopewalkError(
                f"{source} has a {LAYOUT_FILE}, which tells what its model is: remove it, or `{stated[0]}` from the "
                "study"
            )
        path = location.fetch({(0, 0, ""): LAYOUT_FILE})[0, 0, ""]
        try:
            return Layout.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise RopewalkError(
                f"{path} is damaged: write it again, or remove it and set `key_heads` in the study"
            ) from error
    queries = 1 + max(head for _, head, kind in names if kind == "q")
    keys = key_heads or 1 + max(head for _, head, kind in names if kind == "k")
    if key_heads:
        # The last query heads may be missing from a sample.
        queries = -(-queries // keys) * keys
    if queries % keys:
        raise RopewalkError(
            f"{source} has query heads up to {queries - 1} and key heads up to {keys - 1}: set `key_heads` in the study"
        )
    layers = sorted({layer for layer, _, kind in names if kind == "q"})
    depth = _depth(checkpoint, layers[-1])
    nope, sliding = checkpoint.nope_layers, checkpoint.sliding_layers or ()
    described = tuple(
        AttentionLayer(
            call_index=index,
            layer=layer,
            query_heads=queries,
            key_heads=keys,
            head_dim=0,
            rotary=None if nope is None else float(layer not in nope),
            window=checkpoint.sliding_window if layer in sliding else None,
        )
        for index, layer in enumerate(layers)
    )
    return Layout(UNKNOWN, depth, described, False)


def _depth(checkpoint: Checkpoint, last: int) -> int:
    """Layers of the model, whose last one with vectors is `last`."""
    if checkpoint.depth is not None and checkpoint.depth <= last:
        raise RopewalkError(
            f"{checkpoint.source} holds layer {last} and the study says `depth: {checkpoint.depth}` of "
            f"{checkpoint.label!r}: it is at least {last + 1}"
        )
    depth = checkpoint.depth or last + 1
    for field in ("nope_layers", "sliding_layers"):
        highest = max(getattr(checkpoint, field) or (), default=-1)
        if highest >= depth:
            raise RopewalkError(
                f"`{field}` of {checkpoint.label!r} names layer {highest} and {checkpoint.source} ends with layer "
                f"{last}: set `depth` to the layers of the model"
            )
    return depth


def _described(layout: Layout, files: dict[HeadKey, Path]) -> Layout:
    """The layout with the length of vectors and the sliding window as the files show them."""
    if layout.model_type != UNKNOWN:
        return layout
    seen = {layer: path for (layer, _, kind), path in files.items() if kind == "q"}
    return replace(
        layout,
        layers=tuple(_seen(layer, seen[layer.layer]) if layer.layer in seen else layer for layer in layout.layers),
    )


def _seen(layer: AttentionLayer, path: Path) -> AttentionLayer:
    batch = next(batches(path, ("vector", "sliding_window")), None)
    if batch is None:
        raise RopewalkError(f"{path} holds no vectors: capture this head again")
    window = batch["sliding_window"][0] if "sliding_window" in batch else np.nan
    return replace(layer, head_dim=batch["vector"].shape[1], window=int(window) if window > 0 else layer.window)


def _wanted(source: str, layout: Layout, heads: list[Head], names: dict[HeadKey, str]) -> dict[HeadKey, str]:
    """Names of the files of heads: their queries, and once per key head the keys."""
    stored = {kind: {(layer, head) for layer, head, own in names if own == kind} for kind in ("q", "k")}
    own_keys = stored["q"] == stored["k"] or any(head >= layout[layer].key_heads for layer, head in stored["k"])
    wanted: dict[HeadKey, str] = {}
    for head in heads:
        keys = (head.layer, head.head if own_keys else head.k_head, "k")
        for wanted_key, key in (
            ((head.layer, head.head, "q"), (head.layer, head.head, "q")),
            ((head.layer, head.k_head, "k"), keys),
        ):
            if wanted_key in wanted:
                continue
            if key not in names:
                folder = f"l{key[0]:02d}h{key[1]:02d}{key[2]}"
                raise RopewalkError(
                    f"{source} has no {folder}: add it, or name the heads that are there with capture.pairs"
                )
            wanted[wanted_key] = names[key]
    return wanted


@dataclass(frozen=True)
class _Folder:
    """A dataset in a folder."""

    folder: Path

    def names(self) -> list[str]:
        found = [path.relative_to(self.folder).as_posix() for path in sorted(self.folder.glob("l*h*/data.parquet"))]
        return found + [LAYOUT_FILE] * (self.folder / LAYOUT_FILE).is_file()

    def fetch(self, names: dict[HeadKey, str]) -> dict[HeadKey, Path]:
        return {key: self.folder / name for key, name in names.items()}

    def origin(self, files: dict[HeadKey, Path]) -> str:
        """The contents of files, known by the heads they are of."""
        return local_origin(fingerprint([[key, file_fingerprint(path)] for key, path in sorted(files.items())]))


class _Hub:
    """A dataset on the hub, at the commit that its revision stands at now."""

    def __init__(self, repo: str, revision: str | None) -> None:
        self._repo = repo
        self._commit, self._names = dataset_names(repo, revision)

    def names(self) -> list[str]:
        return self._names

    def fetch(self, names: dict[HeadKey, str]) -> dict[HeadKey, Path]:
        folder = dataset_folder(self._repo, self._commit, list(names.values()))
        return {key: folder / name for key, name in names.items()}

    def origin(self, _: dict[HeadKey, Path]) -> str:
        return f"{self._repo}@{self._commit}"


def batches(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Columns of a file as arrays, a few thousand rows at a time: vectors [rows, d] and positions as float64."""
    try:
        # A buffer makes the reader stream a column; without one it loads whole row groups, which may be the whole file.
        file = pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False)
        names = file.schema_arrow.names
        for column in REQUIRED:
            if column not in names:
                raise RopewalkError(
                    f"{path} has no column {column!r} (it has: {', '.join(names)}): capture this head again"
                )
        for batch in file.iter_batches(batch_size=ROWS, columns=[column for column in columns if column in names]):
            if batch.num_rows:
                yield {name: _read(path, name, batch.column(name)) for name in batch.schema.names}
    except (pa.ArrowInvalid, OSError) as error:
        raise RopewalkError(f"{path} is not a Parquet file that can be read: fetch it again") from error


def _read(path: Path, name: str, column: Any) -> Any:
    """One column of a batch as an array, or a sentence on what it holds instead of numbers."""
    if name == "example_id" and column.null_count == 0:
        return column.to_numpy(zero_copy_only=False)
    if name == "sliding_window":
        return column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if name == "vector":
        lengths = pc.unique(pc.list_value_length(column)) if _is_list(column.type) else pa.array([])
        if not _is_list(column.type) or not _is_number(column.type.value_type):
            raise RopewalkError(
                f"{path} holds {column.type} in the column 'vector', not lists of numbers: capture this head again"
            )
        if len(lengths) != 1 or not lengths[0].as_py():
            raise RopewalkError(
                f"{path} holds vectors of different lengths: every vector of a head must have head_dim numbers"
            )
        values = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64).reshape(len(column), -1)
    elif name == "position" and _is_number(column.type):
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    else:
        raise RopewalkError(
            f"{path} holds {column.type} or missing values in the column {name!r}: capture this head again"
        )
    if not np.isfinite(values).all():
        raise RopewalkError(f"{path} holds NaN or infinite numbers in the column {name!r}: capture this head again")
    return values


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
