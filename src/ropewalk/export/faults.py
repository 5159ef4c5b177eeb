"""Whether stated statistics are true of measured vectors, or which fault would make them what they are.

Distances are relative: d² = |μ - μ'|² / E|x|² + |Σ - Σ'|² / |E[xxᵀ]|² (Frobenius), as a root mean square over heads, so
that a few wrong heads among many show.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from scipy.optimize import linear_sum_assignment

from ropewalk.export.claims import Stated
from ropewalk.geometry.lowrank import covariance, gram
from ropewalk.geometry.moments import Floats, Moments, merge_all, without_each

WITHIN = 2.0
"""So many errors a true file may be off: both are samples."""
CLEARLY = 0.75
"""A fault explains a file if it leaves less than this share of the distance."""
ALIKE = 0.35
"""Beyond this distance, statistics are not those of the same vectors over other texts."""
FACTOR = 1.2
"""A smaller factor than this may be the texts'."""
NEAR = 0.02
"""A factor this close to a known number, as a share, is that number."""

OTHER_MODEL = "other model"
OTHER_TEXTS = "other texts"
SCALE = "wrong scale"
COVARIANCE_SCALE = "wrong scale of the covariance"
NOT_CENTRED = "second moments in place of the covariance"
HEADS = "heads in another order"
SWAPPED = "queries and keys exchanged"


@dataclass(frozen=True)
class Verdict:
    """What was found of one layer, kind and frame: `fault` is None where it agrees within its error.

    `distance` is that of the statistics as they should be, `error` what sampling alone would leave, `left` the distance
    that the fault leaves.
    """

    fault: str | None
    distance: float
    error: float
    left: float
    detail: str = ""


@dataclass(frozen=True)
class Fresh:
    """Freshly measured vectors of one layer, kind and frame: by document as they should be, and as faults make them.

    `others` are moments of all documents by the name of the fault; `scales` known numbers that vectors may have been
    multiplied by, with what each is.
    """

    documents: Sequence[Moments]
    others: Mapping[str, Moments]
    scales: Mapping[str, float]


def judge(stated: Stated, fresh: Fresh) -> Verdict:
    """Hold statistics against what was measured: they agree, or a fault explains them, or none does."""
    right = merge_all(fresh.documents)
    distances = _distances(stated, right)
    distance, error = _over_heads(distances), _error(stated, fresh.documents)
    best: Verdict | None = None
    # Below its error, a distance is chance, whatever else would leave less.
    for fault, left, detail in _explanations(stated, fresh, right) if distance > error else ():
        if left < CLEARLY * distance and (best is None or left < CLEARLY * best.left):
            best = Verdict(fault, distance, error, left, detail)
    if best is not None and (best.left <= WITHIN * error or best.left < ALIKE):
        return best
    if distance <= WITHIN * error:
        return Verdict(None, distance, error, distance)
    return Verdict(OTHER_TEXTS if distance < ALIKE else OTHER_MODEL, distance, error, distance)


def _explanations(stated: Stated, fresh: Fresh, right: Moments) -> Iterator[tuple[str, float, str]]:
    """Faults by name, the distance that each leaves, and more about it; the simplest first."""
    for fault, moments in fresh.others.items():
        if moments.mean.shape == stated.mean.shape:
            yield fault, _over_heads(_distances(stated, moments)), ""
    # With the file's own mean, which is what was not taken off.
    second = replace(stated, covariance=stated.covariance - stated.mean[:, :, None] * stated.mean[:, None, :])
    yield NOT_CENTRED, _over_heads(_distances(second, right)), ""
    yield from _scales(stated, fresh, right)
    if len(right) > 1:
        table = np.stack([_distances(_pick(stated, [head] * len(right)), right) for head in range(len(stated.mean))])
        rows, columns = linear_sum_assignment(table)
        order = rows[np.argsort(columns)]
        if len(order) == len(right) and (order != np.arange(len(right))).any():
            yield HEADS, _over_heads(table[order, np.arange(len(right))]), f"as {', '.join(map(str, order))}"


def _scales(stated: Stated, fresh: Fresh, right: Moments) -> Iterator[tuple[str, float, str]]:
    """The scale of vectors, or that of their covariance alone, whichever leaves less; nothing where it is about 1.

    What vectors are multiplied by, their covariance is multiplied by twice.
    """
    factor = float(np.median(_ratio(stated.covariance, covariance(right))))
    if factor <= 0 or max(factor, 1 / factor) <= FACTOR**2:
        return
    c = sqrt(factor)
    alone = replace(stated, covariance=stated.covariance / factor)
    both = replace(alone, mean=stated.mean / c)
    yield min(
        (
            (SCALE, _over_heads(_distances(both, right)), _named(c, fresh.scales)),
            (COVARIANCE_SCALE, _over_heads(_distances(alone, right)), f"{factor:.4g} times"),
        ),
        key=lambda one: one[1],
    )


def _over_heads(values: Floats) -> float:
    return float(np.sqrt((values**2).mean()))


def _pick(stated: Stated, heads: list[int]) -> Stated:
    return replace(stated, mean=stated.mean[heads], covariance=stated.covariance[heads])


def _ratio(stated: Floats, measured: Floats) -> Floats:
    """[heads] The factor c that makes c Σ' closest to Σ."""
    along = np.einsum("hij,hij->h", measured, measured)
    return np.asarray(np.einsum("hij,hij->h", stated, measured) / np.maximum(along, 1e-300))


def _named(factor: float, scales: Mapping[str, float]) -> str:
    for name, value in scales.items():
        if abs(factor / value - 1) < NEAR:
            return f"{factor:.4g} times, which is {name}"
    return f"{factor:.4g} times"


def _sizes(moments: Moments) -> tuple[Floats, Floats]:
    """E|x|² and |E[xxᵀ]|² [heads]."""
    matrix = gram(moments)
    size = np.trace(matrix, axis1=1, axis2=2), (matrix**2).sum(axis=(1, 2))
    return np.maximum(size[0], 1e-300), np.maximum(size[1], 1e-300)


def _distances(stated: Stated, moments: Moments) -> Floats:
    """d [heads] between what is stated and what was measured."""
    energy, size = _sizes(moments)
    mean = ((stated.mean - moments.mean) ** 2).sum(axis=1) / energy
    spread = ((stated.covariance - covariance(moments)) ** 2).sum(axis=(1, 2)) / size
    return np.asarray(np.sqrt(mean + spread))


def _error(stated: Stated, documents: Sequence[Moments]) -> float:
    """What d would be of a true file: from what leaving out each document does (jackknife), for
    both samples. A file that does not say how many tokens it is of counts as of as many as were measured.
    """
    whole, groups = merge_all(documents), len(documents)
    heads = len(whole)
    left = without_each(whole, documents)
    energy, size = _sizes(whole)
    means = left.mean.reshape(groups, heads, -1)
    spreads = covariance(left).reshape(groups, heads, *whole.sxx.shape[1:])
    share = (groups - 1) / groups
    mean = share * ((means - means.mean(axis=0)) ** 2).sum(axis=(0, 2)) / energy
    spread = share * ((spreads - spreads.mean(axis=0)) ** 2).sum(axis=(0, 2, 3)) / size
    tokens = float(whole.n.min())
    both = 1 + tokens / (stated.count or tokens)
    return _over_heads(np.sqrt(both * (mean + spread)))
