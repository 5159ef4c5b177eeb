"""Correlation with position by checkpoint and depth."""

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.style import WIDTH, contrasting, page, style
from ropewalk.geometry.taxonomy import DEPTH_BINS
from ropewalk.summary.view import depth_tracks, view

LARGEST, SMALLEST = 7.5, 4.5
"""Font sizes of the numbers in the cells; where the smallest does not fit there are none."""
LETTER = 0.64
"""Width of a digit in font sizes, and the share of a row's height that its text may take."""


@style()
def _heatmap(
    table: pd.DataFrame, replicates: pd.DataFrame | None, column: str, symbol: str, colours: str, below: str
) -> Figure:
    look = view(table, replicates)
    means = np.stack([track.values for track in depth_tracks(look, column)], axis=1)
    # A cell that reads 0.00 is not shown as below 0.
    means = np.where(np.round(means, 2) == 0, np.abs(means), means)
    count = len(look.lineup)
    figure = page(WIDTH, min(max(0.27 * count, 0.5), 7.2) + 1.25)
    ax = figure.subplots()
    palette = matplotlib.colormaps[colours].with_extremes(under=below)
    ax.patch.set(facecolor="#ededed", edgecolor="#b0b0b0", hatch="/////")
    mesh = ax.pcolormesh(
        np.arange(DEPTH_BINS + 1),
        np.arange(count + 1),
        np.ma.masked_invalid(means),
        cmap=palette,
        vmin=0,
        vmax=1,
        edgecolors="white" if count <= 40 else "face",
        linewidth=0.6 if count <= 40 else 0.1,
    )
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_xticks(np.arange(DEPTH_BINS) + 0.5, [f"{step / DEPTH_BINS:.1f}" for step in range(DEPTH_BINS)])
    hatched = "\nhatched: no head with a correlation" if np.isnan(means).any() else ""
    ax.set_xlabel(f"depth bin (layer / last layer){hatched}")
    negative = bool((means < 0).any())
    bar = figure.colorbar(
        mesh, ax=ax, location="bottom", shrink=0.75, aspect=34, pad=0.02, extend="min" if negative else "neither"
    )
    bar.outline.set_visible(False)
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1])
    bar.set_label(f"mean {symbol} on PC0" + (" (left end: below 0)" if negative else ""))
    axis.along_y(figure, ax, look.lineup)
    figure.draw_without_rendering()
    points = 72 / figure.dpi
    cell = ax.bbox.width / DEPTH_BINS * points, ax.bbox.height / count * points
    size = min(LARGEST, cell[0] / (5 * LETTER), cell[1] * LETTER)
    if size >= SMALLEST:
        for row, bin_ in np.argwhere(np.isfinite(means)):
            value = means[row, bin_]
            ax.text(
                bin_ + 0.5,
                row + 0.5,
                f"{value:.2f}".replace("-", "−"),
                ha="center",
                va="center",
                fontsize=size,
                color=contrasting(palette(mesh.norm(value))),
                gid=f"cell {row} {bin_}",
                in_layout=False,
            )
    return figure


def depth_heatmap_r_q(table: pd.DataFrame, replicates: pd.DataFrame | None = None) -> Figure:
    """Mean r_q on PC0 per (checkpoint, depth bin), Blues from 0 to 1; bins as in docs/method.md §4."""
    return _heatmap(table, replicates, "r_q", "$r_q$", "Blues", "#fde3c8")


def depth_heatmap_r_k(table: pd.DataFrame, replicates: pd.DataFrame | None = None) -> Figure:
    """Mean r_k on PC0 per (checkpoint, depth bin), Reds from 0 to 1; cells below 0 have a colour of their own."""
    return _heatmap(table, replicates, "r_k", "$r_k$", "Reds", "#cfe2f3")
