"""Errors from groups of documents: leave one out, recompute (docs/method.md §7)."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import ratio

GUARD = 6
"""Leading components beyond those asked for that are solved for too, so that neighbours may mix with them."""
WIDER = 4
"""How many of them are corrected, like those asked for, by what lies beyond."""
NEAR = 1e-3
"""Eigenvalues closer than this share of the largest are as good as equal: no correction divides by less."""
NEIGHBOURS = 2
"""How many of them are corrected where all corrections are small."""
SMALL = 0.05
"""The length of a correction, for a vector of length 1, up to which it is."""
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

    values [groups, heads, m], vectors [groups, heads, d, m] and what lies of them in the leading span `inside`
    [groups, heads, leading, m], in coordinates of its vectors; bᵀSb of what lies `outside` [groups, heads, m], with
    expected eigenvalues; overlap [groups, heads, m] (|cos| of the angle between a vector and the whole's), spectrum
    [groups, heads, more], the largest eigenvalues in their own order; `far`, groups and heads of which more than a
    little lies outside.
    """

    values: Floats
    vectors: Floats
    inside: Floats
    outside: Floats
    overlap: Floats
    spectrum: Floats
    far: tuple[Any, ...]


def span(components: int, d: int) -> int:
    """How many leading eigenvectors of a whole `follow` needs the images of: all, where most would be needed."""
    return d if 2 * components + GUARD + WIDER >= d else components + GUARD


def follow(
    image: Floats, trace: Floats, scatter: Callable[[tuple[Any, ...]], Floats], spectrum: Floats, basis: Floats, m: int
) -> Followed:
    """The m components of a whole in its replicates; spectrum [heads, d] and eigenbasis [heads, d, d] are the whole's.

    Of the replicates S there is the image [groups, heads, d, leading] of the `span` of leading eigenvectors and the
    trace [groups, heads]; `scatter` gives S [n, d, d] of those pairs of a group and a head that need more. To first
    order an eigenvector v_j of the whole lacks t_j = Σ_k v_k (v_kᵀSv_j)/(v_jᵀSv_j - σ λ_k) over the v_k beyond, σ being
    the replicate's share of the trace. Where all t_j are small, it is solved in the span of the v_j + t_j, with σ λ_k
    in place of v_kᵀSv_k, which is right up to the third order in t (`_turned`); else in that of both, with S itself
    (`_widened`). What the eigenvectors found there lack is added. Whatever the spectrum, errors come out within a few
    percent of those of full decompositions, at a fraction of their cost. A component is the eigenvector that overlaps
    most with the whole's, turned to its side.
    """
    leading = image.shape[-1]
    # From here on in coordinates of the eigenbasis, in which the leading vectors are unit vectors.
    image = _side_by_side(basis.swapaxes(-1, -2), image)
    inner, outer = image[..., :leading, :], image[..., leading:, :]
    if leading == basis.shape[-1]:
        # The whole space: solved there, nothing is left to correct.
        values, vectors, found = _matched(inner, m)
        return _followed(values, basis, vectors, found, np.zeros_like(values))
    share = np.nan_to_num(ratio(trace, spectrum.sum(axis=1)))
    beyond = share[..., None] * spectrum[:, leading:]
    every = _Replicates(inner, outer, beyond, np.broadcast_to(spectrum[:, 0], share.shape))
    near = m + NEIGHBOURS
    steps = every.lacking(outer[..., :near], np.einsum("...jj->...j", inner)[..., :near])
    values, vectors, found = _turned(every, steps, m)
    far = np.nonzero(_squares(steps).max(axis=2) > SMALL**2)
    if len(far[0]):
        values[far], vectors[far], found[far] = _widened(every.chosen(far), scatter(far), basis[far[1]], m)
    vectors /= np.sqrt(_squares(vectors))[..., None, :]
    outside = np.einsum("...k,...km,...km->...m", beyond, vectors[..., leading:, :], vectors[..., leading:, :])
    return _followed(values, basis, vectors, found, outside, far)


def _side_by_side(matrices: Floats, vectors: Floats) -> Floats:
    """Matrices [heads, d, d] times vectors [groups, heads, d, m], by one product a head for all groups.

    Vectors that are a view of [heads, d, groups, m] are not copied for it; what is returned is such a view too.
    """
    groups, heads, d, m = vectors.shape
    beside: Floats = np.matmul(matrices, vectors.transpose(1, 2, 0, 3).reshape(heads, d, groups * m))
    return beside.reshape(heads, d, groups, m).transpose(2, 0, 1, 3)


class _Replicates(NamedTuple):
    """Replicates, seen from the eigenbasis of the whole.

    `inner` [..., leading, leading] and `outer` [..., more, leading] are the image of its leading vectors, in
    coordinates of these and of those beyond; `beyond` [..., more] are the eigenvalues that are expected there, as
    shares of the trace give them, and `largest` [...] is that of the whole.
    """

    inner: Floats
    outer: Floats
    beyond: Floats
    largest: Floats

    def chosen(self, which: tuple[Any, ...]) -> "_Replicates":
        """Some of them, by group and head."""
        return _Replicates(*(part[which] for part in self))

    def lacking(self, residual: Floats, values: Floats) -> Floats:
        """What vectors with eigenvalues [..., m] lack to first order, from v_kᵀSu [..., more, m] for all v_k beyond."""
        closest = NEAR * self.largest[..., None, None] + np.finfo(np.float64).tiny
        return np.asarray(residual / np.maximum(values[..., None, :] - self.beyond[..., None], closest))


def _turned(replicates: _Replicates, steps: Floats, components: int) -> tuple[Floats, Floats, Floats]:
    """Eigenvalues, vectors and the largest eigenvalues of replicates in the span of the leading v_j + t_j, of which the
    first have `steps` t_j [..., more, near]; and what they lack then is added.
    """
    inner, outer = replicates.inner, replicates.outer
    leading, near = inner.shape[-1], steps.shape[-1]
    image = replicates.beyond[..., None] * steps
    # (1 + P)^-1/2 with P = tᵀt makes the v_j + t_j orthonormal: for small steps this much of its series is enough.
    squares = np.matmul(steps.swapaxes(2, 3), steps)
    root = np.zeros_like(inner)
    root[...] = np.eye(leading)
    root[..., :near, :near] += 0.375 * np.matmul(squares, squares) - 0.5 * squares
    coupling = np.matmul(outer.swapaxes(2, 3), steps)
    projected = inner.copy()
    projected[..., :near] += coupling
    projected[..., :near, :] += coupling.swapaxes(2, 3)
    projected[..., :near, :near] += np.matmul(steps.swapaxes(2, 3), image)
    values, turns, found = _matched(np.matmul(np.matmul(root, projected), root), components)
    first = np.matmul(root, turns)
    rest = np.matmul(steps, first[..., :near, :])
    residual = np.matmul(outer, first) + (replicates.beyond[..., None] - values[..., None, :]) * rest
    return values, np.concatenate([first, rest + replicates.lacking(residual, values)], axis=2), found


def _widened(replicates: _Replicates, scatter: Floats, basis: Floats, components: int) -> tuple[Floats, Floats, Floats]:
    """Eigenvalues [n, m], vectors [n, d, m] and the largest eigenvalues [n, leading] of n replicates S [n, d, d].

    Each is solved in the leading span; then in that span widened by what some of its eigenvectors lack; and what
    they lack then is added.
    """
    inner, outer = replicates.inner, replicates.outer
    leading, wider = inner.shape[-1], components + WIDER
    values, vectors = np.linalg.eigh(inner)
    wanted = np.linalg.qr(replicates.lacking(np.matmul(outer, vectors[..., -wider:]), values[..., -wider:]))[0]
    image = np.matmul(basis.swapaxes(1, 2), np.matmul(scatter, np.matmul(basis[..., leading:], wanted)))
    coupling, beyond_image = image[..., :leading, :], image[..., leading:, :]
    block = np.matmul(wanted.swapaxes(1, 2), beyond_image)
    values, turns, found = _matched(np.block([[inner, coupling], [coupling.swapaxes(1, 2), block]]), components)
    first, second = turns[..., :leading, :], turns[..., leading:, :]
    rest = np.matmul(wanted, second)
    residual = np.matmul(outer, first) + np.matmul(beyond_image, second) - values[..., None, :] * rest
    vectors = np.concatenate([first, rest + replicates.lacking(residual, values)], axis=1)
    return values, vectors, found[..., :leading]


def _squares(vectors: Floats) -> Floats:
    """Squared lengths [..., m] of vectors [..., d, m]."""
    return np.asarray(np.einsum("...dm,...dm->...m", vectors, vectors))


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


def _followed(
    values: Floats, basis: Floats, vectors: Floats, spectrum: Floats, outside: Floats, far: tuple[Any, ...] = ((), ())
) -> Followed:
    leading, overlap = spectrum.shape[-1], np.einsum("...jj->...j", vectors[..., : values.shape[-1], :])
    return Followed(values, np.matmul(basis, vectors), vectors[..., :leading, :], outside, overlap, spectrum, far)
