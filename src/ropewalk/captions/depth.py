"""Captions of the two depth heatmaps."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ropewalk.captions import Caption
from ropewalk.captions.production import steps
from ropewalk.captions.signal import clauses, known, titled
from ropewalk.captions.wording import CORRELATION, largest_change, story, takeaway, value
from ropewalk.geometry.taxonomy import DEPTH_BINS
from ropewalk.summary.measures import Measure
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View, depth_tracks, view

SHALLOW, DEEP = range(3), range(7, DEPTH_BINS)
DIFFERENCE = "mean {} of shallow heads (bins 0.0 to 0.2) minus deep heads (bins 0.7 to 0.9)"


def _slope(column: str) -> Measure:
    """Mean over the heads of shallow bins minus mean over the heads of deep bins."""
    return lambda heads: float(
        heads.loc[heads["bin"].isin(SHALLOW), column].mean() - heads.loc[heads["bin"].isin(DEEP), column].mean()
    )


def depth_heatmap_r_q(table: pd.DataFrame, replicates: pd.DataFrame | None, source: str) -> Caption:
    """Caption of `figures.depth_heatmap_r_q`."""
    return _caption(view(table, replicates), source, "r_q", "Blues", "smollm_fig05_layer_heatmap_rq", "mean_r_q")


def depth_heatmap_r_k(table: pd.DataFrame, replicates: pd.DataFrame | None, source: str) -> Caption:
    """Caption of `figures.depth_heatmap_r_k`."""
    look = view(table, replicates)
    sides = known(look, "mean_r_k_rope", "mean_r_k_nope")
    extra = [f"{clauses(look, 'mean_abs_r_k', 'discordant', *sides)}"]
    first = look.parts[0]
    nope = first.loc[(~first["rope"]).fillna(False).astype(bool), "bin"]
    if len(nope):
        listing = ", ".join(f"{bin_ / DEPTH_BINS:.1f}: {(nope == bin_).sum()}" for bin_ in range(DEPTH_BINS))
        extra.append(f"Heads in NoPE layers per depth bin at {look.lineup.labels[0]}: {listing}.")
    return _caption(look, source, "r_k", "Reds", "smollm_fig06_layer_heatmap_rk", "mean_r_k", *extra)


def _caption(look: View, source: str, column: str, colours: str, script: str, mean: str, *extra: str) -> Caption:
    cells = depth_tracks(look, column)
    names = [f"bin {bin_ / DEPTH_BINS:.1f}" for bin_ in range(DEPTH_BINS)]
    means = np.array([cell.values for cell in cells]).T
    rows = []
    for group in look.lineup.groups:
        row = group.stop - 1
        name = f"**{group.name}**, " if group.name else ""
        rows.append(f"- {name}{look.lineup.labels[row]}: {_row(means[row], [cell.at(row) for cell in cells])}.")
    slope, difference = look.track(_slope(column)), DIFFERENCE.format(column)
    overview = [
        f"Mean {column} on PC0 per {look.lineup.kind} (rows, the first on top) and depth bin (columns), from 0 (pale) "
        "to 1 (dark). Cells below 0 have a colour of their own, hatched cells have no head with a correlation. "
        "Lowest and highest bin of the last "
        f"{look.lineup.kind}{' of each group' if len(look.lineup.groups) > 1 else ''}:",
        *rows,
    ]
    largest = []
    if look.lineup.training and len(look.lineup) > 1:
        largest = [largest_change(look, dict(zip(names, cells, strict=True)), CORRELATION, "cell")]
    return Caption(
        titled(f"{column} by Layer Depth", look),
        (*overview, *largest, *story(look, f"M{difference[1:]}", slope, CORRELATION), *extra),
        steps(
            look,
            source,
            f"mean {column} of the heads in each (checkpoint, depth bin).",
            f'cells in the "{colours}" colour map, 0 to 1, with their values where there is room.',
            f"depth_heatmap_{column}",
            script,
            "**Depth bins**: layer / last layer in 10 bins closed at the right, layer 0 in the first: `max(ceil(10 * "
            "layer / last) - 1, 0)`.",
        ),
        takeaway(
            look, [(f"mean {column} over all depths", look.track(mean), CORRELATION), (difference, slope, CORRELATION)]
        ),
    )


def _row(means: NDArray[np.float64], cells: list[Estimate]) -> str:
    if np.isnan(means).all():
        return "no correlations"
    low, high = int(np.nanargmin(means)), int(np.nanargmax(means))
    return (
        f"{value(cells[low], CORRELATION)} (bin {low / DEPTH_BINS:.1f}) to {value(cells[high], CORRELATION)} (bin "
        f"{high / DEPTH_BINS:.1f})"
    )
