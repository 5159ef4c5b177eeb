"""Shards on disk: written once, whole, sealed, with the marks of what they were made from."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ropewalk.capture.arrays import ArrayFile, Contents
from ropewalk.capture.manifest import known_manifest
from ropewalk.errors import RopewalkError
from ropewalk.files import write_bytes
from ropewalk.progress import logger
from ropewalk.record import FORMAT, outdated
from ropewalk.seals import BLANK, is_intact, sealed_pieces
from ropewalk.statistics.base import LayerHeads, Sums
from ropewalk.text import count
from ropewalk.versions import Versions, installed

SHARDS = "shard-*.safetensors"
"""Pattern of the names of shards."""

ShardSums = Mapping[tuple[str, int], Sums]
"""The sums of one group of documents, by (statistic, layer)."""
Pieces = Sequence[bytes | memoryview]
"""Bytes of a file, one piece after the other."""


@dataclass(frozen=True)
class Provenance:
    """Fingerprints of what decides a shard's numbers; where documents are not known yet, those of `tokens` are None."""

    model: str
    tokens: str | None
    settings: str


class WrongShardError(RopewalkError):
    """A shard that is as it was written, and is not what its manifest says that it is."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} does not hold the sums that its manifest names ({reason}): move it out of the folder and run "
            "`ropewalk capture STUDY` again, which computes it anew"
        )


class _Marks(BaseModel):
    """What a shard says of its making."""

    # `model` begins as names do that the oldest pydantic keeps to itself.
    model_config = ConfigDict(protected_namespaces=())

    format: Annotated[StrictInt, Field(ge=0, lt=1000)]
    versions: Versions = {}
    model: str
    tokens: str
    settings: str


@dataclass(frozen=True)
class Shard:
    """A shard that is open: what it was made from and with, and its arrays when they are asked for."""

    path: Path
    file: ArrayFile
    provenance: Provenance
    versions: Versions

    def read(self, prefix: str) -> Sums:
        """The arrays whose names begin so, without that beginning."""
        try:
            return {name: self.file.read(f"{prefix}{name}") for name in _names(self.file.contents).get(prefix, ())}
        except KeyError as error:
            raise WrongShardError(self.path, f"an array of {prefix} is of no known type") from error


@lru_cache(maxsize=16)
def _names(contents: Contents) -> Mapping[str, Sequence[str]]:
    """Names of the arrays of each statistic and layer, by what they begin with (see `prefix_of`)."""
    found: dict[str, list[str]] = {}
    for name in contents.arrays:
        statistic, layer, rest = (*name.split("/", 2), "", "")[:3]
        found.setdefault(f"{statistic}/{layer}/", []).append(rest)
    return found


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
    """Write the sums of a group of documents, by (statistic, layer), atomically; see `shard_pieces`."""
    write_bytes(path, *shard_pieces(sums, heads, provenance, versions))


def shard_pieces(
    sums: ShardSums, heads: Sequence[LayerHeads], provenance: Provenance, versions: Versions | None = None
) -> Pieces:
    """A shard as it stands on disk, sealed, in pieces: the sums of a group of documents, by (statistic, layer).

    `versions` are those of the libraries that made the sums: the installed ones unless they were made earlier.
    """
    arrays = {
        f"{prefix_of(statistic, layer)}{name}": array
        for (statistic, layer), own in sums.items()
        for name, array in own.items()
    }
    for own in heads:
        prefix = prefix_of("heads", own.layer.layer)
        arrays[f"{prefix}q"], arrays[f"{prefix}k"] = np.array(own.heads), np.array(own.key_heads)
    made = installed() if versions is None else versions
    marks = {"seal": BLANK, "format": FORMAT, "versions": made, **asdict(provenance)}
    # One entry: the order of several is not fixed in the file, and the same shard should be the same bytes.
    return sealed_pieces(save(arrays, metadata={"ropewalk": json.dumps(marks)}))


def missing_shards(folder: Path, provenances: Mapping[int, Provenance], of: int, documents: int | None) -> list[int]:
    """Numbers of the shards among `provenances` that are still to be computed, a damaged one being one of them.

    One that was made from other inputs is an error, and so are shards of another split of as many `documents` than
    that into `of`: what is there is somebody's work.
    """
    _check_split(folder, of, documents)
    paths = {number: shard_path(folder, number) for number in provenances}
    present = [number for number, path in paths.items() if path.is_file()]
    whole = [number for number in present if is_whole(paths[number])]
    for number in present:
        if number not in whole:
            logger.warning("%s is damaged and is computed again", paths[number])
    others = {number: _other(paths[number], provenances[number]) for number in whole}
    other = next((number for number in whole if others[number]), None)
    if other is not None:
        remedy = "give the study another `name` or `results`, or set back what was changed; what is there is kept"
        if not all(others.values()):
            remedy = "it is not one of this capture: move it out of the folder, and it is computed again"
        raise RopewalkError(f"{paths[other]} was made from {others[other]} than the study names now: {remedy}")
    return [number for number in provenances if number not in whole]


def _other(path: Path, provenance: Provenance) -> str:
    """What of a shard's inputs is not as expected, or nothing."""
    found, expected = asdict(open_shard(path).provenance), asdict(provenance)
    # Settings first: other heads of a dataset of vectors are other files too.
    for part, what in (
        ("settings", "other capture settings"),
        ("model", "another model or `dtype`"),
        ("tokens", "other documents"),
    ):
        if expected[part] is not None and found[part] != expected[part]:
            return what
    return ""


def _check_split(folder: Path, shards: int, documents: int | None) -> None:
    """Stop when the same number of documents was cut into another number of shards, of which some are there."""
    known = known_manifest(folder)
    if known is None or known.get("documents") != documents or known.get("shards") == shards:
        return
    if any(folder.glob(SHARDS)):
        raise RopewalkError(
            f"{folder} was captured in {count(known['shards'], 'shard')} and the study says {shards} now: set "
            f"`shards: {known['shards']}` again, or give the study another `name` or `results`"
        )


def shard_versions(folder: Path) -> dict[int, Versions]:
    """By number, of the shards that are there and whole: the versions of what they were made with, if they say."""
    paths = {int(path.stem.removeprefix("shard-")): path for path in sorted(folder.glob(SHARDS)) if is_whole(path)}
    return {number: open_shard(path).versions for number, path in paths.items()}


def prefix_of(statistic: str, layer: int) -> str:
    """How the names of a statistic's arrays of one layer begin in a shard."""
    return f"{statistic}/l{layer:02d}/"


def is_whole(path: Path) -> bool:
    """Whether a shard holds what was written; one that cannot be read at all is an error."""
    try:
        return is_intact(path)
    except OSError as error:
        raise RopewalkError(f"{path} cannot be read ({error.strerror}): check who may read it, and the disk") from error


def open_shards(paths: Sequence[Path]) -> list[Shard]:
    """Open shards for reading by name, each checked to be what was written; their arrays are loaded when asked for."""
    # Hashing releases the interpreter, and reading what shards hold does not: threads would only wait for each other.
    with ThreadPoolExecutor() as pool:
        list(pool.map(is_whole, filter(Path.is_file, paths)))
    return [open_shard(path) for path in paths]


def open_shard(path: Path) -> Shard:
    """Open one shard; one that is missing, damaged or of another format is an error."""
    if not path.is_file():
        raise RopewalkError(f"{path} is missing: run `ropewalk capture STUDY` again, which computes it")
    try:
        file = _array_file(path) if is_whole(path) else None
    except (SafetensorError, OSError):
        file = None
    if file is None:
        raise RopewalkError(f"{path} is damaged: run `ropewalk capture STUDY` again, which computes it anew")
    marks = _read_marks(path, file)
    if marks.format != FORMAT:
        raise outdated(path, marks.format)
    return Shard(path, file, Provenance(marks.model, marks.tokens, marks.settings), marks.versions)


def _array_file(path: Path) -> ArrayFile:
    # The library refuses what is no such file: arrays that overlap, or reach beyond its end.
    with safe_open(path, framework="numpy"):
        return ArrayFile.open(path)


def _read_marks(path: Path, file: ArrayFile) -> _Marks:
    """Format, versions and fingerprints of an open shard."""
    try:
        return _Marks.model_validate_json(file.metadata.get("ropewalk", "{}"))
    except ValidationError as error:
        # It may come from a stranger, who can write a seal.
        raise WrongShardError(path, "what it says of its making cannot be read") from error
