"""Errors from groups of documents: leave one out, recompute (docs/method.md §7)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from ropewalk.geometry.moments import Floats, Moments, stack
from ropewalk.geometry.pca import ratio

GUARD = 4
"""Leading components beyond those asked for that are followed too, so that neighbours may mix with them."""
STEPS = 2
"""How often the replicates' vectors are corrected: once is right for most, twice also for those that nearly mix."""
NEAR = 1e-3
"""Eigenvalues closer than this share of the largest are as good as equal: no correction divides by less."""
MIXED = 0.7
"""Below this overlap with the whole's vector a replicate's component is rather a mixture of several."""


def jackknife_error(replicates: ArrayLike) -> Floats:
    """Standard error from delete-one-group replicates [groups, ...]: `sqrt((g-1)/g Σ (θ_i - θ̄)²)`; NaN when g < 2."""
    values = np.asarray(replicates, dtype=np.float64)
    groups = len(values)
    if groups < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(np.sqrt((deviations(values) ** 2).sum(axis=0)))


def jackknife_covariance(replicates: ArrayLike) -> Floats:
    """Covariance [..., m, m] of m estimates from delete-one-group replicates [groups, ..., m]: `(g-1)/g Σ δ_i δ_iᵀ`."""
    values = np.asarray(replicates, dtype=np.float64)
    if len(values) < 2:
        return np.full((*values.shape[1:], values.shape[-1]), np.nan)
    away = deviations(values)
    return np.asarray(np.einsum("g...i,g...j->...ij", away, away))


def deviations(replicates: Floats) -> Floats:
    """`sqrt((g-1)/g) (θ_i - θ̄)` [groups, ...] of delete-one-group replicates: their squares add up to the variance."""
    groups = len(replicates)
    return np.asarray(np.sqrt((groups - 1) / groups) * (replicates - replicates.mean(axis=0)))


@lru_cache
def critical(groups: int, candidates: int = 1) -> float:
    """How many standard errors from so many groups make a 95% interval: Student's t with groups - 1 degrees.

    For the largest of several candidates, an interval that holds for all of them at once (Bonferroni).
    """
    return float(stdtrit(groups - 1, 1 - 0.025 / candidates)) if groups > 1 else float("nan")


def rest(whole: Moments, parts: Sequence[Moments]) -> Moments:
    """The moments with each part left out in turn, one stack after the other [groups · heads, ...]."""
    return stack([whole.without(part) for part in parts])


class Followed(NamedTuple):
    """Eigenpairs of the replicates, matched to components of the whole.

    values [groups, heads, m], vectors [groups, heads, d, m], overlap [groups, heads, m] (|cos| of the angle between a
    vector and the whole's), and spectrum [groups, heads, m], the largest eigenvalues in their own order.
    """

    values: Floats
    vectors: Floats
    overlap: Floats
    spectrum: Floats


def follow(scatter: Floats, spectrum: Floats, basis: Floats, components: int) -> Followed:
    """The components of a whole in its replicates, given the whole's spectrum [heads, d] and eigenbasis [heads, d, d].

    scatter [groups, heads, d, d] are the replicates' matrices. Each is solved in the span of the whole's leading
    eigenvectors, which is then widened by the corrections that the residuals ask for, v_k (v_kᵀ(S - θ)u) / (θ - σ λ_k)
    summed over the other v_k, σ being the replicate's share of the trace, and solved again. Whatever the spectrum,
    errors come out within a few percent of those of full decompositions, at a fraction of their cost. A component is
    the eigenvector that overlaps most with the whole's, turned to its side.
    """
    d = basis.shape[-1]
    leading = components + GUARD
    if leading + STEPS * components >= d:
        # Widened it would be the whole space: solved there, nothing is left to correct.
        leading = d
    outer = basis[..., leading:]
    span = np.broadcast_to(basis[..., :leading], (len(scatter), *basis.shape[:-1], leading))
    image = np.matmul(scatter, span)
    share = np.nan_to_num(ratio(np.trace(scatter, axis1=2, axis2=3), spectrum.sum(axis=1)))
    beyond = (share[..., None] * spectrum[:, leading:])[..., None]
    closest = NEAR * spectrum[:, 0][:, None, None] + np.finfo(np.float64).tiny
    found, turns = _matched(span, image, components)
    for _ in range(STEPS if leading < d else 0):
        residual = np.matmul(image, turns) - found.values[..., None, :] * found.vectors
        distance = np.maximum(found.values[..., None, :] - beyond, closest)
        wanted = np.matmul(outer, np.matmul(outer.transpose(0, 2, 1), residual) / distance)
        # Twice, because one that hardly differs from the span would be lost in rounding.
        for _ in range(2):
            wanted = np.linalg.qr(wanted - np.matmul(span, np.matmul(span.swapaxes(2, 3), wanted)))[0]
        span = np.concatenate([span, wanted], axis=3)
        image = np.concatenate([image, np.matmul(scatter, wanted)], axis=3)
        found, turns = _matched(span, image, components)
    return found


def _matched(span: Floats, image: Floats, components: int) -> tuple[Followed, Floats]:
    """Eigenpairs within a span whose first columns are the whole's components, matched to them; and their turns."""
    values, turns = np.linalg.eigh(np.matmul(span.swapaxes(2, 3), image))
    # Rounding can leave tiny negative values on a rank-deficient scatter.
    values = np.maximum(values, 0)
    overlaps = turns[..., :components, :]
    matched = np.abs(overlaps).argmax(axis=-1)
    overlap = np.take_along_axis(overlaps, matched[..., None], axis=-1)[..., 0]
    turns = np.take_along_axis(turns, matched[..., None, :], axis=-1) * np.where(overlap < 0, -1.0, 1.0)[..., None, :]
    own = np.take_along_axis(values, matched, axis=-1)
    return Followed(own, np.matmul(span, turns), np.abs(overlap), values[..., ::-1][..., :components]), turns
