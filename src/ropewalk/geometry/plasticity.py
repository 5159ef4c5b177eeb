"""Attention plasticity: does the query still decide which of two keys wins? (docs/method.md §6)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import ratio

PAIRS = 256
"""Pairs of keys that each bucket of queries is tried on."""
FIRST, LAST = 0.2, 0.8
"""Ends of the first, beginning of the last fifth of a context."""
CELLS = 8
"""Even steps of distance, as a share of the context, along either side of the map."""
CERTAIN = 1600.0
"""z² at most: from here on, Φ(-|z|) and the density are 0 in float64."""
SMALLEST = float(np.finfo(np.float64).tiny)

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Trials:
    """The pairs of keys that the queries of one bucket are tried on.

    `queries` [n] index the kept queries of the bucket, `first` and `second` [pairs] the kept keys of each pair, both of
    one document and visible to every query of the bucket; `apart` and `away` [pairs] are the distance between the two
    keys and that from the middle of the bucket to the middle of the pair, in tokens.
    """

    queries: Integers
    first: Integers
    second: Integers
    apart: Floats
    away: Floats


@dataclass(frozen=True)
class Kept:
    """Kept vectors of one kind, the same for all heads of a layer: `document` and `position` [kept], in order of
    documents, and `group` [kept], the group of documents that each belongs to."""

    document: Integers
    position: Integers
    group: Integers


def trials(
    queries: Kept, keys: Kept, bucket: range, window: int | None, seed: Sequence[int], most: int = PAIRS
) -> Trials:
    """Choose at most `most` pairs of kept keys for the queries at the positions of a bucket.

    Keys stand before the bucket and, in a sliding layer, within the window of each of its queries. All pairs of a
    document are as likely; the same seed gives the same ones.
    """
    at = np.flatnonzero((queries.position >= bucket.start) & (queries.position < bucket.stop))
    visible = keys.position < bucket.start
    if window is not None:
        visible &= keys.position > bucket.stop - 1 - window
    seen = np.flatnonzero(visible)
    _, starts, counts = np.unique(keys.document[seen], return_index=True, return_counts=True)
    pairs = counts * (counts - 1) // 2
    ends = np.cumsum(pairs)
    total = int(ends[-1]) if len(ends) else 0
    generator = np.random.default_rng(list(seed))
    drawn = np.arange(total) if total <= most else np.sort(generator.choice(total, most, replace=False))
    own = np.searchsorted(ends, drawn, side="right")
    high, low = _unranked(drawn - (ends - pairs)[own])
    first, second = seen[starts[own] + low], seen[starts[own] + high]
    middle = (keys.position[first] + keys.position[second]) / 2
    return Trials(
        at,
        first,
        second,
        apart=np.abs(keys.position[first] - keys.position[second]).astype(np.float64),
        away=(bucket.start + bucket.stop - 1) / 2 - middle,
    )


def _unranked(number: Integers) -> tuple[Integers, Integers]:
    """The pair (high, low), high > low ≥ 0, with number = high (high - 1) / 2 + low."""
    high = np.floor((1 + np.sqrt(1 + 8.0 * number)) / 2).astype(np.int64)
    # The root may be off by one in the last bit of large numbers.
    high -= high * (high - 1) // 2 > number
    high += (high + 1) * high // 2 <= number
    return high, number - high * (high - 1) // 2


@dataclass(frozen=True)
class Pairwise:
    """Pairwise plasticity [heads, 1 + groups, pairs] of all groups of documents and without each of them.

    `counted` [1 + groups, pairs] is 1 where a pair counts, the same for all heads, and 0 for the pairs of the group
    that is left out and where fewer than two queries are left: a value there means nothing.
    """

    empirical: Floats
    gaussian: Floats
    counted: Floats

    def means(self) -> tuple[Floats, Floats]:
        """Empirical and Gaussian plasticity [1 + groups, heads], means over the pairs that count."""
        pairs = self.counted.sum(axis=1)[:, None]
        empirical, gaussian = (
            ratio(np.einsum("hgp,gp->gh", values, self.counted), pairs) for values in (self.empirical, self.gaussian)
        )
        return empirical, gaussian

    def by_cell(self, member: Floats) -> tuple[Floats, Floats]:
        """Of pairs in cells, `member` [pairs, cells] being 1 where a pair is in a cell and else 0: the sum of empirical
        plasticity [1 + groups, heads, cells] over the pairs that count, and their number [1 + groups, cells].
        """
        totals = np.matmul(self.empirical * self.counted, member)
        return totals.swapaxes(0, 1), self.counted @ member


def pairwise(q: Floats, delta: Floats, query_group: Integers, pair_group: Integers, groups: int) -> Pairwise:
    """PP = 4 p (1 - p), p = Pr[q·δ > 0], for queries q [heads, n, d] and differences of keys δ [heads, pairs, d].

    Empirical: p is the share of queries, a tie counting half, and n/(n-1) makes up for what a share of n queries loses
    on average: with the sum of signs s, p = (1 + s/n) / 2 and PP = (n² - s²) / n (n-1). Gaussian: p = Φ(z),
    z = δᵀμ / sqrt(δᵀΣδ) with mean and variance of the queries' scores, less what the noise of that ratio adds on
    average (to first order in 1/n). `query_group` [n] and `pair_group` [pairs] are the groups.
    """
    scores = np.matmul(q, delta.swapaxes(1, 2))
    used, counted = (_left_out(group, groups) for group in (query_group, pair_group))
    queries = used.sum(axis=1)[:, None]
    counted *= queries > 1
    # Where fewer are left nothing counts, and nothing is divided by 0.
    n = np.maximum(queries, 2)
    signs, total, square = (np.matmul(used, part) for part in (np.sign(scores), scores, scores * scores))
    empirical = (n**2 - signs * signs) * (1 / (n * (n - 1)))
    total *= total
    # Scores without a spread are certain; z is 0 where all of them are 0.
    around = np.maximum(square - total * (1 / n), SMALLEST)
    with np.errstate(over="ignore"):
        z_squared = np.minimum(total * ((n - 1) / n**2) / around, CERTAIN)
    return Pairwise(empirical, _without_noise(z_squared, n), counted)


def _left_out(group: Integers, groups: int) -> Floats:
    """[1 + groups, n] Which of n things are left, 1 or 0: all of them, then those without each group, if several."""
    others = group != np.arange(groups if groups > 1 else 0)[:, None]
    return np.concatenate([np.ones((1, len(group))), others])


def _without_noise(z_squared: Floats, n: Floats) -> Floats:
    """f(z) = 4 Φ(z) Φ(-z) less the mean of what the error of z adds, a ratio of mean and deviation of n scores.

    E f(ẑ) ≈ f(z) + f'(z) · 3z/4n + f''(z)/2 · (1 + z²/2)/n. With a = |z|, t = Φ(-a), φ the density at a and
    b = a (1 - 2t): f = 4t (1 - t), f' z = -4φb and f'' = -4φ (2φ - b).
    """
    a = np.sqrt(z_squared)
    tail, density = ndtr(-a), np.exp(z_squared * -0.5) * (1 / np.sqrt(2 * np.pi))
    b = a * (1 - 2 * tail)
    added = density * (3 * b + (2 * density - b) * (2 + z_squared))
    return np.asarray(4 * tail * (1 - tail) + added * (1 / n))


def over_context(profile: Floats, buckets: Sequence[range], context: int) -> dict[str, Floats]:
    """`overall`, `first_20`, `last_20` and `drop` [...] from plasticity [..., buckets] by bucket of the query.

    Means over buckets that have a value, weighted by how many positions of each lie in the part of the context.
    """
    parts = {"overall": (0.0, 1.0), "first_20": (0.0, FIRST), "last_20": (LAST, 1.0)}
    known = ~np.isnan(profile)
    found = {}
    for name, (low, high) in parts.items():
        inside = [max(0.0, min(one.stop, high * context) - max(one.start, low * context)) for one in buckets]
        weight = np.where(known, np.array(inside), 0)
        found[name] = ratio(np.where(known, profile * weight, 0).sum(axis=-1), weight.sum(axis=-1))
    return {**found, "drop": found["first_20"] - found["last_20"]}


def cells(apart: Floats, away: Floats, context: int) -> Integers:
    """Cell number [pairs] of the map: step of the distance between the keys · CELLS + step of that from the query."""
    rows, columns = (np.clip((CELLS * part / context).astype(np.int64), 0, CELLS - 1) for part in (apart, away))
    return np.asarray(rows * CELLS + columns)
