"""Shards on disk: written once, whole, with the marks of what they were made from."""

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError
from ropewalk.files import write_bytes, write_text
from ropewalk.geometry.moments import Moments

FORMAT = 1
"""Number of the layout of shards and manifests; a reader refuses another."""

FIELDS = ("n", "mean", "t_mean", "sxx", "sxt", "stt")


@dataclass(frozen=True)
class Identity:
    """Fingerprints of what decides a shard's numbers."""

    model: str
    tokens: str
    settings: str


def shard_path(folder: Path, number: int) -> Path:
    """Where a shard stands in the folder of its checkpoint."""
    return folder / f"shard-{number:04d}.safetensors"


def split_documents(documents: int, shards: int) -> tuple[range, ...]:
    """Cut documents into as many consecutive groups, as even as can be; never an empty one."""
    borders = np.linspace(0, documents, min(shards, documents) + 1).round().astype(int)
    return tuple(range(int(a), int(b)) for a, b in pairwise(borders))


def write_shard(path: Path, arrays: dict[str, np.ndarray[Any, Any]], identity: Identity) -> None:
    """Write a shard's arrays atomically."""
    marks = {"format": FORMAT, "version": __version__, **asdict(identity)}
    # One entry: the order of several is not fixed in the file, and the same shard should be the same bytes.
    write_bytes(path, save(arrays, metadata={"ropewalk": json.dumps(marks)}))


def read_marks(file: Any) -> dict[str, Any]:
    """Format, version and fingerprints of an open shard."""
    marks: dict[str, Any] = json.loads((file.metadata() or {}).get("ropewalk", "{}"))
    return marks


def is_done(path: Path, identity: Identity) -> bool:
    """Whether the shard is there; one that was made from other inputs, or is damaged, is an error."""
    if not path.is_file():
        return False
    marks = read_marks(open_shard(path))
    for part, value in asdict(identity).items():
        if marks.get(part) != value:
            what = {"model": "another model", "tokens": "other documents", "settings": "other capture settings"}[part]
            raise RopewalkError(
                f"{path} was made from {what} than the study names now: remove {path.parent}, or set another "
                "`results` in the study"
            )
    return True


def open_shard(path: Path) -> Any:
    """Open a shard for reading by name; nothing is loaded yet."""
    try:
        file = safe_open(path, framework="numpy")
    except FileNotFoundError:
        raise RopewalkError(f"{path} is missing: run `ropewalk capture` again to compute it") from None
    except (SafetensorError, OSError) as error:
        raise RopewalkError(
            f"{path} is damaged ({error}): delete it and run `ropewalk capture` again to recompute it"
        ) from error
    number = read_marks(file).get("format")
    if number != FORMAT:
        raise RopewalkError(
            f"{path} has format {number} and this is ropewalk {__version__} with format {FORMAT}: capture "
            "again with another `results`"
        )
    return file


def moments_arrays(prefix: str, moments: Moments) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of moments under names that begin with `prefix`."""
    # The whole scatter, though half would do: putting it together again costs more than reading it.
    return {f"{prefix}.{name}": np.ascontiguousarray(getattr(moments, name)) for name in FIELDS}


def read_moments(file: Any, prefix: str) -> Moments:
    """The inverse of `moments_arrays`, from an open shard."""
    return Moments(**{name: file.get_tensor(f"{prefix}.{name}") for name in FIELDS})


def layer_prefix(layer: int, kind: str) -> str:
    """Name of a layer's queries or keys in a shard."""
    return f"l{layer:02d}.{kind}"


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of a checkpoint's capture."""
    marked = {"format": FORMAT, "ropewalk": __version__, **manifest}
    write_text(folder / "manifest.json", json.dumps(marked, indent=1) + "\n")


def known_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest if there is one that can be read, for a capture that would write it anew otherwise."""
    try:
        return read_manifest(folder)
    except RopewalkError:
        return None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint's capture."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise RopewalkError(f"{folder} holds no finished capture: run `ropewalk capture` on the study first")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RopewalkError(f"{path} is damaged: delete it and run `ropewalk capture` again") from error
    if manifest.get("format") != FORMAT:
        raise RopewalkError(
            f"{path} has format {manifest.get('format')}, not {FORMAT}: capture again with another `results`"
        )
    return manifest
