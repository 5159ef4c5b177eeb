"""Moments as named arrays of a shard, and back."""

from collections.abc import Mapping

import numpy as np

from ropewalk.geometry.moments import Moments
from ropewalk.statistics.arrays import Stored, counts
from ropewalk.statistics.base import Sums


def pack(moments: Mapping[str, Moments]) -> Sums:
    """Arrays `prefix.name` of moments by prefix."""
    # The whole scatter, though half would do: putting it together again costs more than reading it.
    return {
        f"{prefix}.{name}": np.ascontiguousarray(getattr(part, name))
        for prefix, part in moments.items()
        for name in Moments.names()
    }


def unpack(sums: Sums, prefix: str) -> Moments:
    """The moments that were packed under a prefix."""
    return Moments(**{name: sums[f"{prefix}.{name}"] for name in Moments.names()})


def packed_arrays(prefix: str, heads: int, head_dim: int) -> dict[str, Stored]:
    """What the arrays of moments of so many heads must be that were packed under a prefix."""
    vectors, scatters = Stored((heads, head_dim)), Stored((heads, head_dim, head_dim))
    each = {"n": counts(heads), "t_mean": counts(heads), "stt": counts(heads), "mean": vectors, "sxt": vectors}
    return {f"{prefix}.{name}": one for name, one in {**each, "sxx": scatters}.items()}
