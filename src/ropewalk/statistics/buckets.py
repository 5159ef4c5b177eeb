"""Means and covariances of queries and keys by bucket of positions: plasticity of every token, without vectors."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.gaussian_plasticity import Buckets
from ropewalk.geometry.moments import Floats, Moments, merge_all
from ropewalk.geometry.pca import ratio
from ropewalk.statistics.arrays import Stored, counts
from ropewalk.statistics.base import KINDS, LayerHeads, Observation, Readout, Scope, Statistic, Sums
from ropewalk.statistics.plasticity import SUMS_COLUMNS, SUMS_PROFILE, buckets_of, read_sums
from ropewalk.statistics.registry import register
from ropewalk.statistics.stream import MomentStream


@register("buckets")
class BucketMoments(Statistic):
    """Moments of the queries and keys of every bucket of positions (docs/method.md §6).

    They take `context / bucket_size` times the disk of moments, a quarter of each in float32: kept vectors
    (`sample`) take less, and give both forms of plasticity. This one counts every token.
    """

    columns: ClassVar = SUMS_COLUMNS
    tables: ClassVar = {"plasticity_profile": SUMS_PROFILE}

    def accumulator(self, heads: LayerHeads, scope: Scope) -> "BucketAccumulator":
        """Streams of queries and of keys, cut at the edges of buckets."""
        del heads
        return BucketAccumulator(scope)

    def merge(self, parts: Sequence[Sums]) -> Sums:
        """Moments of all parts together (Chan)."""
        merged = {kind: merge_all([_unpacked(part, kind) for part in parts]) for kind in KINDS}
        return _packed(merged, sum((part["n"] for part in parts), start=np.zeros(())))

    def without(self, whole: Sums, part: Sums) -> Sums:
        """The inverse of `merge` for one part."""
        left = {kind: _unpacked(whole, kind).without(_unpacked(part, kind)) for kind in KINDS}
        return _packed(left, whole["n"] - part["n"])

    def read(self, parts: Sequence[Sums], heads: LayerHeads, scope: Scope, found: Mapping[str, Floats]) -> Readout:
        """Plasticity of every head, of all groups and without each of them."""
        del found
        return read_sums(self._stacked(parts, heads), heads, scope)

    def _stacked(self, parts: Sequence[Sums], heads: LayerHeads) -> Iterator[tuple[Buckets, Buckets]]:
        # One after the other: covariances of all buckets, heads and groups at once may be gigabytes.
        whole = {kind: merge_all([_unpacked(part, kind) for part in parts]) for kind in KINDS}
        buckets = len(parts[0]["n"])
        yield _both(whole, heads, buckets)
        for part in parts if len(parts) > 1 else ():
            yield _both({kind: whole[kind].without(_unpacked(part, kind)) for kind in KINDS}, heads, buckets)

    def stored_arrays(self, heads: LayerHeads, scope: Scope, names: Collection[str]) -> Mapping[str, Stored]:
        """Counts, means and halves of scatters by bucket."""
        del names
        d, buckets = heads.layer.head_dim, -(-scope.context // scope.bucket_size)
        sizes = {kind: len(heads.numbers(kind)) for kind in KINDS}
        return {
            "n": counts(buckets),
            **{f"{kind}.mean": Stored((size, buckets, d)) for kind, size in sizes.items()},
            **{f"{kind}.scatter": Stored((size, buckets, d * (d + 1) // 2)) for kind, size in sizes.items()},
        }

    def stored_bytes(self, vectors: int, head_dim: int, scope: Scope, shards: int) -> float:
        """A mean in float64 and half a scatter in float32 for each bucket."""
        each = 8.0 * head_dim + 4.0 * head_dim * (head_dim + 1) / 2
        return shards * vectors * len(buckets_of(scope)) * each


class BucketAccumulator:
    """Moments of the queries and keys of one layer by bucket."""

    def __init__(self, scope: Scope) -> None:
        edges = [bucket.stop - scope.skip_first for bucket in buckets_of(scope)]
        # Buckets among the tokens that are left out at the start hold nothing.
        self._skipped = sum(edge <= 0 for edge in edges)
        self._counts = np.diff(np.clip([0, *edges], 0, None)).astype(np.float64)
        self._streams = {kind: MomentStream(edges[self._skipped : -1]) for kind in KINDS}
        self._documents = 0

    def update(self, seen: Observation) -> None:
        """Add one observation."""
        for kind, stream in self._streams.items():
            stream.update(seen.vectors(kind), seen.positions)
        self._documents += len(seen.documents)

    def sums(self) -> Sums:
        """`n` [buckets], and per kind `mean` [heads, buckets, d] and the upper half of the scatter in float32."""
        moments = {}
        for kind, stream in self._streams.items():
            parts = stream.segments()
            nothing = [_nothing(parts[0])] * self._skipped
            stacked = {
                name: np.stack([getattr(part, name) for part in (*nothing, *parts)], axis=1) for name in Moments.names()
            }
            moments[kind] = Moments(**{name: array.reshape(-1, *array.shape[2:]) for name, array in stacked.items()})
        return _packed(moments, self._counts * self._documents)


def _nothing(like: Moments) -> Moments:
    return Moments(**{name: np.zeros_like(getattr(like, name)) for name in Moments.names()})


def _packed(moments: Mapping[str, Moments], n: NDArray[Any]) -> Sums:
    """Arrays of moments [heads · buckets, ...] by kind; positions are known by their bucket and not kept."""
    sums: dict[str, NDArray[Any]] = {"n": np.asarray(n, dtype=np.float64)}
    for kind, part in moments.items():
        d = part.head_dim
        upper = np.triu_indices(d)
        sums[f"{kind}.mean"] = np.ascontiguousarray(part.mean.reshape(-1, len(n), d))
        halves = part.sxx[:, upper[0], upper[1]].astype(np.float32)
        sums[f"{kind}.scatter"] = np.ascontiguousarray(halves.reshape(-1, len(n), len(upper[0])))
    return sums


def _unpacked(sums: Sums, kind: str) -> Moments:
    """Moments [heads · buckets, ...], without positions."""
    mean = sums[f"{kind}.mean"]
    heads, buckets, d = mean.shape
    upper = np.triu_indices(d)
    scatter = np.empty((heads * buckets, d, d))
    half = sums[f"{kind}.scatter"].reshape(heads * buckets, -1)
    scatter[:, upper[0], upper[1]] = half
    scatter[:, upper[1], upper[0]] = half
    n, zeros = np.tile(sums["n"], heads), np.zeros(heads * buckets)
    flat = np.asarray(mean.reshape(-1, d), dtype=np.float64)
    return Moments(n, flat, zeros, scatter, np.zeros_like(flat), zeros)


def _both(moments: Mapping[str, Moments], heads: LayerHeads, buckets: int) -> tuple[Buckets, Buckets]:
    """Means and covariances of the queries and of the keys of every query head."""
    found = {}
    for kind, part in moments.items():
        d = part.head_dim
        covariance = np.nan_to_num(ratio(part.sxx, np.maximum(part.n - 1, 0)[:, None, None]))
        found[kind] = Buckets(part.mean.reshape(-1, buckets, d), covariance.reshape(-1, buckets, d, d))
    keys = found["k"]
    return found["q"], Buckets(keys.mean[heads.key_index], keys.covariance[heads.key_index])
