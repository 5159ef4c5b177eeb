"""What the categories do: where heads of each category attend, and whether by distance, over the checkpoints."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.claims import CHANCE_STEP, Contrast, contrast, correlations, heads_with
from ropewalk.figures.curves import curve, from_zero, logarithmic
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
from ropewalk.figures.wording import capitalised, checkpoints_shown, overall, titled, value, where
from ropewalk.geometry.taxonomy import CATEGORIES, DOMINATED
from ropewalk.summary.measures import Among, Difference, Mean, everywhere, in_category, in_layers
from ropewalk.summary.tracks import Track
from ropewalk.summary.view import View


class Row(NamedTuple):
    """A quantity: its column, the label of its y axis, what captions call it, and how its numbers are written."""

    column: str
    label: str
    words: str
    unit: Unit = SHARE


BY_DISTANCE = Row(
    "score_r2_distance", "scores\nby distance", "the share of the variance of scores over keys that distance explains"
)
INDUCTION = Row(
    "mass_induction", "induction", "the attention on keys that follow an earlier copy of the current token (induction)"
)
ROWS = (
    BY_DISTANCE,
    Row("mass_first", "first\ntoken", "the attention on the first token"),
    Row("mass_previous", "previous\ntoken", "the attention on the previous token"),
    INDUCTION,
    Row("effective_keys", "effective\nkeys", "how many keys attention is spread over (exp of its entropy)", KEYS),
)
"""From top to bottom."""

CORRELATIONS = (
    ("correlation_score_r2_distance_r_q", "r_q", "r_q"),
    ("correlation_score_r2_distance_abs_r_k", "|r_k|", "r_k"),
)
"""What r_q and |r_k| say of the first quantity: the measure, the name of the one, and its column."""
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
        (
            *_findings(view),
            f"Means over the heads of each category at {checkpoints_shown(view)}{errors}; a category without heads has "
            f"no dot. From top to bottom: {rows}. Columns are {types}.",
            *about_axis(view),
        ),
        steps(
            view,
            source,
            FIGURE.name,
            classification_step(),
            "**Behaviour**: exact attention rows at sampled queries; the variance of scores leaves the first four keys "
            "out, and distance counts in octaves.",
            CHANCE_STEP,
            aggregation="mean over the heads that are in a category by all documents, whichever shard is left out.",
            drawing=f"dots, joined over training: {marks}.",
        ),
        _takeaway(view),
    )


def _contrast(view: View, index: int, layers: Among = everywhere) -> tuple[str, Contrast] | None:
    """Position-dominated heads against others, by how much distance explains; None where there is nothing to set."""
    for other in OTHERS:
        groups = in_category(DOMINATED, layers), in_category(other, layers)
        found = contrast(view.samples[index], BY_DISTANCE.column, *groups)
        if all(found.counts):
            return other, found
    return None


def _findings(view: View) -> list[str]:
    if not view.lineup.training and len(view.lineup) > 1:
        return [f"{_over_models(view)} {_correlations_over_models(view)}"]
    last = len(view.lineup) - 1
    return [" ".join([_difference(view, last), *_correlations(view, last), *_induction(view, last), *_course(view)])]


def _difference(view: View, index: int) -> str:
    label, found = view.lineup.labels[index], _contrast(view, index)
    if found is None:
        return f"At {label}, {_alone(view, index)}."
    other, numbers = found
    text = (
        f"At {label}, distance explains {value(numbers.means[0], SHARE)} of the variance of scores in {DOMINATED} "
        f"heads ({numbers.counts[0]} heads) and {value(numbers.means[1], SHARE)} in {other} ones "
        f"({numbers.counts[1]}): {numbers.words(SHARE)}"
    )
    inside = _contrast(view, index, in_layers(True))
    if inside is not None and inside[0] == other and inside[1].counts != numbers.counts:
        text += f"; within RoPE layers, {inside[1].words(SHARE)}"
    return f"{text}."


def _alone(view: View, index: int) -> str:
    """Why there is nothing to set position-dominated heads against."""
    none = np.isnan(of_heads(view, BY_DISTANCE, DOMINATED).values[index])
    return f"no head is {DOMINATED}" if none else f"there are none but {DOMINATED} heads"


def _correlations(view: View, index: int) -> list[str]:
    """How far r_q and |r_k| say over heads how much of the scores distance explains."""
    sample = view.samples[index]
    found = {
        name: (view.track(measure).at(index), heads_with(sample, BY_DISTANCE.column, column))
        for measure, name, column in CORRELATIONS
    }
    if all(np.isnan(estimate.value) for estimate, _ in found.values()):
        return []
    texts = correlations({f"with {name} {where(view)}": pair for name, pair in found.items()})
    return [f"Over all heads, what distance explains correlates {texts}."]


def _induction(view: View, index: int) -> list[str]:
    """Which category attends most to what followed earlier copies of the current token, and which layers."""
    if view.lacks((INDUCTION.column,)) is not None:
        return []
    sample = view.samples[index]
    means = {name: of_heads(view, INDUCTION, name).values[index] for name in CATEGORIES}
    order = sorted((name for name in means if not np.isnan(means[name])), key=lambda name: -means[name])
    if len(order) < 2:
        return []
    pairs = len(order) * (len(order) - 1) // 2
    found = contrast(sample, INDUCTION.column, in_category(order[0]), in_category(order[1]), candidates=pairs)
    first, second = (value(mean, SHARE) for mean in found.means)
    if found.way(SHARE, pairs) > 0:
        text = f"Induction mass is highest in {order[0]} heads ({first}; next, {order[1]}: {second})"
    else:
        text = (
            f"No category leads in induction mass beyond error and chance (highest, {order[0]}: {first}; next, "
            f"{order[1]}: {second})"
        )
    sides = contrast(sample, INDUCTION.column, in_layers(False), in_layers(True))
    if all(sides.counts):
        nope, rope = (value(mean, SHARE) for mean in sides.means)
        text += f"; by layers, it is {nope} in NoPE and {rope} in RoPE heads ({sides.words(SHARE)})"
    return [f"{text}."]


def _course(view: View) -> list[str]:
    """Where the difference between categories goes over training, from the first checkpoint that has both on."""
    found = _contrast(view, len(view.lineup) - 1)
    if found is None:
        return []
    other = found[0]
    means = [Mean(BY_DISTANCE.column, among=in_category(name)) for name in (DOMINATED, other)]
    difference = Difference(means[0], means[1])
    known = view.select([int(index) for index in np.flatnonzero(~np.isnan(view.track(difference).values))])
    if not known.lineup.connected:
        return []
    name = f"the difference between {DOMINATED} and {other} heads"
    return [f"{capitalised(overall(known, name, known.track(difference), SHARE))}."]


def _over_models(view: View) -> str:
    """In how many models position-dominated heads score by distance more than others."""
    found = [_contrast(view, index) for index in range(len(view.lineup))]
    known = [numbers for numbers in found if numbers is not None]
    more, less = (sum(numbers.way(SHARE) == way for _, numbers in known) for way in (1, -1))
    others = " or ".join(sorted({other for other, _ in known})) or "other"
    return (
        f"In {more} of {len(view.lineup)} {view.lineup.noun}s, distance explains more of the variance of scores in "
        f"{DOMINATED} heads than in {others} ones beyond error and chance, in {less or 'none'} less."
    )


def _correlations_over_models(view: View) -> str:
    texts = [
        overall(view, f"its correlation over heads with {name}", view.track(measure), CORRELATION)
        for measure, name, _ in CORRELATIONS
    ]
    return f"{capitalised('; '.join(texts))} ({where(view)})."


def _takeaway(view: View) -> str:
    if not view.lineup.training and len(view.lineup) > 1:
        return _over_models(view)
    last = len(view.lineup) - 1
    found, start = _contrast(view, last), f"At {view.lineup.labels[last]}, the taxonomy {where(view)}"
    if found is None:
        return f"{start} has nothing to tell apart by what heads do: {_alone(view, last)}."
    other, numbers = found
    said = {
        1: "says which heads score by distance",
        0: "does not say which heads score by distance",
        -1: f"has it the wrong way round: {DOMINATED} heads score less by distance",
    }[numbers.way(SHARE)]
    return f"{start} {said} ({DOMINATED} against {other} heads: {numbers.words(SHARE)})."


FIGURE = FigureSpec(
    "category_behaviour",
    "What the categories do",
    draw,
    caption,
    columns=(BY_DISTANCE.column,),
    statistic="behaviour",
)
