"""Errors from groups of documents: leave one out, recompute (docs/method.md §7)."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import ratio

GUARD = 8
"""Leading components beyond those asked for that are solved for too, so that neighbours may mix with them."""
WIDER = 4
"""How many of them are corrected, like those asked for, by what lies beyond."""
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


class Followed(NamedTuple):
    """Eigenpairs of the replicates, matched to components of the whole.

    values [groups, heads, m], vectors [groups, heads, d, m], overlap [groups, heads, m] (|cos| of the angle between a
    vector and the whole's), spectrum [groups, heads, more], the largest eigenvalues in their own order, and trace
    [groups, heads], the sum of all.
    """

    values: Floats
    vectors: Floats
    overlap: Floats
    spectrum: Floats
    trace: Floats


def follow(scatter: Floats, offset: Floats, spectrum: Floats, basis: Floats, components: int) -> Followed:
    """The components of a whole in its replicates, given the whole's spectrum [heads, d] and eigenbasis [heads, d, d].

    scatter [groups, heads, d, d] and offset [groups, heads, d] give the replicates' matrices S = scatter + offset
    offsetᵀ, which are not formed: several of them share a scatter. Each is solved in the span of the whole's leading
    eigenvectors; then in that span widened by what its eigenpairs (θ, u) lack to first order, v_k (v_kᵀSu)/(θ - σ λ_k)
    over the v_k beyond, σ being the replicate's share of the trace; and what they lack then is added. Whatever the
    spectrum, errors come out within a few percent of those of full decompositions, at a fraction of their cost. A
    component is the eigenvector that overlaps most with the whole's, turned to its side.
    """
    d = basis.shape[-1]
    leading, wider = components + GUARD, components + WIDER
    if leading + wider >= d:
        # Widened it would be the whole space: solved there, nothing is left to correct.
        leading, wider = d, 0
    trace = np.trace(scatter, axis1=2, axis2=3) + (offset**2).sum(axis=2)
    share = np.nan_to_num(ratio(trace, spectrum.sum(axis=1)))
    beyond = (share[..., None] * spectrum[:, leading:])[..., None]
    closest = NEAR * spectrum[:, 0][:, None, None] + np.finfo(np.float64).tiny

    def lacking(residual: Floats, values: Floats) -> Floats:
        return np.asarray(residual / np.maximum(values[..., None, :] - beyond, closest))

    # From here on in coordinates of the eigenbasis, in which the leading vectors are unit vectors.
    image = _image(scatter, offset, basis, basis[..., :leading])
    if not wider:
        values, vectors, found = _matched(image[..., :leading, :], components)
        return _followed(values, basis[..., :leading], vectors, found, trace)
    inner, outer = image[..., :leading, :], image[..., leading:, :]
    values, vectors = np.linalg.eigh(inner)
    wanted = np.linalg.qr(lacking(np.matmul(outer, vectors[..., -wider:]), values[..., -wider:]))[0]
    image = _image(scatter, offset, basis, np.matmul(basis[..., leading:], wanted))
    coupling, beyond_image = image[..., :leading, :], image[..., leading:, :]
    block = np.matmul(wanted.swapaxes(2, 3), beyond_image)
    values, turns, found = _matched(np.block([[inner, coupling], [coupling.swapaxes(2, 3), block]]), components)
    first, second = turns[..., :leading, :], turns[..., leading:, :]
    rest = np.matmul(wanted, second)
    residual = np.matmul(outer, first) + np.matmul(beyond_image, second) - values[..., None, :] * rest
    vectors = np.concatenate([first, rest + lacking(residual, values)], axis=2)
    return _followed(values, basis, vectors / np.linalg.norm(vectors, axis=2, keepdims=True), found, trace)


def _image(scatter: Floats, offset: Floats, basis: Floats, vectors: Floats) -> Floats:
    """S times vectors [..., heads, d, m], in coordinates of the basis [heads, d, d]."""
    image = np.matmul(scatter, vectors) + offset[..., None] * np.matmul(offset[..., None, :], vectors)
    return np.asarray(np.matmul(basis.swapaxes(1, 2), image))


def _matched(matrix: Floats, components: int) -> tuple[Floats, Floats, Floats]:
    """Eigenvalues [..., m] and vectors [..., n, m] of matrices [..., n, n] that overlap most with the first unit
    vectors, turned to their side; and all eigenvalues [..., n], largest first.
    """
    values, vectors = np.linalg.eigh(matrix)
    # Rounding can leave tiny negative values on a rank-deficient scatter.
    values = np.maximum(values, 0)
    overlaps = vectors[..., :components, :]
    matched = np.abs(overlaps).argmax(axis=-1)
    overlap = np.take_along_axis(overlaps, matched[..., None], axis=-1)[..., 0]
    own = np.take_along_axis(vectors, matched[..., None, :], axis=-1) * np.where(overlap < 0, -1.0, 1.0)[..., None, :]
    return np.take_along_axis(values, matched, axis=-1), own, values[..., ::-1]


def _followed(values: Floats, basis: Floats, vectors: Floats, spectrum: Floats, trace: Floats) -> Followed:
    overlap = np.einsum("...jj->...j", vectors[..., : values.shape[-1], :])
    return Followed(values, np.matmul(basis, vectors), overlap, spectrum, trace)
