"""Phase portraits: r_q against r_k, a point per head."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.figures.caption import Caption
from ropewalk.figures.contrasts import CHANCE_STEP
from ropewalk.figures.courses import courses, tightening
from ropewalk.figures.findings import choose
from ropewalk.figures.phrases import CORRELATION, Quantity
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import about_axis, by_layers
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import LAYER_TYPES, MARKERS, RULE, below_title, page, plain, shortened, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    titled,
    unclaimed,
    where,
)
from ropewalk.geometry.taxonomy import CERTAIN, DOMINATED, HIGH, LOW
from ropewalk.summary.measures import deviation
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


def caption(view: View, source: str, *, checkpoints: Sequence[str] | None = None) -> Caption:
    """How the cloud of heads moves and tightens, with the same `checkpoints` as the drawing."""
    shown = selected(view, checkpoints)
    rope, nope, unknown = (MARKERS[layers.marker] for layers in LAYER_TYPES)
    spreads = [
        Quantity(f"the spread of {column}", CORRELATION, deviation(column), f"SD of {column}", f"sd {column}")
        for column in ("r_q", "r_k")
    ]
    return Caption(
        titled("Phase Portraits of r_q and r_k", shown),
        choose(
            (
                *(tightening(shown, column) for column in ("r_q", "r_k")),
                *courses(shown, f"share_{DOMINATED}", f"discordant_{DOMINATED}", "mean_r_q", "mean_r_k"),
                by_layers(shown, "r_k"),
            ),
            unclaimed(shown, "r_q and r_k"),
        ),
        tabulated(
            shown,
            "mean_r_q",
            "mean_r_k",
            *spreads,
            f"share_{DOMINATED}",
            f"discordant_{DOMINATED}",
            rows=range(len(shown.lineup)),
        ),
        f"r_q (across) against r_k (up) {where(view)}, a point per head: {rope} in layers with RoPE, {nope} in layers "
        f"without, {unknown} where that is not known; hollow ones are heads whose category is less than {CERTAIN:.0%} "
        f"certain. Dashed lines are the thresholds of the taxonomy (± {LOW} and ± {HIGH}).{about_axis(shown)}",
        steps(
            view,
            source,
            FIGURE.name,
            selection_step(view, checkpoints),
            CHANCE_STEP,
            drawing=f"heads with both correlations, r_q in {list(R_Q_LIMITS)} and r_k in {list(R_K_LIMITS)}.",
            checkpoints=checkpoints,
        ),
    )


FIGURE = FigureSpec("phase_portraits", "Phase portraits", draw, caption, OPTIONS)
