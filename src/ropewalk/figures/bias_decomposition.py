"""Bias decomposition: what makes later keys score higher or lower, per token and per context."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.courses import before_extension, courses
from ropewalk.figures.findings import Candidate, Finding, certain, choose, scale, sign
from ropewalk.figures.phrases import QUANTITIES
from ropewalk.figures.production import steps
from ropewalk.figures.quartiles import quartile_bars
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import page, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    capitalised,
    titled,
    unclaimed,
    value,
)
from ropewalk.summary.view import View

PANELS = (
    ("mu_q_a", "$\\mu_q$ along\nthe drift axis", False),
    ("alpha_k", "$|\\alpha_k|$\nper token", True),
    ("bias_strength", "bias strength\nper token", False),
    ("alpha_k_context", "$|\\alpha_k|\\cdot L$\nper context", True),
    ("bias_strength_context", "bias strength$\\cdot L$\nper context", False),
)
"""Columns from top to bottom, their labels, and whether their size is shown."""
PAIRS = (
    ("mean_bias_strength", "mean_bias_strength_context"),
    ("mean_abs_alpha_k", "mean_abs_alpha_k_context"),
)
"""The same per token and over the context."""


@style()
def draw(view: View) -> Figure:
    """Medians and middle halves over heads of mu_q_a, alpha_k and bias_strength, per token and times the context L."""
    lineup = view.lineup
    figure = page(axis.width(lineup), 7.4)
    axes = list(figure.subplots(len(PANELS), 1, sharex=True))
    for ax, (column, label, size) in zip(axes, PANELS, strict=True):
        ax.grid(axis="y")
        ax.set_ylabel(label)
        quartile_bars(ax, view, column, size=size)
        _plain(ax)
    axis.along_x(figure, axes, lineup)
    return figure


def _plain(ax: Any) -> None:
    """A line at 0 where it is in sight, and few ticks with short numbers."""
    low, high = ax.get_ylim()
    if low < 0 < high:
        ax.axhline(0, color="#b5b5b5", linewidth=0.8, zorder=1)
    ax.locator_params(axis="y", nbins=4)
    ax.ticklabel_format(axis="y", style="plain" if max(abs(low), abs(high)) > 0.01 else "sci", scilimits=(-2, 3))


def caption(view: View, source: str) -> Caption:
    """How mean, drift and bias go, and whether per token and per context tell the same."""
    return Caption(
        titled("Bias Decomposition", view),
        choose(
            (
                *(units(view, *pair) for pair in PAIRS),
                *courses(view, "mean_bias_strength_context", "mean_mu_q_a", "mean_abs_alpha_k_context"),
                _favoured(view),
            ),
            unclaimed(view, "the bias towards later keys"),
        ),
        tabulated(view, *(measure for pair in PAIRS for measure in pair)),
        "The score of a key grows with its position by mu_q_a · alpha_k per token: the mean of the queries along the "
        "drift axis times how fast keys move along it. Above 0, later keys score higher. A slope per token gets "
        "smaller when the same path is spread over a longer context L, so both are also shown times L: what changes "
        "from the first key of a document to the last. Markers are medians over heads, bars their middle half "
        "(not errors).",
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: these columns and their errors are also in `rotated.csv` beside it; findings are on means.",
            drawing="median and quartiles over the heads of a checkpoint.",
        ),
    )


def units(view: View, per_token: str, per_context: str) -> Candidate:
    """Whether a slope per token shrinks where the context grows, while over the whole context it does not."""
    last, first = len(view.lineup) - 1, before_extension(view)
    tracks = [view.track(name) for name in (per_token, per_context)]
    if first is None or any(np.isnan(track.values[[first, last]]).any() for track in tracks):
        return None
    quantities = [QUANTITIES[name] for name in (per_token, per_context)]
    changes = [track.change(first, last) for track in tracks]
    # Smaller is nearer to 0, whichever side of it a slope is on.
    shrunk = [
        sign(change, one.unit) * np.sign(track.values[first]) < 0 and abs(track.values[last]) < abs(track.values[first])
        for change, track, one in zip(changes, tracks, quantities, strict=True)
    ]
    if shrunk != [True, False]:
        return None
    texts = [
        f"{value(track.at(first), one.unit)} to {value(track.at(last), one.unit)}"
        for track, one in zip(tracks, quantities, strict=True)
    ]
    labels = view.lineup.labels
    return Finding(
        f"{capitalised(quantities[0].name)} shrinks where the context grows, {quantities[1].name} does not: it is a "
        "change of unit",
        f"{'; '.join(texts)}, from {labels[first]} to {labels[last]}",
        frozenset({"unit"}),
        certain(changes[0], quantities[0].unit) / scale(per_token, view.samples[first], view.samples[last]),
        needed=True,
    )


def _favoured(view: View) -> Candidate:
    """Whether later or earlier keys score higher at the last checkpoint, as a mean over heads."""
    if view.lineup.side_by_side:
        return None
    last, measure = len(view.lineup) - 1, "mean_bias_strength_context"
    quantity, bias = QUANTITIES[measure], view.track(measure).at(last)
    way = sign(bias, quantity.unit)
    if not way:
        return None
    return Finding(
        f"On average {'later' if way > 0 else 'earlier'} keys score higher",
        f"{value(bias, quantity.unit)} at {view.lineup.labels[last]}",
        frozenset({"favoured"}),
        certain(bias, quantity.unit) / scale(measure, view.samples[last]),
    )


FIGURE = FigureSpec(
    "bias_decomposition",
    "Bias decomposition",
    draw,
    caption,
    on_axis=False,
    columns=("bias_strength", "bias_strength_context"),
    statistic="moments",
)
