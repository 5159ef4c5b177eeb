"""Existing datasets of vectors in the layout `l{LL}h{HH}{q|k}/data.parquet`: finding heads, and streaming them."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ropewalk.capture.manifest import MANIFEST
from ropewalk.capture.settings import choose_heads
from ropewalk.capture.stored import StoredCapture
from ropewalk.capture.vector_files import batches, check_file
from ropewalk.capture.vector_layouts import MOST_HEADS, MOST_LAYERS, read_layout_file
from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import file_fingerprint, fingerprint, local_origin
from ropewalk.models.hub import dataset_folder, dataset_names
from ropewalk.models.layout import LAYOUT_FILE, AttentionLayer, Head, Layout
from ropewalk.models.source import OF_VECTORS
from ropewalk.reading import is_folder, named, unreadable
from ropewalk.seals import LEDGER, Ledger
from ropewalk.statistics.sample import kept_from
from ropewalk.study import Capture, Checkpoint
from ropewalk.text import cut

HeadKey = tuple[int, int, str]
"""(layer, number of the query or key head, kind)."""

FOLDER = re.compile(r"l([0-9]+)h([0-9]+)([qk])/data\.parquet")
UNKNOWN = "vectors"
"""Model type of a dataset that does not tell its model's layout."""


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
    if not is_folder(source) and Path(source).is_absolute():
        raise RopewalkError(f"source of {checkpoint.label!r} is {named(source)}, which is no folder: name the folder")
    location = _Folder(Path(source)) if is_folder(source) else _Hub(source, checkpoint.revision)
    if isinstance(location, _Folder):
        _check_current(location.folder)
    names = _by_head(source, location.names())
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
    for path in files.values():
        check_file(path)
    return Dataset(
        layout=_described(layout, files),
        heads=heads,
        asked=whole if capture.heads == "all" or capture.pairs is not None else capture.heads,
        files=files,
        origin=location.origin(files),
    )


def _by_head(source: str, names: list[str]) -> dict[HeadKey, str]:
    """The names of files by the heads they are of; one head has one file, and numbers are those of a model."""
    found: dict[HeadKey, str] = {}
    for name in names:
        if not (match := FOLDER.fullmatch(name)):
            continue
        # Longer numbers are beyond the limits whatever they say.
        layer, head = (int(number[-12:]) if len(number) < 13 else MOST_HEADS for number in match.groups()[:2])
        if layer >= MOST_LAYERS or head >= MOST_HEADS:
            raise RopewalkError(
                f"{source} has a folder {cut(name.split('/')[0], 60)}, beyond the {MOST_LAYERS:,} layers and "
                f"{MOST_HEADS:,} heads that a model may have: rename or remove it"
            )
        key = (layer, head, match[3])
        if key in found:
            raise RopewalkError(f"{source} has both {found[key]} and {name}, of the same head: remove one of the two")
        found[key] = name
    return found


def _check_current(folder: Path) -> None:
    """Stop at vectors that a capture kept and that are damaged, or not of the shards beside them any more."""
    remedy = "run `ropewalk capture` on its study, with `sample` among its statistics, to write it anew"
    ledger = Ledger.read(folder)
    if ledger is None:
        is_there = (folder / LEDGER).exists()
        if is_there or (folder.parent / MANIFEST).is_file():
            raise RopewalkError(
                f"{folder / LEDGER}, by which the vectors are known to be whole, is "
                f"{'damaged' if is_there else 'missing'}: {remedy}"
            )
        return
    for name, state in ledger.differs(folder):
        raise RopewalkError(f"{folder / name} is {state}: {remedy}")
    if not (folder.parent / MANIFEST).is_file():
        return
    if ledger.made_from != kept_from(StoredCapture(folder.parent, folder.parent.name).provenance):
        raise RopewalkError(f"{folder} was kept by an earlier capture than the one in {folder.parent}: {remedy}")


def _layout(location: "_Folder | _Hub", checkpoint: Checkpoint, names: dict[HeadKey, str]) -> Layout:
    source, key_heads = checkpoint.source, checkpoint.key_heads
    if LAYOUT_FILE in location.names():
        stated = [field for field in OF_VECTORS if getattr(checkpoint, field) is not None]
        if stated:
            raise RopewalkError(
                f"{source} has a {LAYOUT_FILE}, which tells what its model is: remove it, or `{stated[0]}` from the "
                "study"
            )
        return read_layout_file(location.fetch({(0, 0, ""): LAYOUT_FILE})[0, 0, ""])
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
        # A link that leads nowhere is there, and is no vectors: it is named when it is opened.
        try:
            heads = sorted(path.name for path in self.folder.iterdir() if _is_there(path / "data.parquet"))
        except OSError as error:
            raise unreadable(error.filename or self.folder, error, "check who may read it, and the disk") from error
        found = [f"{name}/data.parquet" for name in heads]
        return found + [LAYOUT_FILE] * os.path.lexists(self.folder / LAYOUT_FILE)

    def fetch(self, names: dict[HeadKey, str]) -> dict[HeadKey, Path]:
        return {key: self.folder / name for key, name in names.items()}

    def origin(self, files: dict[HeadKey, Path]) -> str:
        """The contents of files, known by the heads they are of."""
        return local_origin(fingerprint([[key, file_fingerprint(path)] for key, path in sorted(files.items())]))


def _is_there(path: Path) -> bool:
    """Whether there is something of a name; where that cannot be told, an OSError."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


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
