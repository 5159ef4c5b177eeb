"""Write docs/reference.md: every field of a study, every column of every table, every statistic, from the code.

Example: python scripts/generate_reference.py
"""

import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ropewalk.cli import cli
from ropewalk.corpora import Corpus
from ropewalk.export.formats import MODULES
from ropewalk.export.formats import find as find_format
from ropewalk.figures import FIGURES
from ropewalk.files import write_text
from ropewalk.placement import Placement
from ropewalk.statistics.registry import BUILT_IN, find
from ropewalk.study import Capture, Checkpoint, Figures, Study
from ropewalk.summary.measures import MEASURES
from ropewalk.summary.sensitivity import COLUMNS as SENSITIVITY
from ropewalk.tables import HEADS, QK, REPLICATES

DOCUMENT = Path(__file__).parent.parent / "docs" / "reference.md"

HEADER = """# Reference

Written by `make docs` from the code itself; a test fails when it is not current.

- [A study](#a-study): every field
- [Statistics](#statistics): what can be captured, with options and columns
- [Tables](#tables): every column
- [Quantities](#quantities) of `summary()` and `track()`
- [Figures](#figures), [exports](#exports) and [commands](#commands)
"""

PARTS: Mapping[str, type[BaseModel]] = {
    "The study": Study,
    "checkpoints, defaults": Checkpoint,
    "corpus": Corpus,
    "capture": Capture,
    "figures": Figures,
    "engine": Placement,
}


def document() -> str:
    """The whole page."""
    sections = [HEADER, "## A study", "", *_study(), "## Statistics", "", *_statistics(), "## Tables", "", *_tables()]
    sections += ["## Quantities", "", "Numbers over the heads of a checkpoint, each with its standard error:", ""]
    sections += [", ".join(f"`{name}`" for name in MEASURES) + ".", ""]
    sections += ["## Figures", "", "| name | title | options |", "|---|---|---|"]
    sections += [f"| `{one.name}` | {one.title} | {', '.join(one.options) or '-'} |" for one in FIGURES]
    sections += ["", "## Exports", "", *_exports()]
    sections += ["## Commands", "", "| command | |", "|---|---|"]
    sections += [f"| `ropewalk {name}` | {(command.help or '').splitlines()[0]} |" for name, command in _commands()]
    return "\n".join(sections) + "\n"


def _commands() -> Iterator[tuple[str, Any]]:
    yield from cli.commands.items()


def _study() -> Iterator[str]:
    for title, model in PARTS.items():
        yield f"### {title}"
        yield ""
        yield from _fields(model)


def _fields(model: type[BaseModel]) -> Iterator[str]:
    yield "| field | type | default | |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        yield f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {_cell(field.description or '')} |"
    yield ""


def _statistics() -> Iterator[str]:
    for name in BUILT_IN:
        statistic = find(name)
        yield f"### `{name}`"
        yield ""
        yield (statistic.__doc__ or "").splitlines()[0]
        yield ""
        if statistic.model_fields:
            yield from _fields(statistic)
        if statistic.columns:
            yield "Columns in `heads.csv`, each with its standard error `se_...`:"
            yield ""
            yield from _columns(statistic.columns)


def _exports() -> Iterator[str]:
    yield "Formats of `ropewalk export` and `Results.export`, with their options ([what they are for](export.md))."
    yield ""
    for name in MODULES:
        found = find_format(name)
        yield f"### `--to {name}`"
        yield ""
        yield f"{found.title[0].upper()}{found.title[1:]}."
        yield ""
        yield from _fields(found.options)


def _tables() -> Iterator[str]:
    yield "### `qk.csv`"
    yield ""
    yield "One row per (checkpoint, layer, head, component), nine digits."
    yield ""
    yield from _columns(QK)
    yield "### `heads.csv`"
    yield ""
    yield "One row per (checkpoint, layer, head). The columns of the captured statistics follow these."
    yield ""
    yield from _columns(HEADS)
    yield "### `sensitivity.csv`"
    yield ""
    yield "What the numbers hang on: one row per (checkpoint, change, quantity)."
    yield ""
    yield from _columns(SENSITIVITY)
    yield "### `replicates.parquet`"
    yield ""
    yield "The columns of `heads.csv` that have a standard error, with one shard left out; it begins with"
    yield ""
    yield from _columns(REPLICATES)


def _columns(columns: Mapping[str, str]) -> Iterator[str]:
    yield "| column | |"
    yield "|---|---|"
    for name, text in columns.items():
        yield f"| `{name}` | {_cell(text)} |"
    yield ""


def _type(annotation: Any) -> str:
    """A type as people write it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(one) for one in arguments if one is not type(None))
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        inner = [one for one in arguments if one is not Ellipsis]
        return f"list of {_type(inner[0])}" if Ellipsis in arguments else f"[{', '.join(map(_type, inner))}]"
    if origin is dict:
        return "mapping"
    names = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}
    if annotation in names:
        return names[annotation]
    return next(
        (title for title, model in PARTS.items() if model is annotation), getattr(annotation, "__name__", "any")
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined or default is None or isinstance(default, BaseModel) or default in ("", {}, ()):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{', '.join(default)}`" if isinstance(default, dict) else f"`{default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    write_text(DOCUMENT, document())
