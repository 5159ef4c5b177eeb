"""Directions along which position is looked for, and how queries and keys correlate with it there.

Everything comes twice: of all documents, and with each group of them left out (docs/method.md §3, §7).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.jackknife import follow
from ropewalk.geometry.moments import Floats, Moments, merge_all, without_each
from ropewalk.geometry.pca import (
    centred_scatter,
    correlation,
    drift_axis,
    eigenbasis,
    eigengap,
    orientation,
    pooled_scatter,
    pooled_variance,
    ratio,
    separation_share,
    spread,
    weighted_offset,
)

AXES: Mapping[str, str] = {"pooled": "", "centred": "_centred", "drift": "_drift"}
"""Choices of the axis that r_q and r_k are measured on, and how their columns end."""


@dataclass(frozen=True)
class Side:
    """Moments of the queries or of the keys of a stack of heads, `whole` of all groups of documents; `rest` holds the
    heads without the first group, then those without the second, and so on, and is None for a single group.
    """

    groups: int
    whole: Moments
    rest: Moments | None

    @classmethod
    def of(cls, parts: Sequence[Moments]) -> "Side":
        """From the moments of each group."""
        whole = merge_all(parts)
        return cls(len(parts), whole, without_each(whole, parts) if len(parts) > 1 else None)

    def __getitem__(self, heads: NDArray[np.integer]) -> "Side":
        index = (np.arange(self.groups)[:, None] * len(self.whole) + heads).ravel()
        return Side(self.groups, self.whole[heads], None if self.rest is None else self.rest[index])


@dataclass(frozen=True)
class Grouped:
    """Moments of the queries q and keys k of a stack of heads: of all groups of documents, and without each of them.

    `q_rest` and `k_rest` hold the heads without the first group, then those without the second, and so on; they are
    None for a single group.
    """

    groups: int
    q: Moments
    k: Moments
    q_rest: Moments | None = None
    k_rest: Moments | None = None

    @classmethod
    def of(cls, q: Sequence[Moments], k: Sequence[Moments]) -> "Grouped":
        """From the moments of each group."""
        return cls.pair(Side.of(q), Side.of(k))

    @classmethod
    def pair(cls, q: Side, k: Side) -> "Grouped":
        """From both sides."""
        return cls(q.groups, q.whole, k.whole, q.rest, k.rest)

    def relabelled(self, q: Sequence[Floats], k: Sequence[Floats]) -> "Grouped":
        """The same vectors with other position labels: q, k [heads, d] per group are Σ x (t' - t) of the new ones."""
        return Grouped(
            self.groups,
            _relabelled(self.q, np.sum(q, axis=0)),
            _relabelled(self.k, np.sum(k, axis=0)),
            None if self.q_rest is None else _relabelled(self.q_rest, _without_each(q)),
            None if self.k_rest is None else _relabelled(self.k_rest, _without_each(k)),
        )

    @cached_property
    def scatter_rest(self) -> Floats:
        """Scatters [groups, heads, d, d] of queries about their mean and keys about theirs, without each group."""
        assert self.q_rest is not None, "a single group has no replicates"
        assert self.k_rest is not None, "a single group has no replicates"
        return self.split(centred_scatter(self.q_rest, self.k_rest))

    def split(self, values: Floats) -> Floats:
        """[groups, heads, ...] from what is known of the heads without each group."""
        return values.reshape(self.groups, -1, *values.shape[1:])


def _relabelled(moments: Moments, difference: Floats) -> Moments:
    return replace(moments, sxt=moments.sxt + difference)


def _without_each(parts: Sequence[Floats]) -> Floats:
    total = np.sum(parts, axis=0)
    return np.concatenate([total - part for part in parts])


@dataclass(frozen=True)
class Directions:
    """Directions [heads, d, m] of the whole, and [groups · heads, d, m] of what is left without each group."""

    whole: Floats
    rest: Floats | None


@dataclass(frozen=True)
class Components:
    """Principal components of a scatter, largest first, each replicate's matched to the whole's by vector.

    explained_variance and separation_share [heads, m], eigengap [heads]; with `_rest` [groups, heads, ...] of
    the replicates (empty for a single group); overlap [heads, m] is the smallest |cos| between a component and what it
    is matched to in any replicate (NaN without replicates).
    """

    directions: Directions
    explained_variance: Floats
    explained_variance_rest: Floats
    separation_share: Floats
    separation_share_rest: Floats
    eigengap: Floats
    eigengap_rest: Floats
    overlap: Floats


def components(moments: Grouped, count: int, centred: bool = False) -> Components:
    """The `count` leading components of queries and keys pooled, or of both centred apart."""
    whole = (centred_scatter if centred else pooled_scatter)(moments.q, moments.k)
    spectrum, basis = eigenbasis(whole)
    count = min(count, basis.shape[2])
    values, vectors = spectrum[:, :count], basis[:, :, :count]
    found = {
        "explained_variance": ratio(values, np.trace(whole, axis1=1, axis2=2)[:, None]),
        "separation_share": separation_share(moments.q, moments.k, vectors, values),
        "eigengap": eigengap(spectrum),
    }
    if moments.q_rest is None or moments.k_rest is None:
        nothing = {f"{name}_rest": np.empty((0, *one.shape)) for name, one in found.items()}
        return Components(Directions(vectors, None), **found, **nothing, overlap=np.full(values.shape, np.nan))
    offset = moments.split(weighted_offset(moments.q_rest, moments.k_rest) * (0.0 if centred else 1.0))
    followed = follow(moments.scatter_rest, offset, spectrum, basis, count)
    turned = followed.vectors.reshape(-1, vectors.shape[1], count)
    shares = separation_share(moments.q_rest, moments.k_rest, turned, followed.values.reshape(-1, count))
    return Components(
        Directions(vectors, turned),
        **found,
        explained_variance_rest=ratio(followed.values, followed.trace[..., None]),
        separation_share_rest=moments.split(shares),
        eigengap_rest=eigengap(followed.spectrum),
        overlap=followed.overlap.min(axis=0),
    )


def drift(moments: Grouped) -> Directions:
    """The drift axis of every head."""
    left = None if moments.q_rest is None or moments.k_rest is None else drift_axis(moments.q_rest, moments.k_rest)
    return Directions(drift_axis(moments.q, moments.k), left)


@dataclass(frozen=True)
class Signal:
    """Correlations r_q, r_k [heads, m] with position along directions, and [groups, heads, m] without each group.

    The whole is oriented so that r_q ≥ 0, or r_k ≥ 0 where |r_q| < 0.05, and its replicates are turned with it: by
    `sign` [heads, m]. spread_q and spread_k [1 + groups, heads, m] are the sums of squares along the directions.
    """

    r_q: Floats
    r_k: Floats
    r_q_rest: Floats
    r_k_rest: Floats
    sign: Floats
    spread_q: Floats
    spread_k: Floats


def signal(moments: Grouped, directions: Directions) -> Signal:
    """How queries and keys correlate with position along directions."""
    return signals(directions, moments)[0]


def signals(directions: Directions, *labelled: Grouped) -> list[Signal]:
    """The same for several that are `relabelled` of each other: what does not depend on positions is computed once."""
    moments = labelled[0]
    whole, left = _Spreads.of(moments.q, moments.k, directions.whole), None
    spread_q, spread_k = whole.q[None], whole.k[None]
    if moments.q_rest is not None and moments.k_rest is not None and directions.rest is not None:
        left = _Spreads.of(moments.q_rest, moments.k_rest, directions.rest)
        spread_q, spread_k = (
            np.concatenate([first, moments.split(more)]) for first, more in ((spread_q, left.q), (spread_k, left.k))
        )
    found = []
    for one in labelled:
        r_q, r_k = whole.correlations(one.q, one.k)
        sign = orientation(r_q, r_k)
        r_q_rest = r_k_rest = np.empty((0, *r_q.shape))
        if one.q_rest is not None and one.k_rest is not None and left is not None:
            r_q_rest, r_k_rest = (one.split(r) * sign for r in left.correlations(one.q_rest, one.k_rest))
        found.append(Signal(r_q * sign, r_k * sign, r_q_rest, r_k_rest, sign, spread_q, spread_k))
    return found


class _Spreads(NamedTuple):
    """Directions [heads, d, m], the sums of squares of queries and of keys along them [heads, m], and of all in all
    directions [heads].
    """

    directions: Floats
    q: Floats
    k: Floats
    total: Floats

    @classmethod
    def of(cls, q: Moments, k: Moments, directions: Floats) -> "_Spreads":
        return cls(directions, spread(q.sxx, directions), spread(k.sxx, directions), pooled_variance(q, k))

    def correlations(self, q: Moments, k: Moments) -> tuple[Floats, Floats]:
        return (
            correlation(q, self.directions, self.total, self.q),
            correlation(k, self.directions, self.total, self.k),
        )
