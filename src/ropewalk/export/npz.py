"""Statistics as one NumPy archive: the arrays of the safetensors file, and its facts as the bytes of `ropewalk`."""

from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.export.arrays import ENTRY, Precision, check_target, header, sealed, statistics_arrays
from ropewalk.export.formats import Format
from ropewalk.export.source import Source
from ropewalk.files import atomic_path

SUFFIX = ".npz"


def write(source: Source, path: Path, options: Precision) -> list[Path]:
    """Write the file; it must not be there yet."""
    check_target(path, SUFFIX)
    arrays = statistics_arrays(source, options.dtype)
    about = sealed(header(source, options.dtype), arrays).encode()
    named: dict[str, Any] = {ENTRY: np.frombuffer(about, dtype=np.uint8), **arrays}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **named)
    return [path]


FORMAT = Format("npz", "the same as a NumPy archive", Precision, write)
