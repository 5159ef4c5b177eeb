"""Attention plasticity from means and covariances by bucket of positions, without vectors (docs/method.md §6)."""

from typing import NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.special import ndtr

from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import ratio

NODES, FEWER = 16, 5
"""Points at which the mean over the scores of pairs, and over the variance of a pair's scores, is taken."""

Indices = NDArray[np.integer]


class Buckets(NamedTuple):
    """Means [heads, buckets, d] and covariances [heads, buckets, d, d] of the vectors of each bucket of positions."""

    mean: Floats
    covariance: Floats


def of_gaussians(q: Buckets, k: Buckets, counts: Floats) -> Floats:
    """Plasticity [heads, buckets] by bucket of the query, of queries and keys that are Gaussian in every bucket.

    counts [buckets, buckets] are the positions of each bucket of keys (second) that a query of a bucket (first) sees.
    For a query bucket with mean μ and covariance Σ, and keys of buckets i and j, the difference δ of two keys has mean
    m = m_i - m_j and covariance C = C_i + C_j. The mean of 4 Φ(z) Φ(-z), z = u/√v with u = δᵀμ and v = δᵀΣδ, is taken
    over u, which is Gaussian, and over v given u, as log-normal with its mean and its mean variance given u. NaN for
    queries that see no pair.
    """
    heads, buckets, _ = q.mean.shape
    result = np.full((heads, buckets), np.nan)
    for bucket in range(buckets):
        n = counts[bucket]
        seen = np.flatnonzero(n)
        i, j = np.triu_indices(len(seen))
        weight = np.where(i == j, n[seen[i]] * (n[seen[i]] - 1) / 2, n[seen[i]] * n[seen[j]])
        if weight.sum() > 0:
            keys = Buckets(k.mean[:, seen], k.covariance[:, seen])
            values = _expected(_pairs(q.mean[:, bucket], q.covariance[:, bucket], keys, i, j))
            result[:, bucket] = values @ (weight / weight.sum())
    return result


class _Pairs(NamedTuple):
    """Of u and v for pairs of buckets, all [heads, pairs]: mean and variance of u, E[Var(v | u)] as `residual`, and
    E[v | u] = level + 2 x tilt + x² bend at u = mean + x √variance."""

    mean: Floats
    variance: Floats
    level: Floats
    tilt: Floats
    bend: Floats
    residual: Floats


def _pairs(mu: Floats, sigma: Floats, keys: Buckets, i: Indices, j: Indices) -> _Pairs:
    """With a = Cμ: Var u = μᵀa, and by conditioning δ on u, E[v | u] = tr ΣC - aᵀΣa/μᵀa + |m + (u - E u) a/μᵀa|²_Σ.

    Var v = 2 tr (ΣC)² + 4 mᵀΣCΣm, of which Var E[v | u] is what u explains.
    """
    mean, covariance = keys
    along = np.einsum("hd,hid->hi", mu, mean)
    images = np.einsum("hide,he->hid", covariance, mu)
    own = np.einsum("hid,hd->hi", images, mu)
    products = np.matmul(sigma[:, None], covariance)
    traces = np.einsum("hide,hjed->hij", products, products, optimize=True)
    trace = np.trace(products, axis1=2, axis2=3)
    # (Σ m_j)ᵀ C_i (Σ m_k), [heads, i, j, k].
    turned = np.matmul(mean, sigma)
    cubic = np.matmul(np.matmul(turned[:, None], covariance), turned[:, None].swapaxes(2, 3))
    inner = [
        np.matmul(np.matmul(left, sigma), right.swapaxes(1, 2))
        for left, right in ((images, images), (images, mean), (mean, mean))
    ]
    aa = inner[0][:, i, i] + inner[0][:, j, j] + 2 * inner[0][:, i, j]
    am = inner[1][:, i, i] - inner[1][:, i, j] + inner[1][:, j, i] - inner[1][:, j, j]
    mm = inner[2][:, i, i] + inner[2][:, j, j] - 2 * inner[2][:, i, j]
    variance = own[:, i] + own[:, j]
    bend = np.nan_to_num(ratio(aa, variance))
    tilt = np.nan_to_num(ratio(am, np.sqrt(np.maximum(variance, 0))))
    square = traces[:, i, i] + traces[:, j, j] + 2 * traces[:, i, j]
    outer = sum(cubic[:, one, i, i] + cubic[:, one, j, j] - 2 * cubic[:, one, i, j] for one in (i, j))
    whole = 2 * square + 4 * outer
    return _Pairs(
        along[:, i] - along[:, j],
        np.maximum(variance, 0),
        trace[:, i] + trace[:, j] - bend + mm,
        tilt,
        bend,
        np.maximum(whole - 4 * tilt**2 - 2 * bend**2, 0),
    )


def _expected(pairs: _Pairs) -> Floats:
    """E[4 Φ(z) Φ(-z)] [heads, pairs]; 0 where only the keys decide, NaN where their scores do not differ."""
    x, weights = hermegauss(NODES)
    w, more = hermegauss(FEWER)
    weights, more = weights / weights.sum(), more / more.sum()
    u = pairs.mean + x[:, None, None] * np.sqrt(pairs.variance)
    v = np.maximum(pairs.level + 2 * x[:, None, None] * pairs.tilt + x[:, None, None] ** 2 * pairs.bend, 0)
    spread = np.log1p(np.nan_to_num(ratio(pairs.residual, (pairs.level + pairs.bend) ** 2)))
    found = np.zeros_like(pairs.mean)
    for at, share in zip(w, more, strict=True):
        scale = np.exp(at * np.sqrt(spread) / 2 + spread / 4)
        z = np.where(v > 0, ratio(u, np.sqrt(v)) * scale, np.where(u == 0, 0.0, np.inf))
        found += share * np.einsum("x,xhp->hp", weights, 4 * ndtr(z) * ndtr(-z))
    still = (pairs.mean == 0) & (pairs.variance == 0) & (pairs.level + pairs.bend <= 0)
    return np.where(still, np.nan, found)
