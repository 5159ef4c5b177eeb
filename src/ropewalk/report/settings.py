"""How the results were made: what the table knows of it, and the recorded study."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from ropewalk.report.parts import MISSING, Cell, Column, Entry, Grid
from ropewalk.summary.view import View

_COUNTS = {"context": "context length", "n_q": "tokens per checkpoint", "shards": "shards per checkpoint"}


def facts(view: View, date: str | None) -> tuple[Entry, ...]:
    """What the table itself knows of how it was made, and its date where that is known."""
    rows = pd.concat(view.parts)
    per_checkpoint = rows.groupby("checkpoint", sort=False)
    known = [
        Entry("checkpoints", f"{len(view.lineup):,}"),
        Entry("heads per checkpoint", _range(per_checkpoint.size())),
        Entry("layers of the model", _range(rows["layers"])),
    ]
    if rows["rope"].notna().any():
        # A layer of unknown type is in neither count.
        nope = (~rows["rope"].fillna(True)).astype(int).groupby(rows["checkpoint"]).sum()
        known.append(Entry("heads in NoPE layers", _range(nope)))
    for column, name in _COUNTS.items():
        if column in rows and rows[column].notna().any():
            known.append(Entry(name, _range(per_checkpoint[column].max().dropna())))
    return (*known, *([Entry("date", date)] if date else []))


def _range(values: "pd.Series[Any]") -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def entries(mapping: Mapping[str, Any]) -> Iterable[Entry]:
    """Settings that are set, as entries: mappings nest, a list of mappings becomes a table, other values are text.

    Text comes first, so that it does not seem to belong to what is nested before it.
    """
    for name, value in sorted(mapping.items(), key=lambda item: _nested(item[1])):
        if not _nested(value):
            if not _unset(value):
                yield Entry(str(name), _text(value))
        elif not isinstance(value, Mapping):
            yield Entry(str(name), _records([_flat(item) for item in value]))
        elif inner := tuple(entries(value)):
            yield Entry(str(name), inner)


def _unset(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _nested(value: Any) -> bool:
    items = [value] if isinstance(value, Mapping) else value
    return isinstance(items, list) and bool(value) and all(isinstance(item, Mapping) for item in items)


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in mapping.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _records(records: Sequence[Mapping[str, Any]]) -> Grid:
    """A list of settings as a table, without the columns that no record fills."""
    names = list(dict.fromkeys(name for record in records for name, value in record.items() if not _unset(value)))
    number = {name: all(_is_number(record.get(name)) for record in records) for name in names}
    rows = tuple(tuple(_cell(record.get(name), number[name]) for name in names) for record in records)
    return Grid("", "", tuple(Column(name, number=number[name]) for name in names), rows)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: Any, number: bool) -> Cell:
    return Cell(_text(value), key=None if _unset(value) else value if number else _text(value))


def _text(value: Any) -> str:
    if _unset(value):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)
