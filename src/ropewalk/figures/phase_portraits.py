"""Phase portraits: r_q against r_k, a point per head."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.figures.caption import Caption
from ropewalk.figures.phrases import CORRELATION, SHARE, Unit
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import about_axis
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import LAYER_TYPES, MARKERS, RULE, below_title, page, plain, shortened, style
from ropewalk.figures.wording import takeaway, titled, value, where
from ropewalk.geometry.taxonomy import CERTAIN, DOMINATED, HIGH, LOW
from ropewalk.summary.measures import Measure, deviation
from ropewalk.summary.tracks import Track
from ropewalk.summary.view import View

UNDECIDED = "category undecided"
HOLLOW: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": "#555555", "markeredgewidth": 0.8}
"""How heads are drawn whose category is less than 95% certain, and the entry of the legend for them."""
R_Q_LIMITS = (-0.05, 1.05)
R_K_LIMITS = (-1.05, 1.05)


@style()
def draw(view: View, *, checkpoints: Sequence[str] | None = None) -> Figure:
    """Scatter of r_q against r_k on PC0 at some checkpoints, heads of RoPE and NoPE layers told apart.

    `checkpoints` are names or labels; without them a few are chosen: the first, ends of phases, the last. Dashed lines
    are the thresholds of the taxonomy. Heads without a correlation have no point.
    """
    view = selected(view, checkpoints)
    count = len(view.lineup)
    columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows = -(-count // columns)
    figure = page(0.9 + 2.0 * columns, 0.75 + 2.3 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    shown: dict[str, Any] = {}
    for ax, label, part in zip(grid.flat, view.lineup.labels, view.parts, strict=False):
        shown |= _panel(ax, label, part.dropna(subset=["r_q", "r_k"]))
    for ax in grid.flat[count:]:
        ax.set_visible(False)
    for position, ax in enumerate(grid.flat[:count]):
        # A panel with no other below it is the lowest of its column.
        lowest = position + columns >= count
        ax.tick_params(labelbottom=lowest)
        ax.set_xlabel("$r_q$ (queries)" if lowest else "")
        ax.set_ylabel("$r_k$ (keys)" if position % columns == 0 else "")
    if UNDECIDED in shown:
        # After the types of layers, whichever panel has it first.
        shown[UNDECIDED] = shown.pop(UNDECIDED)
    if shown:
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3, markerscale=1.4)
    return figure


def _panel(ax: Any, label: str, part: pd.DataFrame) -> dict[str, Any]:
    """The heads of one checkpoint that have both correlations; returns the points of each type of layer."""
    for threshold in (LOW, HIGH):
        ax.axvline(threshold, color=RULE, linestyle="--", linewidth=0.7, zorder=1)
        for sign in (1, -1):
            ax.axhline(sign * threshold, color=RULE, linestyle="--", linewidth=0.7, zorder=1)
    points: dict[str, Any] = {}
    undecided = part["certainty"] < CERTAIN if "certainty" in part else pd.Series(False, index=part.index)
    for layers in LAYER_TYPES:
        known = part["rope"].isna() if layers.rope is None else (part["rope"] == layers.rope).fillna(False).astype(bool)
        drawn = {"s": 15, "marker": layers.marker, "alpha": 0.7, "zorder": 2 if layers.rope else 3}
        sure, unsure = part[known & ~undecided], part[known & undecided]
        if known.any():
            filled = {"color": layers.colour, "edgecolors": "white", "linewidths": 0.35, "gid": layers.label}
            points[layers.label] = ax.scatter(sure["r_q"], sure["r_k"], **drawn, **filled)
        if len(unsure):
            hollow = {
                "facecolors": "none",
                "edgecolors": layers.colour,
                "linewidths": 0.8,
                "gid": f"{layers.label}, hollow",
            }
            ax.scatter(unsure["r_q"], unsure["r_k"], **drawn, **hollow)
            points[UNDECIDED] = Line2D([], [], linestyle="none", marker="o", markersize=4, **HOLLOW)
    ax.set_xlim(*R_Q_LIMITS)
    ax.set_ylim(*R_K_LIMITS)
    ax.set_xticks([0, LOW, HIGH, 1])
    ax.set_yticks([-1, -HIGH, -LOW, 0, LOW, HIGH, 1])
    dominated = int((part["category"] == DOMINATED).sum())
    discordant = int(((part["category"] == DOMINATED) & (part["r_q"] * part["r_k"] < 0)).sum())
    ax.set_title(plain(shortened(label, 18)), fontweight="bold", pad=24)
    below_title(ax, f"{dominated} of {len(part)} {DOMINATED}\n({discordant} discordant)", "counts")
    outside = ~(part["r_q"].between(*R_Q_LIMITS) & part["r_k"].between(*R_K_LIMITS))
    if outside.any():
        ax.text(0.03, 0.03, f"{outside.sum()} outside", transform=ax.transAxes, fontsize=7, gid="outside")
    return points


class Quantity(NamedTuple):
    """What a caption says of a panel, and whether its takeaway follows it from the first panel to the last."""

    name: str
    measure: str | Measure
    unit: Unit
    followed: bool = False


QUANTITIES = (
    Quantity(DOMINATED, f"share_{DOMINATED}", SHARE, followed=True),
    Quantity(f"{DOMINATED} and discordant", f"discordant_{DOMINATED}", SHARE, followed=True),
    Quantity("mean r_q", "mean_r_q", CORRELATION),
    Quantity("standard deviation of r_q over heads", deviation("r_q"), CORRELATION, followed=True),
    Quantity("mean r_k", "mean_r_k", CORRELATION),
    Quantity("in RoPE layers", "mean_r_k_rope", CORRELATION),
    Quantity("in NoPE layers", "mean_r_k_nope", CORRELATION),
    Quantity("standard deviation of r_k over heads", deviation("r_k"), CORRELATION, followed=True),
)


def caption(view: View, source: str, *, checkpoints: Sequence[str] | None = None) -> Caption:
    """The numbers of every panel, with the same `checkpoints` as the drawing."""
    shown = selected(view, checkpoints)
    tracks = [(quantity, shown.track(quantity.measure)) for quantity in QUANTITIES]
    rope, nope, unknown = (MARKERS[layers.marker] for layers in LAYER_TYPES)
    panels = [
        f"- **{label}**: {len(part.dropna(subset=['r_q', 'r_k']))} heads; {_facts(tracks, index)}."
        for index, (label, part) in enumerate(zip(shown.lineup.labels, shown.parts, strict=True))
    ]
    ends = [
        (f"the share of {name} heads" if unit is SHARE else f"the {name}", track, unit)
        for (name, _, unit, followed), track in tracks
        if followed
    ]
    return Caption(
        titled("Phase Portraits of r_q and r_k", shown),
        (
            f"r_q (x) against r_k (y) {where(view)}, a point per head, at {', '.join(shown.lineup.labels)}. "
            f"{rope.capitalize()} are heads of layers with RoPE, {nope} of layers without, {unknown} of layers not "
            f"known to be either; hollow ones are of heads whose category is less than {CERTAIN:.0%} certain. Dashed "
            f"lines are the thresholds of the taxonomy (± {LOW} and ± {HIGH}).",
            *panels,
            *about_axis(shown),
        ),
        steps(
            view,
            source,
            FIGURE.name,
            selection_step(view, checkpoints),
            aggregation="none; each head is a point, counts in the titles are heads with both correlations.",
            drawing=f"a grid of scatter plots with the same limits, r_q in {list(R_Q_LIMITS)} and r_k in "
            f"{list(R_K_LIMITS)}.",
            checkpoints=checkpoints,
        ),
        takeaway(shown, ends),
    )


def _facts(tracks: Sequence[tuple[Quantity, Track]], index: int) -> str:
    known = [(quantity, track.at(index)) for quantity, track in tracks if not np.isnan(track.values[index])]
    return ", ".join(f"{quantity.name} {value(number, quantity.unit)}" for quantity, number in known) or (
        "no correlations"
    )


FIGURE = FigureSpec("phase_portraits", "Phase portraits", draw, caption, OPTIONS)
