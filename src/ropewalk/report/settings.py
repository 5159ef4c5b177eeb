"""How the results were made: what the table knows of it, and the recorded study."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from ropewalk.report.parts import MISSING, Cell, Column, Entry, Grid, Origin
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


def proofs(origins: Mapping[str, Origin]) -> tuple[Entry, ...]:
    """In what type the models ran and how their captures were proven, by label: one row for all that are alike.

    A row has the largest of its captures' numbers.
    """
    computed = list(dict.fromkeys(origin.dtype for origin in origins.values() if origin.dtype))
    alike: dict[str, dict[str, Mapping[str, Any]]] = {}
    for label, origin in origins.items():
        proof = origin.proof or {"outcome": "not recorded"}
        marks = [_outcome(proof), *(proof.get(name) for name in ("dtype", "half", "compared", "tokens"))]
        alike.setdefault(repr(marks), {})[label] = proof
    rows = [
        {"checkpoint": "all" if len(group) == len(origins) > 1 else ", ".join(group), **_proof(list(group.values()))}
        for group in alike.values()
    ]
    return (
        *([Entry("computed in", ", ".join(computed))] if computed else ()),
        *([Entry("proof", _records(rows))] if rows else ()),
    )


def _outcome(proof: Mapping[str, Any]) -> str:
    if proof["outcome"] == "proven":
        return "the attention output is softmax(qkᵀ)v of what was captured, and the tap leaves the logits as they are"
    if proof["outcome"] == "no model":
        return "none: vectors read from disk, without their model"
    checks = [f"{one['check']}: {one['detail']}" for one in proof.get("checks", ()) if one["passed"] is None]
    return "; ".join(checks) or str(proof["outcome"])


def _proof(alike: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row on captures that were proven in the same way."""
    first = alike[0]

    def largest(name: str, digits: int) -> str | None:
        values = [float(proof[name]) for proof in alike if proof.get(name) is not None]
        return f"{max(values):.{digits}e}" if values else None

    return {
        "what was proven": _outcome(first),
        "on tokens": first.get("tokens"),
        "attention calls": first.get("compared"),
        "in": first.get("dtype"),
        "largest difference": largest("difference", 1),
        "limit": largest("limit", 0),
        f"{first.get('half')} adds": largest("added", 1),
    }


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
