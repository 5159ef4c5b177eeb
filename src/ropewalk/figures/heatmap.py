"""Correlation with position by checkpoint and depth: what the two depth heatmaps share."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.contrasts import CHANCE_STEP, DEEP, DEPTHS, SHALLOW, by_depth, even, lead
from ropewalk.figures.courses import course, courses
from ropewalk.figures.findings import Candidate, Finding, certain, choose, scale, sign
from ropewalk.figures.phrases import CORRELATION, Quantity
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import about_axis, by_layers
from ropewalk.figures.style import HATCHED, MANY, WIDTH, contrasting, lay_out, page, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import titled, unclaimed, value, where
from ropewalk.geometry.taxonomy import DEPTH_BINS, bin_label
from ropewalk.summary.measures import Difference, Mean, in_bins
from ropewalk.summary.view import View, depth_tracks

SCALE = (0, 1)
"""What the ends of the colour map stand for; below it is another colour."""
LARGEST, SMALLEST = 7.5, 4.5
"""Font sizes of the numbers in the cells; where the smallest does not fit there are none."""
LETTER = 0.64
"""Width of a digit in font sizes, and the share of a row's height that its text may take."""


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
    lay_out(figure)
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


def describe_heatmap(view: View, source: str, figure: str, column: str, colour_map: str, *extra: Candidate) -> Caption:
    """The caption of a heatmap: early layers against late ones, or that depth makes no difference; `extra` beside."""
    lineup, unit = view.lineup, CORRELATION
    apart = Quantity("", unit, lead(column), "early − late", "depth")
    halves = [
        Quantity(name, unit, Mean(column, among=among), name, "depth")
        for name, among in zip(DEPTHS.names, (DEPTHS.first, DEPTHS.second), strict=True)
    ]
    return Caption(
        titled(f"{column} by Layer Depth", view),
        choose(
            (
                by_depth(view, column),
                even(view, column),
                _leading(view, column),
                *courses(view, f"mean_{column}"),
                _largest_change(view, column),
                by_layers(view, column),
                *extra,
            ),
            unclaimed(view, f"{column} by depth"),
        ),
        tabulated(view, f"mean_{column}", *halves, apart),
        f"Mean {column} {where(view)} per {lineup.noun} (rows, the first on top) and tenth of the depth (columns), "
        f"from {SCALE[0]} (pale) to {SCALE[1]} (dark); below {SCALE[0]} cells have a colour of their own, hatched ones "
        f"hold no head. Early layers are {_bins(SHALLOW)}, late ones {_bins(DEEP)}.{about_axis(view)}",
        steps(
            view,
            source,
            figure,
            f"**Depth bins**: layer / last layer in {DEPTH_BINS} bins closed at the right, layer 0 in the first: "
            f"`max(ceil({DEPTH_BINS} * layer / last) - 1, 0)`.",
            CHANCE_STEP,
            drawing=f'mean {column} of the heads in each cell, in the "{colour_map}" colour map, {SCALE[0]} to '
            f"{SCALE[1]}.",
        ),
    )


def _leading(view: View, column: str) -> Candidate:
    """How the lead of early layers, or that of late ones where it is theirs, goes over training."""
    if not view.lineup.connected:
        return None
    early, late = (Mean(column, among=group) for group in (DEPTHS.first, DEPTHS.second))
    ends = view.track(Difference(early, late)).values[[0, -1]]
    whose, measure = ("early", Difference(early, late)) if ends.sum() > 0 else ("late", Difference(late, early))
    return course(view, Quantity(f"the lead of {whose} layers in {column}", CORRELATION, measure, "", "depth"))


def _largest_change(view: View, column: str) -> Candidate:
    """The depth that changes most over training, as the largest of all depths, and otherwise than all heads together.

    It counts by its share of the heads.
    """
    if not view.lineup.connected:
        return None
    last, cells = len(view.lineup) - 1, depth_tracks(view, column)
    apart = {
        depth: view.track(Difference(Mean(column, among=in_bins(depth)), Mean(column))).change(0, last)
        for depth, cell in enumerate(cells)
        if not np.isnan(cell.values[[0, last]]).any()
    }
    if len(apart) < 3:
        return None
    most = max(apart, key=lambda depth: abs(cells[depth].change(0, last).value))
    change, size = cells[most].change(0, last), certain(apart[most], CORRELATION, len(apart))
    way = sign(change, CORRELATION, len(apart))
    if not way or not size or np.sign(apart[most].value) != way:
        return None
    count = int((view.parts[last]["bin"] == most).sum())
    ends = [f"{value(cells[most].at(index), CORRELATION)} at {view.lineup.labels[index]}" for index in (0, last)]
    return Finding(
        f"Mean {column} {'rises' if way > 0 else 'falls'} more at depth {bin_label(most)} than over all heads",
        ", ".join(ends),
        frozenset({"largest change"}),
        count / len(view.parts[last]) * size / scale(Mean(column), view.samples[last]),
    )


def _bins(bins: range) -> str:
    return f"bins {bin_label(bins[0])} to {bin_label(bins[-1])}"
