"""The arrays of our own format: one name for each layer, kind, frame and quantity (docs/export.md has the table)."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ropewalk.errors import RopewalkError
from ropewalk.export.source import FRAMES, Source, facts, turned_mean
from ropewalk.geometry.lowrank import covariance
from ropewalk.geometry.moments import merge_all
from ropewalk.schema import Part
from ropewalk.seals import BLANK
from ropewalk.statistics.base import KINDS, LayerHeads
from ropewalk.statistics.frame import PRE

FORMAT = "ropewalk-statistics"
VERSION = 1
"""Number of the layout of arrays and facts. A reader refuses another."""
ENTRY = "ropewalk"
"""Name of the one entry that holds the facts as JSON."""

Arrays = dict[str, NDArray[Any]]


class Precision(Part):
    """What can be chosen of our own format."""

    dtype: Literal["float32", "float64"] = Field("float64", description="Type of the numbers.")


def name_of(layer: int, kind: str, part: str, quantity: str) -> str:
    """Name of an array, such as `l03.q.post.mean`."""
    return f"l{layer:02d}.{kind}.{part}.{quantity}"


def statistics_arrays(source: Source, dtype: str) -> Arrays:
    """All arrays of a checkpoint: per layer and kind the counts, and mean and covariance in each frame that was
    captured, and the means over tokens of the frame.
    """
    return in_order({name: array for heads in source.layers for name, array in _layer(source, heads, dtype)})


def in_order(arrays: Arrays) -> Arrays:
    """The same arrays as they lie in memory row by row: safetensors writes others as if they did."""
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _layer(source: Source, heads: LayerHeads, dtype: str) -> Iterator[tuple[str, NDArray[Any]]]:
    layer, rotary = heads.layer.layer, heads.layer.rotary_pairs
    turned = source.turned(heads)
    for frame in FRAMES:
        found = source.moments(heads, frame)
        for kind in KINDS:
            if found is not None:
                whole = merge_all(found[kind])
                yield name_of(layer, kind, frame, "count"), whole.n
                yield name_of(layer, kind, frame, "mean"), whole.mean.astype(dtype)
                yield name_of(layer, kind, frame, "covariance"), covariance(whole).astype(dtype)
            elif frame == PRE and turned and rotary is not None:
                # The mean is known without second moments: it is a sum over tokens that the frame holds anyway.
                yield name_of(layer, kind, frame, "mean"), turned_mean(turned[kind], rotary).astype(dtype)
    for kind, one in turned.items():
        yield name_of(layer, kind, "frame", "mean_re"), one.mean.real.astype(dtype)
        yield name_of(layer, kind, "frame", "mean_im"), one.mean.imag.astype(dtype)
        yield name_of(layer, kind, "frame", "length"), one.length.astype(dtype)
        yield name_of(layer, kind, "frame", "energy"), one.energy.astype(dtype)


def header(source: Source, dtype: str) -> str:
    """The facts as JSON, with a place for the seal at its beginning."""
    missing = [
        {"layer": heads.layer.layer, "frame": frame, "why": source.why_not(heads.layer, frame)}
        for heads in source.layers
        for frame in FRAMES
        if source.moments(heads, frame) is None
    ]
    about = {"format": FORMAT, "version": VERSION, "dtype": dtype, "covariance": "Sxx / n", "frames": FRAMES}
    return json.dumps({"seal": BLANK, **about, **facts(source), "missing": missing})


def sealed(header: str, arrays: Arrays) -> str:
    """The facts with the digest of themselves and of all arrays, for a file that cannot be sealed as a whole."""
    digest = hashlib.sha256(header.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return header.replace(BLANK, digest.hexdigest(), 1)


def is_sealed(header: str, arrays: Arrays) -> bool:
    """Whether facts and arrays are those that were sealed together."""
    return sealed(header.replace(str(json.loads(header)["seal"]), BLANK, 1), arrays) == header


def checked_header(text: str | None, path: Path) -> dict[str, Any]:
    """The facts of a file that was opened; one that is not of this format, or of another version, is an error."""
    try:
        about = json.loads(text or "")
    except ValueError:
        about = None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise RopewalkError(
            f"{path} is not a file of {FORMAT}: it has no entry {ENTRY!r} that says so; give one that `ropewalk export "
            "--to safetensors` or `--to npz` wrote, or a folder of KVPress"
        )
    if about.get("version") != VERSION:
        raise RopewalkError(
            f"{path} has version {about.get('version')} of {FORMAT}, and this ropewalk reads version {VERSION}: "
            "export it again"
        )
    return about


def check_target(path: Path, suffix: str) -> None:
    """Stop where an export would overwrite what is there, or its name would hide what it is."""
    if path.suffix != suffix:
        raise RopewalkError(f"{path} does not end in {suffix}: give the file to write a name that does")
    if path.exists():
        raise RopewalkError(f"{path} is there already: move it away, or give another file to write")
