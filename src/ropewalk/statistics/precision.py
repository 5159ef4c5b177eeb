"""In what type products are taken on a device, and how their sums keep all digits (docs/method.md §2)."""

from contextlib import contextmanager
from functools import lru_cache
from math import prod
from mmap import mmap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.moments import Floats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Compute capabilities of NVIDIA's GPUs that multiply in float64 at half the speed of float32; others take 32 to 64
times as long."""
WEIGHTS = 3
"""What each vector is multiplied with beside itself: 1, its position, and how far a shuffle takes it from there."""
COLUMNS = 24
"""Blocks have a multiple of so many columns, as MKL multiplies them, the last of which nobody looks at: 72 take it a
quarter less time than 64 and 3 apart."""


def products_in(device: "torch.device") -> "torch.dtype":
    """The type in which a device multiplies vectors: float64, or float32 where that is missing (Apple) or slow."""
    import torch

    if device.type == "mps":
        return torch.float32
    if device.type == "cuda" and torch.version.hip is None:
        return torch.float64 if torch.cuda.get_device_capability(device) in FAST_FLOAT64 else torch.float32
    return torch.float64


class Products:
    """Sums over tokens of x xᵀ and of x times each of some weights, [segments, heads, ...], from blocks of both.

    Of x xᵀ the half on and below its diagonal is kept: the other is the same. In float64 products are added as they
    come. Products in float32 are added to a pair of float32 numbers, whose second holds what the first has rounded off:
    no device needs float64 for it, and of many blocks no more digits are lost than of one.
    """

    def __init__(self, segments: int, heads: int, head_dim: int, device: "torch.device", dtype: "torch.dtype") -> None:
        import torch

        self._d, self._columns = head_dim, -(-(head_dim + WEIGHTS) // COLUMNS) * COLUMNS
        rows, before = torch.tril_indices(head_dim, head_dim)
        weighted = torch.arange(head_dim) * self._columns + head_dim + torch.arange(WEIGHTS)[:, None]
        self._taken = torch.cat([rows * self._columns + before, weighted.flatten()]).to(device)
        self._sums = _zeros((segments, heads, len(self._taken)), dtype, device)
        self._rest = torch.zeros_like(self._sums) if dtype != torch.float64 else None

    def room(self, tokens: int) -> "torch.Tensor":
        """Memory for blocks of so many tokens, see `block`; nothing stands in it yet."""
        return self._sums.new_empty(self._sums.shape[1] * tokens * self._columns)

    def block(self, room: "torch.Tensor", documents: int, tokens: int) -> "torch.Tensor":
        """A block [documents, heads, tokens, columns] in a room: first the d numbers of x, then the `WEIGHTS` of its
        token; what stands beyond is not looked at.
        """
        shape = documents, self._sums.shape[1], tokens, self._columns
        return room[: prod(shape)].view(shape)

    def add(self, segment: int, blocks: "Iterable[torch.Tensor]") -> None:
        """Add the products of blocks of the same documents; they may come one after the other in the same memory.

        Documents are added one by one, so that no digit depends on how many come at once.
        """
        product: torch.Tensor | None = None
        for one in blocks:
            block = one.flatten(0, 1)
            vectors = block[..., : self._d].transpose(1, 2)
            if product is not None and self._rest is None:
                product.baddbmm_(vectors, block)
                continue
            if product is not None:
                self._keep(segment, product)
            # One product for both: x xᵀ and, in the columns beyond, x times the weights.
            with _full_float32():
                product = vectors @ block
        if product is not None:
            self._keep(segment, product)

    def _keep(self, segment: int, product: "torch.Tensor") -> None:
        parts = product.flatten(1).index_select(1, self._taken).view(-1, *self._sums.shape[1:])
        for part in parts:
            sums = self._sums[segment]
            if self._rest is None:
                sums += part
                continue
            total = sums + part
            # What is lost of either in the sum, exactly (Knuth).
            seen = total - sums
            self._rest[segment] += (sums - (total - seen)) + (part - seen)
            self._sums[segment] = total

    def scatter(self, segments: slice) -> Floats:
        """Σ x xᵀ [heads, d, d] of some segments together."""
        return np.take(self._total(segments), _places(self._d), axis=1)

    def weighted(self, segments: slice) -> Floats:
        """Σ x w [heads, weights, d] of some segments together."""
        return self._total(segments)[:, -WEIGHTS * self._d :].reshape(-1, WEIGHTS, self._d)

    def _total(self, segments: slice) -> Floats:
        parts = [self._sums, *([] if self._rest is None else [self._rest])]
        wide = [part[segments].cpu().double().sum(dim=0).numpy() for part in parts]
        return wide[0] if len(wide) == 1 else wide[0] + wide[1]


@lru_cache(maxsize=8)
def _places(d: int) -> NDArray[np.intp]:
    """Where each number of a symmetric matrix [d, d] stands among those on and below its diagonal, row by row."""
    rows, columns = np.tril_indices(d)
    found = np.empty((d, d), dtype=np.intp)
    found[rows, columns] = found[columns, rows] = np.arange(len(rows))
    found.setflags(write=False)
    return found


def _zeros(shape: tuple[int, ...], dtype: "torch.dtype", device: "torch.device") -> "torch.Tensor":
    """Zeros that live through many forward passes: on a CPU in memory of their own."""
    import torch

    if device.type != "cpu" or not prod(shape):
        return torch.zeros(shape, dtype=dtype, device=device)
    # Among activations on the heap they would keep the allocator from using the room of these again as a whole.
    memory = mmap(-1, prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape)).view(shape)


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
