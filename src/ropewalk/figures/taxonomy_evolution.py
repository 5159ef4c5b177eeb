"""The share of heads in each category of the taxonomy, over the checkpoints."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.courses import courses
from ropewalk.figures.findings import YES_OR_NO, Candidate, Finding, certain, choose, sign
from ropewalk.figures.phrases import SHARE
from ropewalk.figures.production import classification_step, steps
from ropewalk.figures.remarks import about_axis, above_nulls, separating
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import CATEGORY_COLOURS, contrasting, page, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    known,
    titled,
    unclaimed,
    value,
)
from ropewalk.geometry.taxonomy import CATEGORIES, CERTAIN, DOMINATED
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View

BAR, CROWDED = 0.84, 60
"""Width of a bar up to this many checkpoints."""
PRINTED = 14
"""Percentages are written into the bars up to this many checkpoints, and from this share on."""
PRINTED_SHARE = 0.055
MAJORITY = 0.5


@style()
def draw(view: View) -> Figure:
    """Stacked bars of the five categories per checkpoint; heads without a correlation have none and do not count.

    The part of the position-dominated heads whose queries and keys disagree in sign is hatched (docs/method.md §4).
    """
    count = len(view.lineup)
    figure = page(axis.width(view.lineup), 3.7)
    ax = figure.subplots()
    x = np.arange(count)
    # Many thin bars would be mostly edge: they stand side by side without.
    thick = BAR if count <= CROWDED else 1.0
    edge = 0.6 if count <= CROWDED else 0.0
    bottom = np.zeros(count)
    # What lies inside the axes need not be measured for the layout.
    inside: dict[str, Any] = {"zorder": 2, "in_layout": False}
    for category in CATEGORIES:
        shares = np.nan_to_num(view.track(f"share_{category}").values)
        colour = CATEGORY_COLOURS[category]
        ax.bar(x, shares, thick, bottom, color=colour, edgecolor="white", linewidth=edge, label=category, **inside)
        if category == DOMINATED:
            turned = np.nan_to_num(view.track(f"discordant_{category}").values)
            if (turned > 0).any():
                over: dict[str, Any] = {
                    "color": colour,
                    "edgecolor": "white",
                    "hatch": "/////",
                    "linewidth": edge,
                    "zorder": 2.5,
                }
                ax.bar(x, turned, thick, shares - turned, label="of these, discordant", **over)
        for position, share in enumerate(shares):
            if count <= PRINTED and share >= PRINTED_SHARE:
                ax.text(
                    position,
                    bottom[position] + share / 2,
                    f"{share:.0%}",
                    color=contrasting(colour),
                    ha="center",
                    va="center",
                    fontsize=7,
                    zorder=4,
                    gid="share",
                    in_layout=False,
                    bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6},
                )
        bottom += shares
    ax.set_ylim(0, 1)
    ax.set_ylabel("share of heads")
    figure.legend(loc="outside lower center", ncols=3)
    axis.along_x(figure, [ax], view.lineup)
    for rule in ax.lines:
        rule.set_zorder(3)
    return figure


def caption(view: View, source: str) -> Caption:
    """Which categories grow and shrink, what most heads are, and how many of them are discordant."""
    shares = [f"share_{category}" for category in CATEGORIES]
    colours = ", ".join(f"{CATEGORY_COLOURS[category].name} {category}" for category in CATEGORIES)
    return Caption(
        titled("Head Taxonomy", view),
        choose(
            (
                *courses(view, *shares, candidates=len(shares)),
                _largest(view),
                *courses(view, f"discordant_{DOMINATED}"),
                *above_nulls(view, f"share_{DOMINATED}"),
                separating(view),
            ),
            unclaimed(view, "the shares of categories"),
        ),
        tabulated(view, shares[0], f"discordant_{DOMINATED}", *shares[1:], "undecided_category"),
        f"Stacked bars of the share of heads in each category of the taxonomy. In the hatched part of the {DOMINATED} "
        f"heads r_q and r_k differ in sign (discordant).{_uncertain(view)}"
        f"{'' if view.axis == 'pooled' else about_axis(view)}",
        steps(
            view,
            source,
            FIGURE.name,
            classification_step(),
            drawing=f"heads with both correlations, as stacked bars: {colours}.",
        ),
    )


def _largest(view: View) -> Candidate:
    """The category that more than half of the heads are in at the end, or in most models."""
    last = len(view.lineup) - 1
    if view.lineup.side_by_side:
        return None
    for category in CATEGORIES:
        share = view.track(f"share_{category}").at(last)
        beyond = Estimate(share.value - MAJORITY, share.se, share.groups)
        if sign(beyond, SHARE, len(CATEGORIES)) > 0:
            return Finding(
                f"Most heads are {category} at {view.lineup.labels[last]}",
                value(share, SHARE),
                frozenset({category}),
                certain(beyond, SHARE, len(CATEGORIES)) / YES_OR_NO,
            )
    return None


def _uncertain(view: View) -> str:
    """What the last column of the table is."""
    if not known(view, "undecided_category"):
        return ""
    return f" Uncertain are heads whose category is less than {CERTAIN:.0%} certain, as they stand near a threshold."


FIGURE = FigureSpec("taxonomy_evolution", "Head taxonomy", draw, caption)
