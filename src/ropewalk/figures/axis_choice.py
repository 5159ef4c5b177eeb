"""The choice of axis: r_q, r_k and position-dominated heads on each of the three, over the checkpoints."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.curves import correlation_limits, curve
from ropewalk.figures.phrases import CORRELATION, SHARE, Unit
from ropewalk.figures.production import steps
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import AXIS_STYLES, TEXT, page, style
from ropewalk.figures.wording import (
    AXIS_NAMES,
    MOSTLY,
    WHERE,
    capitalised,
    checkpoints_shown,
    overall,
    sign,
    titled,
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
    """What each axis says of the same heads, and where they disagree."""
    names = view.axes
    turned = {name: view.on(name) for name in names}
    stories = []
    for measure, _, words, unit in PANELS:
        texts = [overall(view, WHERE[name], other.track(measure), unit) for name, other in turned.items()]
        stories.append(f"**{capitalised(words)}**: {'; '.join(texts)}.")
    readouts = [
        overall(view, f"the mean readout of {noun}", view.track(name), CORRELATION)
        for name, noun in (("mean_readout_q", "queries"), ("mean_readout_k", "keys"))
        if not np.isnan(view.track(name).values).all()
    ]
    best = [f"Along the best of all directions, {' and '.join(readouts)}."] if readouts else []
    separation = view.on("pooled").track("mean_separation_share")
    share = overall(
        view, "the share of the pooled PC0's variance that is the offset between queries and keys", separation, SHARE
    )
    return Caption(
        titled("Choice of Axis", view),
        (
            f"The same heads of {checkpoints_shown(view)} on {len(names)} choices of one axis per head, from top to "
            "bottom: mean r_q, mean |r_k|, the share of position-dominated heads, and the share of the pooled PC0's "
            f"variance that is the offset between queries and keys (above the dashed line, {MOSTLY:.0%}, PC0 mostly "
            "tells the two apart). Crosses are the readout: the correlation of position with its best linear "
            "prediction, fitted on the other shards.",
            *stories,
            *best,
            f"As a mean over heads, {share}.",
        ),
        steps(
            view,
            source,
            FIGURE.name,
            "**Axes**: pooled, the first principal component of queries and keys together (as published); centred, of "
            "both about their own means; drift, the direction in which their means move with position.",
            aggregation="means over heads and shares of heads, on each axis.",
            drawing=f"{len(PANELS) + 1} stacked panels with a shared axis.",
        ),
        _takeaway(view, turned),
    )


def _takeaway(view: View, turned: dict[str, View]) -> str:
    """Whether the share of position-dominated heads at the last checkpoint hangs on the choice of axis."""
    last = len(view.lineup) - 1
    measure = f"share_{DOMINATED}"
    shares = {name: other.track(measure).at(last) for name, other in turned.items()}
    texts = ", ".join(f"{value(share, SHARE)} {WHERE[name]}" for name, share in shares.items())
    readings = {name: other.track(measure).readings[last] for name, other in turned.items()}
    pooled = readings.get("pooled")
    others = [reading.since(pooled) for name, reading in readings.items() if name != "pooled" and pooled is not None]
    moved = any(sign(change, SHARE, len(others)) for change in others)
    verdict = "the taxonomy hangs on the choice of axis" if moved else "no axis differs from PC0 beyond its error"
    return f"At {view.lineup.labels[last]}, the share of {DOMINATED} heads is {texts}: {verdict}."


FIGURE = FigureSpec("axis_choice", "Choice of axis", draw, caption, on_axis=False)
