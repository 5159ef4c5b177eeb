"""The mean path of a head's queries and keys through the context, bucket by bucket of positions."""

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ropewalk.statistics.base import LayerHeads, Observation, Scope, Statistic, Sums
from ropewalk.statistics.registry import register

if TYPE_CHECKING:
    import torch

STEPS = 64
"""Even steps into which the context is cut; its first one is cut again, at powers of two."""


def bucket_edges(context: int) -> NDArray[np.int64]:
    """Edges of the position buckets: 0, 1, 2, 4, 8, ... below a 64th of the context, then every 64th of it.

    Bucket i holds the positions edges[i] <= t < edges[i + 1]; a context below 64 has a bucket for each position.
    """
    even = -(-np.arange(1, STEPS + 1) * context // STEPS)
    octaves = [0, *(1 << power for power in range(context.bit_length()) if 1 << power < even[0])]
    return np.unique(np.array([*octaves, *even], dtype=np.int64))


@register("profile")
class Profile(Statistic):
    """Sums of x and |x|² per position bucket, for queries and keys (docs/method.md §9)."""

    def accumulator(self, heads: LayerHeads, scope: Scope) -> "ProfileAccumulator":
        """Sums per bucket."""
        del heads
        return ProfileAccumulator(scope)

    def stored_bytes(self, vectors: int, head_dim: int, scope: Scope, shards: int) -> float:
        """A vector and a number for each bucket, in float64."""
        return 8.0 * shards * vectors * (head_dim + 1) * (len(bucket_edges(scope.context)) - 1)


class ProfileAccumulator:
    """Adds up vectors by the bucket of their position."""

    def __init__(self, scope: Scope) -> None:
        edges = np.clip(bucket_edges(scope.context) - scope.skip_first, 0, None)
        self._counts = np.diff(edges)
        self._documents = 0
        self._totals: dict[str, torch.Tensor] = {}

    def update(self, seen: Observation) -> None:
        """Add one observation."""
        for kind in ("q", "k"):
            x = seen.vectors(kind).float()
            self._add(f"{kind}.sum", self._bucket_sums(x))
            self._add(f"{kind}.square", self._bucket_sums((x * x).sum(dim=3, keepdim=True))[:, :, 0])
        self._documents += len(seen.documents)

    def _bucket_sums(self, x: "torch.Tensor") -> "torch.Tensor":
        """Sums [heads, buckets, d] over documents and buckets of x [documents, heads, tokens, d].

        Within a bucket of one document in float32 (widening every vector would cost ten times the sums), beyond it in
        float64, so that another batch gives the same. Neighbouring buckets of one width are one call.
        """
        import torch

        parts, start = [], 0
        for width, run in groupby(self._counts.tolist()):
            count = len(list(run))
            stop = start + width * count
            parts.append(x[:, :, start:stop].reshape(*x.shape[:2], count, width, x.shape[3]).sum(dim=3))
            start = stop
        # Apple's GPUs have no float64: there the few numbers per bucket are added up on the CPU.
        sums = torch.cat(parts, dim=2)
        return (sums.cpu() if sums.device.type == "mps" else sums).double().sum(dim=0)

    def _add(self, name: str, part: "torch.Tensor") -> None:
        self._totals[name] = self._totals[name] + part if name in self._totals else part

    def sums(self) -> Sums:
        """`n` [buckets] tokens, and per kind `sum` [heads, buckets, d] = Σ x, `square` [heads, buckets] = Σ |x|²."""
        arrays: Sums = {name: total.cpu().numpy() for name, total in self._totals.items()}
        return {"n": self._counts * float(self._documents), **arrays}
