"""Errors from groups of documents: leave one out, recompute (docs/method.md §7)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ropewalk.geometry.pca import COMPONENTS, PCA, combined_pca, describe, eigenbasis, pooled_scatter
from ropewalk.moments import Floats, Moments, merge_all

GUARD = 6
"""Directions carried beyond the wanted components when they are followed to a near scatter."""
TOLERANCE = 1e-2
"""Residual, as a share of the eigenvalue, up to which a followed component counts as found."""


def jackknife_error(replicates: ArrayLike) -> Floats:
    """Standard error from delete-one-group replicates [groups, ...]: `sqrt((g-1)/g Σ (θ_i - θ̄)²)`; NaN when g < 2."""
    values = np.asarray(replicates, dtype=np.float64)
    groups = len(values)
    if groups < 2:
        return np.full(values.shape[1:], np.nan)
    deviations = values - values.mean(axis=0)
    return np.asarray(np.sqrt((groups - 1) / groups * (deviations**2).sum(axis=0)))


def leave_one_out(q: Sequence[Moments], k: Sequence[Moments], components: int = COMPONENTS) -> tuple[PCA, list[PCA]]:
    """The PCA of all groups together, and the PCA with each group left out (none of these for a single group).

    q and k hold one stack of heads per group, heads in the same order. Each replicate is followed from the whole.
    """
    whole_q, whole_k = merge_all(q), merge_all(k)
    scatter = pooled_scatter(whole_q, whole_k)
    spectrum, basis = eigenbasis(scatter)
    whole = describe(whole_q, whole_k, scatter, spectrum[:, :components], basis[:, :, :components])
    if len(q) < 2:
        return whole, []
    rest = ((whole_q.without(a), whole_k.without(b)) for a, b in zip(q, k, strict=True))
    return whole, [follow_pca(basis, spectrum, *moments, components) for moments in rest]


def follow_pca(basis: Floats, spectrum: Floats, q: Moments, k: Moments, components: int = COMPONENTS) -> PCA:
    """`combined_pca(q, k)`, found from the eigenvectors of a scatter that is close to theirs.

    basis [heads, d, d] and spectrum [heads, d] are `eigenbasis` of the near scatter. A Rayleigh-Ritz step in its
    leading directions, a first-order correction by the directions left out (their own block taken as diagonal), and a
    second Rayleigh-Ritz step: four times cheaper than an eigendecomposition at d = 128. A head whose components leave a
    residual |S v - λ v| above `TOLERANCE` · λ was not close enough and is decomposed in full; so are all heads where
    the leading directions are a large part of the whole and nothing is to be gained.
    """
    d = basis.shape[1]
    lead = components + GUARD
    if lead * 3 > d:
        return combined_pca(q, k, components)
    scatter = pooled_scatter(q, k)
    image = np.matmul(basis.transpose(0, 2, 1), np.matmul(scatter, basis[:, :, :lead]))
    values, rotation = np.linalg.eigh(image[:, :lead])
    coupling = np.matmul(image[:, lead:], rotation)
    shrink = np.trace(scatter, axis1=1, axis2=2) / np.maximum(spectrum.sum(axis=1), np.finfo(float).tiny)
    gap = values[:, None, :] - (shrink[:, None] * spectrum[:, lead:])[:, :, None]
    # A guard may sit among the directions left out; being only a guard, it can do without its correction.
    correction = np.divide(coupling, gap, out=np.zeros_like(coupling), where=gap > 1e-6 * values[:, None, -1:])
    trial, _ = np.linalg.qr(np.matmul(basis, np.concatenate([rotation, correction], axis=1)))
    image = np.matmul(scatter, trial)
    values, rotation = np.linalg.eigh(np.matmul(trial.transpose(0, 2, 1), image))
    keep = slice(None, -components - 1, -1)
    values, rotation = np.maximum(values[:, keep], 0), rotation[:, :, keep]
    vectors = np.matmul(trial, rotation)
    residual = np.linalg.norm(np.matmul(image, rotation) - vectors * values[:, None, :], axis=1)
    far = (residual > TOLERANCE * values).any(axis=1)
    if far.any():
        full_values, full_vectors = eigenbasis(scatter[far])
        values[far], vectors[far] = full_values[:, :components], full_vectors[:, :, :components]
    return describe(q, k, scatter, values, vectors)
