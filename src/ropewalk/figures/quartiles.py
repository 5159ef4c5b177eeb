"""Columns of heads along the checkpoints: the median and the middle half of the heads, coloured by phase."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np

from ropewalk.figures.style import MANY
from ropewalk.summary.view import View

TONES = (0.05, 0.75)
"""Ends of the colour map for the first and the last phase: none so light that it is not seen."""


def tones(count: int) -> Any:
    """So many colours [count, 4], from the lightest for the first to the darkest for the last."""
    return matplotlib.colormaps["viridis"](np.linspace(0.05, 0.88, count)[::-1])


def group_colours(view: View) -> list[Any]:
    """A colour for each checkpoint: that of its phase, or of its family."""
    groups = view.lineup.groups
    palette = matplotlib.colormaps["viridis"](np.linspace(*TONES, max(len(groups), 1)))
    return [palette[number] for number, group in enumerate(groups) for _ in range(group.start, group.stop)]


def middle_halves(view: View, column: str, *, size: bool = False) -> Any:
    """[checkpoints, 3] Lower quartile, median and upper quartile of a column (or of its size) over heads."""
    found = np.full((len(view.lineup), 3), np.nan)
    for index, part in enumerate(view.parts):
        values = part[column].dropna().to_numpy(dtype=float) if column in part else np.empty(0)
        if len(values):
            found[index] = np.percentile(np.abs(values) if size else values, (25, 50, 75))
    return found


def quartile_bars(
    ax: Any, view: View, column: str, *, size: bool = False, shift: float = 0.0, marker: str = "o", hollow: bool = False
) -> None:
    """Median and middle half of a column at every checkpoint; medians are joined where checkpoints follow another."""
    low, middle, high = middle_halves(view, column, size=size).T
    x, colours = np.arange(len(view.lineup)) + shift, group_colours(view)
    if view.lineup.connected:
        ax.plot(x, middle, color="#b0b0b0", linewidth=0.9, zorder=1.6, gid=f"{column} line")
    width = 3.4 if len(view.lineup) <= MANY else 1.6
    ax.vlines(x, low, high, colors=colours, linewidth=width, alpha=0.4, zorder=2, gid=f"{column} quartiles")
    faces: Sequence[Any] | str = "white" if hollow else colours
    size_of = 17 if len(view.lineup) <= MANY else 5
    ax.scatter(
        x,
        middle,
        s=size_of,
        c=faces,
        edgecolors=colours,
        marker=marker,
        linewidths=1.0,
        zorder=3,
        gid=f"{column} median",
    )
