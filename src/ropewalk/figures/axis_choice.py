"""The choice of axis: r_q, r_k and position-dominated heads on each of the three, over the checkpoints."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption, Table
from ropewalk.figures.courses import courses
from ropewalk.figures.curves import correlation_limits, curve
from ropewalk.figures.findings import Candidate, Finding, certain, choose, compared, scale, sign
from ropewalk.figures.phrases import CORRELATION, QUANTITIES, SHARE, Unit
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import MOSTLY, separating
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import AXIS_STYLES, TEXT, page, style
from ropewalk.figures.tabulated import shown_rows
from ropewalk.figures.wording import (
    AXIS_NAMES,
    WHERE,
    capitalised,
    cell,
    clearest,
    titled,
    unclaimed,
    value,
)
from ropewalk.geometry.taxonomy import DOMINATED
from ropewalk.summary.view import View

PANELS: tuple[tuple[str, str, str, Unit], ...] = (
    ("mean_r_q", "mean $r_q$", "mean r_q", CORRELATION),
    ("mean_abs_r_k", "mean $|r_k|$", "mean |r_k|", CORRELATION),
    (f"share_{DOMINATED}", f"{DOMINATED}", f"the share of {DOMINATED} heads", SHARE),
)
"""Measure, label of the y axis, name in the caption and unit of the panels that show the axes beside each other."""
READOUTS = {"mean_r_q": "mean_readout_q", "mean_abs_r_k": "mean_readout_k"}
"""The readout that belongs to a panel: how well position can be read along the best of all directions."""

READOUT: dict[str, Any] = {"color": "#8a8a8a", "marker": "x", "linestyle": (0, (1, 1.2))}


@style()
def draw(view: View) -> Figure:
    """Four panels over the checkpoints (docs/method.md §3), with standard errors.

    Mean r_q, mean |r_k| and the share of position-dominated heads on PC0 of queries and keys pooled, on PC0 of both
    centred apart, and along the drift axis; in grey the readout, which no choice of one axis can exceed but by what it
    was fitted to; below, the share of the pooled PC0's variance that is the offset between queries and keys.
    """
    lineup = view.lineup
    figure = page(axis.width(lineup), 7.6)
    axes = figure.subplots(len(PANELS) + 1, 1, sharex=True)
    turned = {name: view.on(name) for name in view.axes}
    shifts = dict(zip(turned, np.linspace(-0.18, 0.18, max(len(turned), 2)), strict=False))
    for ax, (measure, label, _, unit) in zip(axes, PANELS, strict=False):
        ax.grid(axis="y")
        ax.set_ylabel(label)
        tracks = []
        if measure in READOUTS and not np.isnan(view.track(READOUTS[measure]).values).all():
            tracks.append(view.track(READOUTS[measure]))
            curve(ax, lineup, tracks[0], 0.3, zorder=2.4, **READOUT)
        for name, other in turned.items():
            tracks.append(other.track(measure))
            curve(ax, lineup, tracks[-1], shifts[name], **_drawn(name))
        if unit is SHARE:
            ax.set_ylim(-0.03, 1.03)
        else:
            correlation_limits(ax, *(track.values for track in tracks))
    bottom = axes[-1]
    bottom.grid(axis="y")
    bottom.set_ylabel("separation\nshare of PC0")
    curve(bottom, lineup, view.on("pooled").track("mean_separation_share"), color=TEXT, marker="D")
    bottom.axhline(MOSTLY, color="#b5b5b5", linewidth=0.8, linestyle="--", zorder=1)
    bottom.set_ylim(-0.03, 1.03)
    handles = [Line2D([], [], label=AXIS_NAMES[name], linewidth=1.5, markersize=4.5, **_drawn(name)) for name in turned]
    handles.append(Line2D([], [], markersize=4.5, label="readout R", **READOUT))
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    axis.along_x(figure, list(axes), lineup)
    return figure


def _drawn(name: str) -> dict[str, Any]:
    look = AXIS_STYLES[name]
    return {"color": look.colour, "marker": look.marker}


def caption(view: View, source: str) -> Caption:
    """Whether what is said of the heads hangs on the axis, and whether PC0 is about position at all."""
    turned = {name: view.on(name) for name in view.axes}
    pooled = view.on("pooled")
    return Caption(
        titled("Choice of Axis", view),
        choose(
            (
                *(_hangs(view, turned, measure) for measure, *_ in PANELS),
                *(_readable(view, turned, measure) for measure in READOUTS),
                *courses(pooled, "mean_separation_share"),
                separating(pooled),
            ),
            unclaimed(view, "the choice of axis") if len(turned) > 1 else "The table has one axis only",
        ),
        _table(view, turned),
        f"The same heads on {len(turned)} choices of one axis per head. From top to bottom: mean r_q; mean |r_k|; the "
        f"share of {DOMINATED} heads; and the share of PC0's variance that is the offset between queries and keys "
        f"(above the dashed line, {MOSTLY:.0%}, PC0 mostly tells the two apart). Crosses are the readout: how well "
        "position can be predicted along the best of all directions, fitted on other documents.",
        steps(
            view,
            source,
            FIGURE.name,
            "**Axes**: pooled, the first principal component of queries and keys together (as published); centred, of "
            "both about their own means; drift, the direction in which their means move with position.",
            drawing="means over heads and shares of heads on each axis.",
        ),
    )


def _hangs(view: View, turned: dict[str, View], measure: str) -> Candidate:
    """Whether a quantity at the last checkpoint is another on another axis than PC0; over models, in how many."""
    if "pooled" not in turned or len(turned) < 2:
        return None
    quantity, shown = QUANTITIES[measure], compared(view)
    tracks = {name: other.track(measure) for name, other in turned.items()}
    others = [name for name in turned if name != "pooled"]
    sizes = {
        (name, index): certain(
            tracks[name].readings[index].since(tracks["pooled"].readings[index]),
            quantity.unit,
            len(others) * len(shown),
        )
        for name in others
        for index in shown
    }
    name, index = max(sizes, key=lambda one: sizes[one])
    if not sizes[name, index]:
        return None
    numbers = [f"{value(track.at(index), quantity.unit)} {WHERE[axis]}" for axis, track in tracks.items()]
    return Finding(
        f"{capitalised(quantity.name)} hangs on the axis that is chosen",
        f"{', '.join(numbers)}, {clearest(view, index)}",
        frozenset({f"hangs {quantity.unit.value}"}),
        sizes[name, index] / scale(measure, view.samples[index]),
    )


def _readable(view: View, turned: dict[str, View], measure: str) -> Candidate:
    """Whether position can be read better along the best direction than along any of the axes, at the last one."""
    last = len(view.lineup) - 1
    best = view.track(READOUTS[measure]).readings[last]
    readings = {name: other.track(measure).readings[last] for name, other in turned.items()}
    if view.lineup.side_by_side or np.isnan(best.value) or any(np.isnan(one.value) for one in readings.values()):
        return None
    nearest = max(readings, key=lambda name: readings[name].value)
    more = best.since(readings[nearest])
    noun = {"mean_r_q": "queries", "mean_abs_r_k": "keys"}[measure]
    if sign(more, CORRELATION, len(readings)) <= 0:
        return None
    return Finding(
        f"Position can be read from {noun} better than any of these axes shows",
        f"{value(best.estimate, CORRELATION)} along the best direction, "
        f"{value(readings[nearest].estimate, CORRELATION)} {WHERE[nearest]}, at {view.lineup.labels[last]}",
        frozenset({"readout"}),
        certain(more, CORRELATION, len(readings)) / scale(measure, view.samples[last]),
    )


def _table(view: View, turned: dict[str, View]) -> Table:
    """Quantities by axis at the last checkpoint, or by model and axis."""
    lineup = view.lineup
    shown = shown_rows(view) if lineup.side_by_side else sorted({0, len(lineup) - 1})
    rows = [
        (
            lineup.labels[index],
            capitalised(AXIS_NAMES[name]),
            *(cell(other.track(measure).at(index), unit) for measure, _, _, unit in PANELS),
        )
        for index in shown
        for name, other in turned.items()
    ]
    return Table((lineup.noun, "axis", *(QUANTITIES[measure].header for measure, *_ in PANELS)), tuple(rows))


FIGURE = FigureSpec("axis_choice", "Choice of axis", draw, caption, on_axis=False)
