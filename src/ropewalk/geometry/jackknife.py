"""Errors from groups of documents: leave one out, recompute (docs/method.md §7)."""

from functools import lru_cache
from typing import Any, NamedTuple

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
    offsetᵀ, which are not formed: several of them share a scatter. To first order a leading eigenvector v_j of the
    whole lacks t_j = Σ_k v_k (v_kᵀSv_j)/(v_jᵀSv_j - σ λ_k) over the v_k beyond, σ being the replicate's share of the
    trace: each is solved in the span of the v_j + t_j (`_turned`), or, where a t_j is not small, of both (`_widened`),
    and what the eigenvectors found there lack is added. Whatever the spectrum, errors come out within a few percent
    of those of full decompositions, at a fraction of their cost. A component is the eigenvector that overlaps most
    with the whole's, turned to its side.
    """
    d = basis.shape[-1]
    leading, wider = components + GUARD, components + WIDER
    if leading + wider >= d:
        # Widened it would be the whole space: solved there, nothing is left to correct.
        leading, wider = d, 0
    trace = np.trace(scatter, axis1=2, axis2=3) + (offset**2).sum(axis=2)
    # From here on in coordinates of the eigenbasis, in which the leading vectors are unit vectors.
    image = _image(scatter, offset, basis, basis[..., :leading])
    inner, outer = image[..., :leading, :], image[..., leading:, :]
    if not wider:
        values, vectors, found = _matched(inner, components)
        return _followed(values, basis[..., :leading], vectors, found, trace)
    share = np.nan_to_num(ratio(trace, spectrum.sum(axis=1)))
    beyond = share[..., None] * spectrum[:, leading:]
    every = _Replicates(scatter, offset, inner, outer, basis, beyond, np.broadcast_to(spectrum[:, 0], share.shape))
    near = components + NEIGHBOURS
    steps = every.lacking(outer[..., :near], np.einsum("...jj->...j", inner)[..., :near])
    values, vectors, found = _turned(every, steps, components)
    far = np.nonzero(_squares(steps).max(axis=2) > SMALL**2)
    if len(far[0]):
        values[far], vectors[far], found[far] = _widened(every.chosen(far), components, wider)
    vectors /= np.sqrt(_squares(vectors))[..., None, :]
    return _followed(values, basis, vectors, found, trace)


class _Replicates(NamedTuple):
    """Replicates S = `scatter` + offset offsetᵀ, seen from the eigenbasis [..., d, d] of the whole.

    `inner` [..., leading, leading] and `outer` [..., more, leading] are the image of its leading vectors, in
    coordinates of these and of those beyond; `beyond` [..., more] are the eigenvalues that are expected there, as
    shares of the trace give them, and `largest` [...] is that of the whole.
    """

    scatter: Floats
    offset: Floats
    inner: Floats
    outer: Floats
    basis: Floats
    beyond: Floats
    largest: Floats

    def chosen(self, which: tuple[Any, ...]) -> "_Replicates":
        """Some of them, by group and head; the basis is the same in every group."""
        return _Replicates(*(part[which[1] if part is self.basis else which] for part in self))

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
    outside = replicates.basis[..., leading:]
    image = _image(replicates.scatter, replicates.offset, outside, np.matmul(outside, steps))
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
    residual = np.matmul(outer, first) + np.matmul(image, first[..., :near, :]) - values[..., None, :] * rest
    return values, np.concatenate([first, rest + replicates.lacking(residual, values)], axis=2), found


def _widened(replicates: _Replicates, components: int, wider: int) -> tuple[Floats, Floats, Floats]:
    """Eigenvalues [n, m], vectors [n, d, m] and the largest eigenvalues [n, leading] of n replicates, as `follow` says.

    Each is solved in the leading span; then in that span widened by what `wider` of its eigenvectors lack; and what
    they lack then is added.
    """
    inner, outer, basis = replicates.inner, replicates.outer, replicates.basis
    leading = inner.shape[-1]
    values, vectors = np.linalg.eigh(inner)
    wanted = np.linalg.qr(replicates.lacking(np.matmul(outer, vectors[..., -wider:]), values[..., -wider:]))[0]
    image = _image(replicates.scatter, replicates.offset, basis, np.matmul(basis[..., leading:], wanted))
    coupling, beyond_image = image[..., :leading, :], image[..., leading:, :]
    block = np.matmul(wanted.swapaxes(1, 2), beyond_image)
    values, turns, found = _matched(np.block([[inner, coupling], [coupling.swapaxes(1, 2), block]]), components)
    first, second = turns[..., :leading, :], turns[..., leading:, :]
    rest = np.matmul(wanted, second)
    residual = np.matmul(outer, first) + np.matmul(beyond_image, second) - values[..., None, :] * rest
    vectors = np.concatenate([first, rest + replicates.lacking(residual, values)], axis=1)
    return values, vectors, found[..., :leading]


def _image(scatter: Floats, offset: Floats, onto: Floats, vectors: Floats) -> Floats:
    """S times vectors [..., d, m], in coordinates [..., n, m] of the orthonormal vectors `onto` [..., d, n]."""
    image = np.matmul(scatter, vectors)
    image += offset[..., None] * np.matmul(offset[..., None, :], vectors)
    return np.asarray(np.matmul(onto.swapaxes(-1, -2), image))


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


def _followed(values: Floats, basis: Floats, vectors: Floats, spectrum: Floats, trace: Floats) -> Followed:
    overlap = np.einsum("...jj->...j", vectors[..., : values.shape[-1], :])
    return Followed(values, np.matmul(basis, vectors), overlap, spectrum, trace)
