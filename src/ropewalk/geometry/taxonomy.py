"""What kind of head it is: the taxonomy on PC0, and the depth bin of a layer."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

DEPTH_BINS = 10


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


def depth_bin(layer: ArrayLike, max_layer: ArrayLike) -> NDArray[np.int64]:
    """Depth bin 0..9 of a layer: `max(ceil(10 · layer / max_layer) - 1, 0)`, right-closed, layer 0 in the first.

    In whole numbers, so that no rounding can move a layer across a border. A one-layer model is all bin 0.
    """
    layer = np.asarray(layer, dtype=np.int64)
    max_layer = np.maximum(np.asarray(max_layer, dtype=np.int64), 1)
    return np.asarray(np.maximum(-(-DEPTH_BINS * layer // max_layer) - 1, 0))
