"""The report's numbers: headline cards, tables per checkpoint and phase, and PC0 of every head."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.captions.wording import CORRELATION, SHARE, Unit
from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.report.parts import MISSING, Card, Cell, Column, Grid
from ropewalk.summary.lineup import Lineup
from ropewalk.summary.tracks import Estimate, Track
from ropewalk.summary.view import View


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


_R_Q = Quantity("mean_r_q", "mean r_q", "queries' correlation with position on PC0, mean over heads")
_R_K = Quantity("mean_r_k", "mean r_k", "keys' signed correlation with position on PC0, mean over heads")
_ABS_R_K = Quantity("mean_abs_r_k", "mean |r_k|", "size of the keys' correlation with position, whatever its sign")
_DISCORDANT = Quantity("discordant", "discordant heads", "share of heads with r_k < 0", SHARE)
_DOMINATED = Quantity(f"share_{CATEGORIES[0]}", f"{CATEGORIES[0]} heads", "share of heads", SHARE)
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
    Quantity("mean_r_k_rope", "r_k RoPE", "mean r_k over heads of RoPE layers"),
    Quantity("mean_r_k_nope", "r_k NoPE", "mean r_k over heads of NoPE layers"),
)


def _share(name: str, title: str, hint: str = "share of heads") -> Quantity:
    return Quantity(name, title, hint, SHARE)


_TAXONOMY = (
    _DOMINATED,
    _share(f"concordant_{CATEGORIES[0]}", f"{CATEGORIES[0]}, concordant", "share of heads, with r_q · r_k > 0"),
    _share(f"discordant_{CATEGORIES[0]}", f"{CATEGORIES[0]}, discordant", "share of heads, with r_q · r_k < 0"),
    *(_share(f"share_{category}", category) for category in CATEGORIES[1:]),
)

Tracks = Mapping[str, Track]


def tracks(look: View) -> Tracks:
    """Every quantity of the report over the checkpoints of a view."""
    return {quantity.name: look.track(quantity.name) for quantity in {*HEADLINES, *_SIGNAL, *_TAXONOMY}}


def cards(lineup: Lineup, over: Tracks) -> tuple[Card, ...]:
    """Headline numbers: the last checkpoint against the first, or the range over models where there is no training."""
    single = _latest if lineup.training or len(lineup) == 1 else _range
    return tuple(single(quantity, lineup, over[quantity.name]) for quantity in HEADLINES)


def _latest(quantity: Quantity, lineup: Lineup, track: Track) -> Card:
    last = len(lineup) - 1
    value, se = track.at(last)
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


def grids(look: View, over: Tracks) -> Iterable[Grid]:
    """The tables behind the figures: per checkpoint and, where training has phases, per phase."""
    yield _per_checkpoint(
        "Position signal per checkpoint", "Means and shares over heads on PC0, ± standard error.", _SIGNAL, look, over
    )
    text = "Shares of heads, ± standard error in percentage points."
    yield _per_checkpoint("Categories per checkpoint", text, _TAXONOMY, look, over)
    if look.lineup.training and any(group.name for group in look.lineup.groups):
        yield _per_phase(look.lineup, over)


def _per_checkpoint(title: str, text: str, quantities: Sequence[Quantity], look: View, over: Tracks) -> Grid:
    lineup = look.lineup
    quantities = [quantity for quantity in quantities if not np.isnan(over[quantity.name].values).all()]
    errors = {quantity.name: over[quantity.name].errors for quantity in quantities}
    rows = []
    for group in lineup.groups:
        for index in range(group.start, group.stop):
            cells = [Cell(lineup.labels[index], group.name, index), _count(len(look.parts[index]))]
            for quantity in quantities:
                value, se = float(over[quantity.name].values[index]), float(errors[quantity.name][index])
                cells.append(Cell(quantity.format(value), quantity.error(se), None if math.isnan(value) else value))
            rows.append(tuple(cells))
    named = any(group.name for group in lineup.groups)
    kind = f", {'phase' if lineup.training else 'family'}" if named else ""
    first = Column(f"checkpoint{kind}", number=False)
    return Grid(title, text, (first, Column("heads"), *(quantity.column for quantity in quantities)), tuple(rows))


def _count(number: int) -> Cell:
    return Cell(f"{number:,}", key=number)


def _per_phase(lineup: Lineup, over: Tracks) -> Grid:
    rows = []
    for order, group in enumerate(lineup.groups):
        last = group.stop - 1
        before = max(group.start - 1, 0)
        cells = [Cell(group.name or MISSING, lineup.labels[last], order)]
        for quantity in HEADLINES:
            track = over[quantity.name]
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


HEAD_COLUMNS = (
    Column("checkpoint", number=False),
    Column("layer"),
    Column("head", "query head"),
    Column("key head", "the key head this query head reads"),
    Column("layer type", "whether the layer rotates queries and keys", number=False),
    Column("category", number=False),
    Column("sign", "discordant: r_k < 0", number=False),
    Column("r_q"),
    Column("r_k"),
    Column("explained variance"),
    Column("eigengap", "(λ0 - λ1) / λ0"),
)
_WITH_ERRORS = {"r_q": 7, "r_k": 8, "explained_variance": 9}


def heads(look: View) -> Mapping[str, Any]:
    """PC0 of every head: columns of plain values (None where missing), in the order of `HEAD_COLUMNS`, and errors."""
    rows = pd.concat(look.parts)
    return {
        "checkpoints": list(look.lineup.labels),
        "columns": [
            [index for index, part in enumerate(look.parts) for _ in range(len(part))],
            *(_plain(rows, column) for column in ("layer", "head", "k_head")),
            [None if pd.isna(rope) else "RoPE" if rope else "NoPE" for rope in rows["rope"]],
            [None if pd.isna(category) else category for category in rows["category"]],
            ["discordant" if r_k < 0 else None if pd.isna(r_k) else "concordant" for r_k in rows["r_k"]],
            *(_plain(rows, column, 5) for column in (*_WITH_ERRORS, "eigengap")),
        ],
        "errors": {str(index): _plain(rows, f"se_{column}", 5) for column, index in _WITH_ERRORS.items()},
    }


def _plain(rows: pd.DataFrame, column: str, digits: int = 0) -> list[float | int | None]:
    if column not in rows:
        return [None] * len(rows)
    return [None if pd.isna(value) else round(float(value), digits) if digits else int(value) for value in rows[column]]
