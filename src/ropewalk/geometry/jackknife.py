"""Errors from groups of documents: leave one out, recompute (docs/method.md §7)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ropewalk.geometry.moments import Floats, Moments, merge_all
from ropewalk.geometry.pca import COMPONENTS, PCA, combined_pca, describe, eigenbasis, pooled_scatter

SPAN = 24
"""Leading directions of the whole in which replicates are computed."""
MARGIN = 14
"""How many of them are more than the components that are wanted, at least."""


def jackknife_error(replicates: ArrayLike) -> Floats:
    """Standard error from delete-one-group replicates [groups, ...]: `sqrt((g-1)/g Σ (θ_i - θ̄)²)`; NaN when g < 2."""
    values = np.asarray(replicates, dtype=np.float64)
    groups = len(values)
    if groups < 2:
        return np.full(values.shape[1:], np.nan)
    deviations = values - values.mean(axis=0)
    return np.asarray(np.sqrt((groups - 1) / groups * (deviations**2).sum(axis=0)))


def jackknife_covariance(replicates: ArrayLike) -> Floats:
    """Covariance [..., m, m] of m estimates from delete-one-group replicates [groups, ..., m]: `(g-1)/g Σ δ_i δ_iᵀ`."""
    values = np.asarray(replicates, dtype=np.float64)
    groups = len(values)
    if groups < 2:
        return np.full((*values.shape[1:], values.shape[-1]), np.nan)
    deviations = values - values.mean(axis=0)
    return np.asarray((groups - 1) / groups * np.einsum("g...i,g...j->...ij", deviations, deviations))


def leave_one_out(
    q: Sequence[Moments], k: Sequence[Moments], key_of: NDArray[np.intp], components: int = COMPONENTS
) -> tuple[PCA, list[PCA]]:
    """The PCA of all groups together, and the PCA with each group left out (none of these for a single group).

    q holds one stack of heads per group, k one stack of key heads, and key_of [heads] says which of them a head reads.
    Replicates are exact within the span of the whole's `SPAN` leading eigenvectors (and altogether exact where head_dim
    is no larger). Leaving a group out turns the leading components towards directions outside it only to second order,
    and it is three times cheaper at head_dim 128 than decomposing every replicate in full.
    """
    k = [part[key_of] for part in k]
    whole_q, whole_k = merge_all(q), merge_all(k)
    scatter = pooled_scatter(whole_q, whole_k)
    spectrum, basis = eigenbasis(scatter)
    whole = describe(whole_q, whole_k, scatter, spectrum[:, :components], basis[:, :, :components])
    if len(q) < 2:
        return whole, []
    span = np.ascontiguousarray(basis[:, :, : max(SPAN, components + MARGIN)])
    projected_q = [part.project(span) for part in q]
    projected_k = [part.project(span) for part in k]
    total_q, total_k = whole_q.project(span), whole_k.project(span)
    replicates = []
    for part_q, part_k, own_q, own_k in zip(q, k, projected_q, projected_k, strict=True):
        total = _variance(_rest(whole_q, part_q), _rest(whole_k, part_k))
        replicates.append(combined_pca(total_q.without(own_q), total_k.without(own_k), components, total))
    return whole, replicates


def _rest(whole: Moments, part: Moments) -> tuple[Floats, Floats, Floats]:
    """Tokens [heads], mean [heads, d] and tr Sxx [heads] of what is left of the whole without a part."""
    n = whole.n - part.n
    delta = whole.mean - part.mean
    trace = np.trace(whole.sxx, axis1=1, axis2=2) - np.trace(part.sxx, axis1=1, axis2=2)
    trace -= part.n * whole.n / n * (delta**2).sum(axis=1)
    return n, whole.mean + (part.n / n)[:, None] * delta, trace


def _variance(q: tuple[Floats, Floats, Floats], k: tuple[Floats, Floats, Floats]) -> Floats:
    """Trace [heads] of the pooled scatter."""
    (n_q, mean_q, trace_q), (n_k, mean_k, trace_k) = q, k
    return np.asarray(trace_q + trace_k + n_q * n_k / (n_q + n_k) * ((mean_q - mean_k) ** 2).sum(axis=1))
