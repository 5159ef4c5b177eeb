"""The share of heads in each category of the taxonomy, as stacked bars."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.style import CATEGORY_COLOURS, contrasting, page, style
from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.summary.view import view

BAR, CROWDED = 0.84, 60
"""Width of a bar up to this many checkpoints."""
PRINTED = 14
"""Percentages are written into the bars up to this many checkpoints, and from this share on."""
PRINTED_SHARE = 0.055


@style()
def taxonomy_evolution(table: pd.DataFrame, replicates: pd.DataFrame | None = None) -> Figure:
    """Stacked bars of the five categories per checkpoint; heads without a correlation have none and do not count.

    The part of the position-dominated heads whose queries and keys disagree in sign is hatched (docs/method.md §4).
    """
    look = view(table, replicates)
    count = len(look.lineup)
    figure = page(axis.width(look.lineup), 3.7)
    ax = figure.subplots()
    x = np.arange(count)
    # Many thin bars would be mostly edge: they stand side by side without.
    thick = BAR if count <= CROWDED else 1.0
    edge = 0.6 if count <= CROWDED else 0.0
    bottom = np.zeros(count)
    # What lies inside the axes need not be measured for the layout.
    inside: dict[str, Any] = {"zorder": 2, "in_layout": False}
    for category in CATEGORIES:
        shares = np.nan_to_num(look.track(f"share_{category}").values)
        colour = CATEGORY_COLOURS[category]
        ax.bar(x, shares, thick, bottom, color=colour, edgecolor="white", linewidth=edge, label=category, **inside)
        if category == CATEGORIES[0]:
            turned = np.nan_to_num(look.track(f"discordant_{category}").values)
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
    axis.along_x(figure, [ax], look.lineup)
    for rule in ax.lines:
        rule.set_zorder(3)
    return figure
