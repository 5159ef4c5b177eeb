"""How the results were made: what the table knows of it, and the recorded study."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ropewalk.errors import RopewalkError
from ropewalk.report.parts import MISSING, Cell, Column, Entry, Grid
from ropewalk.summary.view import View

_COUNTS = {"context": "context length", "n_q": "tokens per checkpoint", "shards": "shards per checkpoint"}


def read_study(results: Path) -> tuple[str | None, Mapping[str, Any]]:
    """`study.yaml` as text and as a mapping; (None, {}) where there is none (a table from elsewhere)."""
    file = results / "study.yaml"
    if not file.is_file():
        return None, {}
    try:
        text = file.read_text(encoding="utf-8")
        study = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise RopewalkError(
            f"{file} cannot be read ({reason}): repair it, or delete it to report without it"
        ) from error
    return text, study if isinstance(study, Mapping) else {"study": study}


def facts(look: View, results: Path, study: Mapping[str, Any]) -> tuple[Entry, ...]:
    """What the table itself knows of how it was made."""
    rows = pd.concat(look.parts)
    per_checkpoint = rows.groupby("checkpoint", sort=False)
    known = [
        Entry("checkpoints", f"{len(look.lineup):,}"),
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
    written = datetime.fromtimestamp((results / "qk.csv").stat().st_mtime, UTC).strftime("%Y-%m-%d")
    return (*known, Entry("date", str(study.get("created") or written)))


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
