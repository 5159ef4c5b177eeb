"""The parts a page is made of, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ropewalk.figures import Caption
from ropewalk.report.explorer import Explorer
from ropewalk.report.glossary import Term
from ropewalk.summary.lineup import Lineup

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A column's header, its explanation, and whether it holds numbers."""

    title: str
    hint: str = ""
    number: bool = True


@dataclass(frozen=True)
class HeadColumn:
    """A column of the table of heads: a fact of the head, or the name of a column of the explorer; and its header."""

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


class _Capture(Protocol):
    @property
    def dtype(self) -> str | None: ...
    @property
    def proof(self) -> Mapping[str, Any] | None: ...


def origins(lineup: Lineup, captures: Mapping[str, _Capture]) -> dict[str, Origin]:
    """How each checkpoint whose capture is at hand was captured, by label."""
    known = [(name, label) for name, label in zip(lineup.names, lineup.labels, strict=True) if name in captures]
    return {label: Origin(captures[name].dtype, captures[name].proof) for name, label in known}


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

    `explorer` is what the page's script draws its views and the table of heads from, `head_columns` are the columns of
    that table, and `filter_example` says what it can be filtered by.
    """

    name: str
    lead: str
    at: str
    cards: tuple[Card, ...]
    pictures: tuple[Picture, ...]
    grids: tuple[Grid, ...]
    explorer: Explorer
    head_columns: tuple[HeadColumn, ...]
    filter_example: str
    facts: tuple[Entry, ...]
    made: tuple[Entry, ...]
    study: str | None
    terms: tuple[Term, ...]
    made_from: str = ""
