"""Arrays in a safetensors file, by name, as views of the file: nothing is copied."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
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
_METADATA = "__metadata__"
_FIRST = f'{{"{_METADATA}":'
"""How the library begins a header with metadata."""


@dataclass(frozen=True, eq=False)
class Contents:
    """What a file says of its arrays, by name: type, shape, and where they are. Files with equal arrays share it."""

    arrays: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class ArrayFile:
    """A file in memory as far as it is looked at: where its arrays begin, and what the file says of each."""

    memory: mmap
    begin: int
    contents: Contents
    metadata: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> "ArrayFile":
        """From a file that the library has found to be in order."""
        with path.open("rb") as file:
            memory = mmap(file.fileno(), 0, access=ACCESS_READ)
        begin = 8 + int.from_bytes(memory[:8], "little")
        metadata, rest = _parted(str(memory[8:begin], "utf-8"))
        contents = _contents(rest)
        return cls(memory, begin, contents, metadata or contents.metadata)

    @property
    def arrays(self) -> Mapping[str, Mapping[str, Any]]:
        """What the file says of each array, by name."""
        return self.contents.arrays

    def read(self, name: str) -> NDArray[Any]:
        """An array, which cannot be written to; one of a type that NumPy does not have is a KeyError."""
        one = self.contents.arrays[name]
        return np.ndarray(one["shape"], TYPES[one["dtype"]], self.memory, self.begin + one["data_offsets"][0])


def _parted(header: str) -> tuple[Mapping[str, str], str]:
    """Metadata at the beginning of a header, and what is left of the header without it."""
    if not header.startswith(_FIRST + "{"):
        return {}, header
    metadata, end = json.JSONDecoder().raw_decode(header, len(_FIRST))
    return metadata, "{" + header[end:].lstrip(" \t\r\n,")


# Shards of a capture differ in their metadata alone, and one of many heads lists thousands of arrays.
@lru_cache(maxsize=16)
def _contents(header: str) -> Contents:
    arrays = json.loads(header)
    return Contents(arrays, arrays.pop(_METADATA, None) or {})
