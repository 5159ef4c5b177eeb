"""Which heads change category: flows between checkpoints, head by head."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path

from ropewalk.figures.caption import Caption
from ropewalk.figures.production import classification_step, steps
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import CATEGORY_COLOURS, contrasting, page, plain, shortened, style
from ropewalk.figures.wording import takeaway_of, titled
from ropewalk.geometry.taxonomy import CATEGORIES, CERTAIN, DOMINATED
from ropewalk.summary.view import NO_CATEGORY, View, transitions

NODES = (*CATEGORIES, NO_CATEGORY)
HALF = 0.13
"""Half the width of a node, the distance of two columns being 1."""
SIZE = 7.0
HEIGHT = 4.6
EDGE = "#999999"
"""Of a node whose own colour is that of the paper."""
LISTED = 5
"""Flows that a caption names one by one."""


@style()
def draw(view: View, *, checkpoints: Sequence[str] | None = None) -> Figure:
    """Alluvial drawing of the categories of heads at some checkpoints, and of the heads that go from one to another.

    Nodes carry the number of heads, flows (paired by layer and head) too where they are wide enough. `checkpoints` are
    names or labels; without them a few are chosen: the first, the ends of phases, the last.
    """
    view = selected(view, checkpoints)
    count = len(view.lineup)
    figure = page(max(3.4, 1.0 + 1.05 * count), HEIGHT)
    ax = figure.subplots()
    counts = [_counts(part) for part in view.parts]
    total = max(int(column.sum()) for column in counts)
    # One line of text between two nodes, so that the numbers of empty-looking nodes stay apart.
    gap = total * 1.35 * SIZE / (HEIGHT * 72 * 0.78)
    floors = [_floors(column, gap) for column in counts]
    present = [node for node in NODES if any(column[node] for column in counts)]
    ax.set_xlim(-0.3, count - 0.7)
    ax.set_ylim(
        -gap / 2, max(floor[NODES[-1]] + column[NODES[-1]] for floor, column in zip(floors, counts, strict=True))
    )
    unpaired = 0
    for column in range(count - 1):
        pairs = transitions(view, column, column + 1)
        unpaired += pairs.empty
        _flows(ax, column, pairs, floors[column], floors[column + 1], gap)
    for column, (heads, floor) in enumerate(zip(counts, floors, strict=True)):
        for node in present:
            if heads[node]:
                _node(ax, column, node, int(heads[node]), floor[node], gap)
    _frame(figure, ax, view, present, unpaired)
    return figure


def _counts(part: pd.DataFrame) -> pd.Series:
    return part["category"].fillna(NO_CATEGORY).value_counts().reindex(NODES, fill_value=0)


def _floors(counts: pd.Series, gap: float) -> dict[str, float]:
    """Lower edge of each node; an empty one takes no room."""
    floors, height = {}, 0.0
    for node in NODES:
        floors[node] = height
        height += counts[node] + gap if counts[node] else 0.0
    return floors


def _node(ax: Any, column: int, node: str, count: int, floor: float, gap: float) -> None:
    colour = CATEGORY_COLOURS[node]
    edge = EDGE if node == NO_CATEGORY else "white"
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
                facecolor=CATEGORY_COLOURS[before] if before != NO_CATEGORY else EDGE,
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


def _frame(figure: Figure, ax: Any, view: View, present: list[str], unpaired: int) -> None:
    """Labels of the columns below, their groups above, and what the colours stand for."""
    lineup, count = view.lineup, len(view.lineup)
    ax.spines[:].set_visible(False)
    ax.set_yticks([])
    ax.tick_params(length=0)
    limit = 14 if count <= 6 else 12 if count <= 8 else 6
    ax.set_xticks(np.arange(count), [plain(shortened(label, limit)) for label in lineup.labels])
    for column in range(count):
        name = lineup.group_of(column).name
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
    if count == 1:
        note = f"one {lineup.noun}: no changes to show"
    elif unpaired:
        note = "no flows between models of another family or depth: they share no heads"
    else:
        note = "heads per category, and heads that go from one to another"
    ax.set_xlabel(fill(note, int(11 * figure.get_figwidth())))
    handles = [Patch(facecolor=CATEGORY_COLOURS[node], edgecolor=EDGE, linewidth=0.4, label=node) for node in present]
    figure.legend(handles=handles, loc="outside lower center", ncols=3 if count > 2 else 2)


def caption(view: View, source: str, *, checkpoints: Sequence[str] | None = None) -> Caption:
    """How many heads change category from each column to the next, with the same `checkpoints` as the drawing."""
    shown = selected(view, checkpoints)
    lineup, last = shown.lineup, len(shown.lineup) - 1
    pairs = [f"- {_changes(shown, index, index + 1, '**{} to {}**: ')}" for index in range(last)]
    if not pairs:
        pairs = [f"With one {lineup.noun} there is nothing to compare; the column shows its heads by category."]
    shares = (f"share_{category}" for category in CATEGORIES)
    return Caption(
        titled("Flows Between Categories", shown),
        (
            f"Each column shows the heads of one {lineup.noun} by category ({', '.join(lineup.labels)}); ribbons are "
            "the heads that two neighbouring columns share, from the category they had to the category they have, in "
            "the colour of the former. Pale ribbons are heads that stay.",
            *pairs,
        ),
        steps(
            view,
            source,
            FIGURE.name,
            selection_step(view, checkpoints),
            classification_step(),
            aggregation="heads are paired by (layer, head) and counted per pair of categories; models of another "
            "family or depth share no heads.",
            drawing="alluvial drawing; numbers in the nodes are heads, numbers at the start of ribbons those that take "
            "that way.",
            errors=f"a category is certain where it has a probability of {CERTAIN:.0%}, given the standard errors of "
            "r_q and r_k and their covariance (Student's t).",
            checkpoints=checkpoints,
        ),
        _changes(shown, 0, last, "From {} to {}, ") if lineup.connected else takeaway_of(shown, *shares),
    )


def _changes(view: View, first: int, last: int, opening: str) -> str:
    """How many heads change category between two checkpoints, and the largest of these flows."""
    pairs = transitions(view, first, last)
    start = opening.format(view.lineup.labels[first], view.lineup.labels[last])
    if pairs.empty:
        return f"{start}there are no shared heads to compare."
    changed = pairs[pairs["before"] != pairs["after"]]
    text = f"{start}{len(changed)} of {len(pairs)} shared heads change category"
    if changed.empty:
        return f"{text}."
    if changed["certain"].notna().all():
        certain = int(changed["certain"].sum())
        text += f" ({certain} of these changes between categories that are both {CERTAIN:.0%} certain)"
    sizes = (
        changed.groupby(["before", "after"], as_index=False).size().sort_values("size", ascending=False, kind="stable")
    )
    ways = [f"{size} from {before} to {after}" for before, after, size in sizes.to_numpy()]
    gained, lost = (int((changed[side] == DOMINATED).sum()) for side in ("after", "before"))
    others = f", and {len(ways) - LISTED} smaller flows" if len(ways) > LISTED else ""
    return f"{text}: {', '.join(ways[:LISTED])}{others}; {DOMINATED} gains {gained} and loses {lost}."


FIGURE = FigureSpec("category_flows", "Category flows", draw, caption, OPTIONS)
