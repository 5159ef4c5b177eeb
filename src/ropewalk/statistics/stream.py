"""Adding up moments of vectors as they come: the torch side of the statistic `moments`."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.moments import Floats, Moments
from ropewalk.statistics.precision import WEIGHTS, Products, products_in

if TYPE_CHECKING:
    import torch

BLOCK = 512
"""Tokens that are multiplied at once."""


@lru_cache(maxsize=64)
def shuffle(seed: int, document: int, count: int) -> NDArray[np.int64]:
    """A permutation [count] that depends on the seed and the document alone."""
    return np.random.default_rng([seed % 2**32, document]).permutation(count)


def shuffled_positions(seed: int, document: int, positions: "torch.Tensor") -> "torch.Tensor":
    """The positions of a document's tokens in another order, the same for every layer, head and checkpoint."""
    import torch

    return positions[torch.from_numpy(shuffle(seed, document, len(positions)))]


class _Kept(NamedTuple):
    """What a stream keeps from one batch to the next, a row for each piece between cuts.

    `products` of x with itself and with 1, t and t' - t, x being shifted by `shift` and t by `t_shift`; `t_first` of t
    and t²; n tokens.
    """

    products: Products
    shift: "torch.Tensor"
    t_shift: "torch.Tensor"
    t_first: "torch.Tensor"
    n: Floats


class MomentStream:
    """Takes batches of vectors of a fixed set of heads and gives their `Moments`.

    Vectors are widened to float64 and shifted by the mean of the first ones before they are multiplied, so that a
    common offset a thousand times the spread costs no digits, and so that cutting the stream elsewhere changes nothing
    that matters. Float32 products would be twice as fast on a CPU, and would make the seventh digit depend on the cut;
    devices without a fast float64 take them all the same (see `precision`). Memory is heads · d (d + 7) / 2 numbers,
    whatever the number of tokens, for each of `cuts` again: numbers of leading tokens of every document whose moments
    are wanted too. Where `shape` tells heads and d, a CPU's memory for all that is kept is taken at once: taken during
    a forward pass, be it a few bytes, it would lie between activations and keep the allocator from using their room
    again.
    """

    def __init__(self, cuts: Iterable[int] = (), shape: tuple[int, int] | None = None) -> None:
        import torch

        self._cuts = sorted(set(cuts))
        self._kept: _Kept | None = None
        self._ready = None if shape is None else self._empty(*shape, torch.device("cpu"))

    def update(
        self, vectors: "torch.Tensor", positions: "torch.Tensor", shuffled: "Sequence[torch.Tensor] | None" = None
    ) -> None:
        """Add vectors [documents, heads, tokens, d] at positions [tokens] (on the CPU), the same in every document.

        `shuffled` holds, per document, the positions in the order of the null.
        """
        import torch

        documents, heads, tokens, d = vectors.shape
        if self._kept is None:
            ready = self._ready if vectors.device.type == "cpu" else None
            self._kept = ready or self._empty(heads, d, vectors.device)
            leading = vectors[0, :, :BLOCK]
            torch.mean(leading, dim=1, keepdim=True, dtype=self._kept.shift.dtype, out=self._kept.shift)
            torch.mean(positions, dim=0, dtype=torch.float64, out=self._kept.t_shift)
        kept = self._kept
        room = kept.products.room(min(BLOCK, documents * tokens))
        t = positions.double() - kept.t_shift
        labels = [t] * documents if shuffled is None else [one.double() - kept.t_shift for one in shuffled]
        away = torch.stack(labels) - t
        weights = torch.stack([torch.ones_like(away), t.expand_as(away), away], dim=2).to(kept.shift)

        def blocks(some: slice, first: int, last: int) -> Iterator["torch.Tensor"]:
            """These tokens of some documents with their weights, one block after the other in the same memory: new
            pages for each would cost as much as the products.
            """
            for start in range(first, last, BLOCK):
                part = vectors[some, :, start : min(start + BLOCK, last)]
                block = kept.products.block(room, len(part), part.shape[2])
                # Widened as they lie, then shifted: both at once would be a copy in another place first.
                block[..., :d] = part
                block[..., :d] -= kept.shift
                block[..., d : d + WEIGHTS] = weights[some, None, start : start + part.shape[2]]
                yield block

        for segment, (first, last) in enumerate(pairwise([0, *self._cuts, tokens])):
            # Of short documents several together.
            count = max(1, BLOCK // (last - first))
            for number in range(0, documents, count):
                kept.products.add(segment, blocks(slice(number, number + count), first, last))
            part = t[first:last]
            kept.t_first[segment] += documents * torch.stack([part.sum(), part @ part])
            kept.n[segment] += documents * (last - first)

    def result(self) -> Moments:
        """Moments of everything seen so far."""
        return self._of(0, len(self._cuts) + 1)

    def leading(self, count: int) -> Moments:
        """Moments of the first `count` tokens of every document, one of `cuts`."""
        return self._of(0, self._cuts.index(count) + 1)

    def segments(self) -> list[Moments]:
        """Moments of the tokens between one cut and the next, the ends counted as cuts."""
        return [self._of(number, number + 1) for number in range(len(self._cuts) + 1)]

    def shuffled(self) -> Floats:
        """Σ x (t' - t) [heads, d], t' being the shuffled positions. A common shift of x does not change it."""
        return self._seen().products.weighted(slice(None))[:, 2]

    def _empty(self, heads: int, d: int, device: "torch.device") -> "_Kept":
        import torch

        segments, dtype = len(self._cuts) + 1, products_in(device)
        return _Kept(
            products=Products(segments, heads, d, device, dtype),
            shift=torch.zeros(heads, 1, d, dtype=dtype, device=device),
            t_shift=torch.zeros((), dtype=torch.float64),
            t_first=torch.zeros(segments, 2, dtype=torch.float64),
            n=np.zeros(segments),
        )

    def _seen(self) -> "_Kept":
        if self._kept is None:
            raise ValueError("no vectors were given")
        return self._kept

    def _of(self, start: int, stop: int) -> Moments:
        kept, chosen = self._seen(), slice(start, stop)
        sums, first = kept.products.scatter(chosen), kept.products.weighted(chosen)
        shift, t_sums = kept.shift[:, 0].cpu().double().numpy(), kept.t_first[chosen].sum(dim=0).numpy()
        n, ones = float(kept.n[chosen].sum()), np.ones(len(sums))
        mean, t_mean = first[:, 0] / n, t_sums[0] / n
        return Moments(
            n=n * ones,
            mean=shift + mean,
            t_mean=(float(kept.t_shift) + t_mean) * ones,
            sxx=sums - n * (mean[:, :, None] * mean[:, None, :]),
            sxt=first[:, 1] - n * mean * t_mean,
            stt=(t_sums[1] - n * t_mean**2) * ones,
        )
