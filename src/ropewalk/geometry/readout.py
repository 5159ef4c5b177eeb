"""How well position can be read off a head's vectors along the best of all directions (docs/method.md §3)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from ropewalk.geometry.moments import Floats, Moments
from ropewalk.geometry.pca import ratio

RIDGE = 1e-12
"""Share of the mean variance that is added to every direction: those without any then do not count."""


class Readout(NamedTuple):
    """Correlation `r` [heads] of position with its prediction on tokens that it was not fitted to, and `replicates`
    [groups, heads], the same without each group.
    """

    r: Floats
    replicates: Floats


def readouts(parts: Sequence[Moments], others: Moments | None, labels: Sequence[Sequence[Floats]]) -> list[Readout]:
    """The largest correlation with position that any direction has, fitted on all groups but one, measured on that one.

    Within one set of tokens it is R = sqrt(Sxtᵀ Sxx⁺ Sxt / Stt), along w = Sxx⁺ Sxt. Here w_g comes from the moments
    without group g (`others` [groups · heads], as `without_each` gives them; None for a single group), and

        R = Σ_g w_gᵀ Sxt_g / sqrt(Σ_g w_gᵀ Sxx_g w_g · Σ_g Stt_g)

    with the moments of the groups: fitting noise does not count, and without a signal R is 0 on average, of either
    sign. NaN with fewer than two groups.

    One for each of `labels`: what to add to Sxt [heads, d] of every group, Σ x (t' - t) for other positions t' of the
    same tokens (nothing for the positions as they are).
    """
    groups, heads = len(parts), len(parts[0])
    if others is None:
        return [Readout(np.full(heads, np.nan), np.full((groups, heads), np.nan))] * len(labels)
    factors = _factors(others)
    # All labels at once, [group, heads, d, label]: reading a scatter takes longer than multiplying with it.
    plain = np.stack([part.sxt for part in parts])[..., None]
    own = np.stack([[part.sxt + more for part, more in zip(parts, one, strict=True)] for one in labels], axis=3)
    # What a merge adds between groups is the same for all labels.
    between = others.sxt.reshape(plain.shape) - _without_each(plain)
    weights = _solve(factors, between + _without_each(own))
    # Scatter of every group along every group's direction: [group, heads, d, direction, label].
    every = weights.transpose(1, 2, 0, 3)
    images = np.stack([np.matmul(part.sxx, every.reshape(*every.shape[:2], -1)) for part in parts])
    images = images.reshape(groups, *every.shape)
    along = np.einsum("ghdgl->ghdl", images)
    covariance, variance = (weights * own).sum(axis=2), (weights * along).sum(axis=2)
    stt = np.stack([part.stt for part in parts])[..., None]
    sums = covariance.sum(axis=0), np.maximum(variance.sum(axis=0), 0), stt.sum(axis=0)
    r = _together(*sums)
    left = _together(*(total - one for total, one in zip(sums, (covariance, variance, stt), strict=True)))
    # A group that is left out also leaves the fits of the others, which changes R by the gradient with respect to them.
    slope = own - ratio(sums[0], sums[1])[None, :, None] * along
    pull = np.nan_to_num(_solve(factors, np.nan_to_num(slope)))
    gone = np.einsum("ghdl,jhdl->jhgl", pull, own) - np.einsum("ghdl,jhdgl->jhgl", pull, images)
    inner = gone.sum(axis=2) - np.einsum("jhjl->jhl", gone)
    replicates = np.clip(left - ratio(inner, np.sqrt(sums[1] * sums[2])[None]), -1, 1)
    return [Readout(r[:, label], replicates[..., label]) for label in range(len(labels))]


def _factors(moments: Moments) -> list[Any]:
    """Cholesky factors of the scatters, each lifted by a trace of a ridge so that it has one."""
    d = moments.head_dim
    scale = np.trace(moments.sxx, axis1=1, axis2=2) / d
    ridge = np.where(scale > 0, RIDGE * scale, 1.0)
    lifted = moments.sxx.copy()
    np.einsum("hii->hi", lifted)[...] += ridge[:, None]
    factors = []
    for scatter in lifted:
        # The transpose of a symmetric matrix is itself, and lies as LAPACK wants it: nothing is copied.
        factor, failed = dpotrf(scatter.T, lower=True, clean=False, overwrite_a=True)
        # What is left when most of a scatter is taken away may be rounding alone: then there is no direction in it.
        factors.append(np.diag(np.full(d, np.inf)) if failed else factor)
    return factors


def _solve(factors: list[Any], right: Floats) -> Floats:
    """Sxx⁺ b for vectors b [groups, heads, d, label]."""
    flat = right.reshape(len(factors), *right.shape[2:])
    solved = [dpotrs(factor, one, lower=True)[0] for factor, one in zip(factors, flat, strict=True)]
    return np.stack(solved).reshape(right.shape)


def _without_each(parts: Floats) -> Floats:
    return np.asarray(parts.sum(axis=0) - parts)


def _together(covariance: Floats, variance: Floats, stt: Floats) -> Floats:
    # Rounding can leave a variance of nothing a little below zero.
    return np.clip(ratio(covariance, np.sqrt(np.maximum(variance * stt, 0))), -1, 1)
