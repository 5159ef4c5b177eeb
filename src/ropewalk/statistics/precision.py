"""In what type products are taken on a device, and how their sums keep all digits (docs/method.md §2)."""

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ropewalk.geometry.moments import Floats

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Compute capabilities of NVIDIA's GPUs that multiply in float64 at half the speed of float32; others take 32 to 64
times as long."""


def products_in(device: "torch.device") -> "torch.dtype":
    """The type in which a device multiplies vectors: float64, or float32 where that is missing (Apple) or slow."""
    import torch

    if device.type == "mps":
        return torch.float32
    if device.type == "cuda" and torch.version.hip is None:
        return torch.float64 if torch.cuda.get_device_capability(device) in FAST_FLOAT64 else torch.float32
    return torch.float64


class Products:
    """Sums of products of blocks of vectors, [segments, heads, rows, columns].

    In float64 they are added as they come. Products in float32 are added to a pair of float32 numbers, whose second
    holds what the first has rounded off: no device needs float64 for it, and of many blocks no more digits are lost
    than of one.
    """

    def __init__(self, shape: tuple[int, ...], device: "torch.device", dtype: "torch.dtype") -> None:
        import torch

        self._sums = torch.zeros(shape, dtype=dtype, device=device)
        self._rest = torch.zeros_like(self._sums) if dtype != torch.float64 else None

    def add(self, segment: int, left: "torch.Tensor", right: "torch.Tensor") -> None:
        """Add left @ right, of one block: [heads, rows, tokens] @ [heads, tokens, columns]."""
        sums = self._sums[segment]
        if self._rest is None:
            sums.baddbmm_(left, right)
            return
        with _full_float32():
            product = left @ right
        total = sums + product
        # What is lost of either in the sum, exactly (Knuth).
        seen = total - sums
        self._rest[segment] += (sums - (total - seen)) + (product - seen)
        self._sums[segment] = total

    def total(self, segments: slice) -> Floats:
        """The sums of some segments together, [heads, rows, columns]."""
        parts = [self._sums, *([] if self._rest is None else [self._rest])]
        wide = [part[segments].cpu().double().sum(dim=0).numpy() for part in parts]
        return wide[0] if len(wide) == 1 else wide[0] + wide[1]


@contextmanager
def _full_float32() -> "Iterator[None]":
    """Products in float32 as they are, where a training lets them be rounded (TF32, bfloat16)."""
    import torch

    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
