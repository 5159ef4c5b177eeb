"""Which heads change category: flows between checkpoints, head by head."""

from collections.abc import Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path

from ropewalk.figures.style import CATEGORY_COLOURS, contrasting, page, plain, shortened, style
from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.summary.view import NO_CATEGORY, View, moves, view

NODES = (*CATEGORIES, NO_CATEGORY)
COUNT = 6
HALF = 0.13
"""Half the width of a node, the distance of two columns being 1."""
SIZE = 7.0
HEIGHT = 4.6


@style()
def category_flows(
    table: pd.DataFrame, replicates: pd.DataFrame | None = None, *, checkpoints: Sequence[str] | None = None
) -> Figure:
    """Alluvial drawing of the categories of heads at some checkpoints, and of the heads that go from one to another.

    Nodes carry the number of heads, flows (paired by layer and head) too where they are wide enough. Without
    `checkpoints`, all are shown where there are at most six, else the first, the ends of phases and the last.
    """
    look = view(table, replicates)
    chosen = look.lineup.find(list(checkpoints)) if checkpoints else look.lineup.representative(COUNT)
    figure = page(max(3.4, 1.0 + 1.05 * len(chosen)), HEIGHT)
    ax = figure.subplots()
    counts = [_counts(look, index) for index in chosen]
    total = max(int(column.sum()) for column in counts)
    # One line of text between two nodes, so that the numbers of empty-looking nodes stay apart.
    gap = total * 1.35 * SIZE / (HEIGHT * 72 * 0.78)
    floors = [_floors(column, gap) for column in counts]
    present = [node for node in NODES if any(column[node] for column in counts)]
    ax.set_xlim(-0.3, len(chosen) - 0.7)
    ax.set_ylim(
        -gap / 2, max(floor[NODES[-1]] + column[NODES[-1]] for floor, column in zip(floors, counts, strict=True))
    )
    unpaired = 0
    for column, (first, last) in enumerate(pairwise(chosen)):
        pairs = moves(look, first, last)
        unpaired += pairs.empty
        _flows(ax, column, pairs, floors[column], floors[column + 1], gap)
    for column, (count, floor) in enumerate(zip(counts, floors, strict=True)):
        for node in present:
            if count[node]:
                _node(ax, column, node, int(count[node]), floor[node], gap)
    _frame(figure, ax, look, chosen, present, unpaired)
    return figure


def _counts(look: View, index: int) -> pd.Series:
    return look.parts[index]["category"].fillna(NO_CATEGORY).value_counts().reindex(NODES, fill_value=0)


def _floors(counts: pd.Series, gap: float) -> dict[str, float]:
    """Lower edge of each node; an empty one takes no room."""
    floors, height = {}, 0.0
    for node in NODES:
        floors[node] = height
        height += counts[node] + gap if counts[node] else 0.0
    return floors


def _node(ax: Any, column: int, node: str, count: int, floor: float, gap: float) -> None:
    colour = CATEGORY_COLOURS[node]
    edge = "#999999" if node == NO_CATEGORY else "white"
    bar: dict[str, Any] = {
        "facecolor": colour,
        "edgecolor": edge,
        "linewidth": 0.5,
        "zorder": 3,
        "gid": f"node {column} {node}",
    }
    ax.add_patch(Rectangle((column - HALF, floor), 2 * HALF, count, **bar))
    text = ax.text(column, floor + count / 2, str(count), ha="center", va="center", fontsize=SIZE, zorder=5, gid="node")
    if count >= gap:
        text.set_color(contrasting(colour))
    else:
        _outline(text)


def _flows(
    ax: Any, column: int, pairs: pd.DataFrame, left: dict[str, float], right: dict[str, float], gap: float
) -> None:
    """Ribbons from the nodes of one column to those of the next, stacked in the same order at both ends."""
    sizes = pairs.groupby(["before", "after"]).size()
    leaving, arriving = dict(left), dict(right)
    start, end = column + HALF, column + 1 - HALF
    for before in NODES:
        for after in NODES:
            size = int(sizes.get((before, after), 0))
            if not size:
                continue
            low, high = leaving[before], arriving[after]
            leaving[before] += size
            arriving[after] += size
            ribbon = PathPatch(
                _ribbon(start, low, end, high, size),
                facecolor=CATEGORY_COLOURS[before] if before != NO_CATEGORY else "#999999",
                edgecolor="none",
                alpha=0.22 if before == after else 0.6,
                zorder=1 if before == after else 2,
                gid=f"flow {column} {before} > {after}",
            )
            ax.add_patch(ribbon)
            if size >= 0.8 * gap:
                # At the start the ribbons lie side by side; further on they cross.
                text = ax.text(start + 0.03, low + size / 2, str(size), ha="left", va="center", fontsize=SIZE - 0.5)
                text.set(zorder=4, gid=f"flow count {column} {before} > {after}")
                _outline(text)


def _ribbon(start: float, low: float, end: float, high: float, size: float) -> Path:
    middle = (start + end) / 2
    points = [(start, low), (middle, low), (middle, high), (end, high)]
    points += [(x, y + size) for x, y in reversed(points)]
    curve = [Path.CURVE4] * 3
    return Path([*points, points[0]], [Path.MOVETO, *curve, Path.LINETO, *curve, Path.CLOSEPOLY])


def _outline(text: Any) -> None:
    text.set_path_effects([patheffects.withStroke(linewidth=1.6, foreground="white")])


def _frame(figure: Figure, ax: Any, look: View, chosen: list[int], present: list[str], unpaired: int) -> None:
    ax.spines[:].set_visible(False)
    ax.set_yticks([])
    ax.tick_params(length=0)
    limit = 14 if len(chosen) <= 6 else 12 if len(chosen) <= 8 else 6
    labels = [plain(shortened(look.lineup.labels[index], limit)) for index in chosen]
    ax.set_xticks(np.arange(len(chosen)), labels)
    for column, index in enumerate(chosen):
        name = look.lineup.group_of(index).name
        if name:
            ax.text(
                column,
                1.01,
                plain(shortened(name, limit)),
                transform=ax.get_xaxis_transform(),
                ha="center",
                va="bottom",
                fontsize=SIZE,
                gid="group name",
            )
    if len(chosen) == 1:
        note = f"one {look.lineup.kind}: no changes to show"
    elif unpaired:
        note = "no flows between models of another family or depth: they share no heads"
    else:
        note = "heads per category, and heads that go from one to another"
    ax.set_xlabel(fill(note, int(11 * figure.get_figwidth())))
    handles = [
        Patch(facecolor=CATEGORY_COLOURS[node], edgecolor="#999999", linewidth=0.4, label=node) for node in present
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3 if len(chosen) > 2 else 2)
