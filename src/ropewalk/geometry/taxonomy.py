"""What kind of head it is: the taxonomy on PC0, and the depth bin of a layer."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

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

_POINT = 1e-9
_NODES = 64
_REACH = 8.0
"""Standard deviations beyond which nothing is left to integrate."""


def classify(r_q: ArrayLike, r_k: ArrayLike) -> NDArray[np.object_]:
    """Category of each head from its PC0 correlations; inequalities are strict.

    r_q, r_k: [heads], signed by the convention of docs/method.md §3. A missing correlation has no category (None).
    """
    r_q, abs_r_k = np.asarray(r_q, dtype=float), np.abs(np.asarray(r_k, dtype=float))
    categories = np.full(r_q.shape, MIXED, dtype=object)
    for rule in RULES:
        inside = (rule.r_q[0] < r_q) & (r_q < rule.r_q[1]) & (rule.abs_r_k[0] < abs_r_k) & (abs_r_k < rule.abs_r_k[1])
        categories[inside] = rule.category
    categories[np.isnan(r_q) | np.isnan(abs_r_k)] = None
    return categories


def probabilities(r_q: ArrayLike, r_k: ArrayLike, covariance: ArrayLike) -> NDArray[np.float64]:
    """Probability [heads, categories] of each category, for correlations that are known with an error.

    (r_q, r_k) is taken as normal around its estimate with `covariance` [heads, 2, 2] (of the jackknife), and integrated
    over the region of each rule: over r_q by Gauss-Legendre nodes, over r_k given r_q by the normal distribution.
    NaN where a correlation or its error is missing.
    """
    r_q, r_k = (np.asarray(values, dtype=np.float64)[:, None] for values in (r_q, r_k))
    covariance = np.asarray(covariance, dtype=np.float64)
    # Without any spread the integral would be over a point: a spread far below every threshold's meaning stands for it.
    s_q = np.sqrt(np.maximum(covariance[:, 0, 0], _POINT**2))[:, None]
    slope = covariance[:, 0, 1][:, None] / s_q**2
    s_k = np.sqrt(np.maximum(covariance[:, 1, 1][:, None] - slope**2 * s_q**2, _POINT**2))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    found = []
    for rule in RULES:
        low, high = (np.clip(bound, r_q - _REACH * s_q, r_q + _REACH * s_q) for bound in rule.r_q)
        x = (low + high) / 2 + (high - low) / 2 * nodes
        density = np.exp(-(((x - r_q) / s_q) ** 2) / 2) / (np.sqrt(2 * np.pi) * s_q)
        centre = r_k + slope * (x - r_q)
        near, far = max(rule.abs_r_k[0], 0.0), rule.abs_r_k[1]
        inside = _between(near, far, centre, s_k) + _between(-far, -near, centre, s_k)
        found.append(((high - low) / 2 * (weights * density * inside)).sum(axis=1))
    named = np.clip(np.stack(found, axis=1), 0, 1)
    return np.column_stack([named, np.clip(1 - named.sum(axis=1), 0, 1)])


def _between(low: float, high: float, centre: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(ndtr((high - centre) / spread) - ndtr((low - centre) / spread))


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
