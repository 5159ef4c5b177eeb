"""Bias decomposition: what makes later keys score higher or lower, per token and per context."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.phrases import PHRASES
from ropewalk.figures.production import steps
from ropewalk.figures.quartiles import quartile_bars
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import page, style
from ropewalk.figures.wording import checkpoints_shown, direction, takeaway_of, titled, told, value
from ropewalk.summary.view import View

PANELS = (
    ("mu_q_a", "$\\mu_q$ along\nthe drift axis", False),
    ("alpha_k", "$|\\alpha_k|$\nper token", True),
    ("bias_strength", "bias strength\nper token", False),
    ("alpha_k_context", "$|\\alpha_k|\\cdot L$\nper context", True),
    ("bias_strength_context", "bias strength$\\cdot L$\nper context", False),
)
"""Columns from top to bottom, their labels, and whether their size is shown."""


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
        (
            " ".join([*units(view), told(view, "mean_mu_q_a", "mean_abs_alpha_k_context")]),
            "The score of a key grows with its position by mu_q_a · alpha_k per token: the mean of the queries along "
            "the drift axis times how fast keys move along it; above 0, later keys score higher (recency). A slope per "
            "token gets smaller when the same path is spread over a longer context L, so both are also shown times L: "
            "what changes from the first key of a document to the last. Markers are medians over the heads of "
            f"{checkpoints_shown(view)}, bars their middle half (not errors).",
        ),
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: these columns and their errors are also in `rotated.csv` beside it.",
            aggregation="median and quartiles over the heads of a checkpoint in the panels; means in the text.",
            drawing="five panels with the checkpoints along x.",
        ),
        takeaway_of(view, "mean_bias_strength", "mean_bias_strength_context"),
    )


def units(view: View) -> list[str]:
    """Bias strength per token and per context, where contexts differ: the one may fall while the other rises."""
    last = len(view.lineup) - 1
    tracks = [(PHRASES[name], view.track(name)) for name in ("mean_bias_strength", "mean_bias_strength_context")]
    if not view.lineup.connected or any(np.isnan(track.values[[0, last]]).any() for _, track in tracks):
        return [told(view, "mean_bias_strength", "mean_bias_strength_context")]
    texts = [
        f"{phrase.name} {direction(track.change(0, last), phrase.unit)} (from {value(track.at(0), phrase.unit)} to "
        f"{value(track.at(last), phrase.unit)})"
        for phrase, track in tracks
    ]
    contexts = {int(part["context"].iloc[0]) for part in view.parts}
    joined = ", while " if len(contexts) > 1 else ", and "
    return [f"From {view.lineup.labels[0]} to {view.lineup.labels[last]}, {joined.join(texts)}.".replace("..", ".")] + (
        ["Contexts differ, so the first is partly a change of unit."] if len(contexts) > 1 else []
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
