"""Numbers of the page as bytes: rounded to the digits that are shown, so that little is carried and nothing differs.

A value is what formatting the table's number gives, an error has two significant digits. Arrays lie one after the other
in one buffer, which is deflated; what each of them is stands beside it, and `store.js` reads both.
"""

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Spec = dict[str, Any]

MISSING_CODE = -(2**15)
"""Stands for a missing number among 16 bit integers."""
MISSING_LONG = -(2**31)
MISSING_WORD = 255
LARGEST = 2**15 - 1
DECIMALS = 6
"""Most decimals that are shown."""
FEWEST = 3
"""With fewer decimals than these, numbers of a column that are not whole are rather kept by significant digits."""
DIGITS = 5
"""Significant digits of columns whose numbers are of many sizes."""
ZERO_ERROR, MANTISSAS, EXPONENT = 65535, 90, 364
"""How an error is coded: 0 is missing; 1 + 90 (exponent + 364) + mantissa - 10, for a mantissa of two digits."""
CODES: Mapping[str, int] = {
    "missing": MISSING_CODE,
    "missing_long": MISSING_LONG,
    "missing_word": MISSING_WORD,
    "zero_error": ZERO_ERROR,
    "mantissas": MANTISSAS,
    "exponent": EXPONENT,
}
"""What the page's script must know to read the numbers."""
TYPES: Mapping[str, type[np.generic]] = {
    "u8": np.uint8,
    "i8": np.int8,
    "i16": np.int16,
    "u16": np.uint16,
    "i32": np.int32,
    "f32": np.float32,
}


class Packer:
    """Collects arrays into one buffer; `add` returns where an array stands and how it is read."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self.spent = 0

    def add(self, packed: "Packed") -> Spec:
        """Append an array."""
        start = self._size
        self._parts.append(packed.content)
        self._size += len(packed.content)
        self.spent += packed.cost
        return {**packed.spec, "start": start}

    def text(self) -> str:
        """The buffer, deflated, as base64."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 9)).decode("ascii")


class Packed:
    """An array as bytes, `spec` (how to read it) and `cost`, about the characters that it adds to the page.

    Numbers of several bytes are stored as all first bytes, then all second ones, which deflates better. Where `stride`
    is given and that is shorter, each number is stored as its difference from the one that many before it (the same
    head at the checkpoint before).
    """

    def __init__(self, values: NDArray[Any], type_: str, stride: int = 0, **spec: Any) -> None:
        values = np.ascontiguousarray(values, dtype=TYPES[type_])
        self.content, self.cost = _deflated(values)
        self.spec: Spec = {"type": type_, "count": len(values), **spec}
        if stride and type_ != "f32":
            # Unsigned, so that differences wrap around instead of overflowing.
            unsigned = values.view(np.dtype(f"u{values.itemsize}")).copy()
            unsigned[stride:] -= unsigned[:-stride].copy()
            content, cost = _deflated(unsigned)
            if cost < self.cost:
                self.content, self.cost = content, cost
                self.spec["stride"] = stride


def _deflated(values: NDArray[Any]) -> tuple[bytes, int]:
    """The bytes of numbers, first ones first, and the characters that they come to when deflated."""
    planes = np.ascontiguousarray(values.view(np.uint8).reshape(len(values), values.itemsize).T)
    content = planes.tobytes()
    return content, len(zlib.compress(content, 6)) * 4 // 3


def pack_values(values: Floats, stride: int = 0) -> Packed:
    """Numbers as they are shown: with fixed decimals, or (of many sizes) with five significant digits."""
    known = values[np.isfinite(values)]
    size = float(np.abs(known).max(initial=0))
    if (known == np.rint(known)).all() and size < -MISSING_LONG:
        short = size <= LARGEST
        codes = np.where(np.isfinite(values), values, MISSING_CODE if short else MISSING_LONG)
        return Packed(codes.astype(np.int64), "i16" if short else "i32", stride, decimals=0)
    decimals = min(int(np.floor(np.log10(LARGEST / size))), DECIMALS)
    if decimals < FEWEST:
        return Packed(np.array([float(f"{value:.{DIGITS}g}") for value in _finite(values)]), "f32", digits=DIGITS)
    return Packed(_fixed(values, decimals), "i16", stride, decimals=decimals)


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def _fixed(values: Floats, decimals: int) -> NDArray[np.int64]:
    """`value · 10^decimals` as a whole number, rounded as formatting rounds."""
    known = np.isfinite(values)
    scaled = np.where(known, values, 0) * 10.0**decimals
    codes = np.rint(scaled).astype(np.int64)
    # The product is rounded itself: next to a tie, only the number as written decides.
    for index in np.flatnonzero(np.abs(np.abs(scaled - np.floor(scaled)) - 0.5) < 1e-6):
        codes[index] = int(f"{values[index]:.{decimals}f}".replace(".", "")) if known[index] else 0
    return np.where(known, codes, MISSING_CODE)


def pack_errors(errors: Floats, stride: int = 0) -> Packed:
    """Standard errors with two significant digits."""
    codes = np.zeros(len(errors), dtype=np.int64)
    for index in np.flatnonzero(np.isfinite(errors)):
        mantissa, exponent = f"{abs(errors[index]):.1e}".split("e")
        digits = int(mantissa.replace(".", ""))
        codes[index] = 1 + MANTISSAS * (int(exponent) - 1 + EXPONENT) + digits - 10 if digits else ZERO_ERROR
    return Packed(codes, "u16", stride)


def pack_words(words: NDArray[np.object_], known: list[str]) -> Packed:
    """Words by their number in a list."""
    numbers = {word: number for number, word in enumerate(known)}
    return Packed(np.array([numbers.get(word, MISSING_WORD) for word in words]), "u8")


def pack_moves(values: Floats) -> tuple[Packed, Packed]:
    """Numbers [rows, n] as 127ths of the largest of their row: whole numbers, and the size of one step of each row.

    A row with a missing number has a missing step.
    """
    step = np.abs(values).max(axis=1, initial=0) / np.iinfo(np.int8).max
    with np.errstate(invalid="ignore"):
        whole = np.rint(values / np.where(step > 0, step, 1)[:, None])
    return Packed(np.nan_to_num(whole).ravel(), "i8"), Packed(step, "f32")
