"""What the arrays of a statistic must be in a shard: a shard may come from a stranger, who can write a seal."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Stored(NamedTuple):
    """What one array must be: its shape, whether it holds whole numbers, and `least` <= values < `below`.

    A word in a shape is any length, the same wherever the word stands.
    """

    shape: tuple[int | str, ...]
    whole: bool = False
    least: float = -math.inf
    below: float = math.inf


def counts(*shape: int | str) -> Stored:
    """An array of numbers of tokens, queries or keys."""
    return Stored(shape, least=0)


class Checked(Mapping[str, NDArray[Any]]):
    """Arrays by name whose numbers are checked when they are first asked for: those that nobody asks for are not read.

    `refusal` makes an exception of what is wrong, in a few words.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        expected: Mapping[str, Stored],
        refusal: Callable[[str], Exception],
    ) -> None:
        self._arrays, self._waiting, self._refusal = arrays, dict(expected), refusal
        wrong = wrong_form(arrays, expected)
        if wrong is not None:
            raise refusal(wrong)

    def __getitem__(self, name: str) -> NDArray[Any]:
        array = self._arrays[name]
        if name in self._waiting:
            wrong = wrong_numbers(name, array, self._waiting[name])
            if wrong is not None:
                raise self._refusal(wrong)
            self._waiting.pop(name, None)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def wrong_form(arrays: Mapping[str, NDArray[Any]], expected: Mapping[str, Stored]) -> str | None:
    """What of the arrays' names, shapes and types is not as expected, in a few words; None where nothing is."""
    missing = [name for name in expected if name not in arrays]
    if missing:
        return f"the array {missing[0]} is missing"
    lengths: dict[str, int] = {}
    for name, array in arrays.items():
        if name not in expected:
            return f"the array {name!r} is none of this statistic"
        one = expected[name]
        # Nearly always it is the very shape, which need not be looked at length by length.
        if array.shape != one.shape and not _fits(array.shape, one.shape, lengths):
            return f"{name} has the shape {list(array.shape)} where {_described(one.shape, lengths)} is right"
        if array.dtype.kind != ("i" if one.whole else "f") or array.dtype.itemsize < 4:
            return f"{name} has the type {array.dtype} where {'int64' if one.whole else 'float64'} is right"
    return None


def wrong_numbers(name: str, array: NDArray[Any], one: Stored) -> str | None:
    """What of the numbers of an array is not as expected, in a few words; None where nothing is."""
    if not _is_finite(array):
        return f"{name} holds a number that is not finite, or beyond all that sums can be"
    if one.least > -math.inf and array.size and not _is_within(array, one):
        return f"{name} holds {_worst(array, one)}, which it cannot"
    return None


def unlike_heads(arrays: Mapping[str, NDArray[Any]], heads: Mapping[str, int]) -> str | None:
    """Which array is not of so many query heads (`q`) or key heads (`k`), as its name tells; None where none is."""
    for name, array in arrays.items():
        kind, dot, _ = name.partition(".")
        if dot and kind in heads and array.shape[:1] != (heads[kind],):
            return f"{name!r} has the shape {list(array.shape)}, and the layer has {heads[kind]} such heads"
    return None


def _fits(shape: Sequence[int], expected: Sequence[int | str], lengths: dict[str, int]) -> bool:
    return len(shape) == len(expected) and all(
        size == (lengths.setdefault(wanted, size) if isinstance(wanted, str) else wanted)
        for size, wanted in zip(shape, expected, strict=True)
    )


def _described(shape: Sequence[int | str], lengths: Mapping[str, int]) -> str:
    return f"[{', '.join(str(lengths.get(str(length), length)) for length in shape)}]"


def _is_finite(array: NDArray[Any]) -> bool:
    if array.dtype.kind != "f":
        return True
    if array.dtype != np.float64:
        return bool(np.isfinite(array).all())
    # One product, with nothing made beside it: a number whose square is not finite is no sum of vectors either.
    flat = array.reshape(-1)
    return math.isfinite(np.vdot(flat, flat))


def _is_within(array: NDArray[Any], one: Stored) -> bool:
    return bool(array.min() >= one.least and (one.below == math.inf or array.max() < one.below))


def _worst(array: NDArray[Any], one: Stored) -> Any:
    return array.min() if array.min() < one.least else array.max()
