"""Concordance: whether keys lose position or turn against it."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.contrasts import CHANCE_STEP
from ropewalk.figures.courses import courses
from ropewalk.figures.curves import HOLLOW, PERMUTED, UNTRAINED, correlation_limits, curve, legend_above, reference
from ropewalk.figures.findings import choose
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import about_axis, above_nulls, by_layers, turning_keys
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import KEY, LAYER_TYPES, TEXT, page, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    known,
    titled,
    unclaimed,
)
from ropewalk.summary.view import View


class Panel(NamedTuple):
    """A panel: the label of its y axis, and what the caption says it shows."""

    label: str
    shows: str


PANELS = (
    Panel("$r_k$, all heads", "mean r_k (filled) and mean |r_k| (hollow) over all heads"),
    Panel(
        "discordant share",
        "the share of discordant heads, in which r_q and r_k differ in sign, among those with both beyond their "
        "errors; in grey the others, undecided",
    ),
    Panel("$r_k$ by layer kind", "mean r_k by kind of layer"),
)
"""From top to bottom."""

SIDES = {True: ("rope", -0.16), False: ("nope", 0.16)}
"""Of layers with RoPE and without: the end of their measures' names, and where their markers stand."""


@style()
def draw(view: View) -> Figure:
    """Three panels over the checkpoints (docs/method.md §4), with jackknife standard errors.

    Top: mean r_k and mean |r_k|. Middle: the share of discordant heads among the decided, all and by RoPE and NoPE
    layers, and behind it the share of undecided heads.
    Bottom: mean r_k of the heads of RoPE and of NoPE layers.
    """
    lineup = view.lineup
    figure = page(axis.width(lineup), 6.4)
    axes = figure.subplots(len(PANELS), 1, sharex=True)
    for ax, panel in zip(axes, PANELS, strict=True):
        ax.grid(axis="y")
        ax.set_ylabel(panel.label)
    top, middle, bottom = axes
    signed = view.track("mean_r_k")
    curve(top, lineup, signed, -0.1, color=KEY, marker="s", label="mean $r_k$")
    curve(top, lineup, view.track("mean_abs_r_k"), 0.1, label="mean $|r_k|$", **HOLLOW)
    for null, track in (
        (PERMUTED, view.track("mean_abs_r_k_permuted")),
        (UNTRAINED, view.track_untrained("mean_abs_r_k")),
    ):
        if reference(top, lineup, track, null, HOLLOW["color"]):
            top.plot(
                [], [], color=HOLLOW["color"], linewidth=1.0, linestyle=null.linestyle, label=f"$|r_k|$ {null.label}"
            )
    correlation_limits(top, signed.values)
    _undecided(middle, view)
    curve(middle, lineup, view.track("discordant"), color=TEXT, marker="D", label="all heads")
    middle.set_ylim(-0.03, 1.03)
    rope = pd.concat([part["rope"] for part in view.parts])
    tracks = []
    for layers in LAYER_TYPES:
        if layers.rope is None or not (rope == layers.rope).fillna(False).any():
            continue
        side, shift = SIDES[layers.rope]
        options = {"color": layers.colour, "marker": layers.marker, "label": layers.label}
        curve(middle, lineup, view.track(f"discordant_{side}"), shift, **options)
        tracks.append(view.track(f"mean_r_k_{side}"))
        curve(bottom, lineup, tracks[-1], shift, **options)
    correlation_limits(bottom, *(track.values for track in tracks))
    if not tracks:
        note = "the table does not say which layers have RoPE"
        back = {"facecolor": "white", "edgecolor": "none"}
        bottom.text(0.5, 0.5, note, transform=bottom.transAxes, ha="center", va="center", bbox=back)
    axis.along_x(figure, list(axes), lineup)
    for ax in axes:
        legend_above(figure, ax)
    return figure


def _undecided(ax: Any, view: View) -> None:
    """The share of heads that are neither concordant nor discordant, as a grey area, or bars for models."""
    shares, x = view.track("undecided").values, np.arange(len(view.lineup))
    if not view.has_errors or np.isnan(shares).all():
        return
    drawn = {"color": "#dcdcdc", "linewidth": 0, "zorder": 1, "label": "undecided"}
    if view.lineup.connected:
        ax.fill_between(x, 0, np.nan_to_num(shares), **drawn)
    else:
        ax.bar(x, np.nan_to_num(shares), 0.7, **drawn)


def caption(view: View, source: str) -> Caption:
    """Whether keys lose position or turn against it, and in which layers."""
    sides = known(view, "mean_r_k_rope", "mean_r_k_nope")
    split = {
        0: "The table does not say which layers have RoPE, so they are not told apart.",
        1: f"All heads whose layer is known are in {'RoPE' if sides == ['mean_r_k_rope'] else 'NoPE'} layers.",
        2: "",
    }[len(sides)]
    return Caption(
        titled("Concordance of Keys with Queries", view),
        choose(
            (
                turning_keys(view),
                *courses(view, "discordant"),
                by_layers(view, "r_k"),
                *courses(view, "mean_r_k", "mean_abs_r_k"),
                *above_nulls(view, "mean_abs_r_k"),
            ),
            unclaimed(view, "r_k and its sign"),
        ),
        tabulated(view, "mean_r_k", "mean_abs_r_k", "discordant", *(("undecided",) if view.has_errors else ()), *sides),
        f"{len(PANELS)} panels from top to bottom: {'; '.join(panel.shows for panel in PANELS)}. {split}".rstrip()
        + about_axis(view),
        steps(
            view,
            source,
            FIGURE.name,
            CHANCE_STEP,
            drawing="means over the heads of a checkpoint, all and by `rope`; discordant is column `concordance`.",
        ),
    )


FIGURE = FigureSpec("concordance", "Concordance", draw, caption)
