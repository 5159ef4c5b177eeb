"""The header of a GGUF file, read before anything believes what it says: counts, names, and where tensors lie."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ropewalk.errors import RopewalkError
from ropewalk.models.documents import check_counts
from ropewalk.text import install_extra, one_line, some

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
MOST_KEYS, MOST_TENSORS, MOST_DIMENSIONS, LONGEST_KEY = 100_000, 1_000_000, 8, 65_535

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_COUNTS = {"block_count": "layers", "expert_count": "experts", "head_count": "heads", "head_count_kv": "heads"}
"""What GGUF calls the parts of a model, and what configurations do."""


class _Damaged(Exception):  # noqa: N818 - becomes a sentence
    pass


def check_gguf(path: Path, name: str) -> int:
    """Stop with a sentence at a GGUF file that is none, is cut short, or describes what no model is.

    Gives how many numbers its tensors hold.
    """
    try:
        import gguf
    except ImportError as error:
        raise RopewalkError(f"GGUF files need an extra: {install_extra('gguf')}") from error
    try:
        with path.open("rb") as file:
            header = _Header(file, path.stat().st_size)
            keys = header.read(dict(gguf.GGML_QUANT_SIZES))
    except _Damaged as error:
        raise RopewalkError(f"the weight file {name} is damaged or cut short ({error}): fetch it again") from error
    except OSError as error:
        raise RopewalkError(f"{name} cannot be read ({error.strerror}): check who may read it, and the disk") from error
    last = {key: key.rsplit(".", 1)[-1] for key in keys}
    check_counts({f"{key}_{_COUNTS[last[key]]}": keys[key] for key in keys if last[key] in _COUNTS}, name)
    return header.elements


class _Header:
    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._length, self._at = file, length, 0
        self.elements = 0

    def read(self, types: dict[Any, tuple[int, int]]) -> dict[str, Any]:
        """All keys with single values; the tensors are found to lie in the file."""
        if self._bytes(4) != MAGIC:
            raise _Damaged("it does not begin as a GGUF file does")
        version = self._number("I")
        if version not in VERSIONS:
            raise _Damaged(f"its version is {version}, and {some(VERSIONS)} are known")
        tensors, count = self._number("Q"), self._number("Q")
        if tensors > MOST_TENSORS or count > MOST_KEYS:
            raise _Damaged(f"it says that it has {tensors} tensors and {count} keys")
        keys = {self._text(LONGEST_KEY): self._value(self._number("I")) for _ in range(count)}
        alignment = keys.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
            raise _Damaged("general.alignment is no alignment")
        known = {int(kind): sizes for kind, sizes in types.items()}
        ends = [self._tensor(known) for _ in range(tensors)]
        start = -(-self._at // alignment) * alignment
        for name, end in ends:
            if start + end > self._length:
                raise _Damaged(f"tensor {one_line(name, 100)} lies beyond its end")
        return keys

    def _tensor(self, types: dict[int, tuple[int, int]]) -> tuple[str, int]:
        """A tensor's name, and where it ends behind the header."""
        name = self._text(LONGEST_KEY)
        dimensions = self._number("I")
        if dimensions > MOST_DIMENSIONS:
            raise _Damaged(f"tensor {one_line(name, 100)} has {dimensions} dimensions")
        elements = 1
        for _ in range(dimensions):
            elements *= self._number("Q")
        kind, offset = self._number("I"), self._number("Q")
        if kind not in types:
            raise _Damaged(f"tensor {one_line(name, 100)} is of type {kind}, which is not known")
        self.elements += elements
        block, bytes_of_block = types[kind]
        return name, offset + elements // block * bytes_of_block

    def _value(self, kind: int, depth: int = 0) -> Any:
        """A single value; an array is passed over and None."""
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _TEXT:
            return self._text(self._length)
        if kind != _ARRAY or depth > 4:
            raise _Damaged(f"a value is of type {kind}, which is not known")
        inner, count = self._number("I"), self._number("Q")
        if inner in _NUMBERS:
            self._skip(count * struct.calcsize(f"<{_NUMBERS[inner]}"))
            return None
        # Each of the others has a length of its own, of eight bytes at least.
        if count > (self._length - self._at) // 8:
            raise _Damaged(f"an array has {count} values")
        skip: Callable[[], Any] = (
            (lambda: self._skip(self._number("Q"))) if inner == _TEXT else lambda: self._value(inner, depth + 1)
        )
        for _ in range(count):
            skip()
        return None

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._bytes(struct.calcsize(f"<{form}")))[0]

    def _text(self, longest: int) -> str:
        length = self._number("Q")
        if length > longest:
            raise _Damaged(f"a name has {length} characters")
        return str(self._bytes(length), "utf-8", "replace")

    def _bytes(self, count: int) -> bytes:
        self._at += count
        if self._at > self._length:
            raise _Damaged("it ends within its header")
        return self._file.read(count)

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > self._length:
            raise _Damaged("it ends within its header")
        self._file.seek(count, 1)
