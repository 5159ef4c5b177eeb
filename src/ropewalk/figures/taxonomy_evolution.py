"""The share of heads in each category of the taxonomy, over the checkpoints."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.phrases import PHRASES, SHARE
from ropewalk.figures.production import classification_step, steps
from ropewalk.figures.remarks import about_axis, against_nulls, at_one_context
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import CATEGORY_COLOURS, contrasting, page, style
from ropewalk.figures.wording import (
    capitalised,
    checkpoints_shown,
    known,
    largest_change,
    overall,
    story_of,
    takeaway_of,
    titled,
)
from ropewalk.geometry.taxonomy import CATEGORIES, DOMINATED, MIXED
from ropewalk.summary.view import View

BAR, CROWDED = 0.84, 60
"""Width of a bar up to this many checkpoints."""
PRINTED = 14
"""Percentages are written into the bars up to this many checkpoints, and from this share on."""
PRINTED_SHARE = 0.055


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
    """Where the share of position-dominated heads goes, phase by phase, and those of the other categories overall."""
    shares = {category: view.track(f"share_{category}") for category in CATEGORIES}
    discordant = view.track(f"discordant_{DOMINATED}")
    others = [
        f"- {overall(view, category, share, SHARE)}." for category, share in shares.items() if category != DOMINATED
    ]
    largest = [largest_change(view, shares, SHARE, "category")] if view.lineup.connected else []
    colours = ", ".join(f"{CATEGORY_COLOURS[category].name} {category}" for category in CATEGORIES)
    return Caption(
        titled("Head Taxonomy", view),
        (
            f"Stacked bars of the share of heads in each category of the taxonomy at {checkpoints_shown(view)}. A "
            f"hatched part of the {DOMINATED} heads is discordant: r_q and r_k differ in sign.",
            *story_of(view, f"share_{DOMINATED}"),
            "The other categories:",
            *others,
            *largest,
            f"{overall(view, f'The share of heads that are {DOMINATED} and discordant', discordant, SHARE)}.",
            *_certainty(view),
            *at_one_context(view, f"share_{DOMINATED}"),
            *against_nulls(view, f"share_{DOMINATED}"),
            *about_axis(view),
        ),
        steps(
            view,
            source,
            FIGURE.name,
            classification_step(),
            aggregation="heads per category and checkpoint over the heads that have both correlations.",
            drawing=f"stacked bars: {colours}.",
        ),
        takeaway_of(view, f"share_{DOMINATED}", f"discordant_{DOMINATED}", f"share_{MIXED}"),
    )


def _certainty(view: View) -> list[str]:
    """How many heads are too close to a threshold to be called one or the other."""
    if not known(view, "undecided_category"):
        return []
    name, unit = PHRASES["undecided_category"]
    return [f"{overall(view, capitalised(name), view.track('undecided_category'), unit)}."]


FIGURE = FigureSpec("taxonomy_evolution", "Head taxonomy", draw, caption)
