"""Directions along which position is looked for, and how queries and keys correlate with it there.

Everything comes twice: of all documents, and with each group of them left out (docs/method.md §3, §7).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropewalk.geometry.groups import Grouped, apart
from ropewalk.geometry.jackknife import Followed, follow, span
from ropewalk.geometry.moments import Floats, trace
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
class Directions:
    """Directions [heads, d, m] of the whole, and [groups · heads, d, m] of what is left without each group.

    `spreads` are the sums of squares of queries and of keys [groups · heads, m] along the latter, where they are known.
    """

    whole: Floats
    rest: Floats | None
    spreads: tuple[Floats, Floats] | None = None


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
        "explained_variance": ratio(values, trace(whole)[:, None]),
        "separation_share": separation_share(moments.q, moments.k, vectors, values),
        "eigengap": eigengap(spectrum),
    }
    if moments.left is None:
        nothing = {f"{name}_rest": np.empty((0, *one.shape)) for name, one in found.items()}
        return Components(Directions(vectors, None), **found, **nothing, overlap=np.full(values.shape, np.nan))
    leading = np.ascontiguousarray(basis[..., : span(count, basis.shape[2])])
    images = [side.images(leading) for side in (moments.queries, moments.keys)]
    offset = moments.split(weighted_offset(*moments.left) * (0.0 if centred else 1.0))
    total = moments.split(moments.left[0].trace + moments.left[1].trace) + (offset**2).sum(axis=2)

    def scatter(which: tuple[Any, ...]) -> Floats:
        own = offset[which]
        return np.asarray(moments.queries.chosen(which) + moments.keys.chosen(which) + own[:, :, None] * own[:, None])

    pooled = images[0] + images[1]
    shift = np.matmul(offset.transpose(1, 2, 0), apart(offset, leading))
    pooled += shift.reshape(*shift.shape[:2], moments.groups, -1).transpose(2, 0, 1, 3)
    followed = follow(pooled, total, scatter, spectrum, basis, count)
    turned = followed.vectors.reshape(-1, vectors.shape[1], count)
    shares = separation_share(*moments.left, turned, followed.values.reshape(-1, count))
    return Components(
        Directions(vectors, turned, spreads_along(moments, images, leading, followed)),
        **found,
        explained_variance_rest=ratio(followed.values, total[..., None]),
        separation_share_rest=moments.split(shares),
        eigengap_rest=eigengap(followed.spectrum),
        overlap=followed.overlap.min(axis=0),
    )


def spreads_along(
    moments: Grouped, images: Sequence[Floats], leading: Floats, followed: Followed
) -> tuple[Floats, Floats]:
    """Sums of squares of queries and of keys [groups · heads, m] along followed vectors, from the images SV of leading
    vectors V [heads, d, leading].

    Of v = Va + b it is (2v - Va)ᵀSVa + bᵀSb. The last, as b is small, is taken from the sum of both by their shares of
    the trace; where b is not, vᵀSv is computed.
    """
    assert moments.left is not None, "a single group has no replicates"
    inside = np.matmul(leading, followed.inside)
    reach = 2 * followed.vectors
    reach -= inside
    total = moments.left[0].trace + moments.left[1].trace
    found = []
    for side, left, image in zip((moments.queries, moments.keys), moments.left, images, strict=True):
        along = np.einsum("ghdm,ghdm->ghm", reach, np.matmul(image, followed.inside))
        along += moments.split(left.trace / np.where(total > 0, total, np.inf))[..., None] * followed.outside
        if len(followed.far[0]):
            along[followed.far] = spread(side.chosen(followed.far), followed.vectors[followed.far])
        found.append(along.reshape(-1, along.shape[2]))
    return found[0], found[1]


def drift(moments: Grouped) -> Directions:
    """The drift axis of every head."""
    left = None if moments.left is None else drift_axis(*moments.left)
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
    axes, total = directions.whole, pooled_variance(moments.q, moments.k)
    along = spread(moments.q.sxx, axes), spread(moments.k.sxx, axes)
    spreads = [one[None] for one in along]
    along_rest, left_total = directions.spreads, np.empty(0)
    if moments.left is not None and directions.rest is not None:
        left_total = pooled_variance(*moments.left)
        if along_rest is None:
            along_rest = moments.queries.spreads(directions.rest), moments.keys.spreads(directions.rest)
        spreads = [np.concatenate([one, moments.split(more)]) for one, more in zip(spreads, along_rest, strict=True)]
    found = []
    for one in labelled:
        r_q, r_k = (correlation(own, axes, total, seen) for own, seen in zip((one.q, one.k), along, strict=True))
        sign = orientation(r_q, r_k)
        r_q_rest = r_k_rest = np.empty((0, *r_q.shape))
        if one.left is not None and directions.rest is not None and along_rest is not None:
            r_q_rest, r_k_rest = (
                one.split(correlation(own, directions.rest, left_total, seen)) * sign
                for own, seen in zip(one.left, along_rest, strict=True)
            )
        found.append(Signal(r_q * sign, r_k * sign, r_q_rest, r_k_rest, sign, *spreads))
    return found
