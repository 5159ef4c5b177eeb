"""What the categories do: where heads of each category attend, and whether by distance, over the checkpoints."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption, Table
from ropewalk.figures.contrasts import CHANCE_STEP, LAYERS, Contrast, Relation, Sides, contrast, opposed, told
from ropewalk.figures.curves import curve, from_zero, logarithmic
from ropewalk.figures.findings import Candidate, Finding, choose, compared
from ropewalk.figures.phrases import CORRELATION, KEYS, SHARE, Unit
from ropewalk.figures.production import classification_step, steps
from ropewalk.figures.remarks import about_axis
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import (
    CATEGORY_LINES,
    CATEGORY_MARKERS,
    LAYER_TYPES,
    MANY,
    MARKERS,
    LayerType,
    category_look,
    page,
    style,
)
from ropewalk.figures.tabulated import shown_rows as tabulated_rows
from ropewalk.figures.wording import (
    capitalised,
    cell,
    titled,
    unclaimed,
    value,
)
from ropewalk.geometry.taxonomy import CATEGORIES, DOMINATED
from ropewalk.summary.measures import Among, Mean, everywhere, in_category, in_layers
from ropewalk.summary.tracks import Track
from ropewalk.summary.view import View


class Row(NamedTuple):
    """A quantity: its column, the label of its y axis, what it is, what heads with more of it do, and its unit."""

    column: str
    label: str
    words: str
    more: str
    of: str = " of attention"
    unit: Unit = SHARE


BY_DISTANCE = Row(
    "score_r2_distance",
    "scores\nby distance",
    "the share of the variance of scores over keys that distance explains",
    "score more by distance",
    " of the variance of their scores",
)
INDUCTION = Row(
    "mass_induction",
    "induction",
    "the attention on keys that follow an earlier copy of the current token (induction)",
    "attend more to induction keys",
)
ROWS = (
    BY_DISTANCE,
    Row("mass_first", "first\ntoken", "the attention on the first token", "attend more to the first token"),
    Row("mass_previous", "previous\ntoken", "the attention on the previous token", "attend more to the previous token"),
    INDUCTION,
    Row(
        "effective_keys",
        "effective\nkeys",
        "how many keys attention is spread over (exp of its entropy)",
        "attend to more keys",
        "",
        KEYS,
    ),
)
"""From top to bottom."""

CORRELATIONS = (("r_q", "r_q"), ("r_k", "|r_k|"))
"""What is set against the first quantity: a column, and what it (or its size) is called."""
OTHERS = tuple(sorted(CATEGORIES[1:], key=lambda category: category != "content-focused"))
"""What position-dominated heads are set against: the first of these that there are heads of."""
BOTH_WIDE = 7.0
"""Inches of a figure with columns for several types of layers."""


def shown_rows(view: View) -> list[Row]:
    """The quantities that the table has."""
    return [row for row in ROWS if view.lacks((row.column,)) is None]


def shown_layers(view: View) -> list[LayerType]:
    """The types of layers that there are heads of."""
    return [kind for kind in LAYER_TYPES if any(in_layers(kind.rope)(s.columns).any() for s in view.samples)]


def of_heads(view: View, row: Row, category: str, layers: Among = everywhere) -> Track:
    """Mean of a quantity over the heads of a category; its members are those of the whole data."""
    return view.track(Mean(row.column, among=in_category(category, layers)))


@style()
def draw(view: View) -> Figure:
    """Means by category (docs/method.md §10) over the checkpoints, with standard errors.

    A row per quantity, a column per type of layer. A category that has no heads at a checkpoint has no dot there.
    """
    lineup, rows, types = view.lineup, shown_rows(view), shown_layers(view)
    wide = axis.width(lineup)
    figure = page(wide if len(types) == 1 else max(wide, BOTH_WIDE), 1.7 + 1.15 * len(rows))
    grid = figure.subplots(len(rows), len(types), sharex="col", sharey="row", squeeze=False)
    shifts = dict(zip(CATEGORIES, np.linspace(-0.26, 0.26, len(CATEGORIES)), strict=True))
    size = {} if len(lineup) * len(types) <= MANY else {"markersize": 2.4, "capsize": 1.0}
    handles = {}
    for row, line in zip(rows, grid, strict=True):
        line[0].set_ylabel(row.label)
        for kind, ax in zip(types, line, strict=True):
            ax.grid(axis="y")
            for category in CATEGORIES:
                track = of_heads(view, row, category, in_layers(kind.rope))
                if np.isnan(track.values).all():
                    continue
                curve(ax, lineup, track, shifts[category], label=category, **category_look(category), **size)
                handles[category] = ax.containers[-1]
        if row.unit is KEYS:
            logarithmic(line[0])
        else:
            from_zero(line[0])
    figure.legend(
        [handles[category] for category in CATEGORIES if category in handles],
        [category for category in CATEGORIES if category in handles],
        loc="outside lower center",
        ncols=3 if len(types) == 1 else 5,
    )
    for kind, column in zip(types, grid.T, strict=True):
        axis.along_x(figure, list(column), lineup)
        axis.title_above(figure, column[0], kind.label)
    return figure


def caption(view: View, source: str) -> Caption:
    """Whether the taxonomy says what heads do: by distance, over heads, and where induction is."""
    marks = ", ".join(
        f"{CATEGORY_LINES[category].name} {MARKERS[CATEGORY_MARKERS[category]]} {category}" for category in CATEGORIES
    )
    types = " and ".join(kind.label for kind in shown_layers(view))
    rows = "; ".join(row.words for row in shown_rows(view))
    errors = ", bars one standard error" if view.has_errors else ""
    return Caption(
        titled("What the Categories Do", view),
        choose(
            (
                _by_distance(view),
                *(_followed(view, column, name) for column, name in CORRELATIONS),
                _leading(view),
                *(
                    opposed(view, row.column, LAYERS, row.more, row.unit, f"layers {row.column}", row.of)
                    for row in shown_rows(view)
                ),
            ),
            unclaimed(view, "what the categories do"),
        ),
        _table(view),
        f"Means over the heads of each category{errors}; a category without heads has no dot. From top to bottom: "
        f"{rows}. Columns are {types}.{about_axis(view)}",
        steps(
            view,
            source,
            FIGURE.name,
            classification_step(),
            "**Behaviour**: exact attention rows at sampled queries; the variance of scores leaves the first four keys "
            "out, and distance counts in octaves.",
            CHANCE_STEP,
            drawing=f"means over the heads that are in a category by all documents: {marks}.",
        ),
    )


def _contrast(view: View, index: int, layers: Among = everywhere) -> tuple[str, Contrast] | None:
    """Position-dominated heads against others, by how much distance explains; None where there is nothing to set."""
    for other in OTHERS:
        groups = in_category(DOMINATED, layers), in_category(other, layers)
        found = contrast(view.samples[index], BY_DISTANCE.column, *groups, len(compared(view)))
        if all(found.counts):
            return other, found
    return None


def _by_distance(view: View) -> Candidate:
    """Whether heads called position-dominated are those whose scores hang on distance; that they are not, must be said.

    Over models, in how many of them.
    """
    pairs = {index: _contrast(view, index) for index in compared(view)}
    found = {index: pair for index, pair in pairs.items() if pair is not None}
    if not found:
        return None
    others = sorted({other for other, _ in found.values()})
    sides = Sides(everywhere, everywhere, (f"{DOMINATED} heads", f"{' or '.join(others)} ones"))
    contrasts = {index: numbers for index, (_, numbers) in found.items()}
    claimed = told(view, contrasts, sides, BY_DISTANCE.more, SHARE, "by distance", BY_DISTANCE.of)
    if claimed is not None:
        return claimed
    last = max(found)
    means = [value(mean, SHARE) for mean in contrasts[last].means]
    return Finding(
        f"{capitalised(DOMINATED)} heads do not score more by distance than {found[last][0]} ones",
        f"{means[0]} and {means[1]}{BY_DISTANCE.of}, at {view.lineup.labels[last]}",
        frozenset({"by distance"}),
        needed=True,
    )


def _followed(view: View, column: str, name: str) -> Candidate:
    """Whether heads with a larger correlation score more by distance, over all heads of the last checkpoint."""
    last = len(view.lineup) - 1
    relation = Relation.of(view.samples[last], BY_DISTANCE.column, column, size=column == "r_k")
    if view.lineup.side_by_side or not relation.way:
        return None
    return Finding(
        f"Heads with a larger {name} score {'more' if relation.way > 0 else 'less'} by distance",
        f"correlation over {relation.heads} heads {value(relation.estimate, CORRELATION)}, at "
        f"{view.lineup.labels[last]}",
        frozenset({"followed"}),
        relation.size,
    )


def _leading(view: View) -> Candidate:
    """Which category attends most to what followed earlier copies of the current token, as the most of all pairs."""
    last = len(view.lineup) - 1
    if view.lineup.side_by_side or view.lacks((INDUCTION.column,)) is not None:
        return None
    means = {name: of_heads(view, INDUCTION, name).values[last] for name in CATEGORIES}
    order = sorted((name for name in means if not np.isnan(means[name])), key=lambda name: -means[name])
    if len(order) < 2:
        return None
    pairs = len(order) * (len(order) - 1) // 2
    groups = in_category(order[0]), in_category(order[1])
    found = contrast(view.samples[last], INDUCTION.column, *groups, candidates=pairs)
    if found.way(SHARE, pairs) <= 0:
        return None
    return Finding(
        f"{capitalised(order[0])} heads attend most to induction keys",
        f"{value(found.means[0], SHARE)}, next are {order[1]} ones with {value(found.means[1], SHARE)}, at "
        f"{view.lineup.labels[last]}",
        frozenset({"induction"}),
        found.certain(SHARE, pairs) / found.scale,
    )


def _table(view: View) -> Table:
    """Means by category at the last checkpoint; over models, what distance explains by model and category."""
    last = len(view.lineup) - 1
    there = [name for name in CATEGORIES if not np.isnan(of_heads(view, BY_DISTANCE, name).values).all()]
    if view.lineup.side_by_side:
        rows = [
            (view.lineup.labels[index], *(cell(of_heads(view, BY_DISTANCE, name).at(index), SHARE) for name in there))
            for index in tabulated_rows(view)
        ]
        return Table((view.lineup.noun, *there), tuple(rows), "Share of the variance of scores that distance explains.")
    shown = shown_rows(view)
    counts = view.parts[last]["category"].value_counts()
    there = [name for name in there if counts.get(name, 0)]
    rows = [
        (name, str(int(counts.get(name, 0))), *(cell(of_heads(view, row, name).at(last), row.unit) for row in shown))
        for name in there
    ]
    header = ("category", "heads", *(" ".join(row.label.split()) for row in shown))
    return Table(header, tuple(rows), f"At {view.lineup.labels[last]}.")


FIGURE = FigureSpec(
    "category_behaviour",
    "What the categories do",
    draw,
    caption,
    columns=(BY_DISTANCE.column,),
    statistic="behaviour",
)
