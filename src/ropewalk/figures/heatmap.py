"""Correlation with position by checkpoint and depth: what the two depth heatmaps share."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.phrases import CORRELATION
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import about_axis
from ropewalk.figures.style import HATCHED, MANY, WIDTH, contrasting, page, style
from ropewalk.figures.wording import capitalised, largest_change, story, takeaway, titled, value, where
from ropewalk.geometry.taxonomy import DEPTH_BINS, bin_label
from ropewalk.summary.measures import Columns, Mean, in_bins
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View, depth_tracks

SCALE = (0, 1)
"""What the ends of the colour map stand for; below it is another colour."""
LARGEST, SMALLEST = 7.5, 4.5
"""Font sizes of the numbers in the cells; where the smallest does not fit there are none."""
LETTER = 0.64
"""Width of a digit in font sizes, and the share of a row's height that its text may take."""
SHALLOW, DEEP = range(3), range(7, DEPTH_BINS)


@style()
def draw_heatmap(view: View, column: str, colour_map: str, below: str) -> Figure:
    """Mean of a column (r_q or r_k) on PC0 per (checkpoint, depth bin), with the colour of cells below the scale."""
    means = np.stack([track.values for track in depth_tracks(view, column)], axis=1)
    # A cell that reads 0.00 is not shown as below 0.
    means = np.where(np.round(means, 2) == 0, np.abs(means), means)
    count = len(view.lineup)
    figure = page(WIDTH, min(max(0.27 * count, 0.5), 7.2) + 1.25)
    ax = figure.subplots()
    palette = matplotlib.colormaps[colour_map].with_extremes(under=below)
    ax.patch.set(**HATCHED)
    mesh = ax.pcolormesh(
        np.arange(DEPTH_BINS + 1),
        np.arange(count + 1),
        np.ma.masked_invalid(means),
        cmap=palette,
        vmin=SCALE[0],
        vmax=SCALE[1],
        edgecolors="white" if count <= MANY else "face",
        linewidth=0.6 if count <= MANY else 0.1,
    )
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_xticks(np.arange(DEPTH_BINS) + 0.5, [bin_label(depth) for depth in range(DEPTH_BINS)])
    hatched = "\nhatched: no head with a correlation" if np.isnan(means).any() else ""
    ax.set_xlabel(f"depth bin (layer / last layer){hatched}")
    negative = bool((means < SCALE[0]).any())
    bar = figure.colorbar(
        mesh, ax=ax, location="bottom", shrink=0.75, aspect=34, pad=0.02, extend="min" if negative else "neither"
    )
    bar.outline.set_visible(False)
    bar.set_ticks(np.linspace(*SCALE, 5).tolist())
    bar.set_label(f"mean ${column}$ {where(view)}" + (f" (left end: below {SCALE[0]})" if negative else ""))
    axis.along_y(figure, ax, view.lineup)
    figure.draw_without_rendering()
    points = 72 / figure.dpi
    cell = ax.bbox.width / DEPTH_BINS * points, ax.bbox.height / count * points
    size = min(LARGEST, cell[0] / (5 * LETTER), cell[1] * LETTER)
    if size >= SMALLEST:
        for row, depth in np.argwhere(np.isfinite(means)):
            mean = means[row, depth]
            ax.text(
                depth + 0.5,
                row + 0.5,
                f"{mean:.2f}".replace("-", "−"),
                ha="center",
                va="center",
                fontsize=size,
                color=contrasting(palette(mesh.norm(mean))),
                gid=f"cell {row} {depth}",
                in_layout=False,
            )
    return figure


def describe_heatmap(view: View, source: str, figure: str, column: str, colour_map: str, *extra: str) -> Caption:
    """The caption of a heatmap: lowest and highest bins, the largest change of a cell, shallow heads against deep ones.

    `extra` are paragraphs that follow.
    """
    lineup, cells = view.lineup, depth_tracks(view, column)
    ends = [group.stop - 1 for group in lineup.groups]
    names = [f"**{group.name}**, " if group.name else "" for group in lineup.groups]
    rows = [
        f"- {name}{lineup.labels[end]}: {_row([cell.at(end) for cell in cells])}."
        for name, end in zip(names, ends, strict=True)
    ]
    largest = []
    if lineup.connected:
        bins = {f"bin {bin_label(depth)}": cell for depth, cell in enumerate(cells)}
        largest = [largest_change(view, bins, CORRELATION, "cell")]

    def slope(heads: Columns) -> Any:
        shallow, deep = (Mean(column, among=in_bins(*bins))(heads) for bins in (SHALLOW, DEEP))
        return shallow - deep

    difference = f"mean {column} of shallow heads ({_bins(SHALLOW)}) minus deep heads ({_bins(DEEP)})"
    slopes = view.track(slope)
    return Caption(
        titled(f"{column} by Layer Depth", view),
        (
            f"Mean {column} {where(view)} per {lineup.noun} (rows, the first on top) and depth bin (columns), from "
            f"{SCALE[0]} (pale) to {SCALE[1]} (dark). Cells below {SCALE[0]} have a colour of their own, hatched cells "
            f"have no head with a correlation. Lowest and highest bin of the last {lineup.noun}"
            f"{' of each group' if len(lineup.groups) > 1 else ''}:",
            *rows,
            *largest,
            *story(view, capitalised(difference), slopes, CORRELATION),
            *extra,
            *about_axis(view),
        ),
        steps(
            view,
            source,
            figure,
            f"**Depth bins**: layer / last layer in {DEPTH_BINS} bins closed at the right, layer 0 in the first: "
            f"`max(ceil({DEPTH_BINS} * layer / last) - 1, 0)`.",
            aggregation=f"mean {column} of the heads in each (checkpoint, depth bin).",
            drawing=f'cells in the "{colour_map}" colour map, {SCALE[0]} to {SCALE[1]}, with their values where there '
            "is room.",
        ),
        takeaway(
            view,
            [
                (f"mean {column} over all depths", view.track(f"mean_{column}"), CORRELATION),
                (difference, slopes, CORRELATION),
            ],
        ),
    )


def _bins(bins: range) -> str:
    return f"bins {bin_label(bins[0])} to {bin_label(bins[-1])}"


def _row(cells: list[Estimate]) -> str:
    """The lowest and the highest cell of a checkpoint."""
    means = np.array([cell.value for cell in cells])
    if np.isnan(means).all():
        return "no correlations"
    ends = int(np.nanargmin(means)), int(np.nanargmax(means))
    return " to ".join(f"{value(cells[depth], CORRELATION)} (bin {bin_label(depth)})" for depth in ends)
