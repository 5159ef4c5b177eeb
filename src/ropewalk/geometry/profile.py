"""Position that is not a straight line: how much of the variance lies between buckets of positions
(docs/method.md §9).
"""

import numpy as np

from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import ratio


def selections(groups: int) -> Floats:
    """[1 + groups, groups] Which groups count: all, then all but each in turn; [1, 1] for a single group."""
    everything = np.ones((1, groups))
    return np.concatenate([everything, 1 - np.eye(groups)]) if groups > 1 else everything


def between(n: Floats, sums: Floats, squares: Floats) -> tuple[Floats, Floats]:
    """Sums of squares of vectors between buckets, Σ_b n_b |x̄_b - x̄|², and of all vectors about their mean, tr Sxx;
    both [1 + groups, heads], of all groups and without each of them.

    n [groups, buckets] tokens, sums [groups, heads, buckets, d] = Σ x, squares [groups, heads, buckets] = Σ |x|².
    Products of means are taken across groups, |μ_b|² ≈ Σ_{g≠g'} S_bg·S_bg' / Σ_{g≠g'} n_bg n_bg', so that noise in
    the means, which is independent between groups, adds nothing on average. One group alone has no such products: NaN.
    """
    chosen = selections(len(n))
    products = np.einsum("ghbd,khbd->hbgk", sums, sums, optimize=True)
    whole = sums.sum(axis=2)
    totals = np.einsum("ghd,khd->hgk", whole, whole)
    means = _across(products, n.T[None], chosen)
    mean = _across(totals[:, None], n.sum(axis=1)[None, None], chosen)[..., 0]
    counts = chosen @ n
    everything = counts.sum(axis=1)[:, None]
    inside = np.where(counts[:, None] > 0, counts[:, None] * means, 0).sum(axis=2)
    squared = np.einsum("rg,gh->rh", chosen, squares.sum(axis=2))
    return inside - everything * mean, squared - everything * mean


def between_along(n: Floats, sums: Floats, directions: Floats) -> Floats:
    """Σ_b n_b (v·(x̄_b - x̄))² [1 + groups, heads] along directions [1 + groups, heads, d]; see `between`."""
    chosen = selections(len(n))
    found = []
    for pick, axes in zip(chosen, directions, strict=True):
        along = np.einsum("ghbd,hd->ghb", sums, axes)
        own, _ = between(n[pick > 0], along[pick > 0][..., None], np.zeros_like(along[pick > 0]))
        found.append(own[0])
    return np.stack(found)


def _across(products: Floats, n: Floats, chosen: Floats) -> Floats:
    """Mean product across groups [1 + groups, heads, buckets] from products [heads, buckets, groups, groups] of sums
    and tokens n [1, buckets, groups].
    """
    groups = products.shape[-1]
    apart = 1 - np.eye(groups)
    total = np.einsum("rg,hbgk,rk->rhb", chosen, products * apart, chosen, optimize=True)
    pairs = np.einsum("rg,hbgk,rk->rhb", chosen, n[..., :, None] * n[..., None, :] * apart, chosen, optimize=True)
    return ratio(total, pairs)
