"""The figure of the bases: how far scores are off, over the rank."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from ropewalk.figures.style import KEY, QUERY, WIDTH, page, style
from ropewalk.geometry.lowrank import TITLES

LOOKS = {
    "pooled": ("#aaaaaa", "v"),
    "joint": ("#777777", "o"),
    "key": (KEY, "s"),
    "query": (QUERY, "^"),
    "optimal": ("#222222", "D"),
}
"""Colour and marker of each basis."""
SPREAD = (0.25, 0.75)
"""Quantiles over heads that the band of the optimal pair shows."""
NOTHING = 1e-6
"""Errors below it are rounding."""
SHOWN = 16
"""Rank that the caption gives numbers of, or the nearest to it."""


def over_rank(table: pd.DataFrame, quantile: float = 0.5, column: str = "error") -> pd.DataFrame:
    """A quantile over heads [ranks, bases] of a column, at the ranks that all heads have."""
    known = table[table["basis"].isin(TITLES)]
    heads = known[["layer", "head"]].drop_duplicates()
    groups = known.groupby(["rank", "basis"])[column]
    return groups.quantile(quantile)[groups.count() == len(heads)].unstack("basis").dropna()[list(TITLES)]


def _lossy(medians: pd.DataFrame) -> pd.DataFrame:
    """Without full rank, where nothing is lost: an error of 0 has no place on the scale."""
    return medians[(medians > NOTHING).all(axis=1)]


def draw(table: pd.DataFrame) -> Figure:
    """Median over heads of the expected error over rank: one curve for each basis, both scales logarithmic."""
    middle = _lossy(over_rank(table))
    low, high = (over_rank(table, quantile).loc[middle.index, "optimal"] for quantile in SPREAD)
    with style():
        figure = page(WIDTH, 3.4)
        ax = figure.subplots()
        ax.grid(axis="y")
        ax.fill_between(middle.index, low, high, color=LOOKS["optimal"][0], alpha=0.12, linewidth=0, gid="spread")
        for basis, (colour, marker) in LOOKS.items():
            ax.plot(middle.index, middle[basis], color=colour, marker=marker, ms=4, label=TITLES[basis], gid=basis)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_locator(FixedLocator([int(rank) for rank in middle.index]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.set_xlabel("rank")
        ax.set_ylabel("error of scores (share lost)")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def caption(table: pd.DataFrame, title: str, *, centred: bool = False) -> str:
    """What the figure shows, in words and numbers of the same table."""
    middle = _lossy(over_rank(table))
    held_out = over_rank(table, column="held_out")
    rank = min((int(one) for one in middle.index), key=lambda one: abs(np.log2(one / SHOWN)))
    row = middle.loc[rank]
    told = ", ".join(f"{row[basis]:.3f} ({TITLES[basis]})" for basis in TITLES)
    lines = [
        f"# Error of scores over rank: {title}",
        "",
        "![Error of scores over rank](figure.png)",
        "",
        "The share of the mean square of q·k that is lost when both are taken down to so many dimensions, as a median "
        f"over heads, with the middle half of heads as a band around the score-optimal pair. At rank {rank}: {told}.",
        "",
    ]
    if rank in held_out.index:
        row = held_out.loc[rank]
        told = ", ".join(f"{row[basis]:.3f} ({basis})" for basis in TITLES)
        lines += [f"On documents that the bases were not made from, at the same rank: {told}.", ""]
    lines += [
        *(
            ["Keys are taken about their mean: what they have in common, a softmax does not see.", ""]
            if centred
            else []
        ),
        "Queries and keys count as drawn apart from each other, from all positions. `errors.csv` has every head, and "
        "keys before their rotation (`pre_key`) where second moments before it were captured.",
        "",
    ]
    return "\n".join(lines)
