"""The record of a results folder: `study.yaml`, the resolved study and what it was run with."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError
from ropewalk.files import write_text
from ropewalk.study import Study
from ropewalk.text import one_line

RECORD = "study.yaml"
FORMAT = 2
"""Number of the layout of results: records, manifests, shards and tables. A reader refuses another."""

RECORDED = ("numpy", "torch", "transformers", "tokenizers", "safetensors", "pandas", "pyarrow")
"""Libraries whose versions are written down."""


@dataclass(frozen=True)
class Record:
    """What a results folder says of how it was made: the file as text, and as data."""

    path: Path
    text: str
    data: Mapping[str, Any]

    @cached_property
    def study(self) -> Study:
        """The study. Models may have moved since: only their captures are needed, so folders are not looked for."""
        try:
            return Study.model_validate(self.data["study"])
        except (ValidationError, KeyError, TypeError) as error:
            raise RopewalkError(
                f"{self.path} is damaged: it does not hold a study; run `ropewalk capture` again"
            ) from error


def read_record(results: Path) -> Record | None:
    """The record of a results folder; None where there is none (a table from elsewhere)."""
    path = results / RECORD
    if not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RopewalkError(
            f"{path} cannot be read ({one_line(error)}): run `ropewalk capture` on the study again, or delete it to "
            "look at the tables without it"
        ) from error
    if not isinstance(data, Mapping):
        raise RopewalkError(f"{path} is damaged: it does not hold a study; run `ropewalk capture` again")
    made = data.get("ropewalk")
    number = made.get("format") if isinstance(made, Mapping) else None
    if number is not None and number != FORMAT:
        raise outdated(path, number)
    return Record(path, text, data)


def need_record(results: Path) -> Record:
    """The record of a folder that must have one."""
    record = read_record(results)
    if record is None:
        raise RopewalkError(
            f"{results} is not a results folder: it has no {RECORD}; run `ropewalk capture` on a study first"
        )
    return record


def write_record(folder: Path, study: Study, documents: Sequence[Mapping[str, Any]]) -> None:
    """Write the resolved study, the versions and the documents beside the results: how they were made."""
    record = {
        "ropewalk": {"version": __version__, "format": FORMAT},
        "created": _created(folder) or datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in RECORDED}},
        "study": study.model_dump(mode="json", exclude_defaults=False),
        "documents": [dict(one) for one in documents],
    }
    write_text(folder / RECORD, yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=120))


def outdated(path: Path, number: Any) -> RopewalkError:
    """What to say of a file of another format."""
    return RopewalkError(
        f"{path} has format {number} and this is ropewalk {__version__} with format {FORMAT}: run the study again with "
        "another `results`; a table alone can still be drawn: `ropewalk figures FOLDER/qk.csv`"
    )


def _created(folder: Path) -> str | None:
    """When a record that is there already was begun: a run that is resumed is the same run."""
    try:
        before = read_record(folder)
    except RopewalkError:
        return None
    return None if before is None else before.data.get("created")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
