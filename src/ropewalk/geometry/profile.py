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
    left, own = _left_out(sums), _left_out((sums**2).sum(axis=-1))
    whole = sums.sum(axis=2)
    whole_left, whole_own = _left_out(whole), _left_out((whole**2).sum(axis=-1))
    means = _across((left**2).sum(axis=-1), own, n[:, None])
    mean = _across((whole_left**2).sum(axis=-1), whole_own, n.sum(axis=1)[:, None])
    squared = np.einsum("rg,gh->rh", chosen, squares.sum(axis=2))
    return _about_mean(means, mean, chosen @ n), squared - (chosen @ n).sum(axis=1)[:, None] * mean


def between_along(n: Floats, sums: Floats, directions: Floats) -> Floats:
    """Σ_b n_b (v·(x̄_b - x̄))² [1 + groups, heads] along directions [1 + groups, heads, d]; see `between`."""
    chosen = selections(len(n))
    # [groups, heads, buckets, 1 + groups], each of the last along its own direction.
    along = np.matmul(sums, directions.transpose(1, 2, 0))
    found = []
    for part, tokens in ((along, n[:, None]), (along.sum(axis=2), n.sum(axis=1)[:, None])):
        total, own = (np.einsum("rg,g...r->r...", chosen, one) for one in (part, part**2))
        found.append(_across(total**2, own, tokens))
    return _about_mean(found[0], found[1], chosen @ n)


def _left_out(values: Floats) -> Floats:
    """Sums over groups [1 + groups, ...] of values [groups, ...]: of all, then without each; [1, ...] of one group."""
    whole = values.sum(axis=0, keepdims=True)
    return np.concatenate([whole, whole - values]) if len(values) > 1 else whole


def _across(squares: Floats, own: Floats, n: Floats) -> Floats:
    """Mean product of sums of different groups: (|Σ_g S_g|² - Σ_g |S_g|²) / ((Σ_g n_g)² - Σ_g n_g²), [1 + groups, ...].

    `squares` and `own` [1 + groups, ...] are the two terms of the numerator, n [groups, ...] tokens.
    """
    pairs = _left_out(n) ** 2 - _left_out(n**2)
    return ratio(squares - own, np.broadcast_to(pairs, squares.shape))


def _about_mean(means: Floats, mean: Floats, counts: Floats) -> Floats:
    """Σ_b n_b |μ_b|² - n |μ|² [1 + groups, heads] from |μ_b|² [1 + groups, heads, buckets] and |μ|²."""
    inside = np.where(counts[:, None] > 0, counts[:, None] * means, 0).sum(axis=2)
    return np.asarray(inside - counts.sum(axis=1)[:, None] * mean)
