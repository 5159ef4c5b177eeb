"""The distance kernels of all heads of a checkpoint as a matrix, and which way each of them goes."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ropewalk.geometry.jackknife import critical
from ropewalk.geometry.pca import ratio
from ropewalk.summary.view import View

NEAR, FAR, BOTH, FLAT = "near", "far", "both ways", "flat"
WAYS = (NEAR, FAR, BOTH, FLAT)
"""Which keys a kernel prefers: near ones (K falls with distance), far ones (it rises), it goes both ways, or none."""
ONE_WAY = 0.5
"""A kernel goes one way where its net rise or fall is more than this part of all its ups and downs."""
LEAST = 0.1
"""Nats: a kernel that spans less is flat, as it makes no attention weight a tenth larger than another."""


class Kernels(NamedTuple):
    """K of the heads of a checkpoint, in the order of layer and head.

    heads [heads, 2] are (layer, head), edges [bins + 1] distances, values and errors [heads, bins] K and its standard
    errors (missing in NoPE layers), range_errors [heads] those of its range, limit how many of them are too few.
    """

    heads: NDArray[np.int64]
    edges: NDArray[np.float64]
    values: NDArray[np.float64]
    errors: NDArray[np.float64]
    range_errors: NDArray[np.float64]
    limit: float

    @property
    def known(self) -> NDArray[np.bool_]:
        """Heads that have a kernel [heads]."""
        return np.asarray(np.isfinite(self.values).any(axis=1))

    @property
    def centred(self) -> NDArray[np.float64]:
        """K less its mean over the bins [heads, bins]: a constant does not change attention."""
        means = ratio(np.nansum(self.values, axis=1), np.isfinite(self.values).sum(axis=1))
        return np.asarray(self.values - means[:, None])

    def tally(self) -> "Count":
        """How many heads go which way.

        With steps s_b = K_{b+1} - K_b the slope m = Σ s_b / Σ |s_b| is -1 where K only falls and 1 where it only rises.
        Its error takes those of the bins as independent: ∂m/∂K_b = (w_{b-1} - w_b) / Σ |s|, w = 1 - m sign(s).
        """
        values = self.values[self.known]
        steps = np.diff(values, axis=1)
        there = np.isfinite(steps)
        steps = np.where(there, steps, 0.0)
        variation = np.abs(steps).sum(axis=1)
        slope = np.nan_to_num(ratio(steps.sum(axis=1), variation))
        weights = np.where(there, 1 - slope[:, None] * np.sign(steps), 0.0)
        pull = np.diff(weights, axis=1, prepend=0, append=0) * np.nan_to_num(self.errors[self.known])
        slope_reach = self.limit * ratio(np.sqrt((pull**2).sum(axis=1)), variation)
        span, span_reach = _spans(values), self.limit * self.range_errors[self.known]
        flat = (span < LEAST) | (span <= span_reach)
        one_way = np.abs(slope) > ONE_WAY
        near = np.abs(np.abs(slope) - ONE_WAY) <= slope_reach
        undecided = np.where(flat, False, near) | (np.abs(span - LEAST) <= span_reach)
        ways = np.select([flat, one_way & (slope < 0), one_way], [FLAT, NEAR, FAR], BOTH)
        return Count({way: int((ways == way).sum()) for way in WAYS}, int(undecided.sum()))


class Count(NamedTuple):
    """How many heads go each of `WAYS`, and for how many of them that hangs on less than an error."""

    ways: dict[str, int]
    undecided: int

    @property
    def total(self) -> int:
        """Heads that have a kernel."""
        return sum(self.ways.values())


def _spans(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.nanmax(values, axis=1) - np.nanmin(values, axis=1)) if values.size else np.zeros(len(values))


def kernels(view: View, index: int) -> Kernels:
    """K of all heads of a checkpoint by bin of distances."""
    part = view.parts[index].sort_values(["layer", "head"])
    rows = view.rows("distance", index)
    heads = pd.MultiIndex.from_frame(part[["layer", "head"]])

    def matrix(column: str) -> NDArray[np.float64]:
        named = rows.assign(**{column: np.nan}) if column not in rows else rows
        wide = named.pivot(index=["layer", "head"], columns="distance", values=column)
        return wide.reindex(heads).to_numpy(dtype=float)

    error = "se_kernel_range"
    range_errors = part[error].to_numpy(dtype=np.float64) if error in part else np.full(len(part), np.nan)
    return Kernels(
        part[["layer", "head"]].to_numpy(),
        np.unique(np.append(rows["distance"], rows["distance_stop"].max() if len(rows) else [])).astype(float),
        matrix("kernel"),
        matrix("se_kernel"),
        range_errors,
        critical(view.groups[index]),
    )
