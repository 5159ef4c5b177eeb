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
from numpy.typing import NDArray
from scipy.special import bdtr

from ropewalk.figures.caption import Caption, Table
from ropewalk.figures.courses import courses
from ropewalk.figures.findings import YES_OR_NO, Candidate, Finding, choose
from ropewalk.figures.production import classification_step, steps
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import CATEGORY_COLOURS, contrasting, page, plain, shortened, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    NO_VALUE,
    titled,
    unclaimed,
)
from ropewalk.geometry.taxonomy import CATEGORIES, CERTAIN, DOMINATED
from ropewalk.summary.view import NO_CATEGORY, View, transitions

NODES = (*CATEGORIES, NO_CATEGORY)
HALF = 0.13
"""Half the width of a node, the distance of two columns being 1."""
SIZE = 7.0
HEIGHT = 4.6
EDGE = "#999999"
"""Of a node whose own colour is that of the paper."""
CHANCE = 0.05
"""How often heads that go either way alike would give as large a flow."""


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
    """How many heads change category for certain, and where most of them go; the same `checkpoints` as the drawing."""
    shown = selected(view, checkpoints)
    shares = [f"share_{category}" for category in CATEGORIES]
    moves = (_moved(shown), _main_flow(shown)) if shown.lineup.connected else courses(shown, *shares)
    return Caption(
        titled("Flows Between Categories", shown),
        choose(moves, unclaimed(shown, "the categories of heads")),
        _table(shown) or tabulated(shown, *shares),
        f"Each column holds the heads of one {shown.lineup.noun} by category. Ribbons are the heads that two "
        "neighbouring columns share, in the colour of the category they come from; pale ribbons are heads that stay.",
        steps(
            view,
            source,
            FIGURE.name,
            selection_step(view, checkpoints),
            classification_step(),
            f"**Certain** is a category with a probability of {CERTAIN:.0%}, given the errors of r_q and r_k and their "
            "covariance (Student's t).",
            drawing="heads are paired by (layer, head); models of another family or depth share none.",
            checkpoints=checkpoints,
        ),
    )


def _moved(view: View) -> Candidate:
    """How many heads change category for certain from the first checkpoint to the last, and how many keep it."""
    pairs = transitions(view, 0, len(view.lineup) - 1)
    if len(pairs) < 2:
        return None
    sure, moved = _sure(pairs), (pairs["before"] != pairs["after"]).to_numpy()
    changed, kept, labels = int((sure & moved).sum()), int((sure & ~moved).sum()), view.lineup.labels
    way = f"from {labels[0]} to {labels[-1]}"
    words = f"{changed} of {len(pairs)} heads change category for certain {way}"
    if 2 * changed > len(pairs):
        words = f"Most heads change category {way}"
    elif 2 * kept > len(pairs):
        words = f"Most heads keep their category {way}"
    elif not changed:
        return None
    unsure = len(pairs) - changed - kept
    evidence = f"{changed} of {len(pairs)} change, " if words.startswith("Most") else ""
    evidence += f"{kept} keep it" + (f", {unsure} are uncertain" if unsure else "")
    return Finding(words, evidence, frozenset({"moved"}), max(changed, kept) / len(pairs) / YES_OR_NO)


def _sure(pairs: pd.DataFrame) -> NDArray[np.bool_]:
    """Heads whose two categories are both certain [heads]; all of them where there are no errors."""
    certain = pairs["certain"]
    return np.asarray(certain.fillna(False).astype(bool) if certain.notna().any() else np.ones(len(pairs), dtype=bool))


def _main_flow(view: View) -> Candidate:
    """The largest of the certain flows, where more go that way than back (a sign test, as the largest of all flows)."""
    pairs = transitions(view, 0, len(view.lineup) - 1)
    moving = pairs[_sure(pairs) & (pairs["before"] != pairs["after"]).to_numpy()]
    sizes = moving.groupby(["before", "after"]).size()
    if sizes.empty:
        return None
    before, after = max(sizes.index, key=lambda way: sizes[way] - sizes.get(way[::-1], 0))
    there, back = int(sizes[before, after]), int(sizes.get((after, before), 0))
    if 2 * bdtr(back, there + back, 0.5) * len(sizes) > CHANCE:
        return None
    return Finding(
        f"The largest flow is from {before} to {after}",
        f"{there} heads for certain, {back or 'none'} back"
        if pairs["certain"].notna().any()
        else f"{there} heads, {back or 'none'} back",
        frozenset({"flow"}),
        (there - back) / len(pairs) / YES_OR_NO,
    )


def _table(view: View) -> Table | None:
    """Heads that change from each column to the next, those of them that are certain, and what is gained and lost."""
    labels, rows = view.lineup.labels, []
    for index in range(len(labels) - 1):
        pairs = transitions(view, index, index + 1)
        if pairs.empty:
            continue
        changed = pairs[pairs["before"] != pairs["after"]]
        sure = int(changed["certain"].sum()) if changed["certain"].notna().all() else None
        gained, lost = (int((changed[side] == DOMINATED).sum()) for side in ("after", "before"))
        counts = [str(len(pairs)), str(len(changed)), NO_VALUE if sure is None else str(sure), str(gained), str(lost)]
        rows.append((f"{labels[index]} to {labels[index + 1]}", *counts))
    header = ("from, to", "heads", "change", "of these, certain", f"{DOMINATED}, gained", "lost")
    return Table(header, tuple(rows)) if rows else None


FIGURE = FigureSpec("category_flows", "Category flows", draw, caption, OPTIONS)
