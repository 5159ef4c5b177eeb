"""The parts a page is made of, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.figures import Caption
from ropewalk.report.glossary import Term

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column's header, its explanation, and whether it holds numbers."""

    title: str
    hint: str = ""
    number: bool = True


@dataclass(frozen=True)
class HeadColumn:
    """A column of the table of heads: the key of its values in the page's data, and its header."""

    key: str
    title: str
    hint: str = ""
    number: bool = True


@dataclass(frozen=True)
class Cell:
    """A cell's text, a smaller note under it, and what it is sorted by (None: missing, sorted last)."""

    text: str
    note: str = ""
    key: float | str | None = None


@dataclass(frozen=True)
class Grid:
    """A table of the page."""

    title: str
    text: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Entry:
    """A name and its value: text, a table, or further entries."""

    name: str
    value: "str | Grid | tuple[Entry, ...]"


@dataclass(frozen=True)
class Origin:
    """What a capture's manifest says of how it was made: the type its model ran in, and its proof."""

    dtype: str | None
    proof: Mapping[str, Any] | None


@dataclass(frozen=True)
class Card:
    """A headline number, its standard error, what to say of it (**bold** allowed), and its way over training.

    `trend` holds points (x in 0..1, value); it is empty with fewer than two, or where there is no training.
    """

    quantity: str
    title: str
    value: str
    error: str
    detail: str
    trend: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Picture:
    """A figure as a PNG data URI with its size in pixels, and its caption."""

    folder: str
    uri: str
    width: int
    height: int
    caption: Caption


@dataclass(frozen=True)
class Report:
    """Everything the page shows.

    `heads` is what the page's script draws the table of heads from: labels of the checkpoints, values and standard
    errors by the keys of `head_columns`. `filter_example` says what the table can be filtered by. `one_head` is what it
    draws a single head from, None where there is nothing but PC0.
    """

    name: str
    lead: str
    at: str
    cards: tuple[Card, ...]
    pictures: tuple[Picture, ...]
    grids: tuple[Grid, ...]
    head_columns: tuple[HeadColumn, ...]
    filter_example: str
    heads: Mapping[str, Any]
    facts: tuple[Entry, ...]
    made: tuple[Entry, ...]
    study: str | None
    terms: tuple[Term, ...]
    one_head: Mapping[str, Any] | None = None
