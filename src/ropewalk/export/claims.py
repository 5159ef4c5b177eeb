"""Statistics of queries and keys as a file states them: our own formats, or a folder of KVPress."""

import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from ropewalk.errors import RopewalkError
from ropewalk.export.arrays import ENTRY, Arrays, checked_header, is_sealed
from ropewalk.export.kvpress import STATISTICS
from ropewalk.geometry.moments import Floats
from ropewalk.reading import open_regular, unreadable
from ropewalk.seals import Ledger, is_intact
from ropewalk.statistics.frame import PRE
from ropewalk.text import size

REMEDY = "give a file of `ropewalk export --to safetensors` or `--to npz`, or a folder of KVPress"
NAME = re.compile(r"l(\d+)\.([qk])\.(post|pre)\.(mean|covariance|count)")
LARGEST = 1e38
"""Numbers that a file may hold: what float32 can, so that their squares can be added up."""
MOST_PACKED = 100
"""Times that an archive may be larger when it is unpacked: numbers that were measured hardly shrink."""
FAILURES = (
    *(OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, EOFError, MemoryError),
    *(SafetensorError, zipfile.BadZipFile, NotImplementedError, RuntimeError),
)
"""What readers of arrays and archives raise at a file that is damaged, or of another kind."""

Key = tuple[int, str, str]
"""Layer, kind (`q` or `k`), frame (`post` or `pre`)."""


@dataclass(frozen=True)
class Stated:
    """Mean [heads, d] and covariance [heads, d, d] of a layer's vectors, over so many tokens (None: it does not say).

    `heads` are the numbers of the heads.
    """

    mean: Floats
    covariance: Floats
    heads: tuple[int, ...]
    count: float | None = None


@dataclass(frozen=True)
class Claim:
    """What a file states: statistics by layer, kind and frame, and how many layers the model is said to have.

    `context` and `skip_first` are None where the file does not say, or does not say it in tokens.
    """

    path: Path
    stated: Mapping[Key, Stated]
    depth: int
    context: int | None = None
    skip_first: int | None = None


def read_claim(path: Path) -> Claim:
    """Read a file or folder of statistics; one that is damaged or of another kind is an error."""
    reader: Callable[[Path], Claim] = _kvpress if path.is_dir() else _npz if path.suffix == ".npz" else _safetensors
    try:
        claim = reader(path)
    except FAILURES as error:
        raise unreadable(path, error, REMEDY) from error
    if (claim.context is not None and claim.context < 2) or (claim.skip_first or 0) < 0:
        raise RopewalkError(
            f"{path} says that it is of {claim.context} tokens without the first {claim.skip_first}, which cannot be: "
            "make it again"
        )
    for (layer, kind, frame), one in claim.stated.items():
        where, shape = f"layer {layer}, {kind}, {frame}", one.mean.shape
        if not (np.abs(one.mean) < LARGEST).all() or not (np.abs(one.covariance) < LARGEST).all():
            raise RopewalkError(f"{path} has numbers that are none (NaN, infinite or huge) in {where}: make it again")
        if len(shape) != 2 or one.covariance.shape != (*shape, shape[1]) or not _are_numbers(one.heads):
            raise RopewalkError(
                f"{path} has means {list(shape)}, covariances {list(one.covariance.shape)} and {len(one.heads)} heads "
                f"in {where}, which do not go together: make it again"
            )
    if not claim.stated:
        raise RopewalkError(f"{path} holds no mean with its covariance, so a model cannot tell: {REMEDY}")
    return claim


def _are_numbers(heads: tuple[Any, ...]) -> bool:
    """Whether these can be numbers of heads, of which there is at least one."""
    return bool(heads) and all(isinstance(head, int) and head >= 0 for head in heads)


def _safetensors(path: Path) -> Claim:
    with open_regular(path) as file:
        data = file.read()
    arrays = load(data)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length]).get("__metadata__", {}).get(ENTRY)
    # Who writes this format without a seal does not say what it was.
    if "seal" in checked_header(header, path) and not is_intact(path):
        raise _changed(path)
    return _own(path, arrays, header)


def _changed(path: Path) -> RopewalkError:
    return RopewalkError(f"{path} is not as it was exported (damaged, or changed since): export it again")


def _npz(path: Path) -> Claim:
    with open_regular(path) as file:
        with zipfile.ZipFile(file) as packed:
            unpacked = sum(entry.file_size for entry in packed.infolist())
        if unpacked > MOST_PACKED * path.stat().st_size:
            raise ValueError(f"it would be {size(unpacked)} when unpacked")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    entry = arrays.pop(ENTRY, None)
    header = None if entry is None else bytes(entry).decode()
    if "seal" in checked_header(header, path) and not is_sealed(str(header), arrays):
        raise _changed(path)
    return _own(path, arrays, header)


def _own(path: Path, arrays: Arrays, header: str | None) -> Claim:
    about = checked_header(header, path)
    found: dict[Key, dict[str, Any]] = {}
    for name, array in arrays.items():
        if match := NAME.fullmatch(name):
            found.setdefault((int(match[1]), match[2], match[3]), {})[match[4]] = np.asarray(array, dtype=np.float64)
    numbers = {layer["layer"]: {"q": layer["heads"], "k": layer["k_heads"]} for layer in about["layers"]}
    stated = {
        (layer, kind, frame): Stated(
            one["mean"], one["covariance"], tuple(numbers[layer][kind]), float(np.asarray(one["count"]).min())
        )
        for (layer, kind, frame), one in found.items()
        if "covariance" in one
    }
    tokens = about["tokens"]
    return Claim(path, stated, int(about["model"]["depth"]), int(tokens["context"]), int(tokens["skip_first"]))


def _kvpress(path: Path) -> Claim:
    ledger = Ledger.read(path)
    for name, _ in () if ledger is None else ledger.differs(path):
        raise _changed(path / name)
    config = json.loads((path / STATISTICS[0]).read_text(encoding="utf-8"))
    with open_regular(path / STATISTICS[1]) as file:
        arrays = load(file.read())
    mean, spread = (np.asarray(arrays[name], dtype=np.float64) for name in ("query_mean", "query_cov"))
    if mean.ndim != 3 or spread.shape != (*mean.shape, mean.shape[2]):
        raise ValueError(f"query_mean has shape {mean.shape} and query_cov {spread.shape}")
    heads = tuple(range(mean.shape[1]))
    stated = {(layer, "q", PRE): Stated(mean[layer], spread[layer], heads) for layer in range(len(mean))}
    return Claim(path, stated, len(mean), skip_first=int(config.get("n_sink", 0)))
