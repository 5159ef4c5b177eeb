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
ONE_WAY = 1 / 3
"""A kernel goes one way where its ends differ by more than this part of its range."""
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

        The slope is the mean of K over the farthest third of the bins less that over the nearest, as a part of its
        range; its error takes those of the bins as independent.
        """
        values, errors = self.values[self.known], self.errors[self.known]
        place = np.where(np.isfinite(values), np.cumsum(np.isfinite(values), axis=1) - 1, -1)
        third = np.ceil(np.isfinite(values).sum(axis=1, keepdims=True) / 3)
        last = place.max(axis=1, keepdims=True)
        weights = ((place > last - third) & (place >= 0)) / third - ((place < third) & (place >= 0)) / third
        span, span_reach = _spans(values), self.limit * self.range_errors[self.known]
        slope = np.nan_to_num(ratio((np.nan_to_num(values) * weights).sum(axis=1), span))
        slope_reach = self.limit * ratio(np.sqrt((np.nan_to_num(errors) ** 2 * weights**2).sum(axis=1)), span)
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
