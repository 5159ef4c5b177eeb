"""The report's numbers: headline cards, tables per checkpoint and phase, and the columns of the table of heads."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ropewalk.figures.phrases import CORRELATION, SHARE, Unit
from ropewalk.figures.wording import where
from ropewalk.geometry.axes import AXES
from ropewalk.geometry.taxonomy import CATEGORIES, CERTAIN, DISCORDANT, DOMINATED, MIXED, UNDECIDED
from ropewalk.report.parts import MISSING, Card, Cell, Column, Grid, HeadColumn
from ropewalk.statistics.registry import described_columns
from ropewalk.summary.lineup import Lineup
from ropewalk.summary.tracks import Estimate, Track
from ropewalk.summary.view import View

NOPE = "NoPE"


@dataclass(frozen=True)
class Quantity:
    """A measure of `ropewalk.summary`, and how the page calls and writes it."""

    name: str
    title: str
    hint: str
    unit: Unit = CORRELATION

    def format(self, value: float) -> str:
        """The value as text."""
        return MISSING if math.isnan(value) else f"{self.unit.number(value)}{self.unit.value}".replace("-", "−")

    def error(self, se: float) -> str:
        """The standard error as text, empty where there is none."""
        return self.unit.error(se).strip()

    def change(self, change: Estimate) -> str:
        """A difference with its sign and standard error as text; in percentage points for a percentage."""
        if math.isnan(change.value):
            return MISSING
        number = self.unit.number(change.value).replace("-", "−")
        sign = "+" if change.value > 0 else ""
        return f"{sign}{number}{self.unit.error(change.se)}"

    @property
    def column(self) -> Column:
        """The header of a column of this quantity."""
        return Column(self.title, self.hint)


_R_Q = Quantity("mean_r_q", "mean r_q", "queries' correlation with position, mean over heads")
_R_K = Quantity("mean_r_k", "mean r_k", "keys' signed correlation with position, mean over heads")
_ABS_R_K = Quantity("mean_abs_r_k", "mean |r_k|", "size of the keys' correlation with position, whatever its sign")
_DISCORDANT = Quantity(
    "discordant", "discordant heads", "share of heads with r_q · r_k < 0 among those where both are decided", SHARE
)
_DOMINATED = Quantity(f"share_{DOMINATED}", f"{DOMINATED} heads", "share of heads", SHARE)
_VARIANCE = Quantity(
    "mean_explained_variance", "explained variance", "share of variance on PC0, mean over heads", SHARE
)

HEADLINES = (_R_Q, _R_K, _ABS_R_K, _DISCORDANT, _DOMINATED, _VARIANCE)
_SIGNAL = (
    _R_Q,
    _R_K,
    _ABS_R_K,
    _DISCORDANT,
    _VARIANCE,
    Quantity("undecided", "undecided", "share of heads whose r_q or r_k is not beyond its error", SHARE),
    Quantity("mean_separation_share", "separation", "share of PC0's variance that tells queries from keys", SHARE),
    Quantity("mean_readout_q", "readout q", "correlation of position with its best prediction from queries"),
    Quantity("mean_readout_k", "readout k", "correlation of position with its best prediction from keys"),
    Quantity("above_permuted_q", "r_q above shuffled", "share of heads above the null of shuffled positions", SHARE),
    Quantity("above_permuted_k", "|r_k| above shuffled", "share of heads above the null of shuffled positions", SHARE),
    Quantity("mean_r_k_rope", "r_k RoPE", "mean r_k over heads of RoPE layers"),
    Quantity("mean_r_k_nope", "r_k NoPE", "mean r_k over heads of NoPE layers"),
)


def _share(name: str, title: str, hint: str = "share of heads") -> Quantity:
    return Quantity(name, title, hint, SHARE)


_TAXONOMY = (
    _DOMINATED,
    _share(f"concordant_{DOMINATED}", f"{DOMINATED}, concordant", "share of heads, with r_q · r_k > 0"),
    _share(f"discordant_{DOMINATED}", f"{DOMINATED}, discordant", "share of heads, with r_q · r_k < 0"),
    *(_share(f"share_{category}", category) for category in CATEGORIES if category != DOMINATED),
    _share("undecided_category", "undecided", f"share of heads whose category is less than {CERTAIN:.0%} certain"),
)


def cards(view: View) -> tuple[Card, ...]:
    """Headline numbers: the last checkpoint against the first, or the range over models where there is no training."""
    single = _latest if view.lineup.training or len(view.lineup) == 1 else _range
    return tuple(single(quantity, view.lineup, view.track(quantity.name)) for quantity in HEADLINES)


def _latest(quantity: Quantity, lineup: Lineup, track: Track) -> Card:
    last = len(lineup) - 1
    value, se, _ = track.at(last)
    unit = " points" if quantity.unit is SHARE else ""
    detail = f"**{quantity.change(track.change(0, last))}{unit}** since {lineup.labels[0]}" if last else ""
    points = tuple((i / max(last, 1), float(v)) for i, v in enumerate(track.values) if not math.isnan(v))
    return Card(
        quantity.name,
        quantity.title,
        quantity.format(value),
        quantity.error(se),
        detail,
        points if len(points) > 1 else (),
    )


def _range(quantity: Quantity, lineup: Lineup, track: Track) -> Card:
    if np.isnan(track.values).all():
        return Card(quantity.name, quantity.title, MISSING, "", "", ())
    low, high = int(np.nanargmin(track.values)), int(np.nanargmax(track.values))
    lowest, highest = quantity.format(track.values[low]), quantity.format(track.values[high])
    if lowest == highest:
        return Card(quantity.name, quantity.title, lowest, "", "in every model", ())
    detail = f"from {lineup.labels[low]} to {lineup.labels[high]}"
    return Card(quantity.name, quantity.title, f"{lowest} to {highest}", "", detail, ())


def grids(view: View) -> Iterable[Grid]:
    """The tables behind the figures: per checkpoint and, where training has phases, per phase."""
    text = f"Means and shares over heads {where(view)}, ± standard error."
    yield _per_checkpoint("Position signal per checkpoint", text, _SIGNAL, view)
    text = "Shares of heads, ± standard error in percentage points."
    yield _per_checkpoint("Categories per checkpoint", text, _TAXONOMY, view)
    if view.lineup.training and any(group.name for group in view.lineup.groups):
        yield _per_phase(view)


def _per_checkpoint(title: str, text: str, quantities: Sequence[Quantity], view: View) -> Grid:
    lineup = view.lineup
    tracks = [(quantity, view.track(quantity.name)) for quantity in quantities]
    tracks = [(quantity, track) for quantity, track in tracks if not np.isnan(track.values).all()]
    rows = []
    for group in lineup.groups:
        for index in range(group.start, group.stop):
            cells = [Cell(lineup.labels[index], group.name, index), _count(len(view.parts[index]))]
            for quantity, track in tracks:
                value, se, _ = track.at(index)
                cells.append(Cell(quantity.format(value), quantity.error(se), None if math.isnan(value) else value))
            rows.append(tuple(cells))
    named = any(group.name for group in lineup.groups)
    group_name = f", {'phase' if lineup.training else 'family'}" if named else ""
    first = Column(f"checkpoint{group_name}", number=False)
    return Grid(title, text, (first, Column("heads"), *(quantity.column for quantity, _ in tracks)), tuple(rows))


def _count(number: int) -> Cell:
    return Cell(f"{number:,}", key=number)


def _per_phase(view: View) -> Grid:
    lineup, rows = view.lineup, []
    for order, group in enumerate(lineup.groups):
        last = group.stop - 1
        before = max(group.start - 1, 0)
        cells = [Cell(group.name or MISSING, lineup.labels[last], order)]
        for quantity in HEADLINES:
            track = view.track(quantity.name)
            value = float(track.values[last])
            note = quantity.change(track.change(before, last)) if last != before else ""
            cells.append(Cell(quantity.format(value), note, None if math.isnan(value) else value))
        rows.append(tuple(cells))
    return Grid(
        "Change per phase",
        "The value at the last checkpoint of each phase and, below it, the change since the last checkpoint before the "
        "phase (in the first phase: since its first checkpoint), ± standard error; shares change in percentage points.",
        (Column("phase, last checkpoint", number=False), *(quantity.column for quantity in HEADLINES)),
        tuple(rows),
    )


def sensitivity_grid(view: View, rows: pd.DataFrame) -> Iterable[Grid]:
    """What the numbers of the last checkpoint become when something else is changed."""
    last = view.lineup.labels[-1]
    own = rows[rows["label"] == last]
    if own.empty:
        return
    columns = {
        "mean_r_q": _R_Q,
        "mean_r_k": _R_K,
        "mean_abs_r_k": _ABS_R_K,
        "discordant": _DISCORDANT,
        **{f"share_{category}": _share(f"share_{category}", f"{category}") for category in CATEGORIES},
    }
    found = []
    for order, (change, part) in enumerate(own.groupby("change", sort=False)):
        by_name = part.set_index("quantity")
        cells = [Cell(str(change), "", order)]
        for name, quantity in columns.items():
            if name not in by_name.index:
                cells.append(Cell(MISSING))
                continue
            changed, difference, se = by_name[["changed", "difference", "se"]].to_numpy()[by_name.index.get_loc(name)]
            # Of heads that were not captured only the error is known.
            note = quantity.error(se) if math.isnan(difference) else quantity.change(Estimate(difference, se))
            cells.append(Cell(quantity.format(changed), note, None if math.isnan(changed) else changed))
        found.append(tuple(cells))
    yield Grid(
        "What the numbers hang on",
        f"The numbers on PC0 at {last} when one thing is changed and, below each, the difference ± standard error (of "
        "heads drawn at random: the error of drawing them). All checkpoints are in sensitivity.csv.",
        (Column("change", number=False), *(quantity.column for quantity in columns.values())),
        tuple(found),
    )


_FURTHER = {
    "fixed_share_q": "fixed q",
    "fixed_share_k": "fixed k",
    "kernel_range": "kernel range",
    "kernel_misfit": "misfit",
    "score_r2_distance": "scores by distance",
    "mass_first": "first token",
    "mass_previous": "previous token",
    "mass_induction": "induction",
    "effective_keys": "effective keys",
    "eta2_q": "η² q",
    "eta2_k": "η² k",
    "rank_q": "rank q",
    "rank_k": "rank k",
}
"""Columns of heads beyond PC0, with their titles in the table."""

_FACTS = (
    HeadColumn("checkpoint", "checkpoint", number=False),
    HeadColumn("layer", "layer"),
    HeadColumn("head", "head", "query head"),
    HeadColumn("k_head", "key head", "the key head this query head reads"),
    HeadColumn("layer_type", "layer type", "whether the layer rotates queries and keys", number=False),
)
_ON_AXIS = (
    HeadColumn("category", "category", number=False),
    HeadColumn(
        "concordance", "sign", f"{DISCORDANT}: r_q · r_k < 0; {UNDECIDED}: one is not beyond its error", number=False
    ),
    HeadColumn("r_q", "r_q"),
    HeadColumn("r_k", "r_k"),
)
_CERTAINTY = HeadColumn("certainty", "certainty", "probability of the category")
_ON_PC0 = (
    HeadColumn("explained_variance", "explained variance"),
    HeadColumn("eigengap", "eigengap", "(λ0 - λ1) / λ0"),
    HeadColumn("separation_share", "separation", "share of PC0's variance that tells queries from keys"),
)
FILTER_EXAMPLE = f"L12, L12H3, {NOPE}, {MIXED}, {DISCORDANT}"


def head_columns(view: View, there: Collection[str]) -> tuple[HeadColumn, ...]:
    """The columns of the table of heads: facts, and those of the explorer's columns that it has `there`."""
    on_axis, certainty = (
        [replace(column, key=f"{column.key}{AXES[view.axis]}") for column in columns]
        for columns in (_ON_AXIS, (_CERTAINTY,))
    )
    further = [HeadColumn(name, title, described_columns()[name]) for name, title in _FURTHER.items()]
    return (*_FACTS, *(column for column in (*on_axis, *_ON_PC0, *certainty, *further) if column.key in there))
