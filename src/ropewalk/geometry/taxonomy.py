"""What kind of head it is: the taxonomy on PC0, and the depth bin of a layer."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

HIGH = 0.7
LOW = 0.3


class Rule(NamedTuple):
    """A category and the open intervals in which r_q and |r_k| must lie."""

    category: str
    r_q: tuple[float, float]
    abs_r_k: tuple[float, float]


RULES: Sequence[Rule] = (
    Rule("position-dominated", (HIGH, np.inf), (HIGH, np.inf)),
    Rule("Q-positional", (HIGH, np.inf), (-np.inf, LOW)),
    Rule("K-positional", (-np.inf, LOW), (HIGH, np.inf)),
    Rule("content-focused", (-np.inf, LOW), (-np.inf, LOW)),
)
MIXED = "mixed"
CATEGORIES: Sequence[str] = (*(rule.category for rule in RULES), MIXED)
DOMINATED = CATEGORIES[0]
"""Strong in queries and keys: the category that splits into concordant and discordant heads."""

DEPTH_BINS = 10

CERTAIN = 0.95
"""A head whose category is less probable than this is undecided."""
CONCORDANT, DISCORDANT, UNDECIDED = "concordant", "discordant", "undecided"

_POINT = 1e-9
_NODES = 64


def classify(r_q: ArrayLike, r_k: ArrayLike, low: float = LOW, high: float = HIGH) -> NDArray[np.object_]:
    """Category of each head from its correlations; inequalities are strict.

    r_q, r_k: any shape, signed by the convention of docs/method.md §3. A missing correlation has no category (None).
    `low` and `high` are the thresholds.
    """
    names = np.array([*CATEGORIES, None], dtype=object)
    return np.asarray(names[category_numbers(r_q, r_k, low, high)])


def category_numbers(r_q: ArrayLike, r_k: ArrayLike, low: float = LOW, high: float = HIGH) -> NDArray[np.int8]:
    """As `classify`, with the number of the category in `CATEGORIES`, and -1 where a correlation is missing."""
    r_q, abs_r_k = np.asarray(r_q, dtype=float), np.abs(np.asarray(r_k, dtype=float))
    moved = {LOW: low, HIGH: high}
    numbers = np.full(r_q.shape, CATEGORIES.index(MIXED), dtype=np.int8)
    for number, rule in enumerate(RULES):
        of_q, of_k = ([moved.get(bound, bound) for bound in part] for part in rule[1:])
        numbers[_is_between(r_q, *of_q) & _is_between(abs_r_k, *of_k)] = number
    numbers[np.isnan(r_q) | np.isnan(abs_r_k)] = -1
    return numbers


def _is_between(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.bool_]:
    # A bound at infinity is none, and looking at all values takes its time.
    if np.isinf(low):
        return values < high
    return values > low if np.isinf(high) else (values > low) & (values < high)


def concordance(r_q: ArrayLike, r_k: ArrayLike, decided: ArrayLike) -> NDArray[np.object_]:
    """Whether keys run with the queries' position or against it, by the sign of r_q · r_k, which no sign convention can
    change; "undecided" where `decided` is false, None where a correlation is missing.
    """
    product = np.asarray(r_q, dtype=float) * np.asarray(r_k, dtype=float)
    words = np.where(product < 0, DISCORDANT, CONCORDANT).astype(object)
    words[~np.asarray(decided, dtype=bool)] = UNDECIDED
    words[np.isnan(product)] = None
    return words


def probabilities(r_q: ArrayLike, r_k: ArrayLike, covariance: ArrayLike, groups: int) -> NDArray[np.float64]:
    """Probability [heads, categories] of each category, for correlations that are known with an error.

    (r_q, r_k) is taken as Student-distributed around its estimate, with `covariance` [heads, 2, 2] (of the jackknife)
    for its scale and groups - 1 degrees of freedom, and integrated over the region of each rule: over r_q by
    Gauss-Legendre nodes in its probability, over r_k given r_q in closed form. NaN where a correlation or its error is
    missing.
    """
    freedom = groups - 1
    r_q, r_k = (np.asarray(values, dtype=np.float64)[:, None] for values in (r_q, r_k))
    covariance = np.asarray(covariance, dtype=np.float64)
    # Without any spread the integral would be over a point: a spread far below every threshold's meaning stands for it.
    s_q = np.sqrt(np.maximum(covariance[:, 0, 0], _POINT**2))[:, None]
    slope = covariance[:, 0, 1][:, None] / s_q**2
    s_k = np.sqrt(np.maximum(covariance[:, 1, 1][:, None] - slope**2 * s_q**2, _POINT**2))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    found = []
    for rule in RULES:
        low, high = (stdtr(freedom, (bound - r_q) / s_q) for bound in rule.r_q)
        z = stdtrit(freedom, np.clip((low + high) / 2 + (high - low) / 2 * nodes, 1e-15, 1 - 1e-15))
        # Given one of them, the other is Student-distributed too: one degree more, and the wider the further out.
        centre = r_k + slope * s_q * z
        width = s_k * np.sqrt((freedom + z**2) / (freedom + 1))
        near, far = max(rule.abs_r_k[0], 0.0), rule.abs_r_k[1]
        inside = sum(
            stdtr(freedom + 1, (end - centre) / width) - stdtr(freedom + 1, (start - centre) / width)
            for start, end in ((near, far), (-far, -near))
        )
        found.append(((high - low) / 2 * (weights * inside)).sum(axis=1))
    named = np.clip(np.stack(found, axis=1), 0, 1)
    return np.column_stack([named, np.clip(1 - named.sum(axis=1), 0, 1)])


def rule_conditions() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every category with its rule in words, such as ("Q-positional", ("r_q > 0.7", "|r_k| < 0.3")).

    In the taxonomy's order; the last, mixed, has no conditions of its own: it takes every other head.
    """
    for rule in RULES:
        yield rule.category, (*_inequalities("r_q", rule.r_q), *_inequalities("|r_k|", rule.abs_r_k))
    yield MIXED, ()


def _inequalities(name: str, interval: tuple[float, float]) -> Iterator[str]:
    low, high = interval
    if math.isfinite(low):
        yield f"{name} > {low:g}"
    if math.isfinite(high):
        yield f"{name} < {high:g}"


def depth_bin(layer: ArrayLike, max_layer: ArrayLike) -> NDArray[np.int64]:
    """Depth bin 0..9 of a layer: `max(ceil(10 · layer / max_layer) - 1, 0)`, right-closed, layer 0 in the first.

    In whole numbers, so that no rounding can move a layer across a border. A one-layer model is all bin 0.
    """
    layer = np.asarray(layer, dtype=np.int64)
    max_layer = np.maximum(np.asarray(max_layer, dtype=np.int64), 1)
    return np.asarray(np.maximum(-(-DEPTH_BINS * layer // max_layer) - 1, 0))


def bin_label(depth: int) -> str:
    """How a depth bin is called: `0.0` for the first to `0.9` for the last, the share of the depth where it begins."""
    return f"{depth / DEPTH_BINS:.1f}"
