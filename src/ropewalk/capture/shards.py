"""Shards on disk: written once, whole, with the marks of what they were made from; and reading them as one capture."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ropewalk.capture.manifest import (
    MANIFEST,
    known_manifest,
    manifest_facts,
    model_facts,
    read_manifest,
    write_manifest,
)
from ropewalk.errors import RopewalkError
from ropewalk.files import write_bytes
from ropewalk.models.layout import Head, Layout
from ropewalk.record import FORMAT, outdated
from ropewalk.statistics.base import LayerHeads, Scope, Sums, layers_of
from ropewalk.statistics.registry import build
from ropewalk.text import count
from ropewalk.versions import Versions, installed

SHARDS = "shard-*.safetensors"
"""Pattern of the names of shards."""

ShardSums = Mapping[tuple[str, int], Sums]
"""The sums of one group of documents, by (statistic, layer)."""


@dataclass(frozen=True)
class Provenance:
    """Fingerprints of what decides a shard's numbers."""

    model: str
    tokens: str
    settings: str


def capture_folder(results: Path, slug: str) -> Path:
    """Folder of the shards of a checkpoint, known by its name as a folder's name."""
    return results / "captures" / slug


def shard_path(folder: Path, number: int) -> Path:
    """Where a shard stands in the folder of its checkpoint."""
    return folder / f"shard-{number:04d}.safetensors"


def split_documents(documents: int, shards: int) -> tuple[range, ...]:
    """Cut documents into as many consecutive groups, as even as can be; never an empty one."""
    borders = np.linspace(0, documents, min(shards, documents) + 1).round().astype(int)
    return tuple(range(int(a), int(b)) for a, b in pairwise(borders))


def write_shard(
    path: Path,
    sums: ShardSums,
    heads: Sequence[LayerHeads],
    provenance: Provenance,
    versions: Versions | None = None,
) -> None:
    """Write the sums of a group of documents, by (statistic, layer), atomically.

    `versions` are those of the libraries that made the sums: the installed ones unless they were made earlier.
    """
    arrays = {
        f"{_prefix(statistic, layer)}{name}": array
        for (statistic, layer), own in sums.items()
        for name, array in own.items()
    }
    for own in heads:
        prefix = _prefix("heads", own.layer.layer)
        arrays[f"{prefix}q"], arrays[f"{prefix}k"] = np.array(own.heads), np.array(own.key_heads)
    made = installed() if versions is None else versions
    marks = {"format": FORMAT, "versions": made, **asdict(provenance)}
    # One entry: the order of several is not fixed in the file, and the same shard should be the same bytes.
    write_bytes(path, save(arrays, metadata={"ropewalk": json.dumps(marks)}))


def is_done(path: Path, provenance: Provenance) -> bool:
    """Whether the shard is there; one that was made from other inputs, or is damaged, is an error."""
    if not path.is_file():
        return False
    marks = _read_marks(_open_shard(path))
    expected = asdict(provenance)
    # Settings first: other heads of a dataset of vectors are other files too.
    for part, what in (
        ("settings", "other capture settings"),
        ("model", "another model or `dtype`"),
        ("tokens", "other documents"),
    ):
        if marks.get(part) != expected[part]:
            raise RopewalkError(
                f"{path} was made from {what} than the study names now: remove {path.parent}, or set another "
                "`results` in the study"
            )
    return True


def check_split(folder: Path, shards: int, documents: int) -> None:
    """Stop when the same number of documents was cut into another number of shards, of which some are there."""
    known = known_manifest(folder)
    if known is None or known.get("documents") != documents or known.get("shards") == shards:
        return
    if any(folder.glob(SHARDS)):
        raise RopewalkError(
            f"{folder} was captured in {count(known['shards'], 'shard')} and the study says {shards} now: set "
            f"`shards: {known['shards']}` again, remove {folder}, or set another `results` in the study"
        )


def shard_versions(folder: Path) -> dict[int, Versions]:
    """By number, of the shards that are there: the versions of what they were made with; none where they do not say."""
    paths = {int(path.stem.removeprefix("shard-")): path for path in sorted(folder.glob(SHARDS))}
    return {number: dict(_read_marks(_open_shard(path)).get("versions", {})) for number, path in paths.items()}


class StoredCapture:
    """A checkpoint's finished capture on disk: its manifest now, its sums when they are asked for.

    `dtype` and `proof` are None where the manifest was written before captures proved themselves.
    """

    def __init__(self, folder: Path, label: str) -> None:
        self.folder, self.label = folder, label
        manifest = read_manifest(folder)
        try:
            self.layout = Layout.from_dict(manifest["layout"])
            self.heads = [Head(*head) for head in manifest["heads"]]
            self.scope = Scope(**manifest["scope"])
            self.statistics = {name: one["options"] for name, one in manifest["statistics"].items()}
            self.dtype: str | None = manifest.get("dtype")
            self.proof: Mapping[str, Any] | None = manifest.get("proof")
            self.provenances = [
                Provenance(manifest["model"], tokens, manifest["settings"]) for tokens in manifest["tokens_of_shards"]
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise RopewalkError(
                f"{folder / MANIFEST} is damaged: delete it and run `ropewalk capture` again"
            ) from error

    @property
    def provenance(self) -> str:
        """A fingerprint of all shards together."""
        return _joined(self.provenances)

    @property
    def versions(self) -> dict[int, Versions]:
        """Versions of what each shard was made with."""
        return {number: made for number, made in shard_versions(self.folder).items() if number < len(self.provenances)}

    def shard(self, number: int) -> ShardSums:
        """All sums of one shard."""
        layers = [heads.layer.layer for heads in layers_of(self.layout, self.heads)]
        return {(name, layer): self._read(number, name, layer) for name in self.statistics for layer in layers}

    def parts(self, statistic: str, heads: LayerHeads) -> list[Sums]:
        """Sums of one statistic and layer, per shard."""
        for number in range(len(self._files)):
            self._check_heads(number, heads)
        return [self._read(number, statistic, heads.layer.layer) for number in range(len(self._files))]

    @cached_property
    def _files(self) -> list[Any]:
        paths = [shard_path(self.folder, number) for number in range(len(self.provenances))]
        present = sum(path.is_file() for path in paths)
        if present < len(paths):
            raise RopewalkError(
                f"{self.label!r} has {present} of its {len(paths)} shards: run `ropewalk capture` again to compute "
                "the others"
            )
        files = [_open_shard(path) for path in paths]
        for path, file, expected in zip(paths, files, self.provenances, strict=True):
            marks = _read_marks(file)
            if any(marks.get(name) != value for name, value in asdict(expected).items()):
                raise RopewalkError(
                    f"{path} was made from another model, documents or settings than the rest: remove {self.folder} "
                    "and capture again"
                )
        return files

    @cached_property
    def _names(self) -> list[list[str]]:
        return [list(file.keys()) for file in self._files]

    def _check_heads(self, number: int, heads: LayerHeads) -> None:
        prefix = _prefix("heads", heads.layer.layer)
        for kind, expected in (("q", heads.heads), ("k", heads.key_heads)):
            name = f"{prefix}{kind}"
            if name not in self._names[number] or tuple(self._files[number].get_tensor(name)) != expected:
                raise RopewalkError(
                    f"{shard_path(self.folder, number)} holds other heads of layer {heads.layer.layer} than its "
                    "manifest names: remove it and capture again"
                )

    def _read(self, number: int, statistic: str, layer: int) -> Sums:
        prefix = _prefix(statistic, layer)
        return {
            name.removeprefix(prefix): self._files[number].get_tensor(name)
            for name in self._names[number]
            if name.startswith(prefix)
        }


@dataclass(frozen=True)
class MemoryCapture:
    """A checkpoint's capture that was never written: the sums of each group of documents, by (statistic, layer)."""

    layout: Layout
    heads: list[Head]
    scope: Scope
    statistics: Mapping[str, Mapping[str, Any]]
    provenances: Sequence[Provenance]
    shards: Sequence[ShardSums]
    made_with: Versions = field(default_factory=installed)
    dtype: str | None = None
    proof: Mapping[str, Any] | None = None

    @property
    def versions(self) -> dict[int, Versions]:
        """Versions of what each group was made with."""
        return dict.fromkeys(range(len(self.provenances)), self.made_with)

    @property
    def provenance(self) -> str:
        """A fingerprint of all groups together."""
        return _joined(self.provenances)

    def shard(self, number: int) -> ShardSums:
        """All sums of one group of documents."""
        return self.shards[number]

    def parts(self, statistic: str, heads: LayerHeads) -> list[Sums]:
        """Sums of one statistic and layer, per group of documents."""
        return [shard[statistic, heads.layer.layer] for shard in self.shards]


def write_capture(folder: Path, captured: "StoredCapture | MemoryCapture", checkpoint: str) -> None:
    """Write a capture as a run of the study would have: its manifest and its shards."""
    manifest = {
        "checkpoint": checkpoint,
        **manifest_facts(captured.scope, captured.provenances, build(captured.statistics)),
        **model_facts(captured.layout, captured.heads, captured.dtype, captured.proof),
    }
    write_manifest(folder, manifest)
    heads, versions = layers_of(captured.layout, captured.heads), captured.versions
    for number, provenance in enumerate(captured.provenances):
        write_shard(shard_path(folder, number), captured.shard(number), heads, provenance, versions[number])


def _joined(provenances: Sequence[Provenance]) -> str:
    return "".join(f"{one.model} {one.tokens} {one.settings}\n" for one in provenances)


def _prefix(statistic: str, layer: int) -> str:
    return f"{statistic}/l{layer:02d}/"


def _open_shard(path: Path) -> Any:
    """Open a shard for reading by name; nothing is loaded yet."""
    try:
        file = safe_open(path, framework="numpy")
    except FileNotFoundError:
        raise RopewalkError(f"{path} is missing: run `ropewalk capture` again to compute it") from None
    except (SafetensorError, OSError) as error:
        raise RopewalkError(
            f"{path} is damaged ({error}): delete it and run `ropewalk capture` again to recompute it"
        ) from error
    number = _read_marks(file).get("format")
    if number != FORMAT:
        raise outdated(path, number)
    return file


def _read_marks(file: Any) -> dict[str, Any]:
    """Format, versions and fingerprints of an open shard."""
    marks: dict[str, Any] = json.loads((file.metadata() or {}).get("ropewalk", "{}"))
    return marks
