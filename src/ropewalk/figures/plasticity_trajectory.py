"""Plasticity trajectory: does the query decide which key wins, early and late in the context, over the checkpoints?"""

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.courses import courses
from ropewalk.figures.curves import curve, legend_above
from ropewalk.figures.findings import Candidate, Finding, agreed, certainly, choose, compared, scale
from ropewalk.figures.phrases import CORRELATION
from ropewalk.figures.production import steps
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import page, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    capitalised,
    clearest,
    titled,
    unclaimed,
    value,
)
from ropewalk.summary.view import View

FIRST, LAST, ALL = "#2b5c7d", "#b5408a", "#8a8a8a"
BELOW = "mean_bias_strength_context"


@style()
def draw(view: View) -> Figure:
    """Mean plasticity with the query in the first and in the last fifth of the context, the gap shaded; bias below."""
    lineup = view.lineup
    figure = page(axis.width(lineup), 4.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.1, 1))
    first, last = view.track("mean_ap_first_20"), view.track("mean_ap_last_20")
    x = np.arange(len(lineup))
    if lineup.connected:
        above.fill_between(x, first.values, last.values, color=ALL, alpha=0.2, linewidth=0, gid="gap")
    else:
        above.vlines(x, first.values, last.values, color=ALL, alpha=0.3, linewidth=4, gid="gap")
    curve(above, lineup, first, color=FIRST, marker="o", label="first fifth")
    curve(above, lineup, last, color=LAST, marker="s", label="last fifth")
    curve(
        above, lineup, view.track("mean_ap_overall"), color=ALL, marker="D", label="all", linewidth=1.0, markersize=3.0
    )
    above.set_ylabel("attention plasticity")
    curve(below, lineup, view.track(BELOW), color="#444444", marker="o")
    below.set_ylabel("bias strength\nper context")
    for ax in (above, below):
        ax.grid(axis="y")
    low, high = below.get_ylim()
    if low < 0 < high:
        below.axhline(0, color="#b5b5b5", linewidth=0.8, zorder=1)
    axis.along_x(figure, [above, below], lineup)
    legend_above(figure, above, ncols=3)
    return figure


def caption(view: View, source: str) -> Caption:
    """How plasticity goes over training and along the context, and in which layers there is more of it."""
    return Caption(
        titled("Attention Plasticity", view),
        choose(
            (
                *courses(view, "mean_ap_overall", "mean_ap_drop"),
                dropping(view),
            ),
            unclaimed(view, "attention plasticity"),
        ),
        tabulated(view, "mean_ap_overall", "mean_ap_first_20", "mean_ap_last_20", "mean_ap_drop"),
        "Of two keys of a document and a query after them: does it hang on the query which of the two scores higher? "
        "Plasticity is 4p(1 − p), p being the share of queries for which the one wins: 1 where queries decide, 0 where "
        "the outcome is fixed. Means over heads, with the query in the first fifth of the context (circles), the last "
        "fifth (squares) and anywhere (diamonds); the shaded gap is the drop. Below, how much the mean score grows "
        "from the first key of a document to the last.",
        steps(
            view,
            source,
            FIGURE.name,
            "**Pairs**: kept keys of one document, before the bucket of the queries and within the window of sliding "
            "layers; up to 256 pairs for each of 16 buckets. These columns are also in `plasticity.csv` beside it."
            f"{_gap(view)}",
            drawing="means over all heads of a checkpoint.",
        ),
    )


def dropping(view: View) -> Candidate:
    """Whether queries late in the context decide less than early ones, at the last checkpoint or in most models."""
    track, shown = view.track("mean_ap_drop"), compared(view)
    claim = agreed(
        view,
        {
            index: certainly(track.at(index), CORRELATION, len(shown)) / scale("mean_ap_drop", view.samples[index])
            for index in shown
        },
    )
    if claim is None:
        return None
    ends = [value(view.track(f"mean_ap_{part}_20").at(claim.at), CORRELATION) for part in ("last", "first")]
    return Finding(
        capitalised(
            f"{claim.begin}queries late in the context decide {'less' if claim.way > 0 else 'more'} than early ones"
        ),
        f"plasticity {ends[0]} against {ends[1]}, {clearest(view, claim.at)}",
        frozenset({"drop"}),
        claim.size,
    )


def _gap(view: View) -> str:
    """How far the Gaussian form is from counting wins."""
    track = view.track("mean_ap_gap")
    if np.isnan(track.values).all():
        return ""
    worst = int(np.nanargmax(np.abs(track.values)))
    return (
        " Taking scores as Gaussian in place of counting wins changes the mean by at most "
        f"{value(track.at(worst), CORRELATION)} (at {view.lineup.labels[worst]})."
    )


FIGURE = FigureSpec(
    "plasticity_trajectory",
    "Attention plasticity",
    draw,
    caption,
    on_axis=False,
    columns=("ap_first_20", "ap_last_20"),
    statistic="sample",
)
