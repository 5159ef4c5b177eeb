"""Arrays in a safetensors file, by name, as views of the file: nothing is copied."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPES: Mapping[str, str] = {
    **{f"F{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    "BOOL": "?",
    "C64": "<c8",
}
"""NumPy's names of the types of arrays, by those of the file."""


@dataclass(frozen=True)
class ArrayFile:
    """A file in memory as far as it is looked at: where its arrays begin, and what the file says of each."""

    memory: mmap
    begin: int
    arrays: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> "ArrayFile":
        """From a file that the library has found to be in order."""
        with path.open("rb") as file:
            memory = mmap(file.fileno(), 0, access=ACCESS_READ)
        begin = 8 + int.from_bytes(memory[:8], "little")
        arrays = json.loads(memory[8:begin])
        metadata = arrays.pop("__metadata__", None) or {}
        return cls(memory, begin, arrays, metadata)

    def read(self, name: str) -> NDArray[Any]:
        """An array, which cannot be written to; one of a type that NumPy does not have is a KeyError."""
        one = self.arrays[name]
        return np.ndarray(one["shape"], TYPES[one["dtype"]], self.memory, self.begin + one["data_offsets"][0])
