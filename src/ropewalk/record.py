"""The record of a results folder: `study.yaml`, the resolved study and what it was run with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError
from ropewalk.files import write_text
from ropewalk.study import Study
from ropewalk.text import one_line, spans
from ropewalk.versions import DECISIVE, OTHERS, Versions, installed

RECORD = "study.yaml"
FORMAT = 3
"""Number of the layout of results: records, manifests, shards and tables. A reader refuses another."""

PARTS = ("ropewalk", "study")
"""Keys that every record has."""

ShardVersions = Mapping[str, Mapping[int, Versions]]
"""By checkpoint and number of shard: the versions that the shard says it was made with."""


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
    if "checkpoints" in data and "study" not in data:
        raise RopewalkError(
            f"{path} is a study and not the record of a run: keep it outside of {results} and run it "
            "(`ropewalk run STUDY`), or look at the table alone: `ropewalk figures FOLDER/qk.csv`"
        )
    if not any(part in data for part in PARTS):
        raise RopewalkError(f"{path} is damaged: it does not hold a study; run `ropewalk capture` again")
    made = data.get("ropewalk")
    number = made.get("format") if isinstance(made, Mapping) else None
    if number != FORMAT:
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


def write_record(
    folder: Path,
    study: Study,
    documents: Sequence[Mapping[str, Any]] = (),
    origins: Sequence[Mapping[str, str]] = (),
    begun: Record | None = None,
) -> None:
    """Write the resolved study, the versions, and where models and documents came from: how results were made.

    A run that goes on is the same run: date and versions are those of the record `begun` earlier, or of the one that is
    there if shards of it are, and so are the origins of checkpoints that are not looked at now.
    """
    before = (begun or _begun(folder) or Record(folder / RECORD, "", {})).data
    known = {one["checkpoint"]: dict(one) for one in (*before.get("origins", ()), *origins)}
    record = {
        "ropewalk": {"version": __version__, **before.get("ropewalk", {}), "format": FORMAT},
        "created": before.get("created") or datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": before.get("versions") or installed((*DECISIVE[1:], *OTHERS)),
        "study": study.model_dump(mode="json", exclude_defaults=False),
        "origins": [known[checkpoint.name] for checkpoint in study.checkpoints if checkpoint.name in known],
        "documents": [dict(one) for one in documents],
    }
    _write(folder, record)


def note_versions(folder: Path, shards: ShardVersions) -> None:
    """Write into a record which shards were made with other versions than the run began with, if any were."""
    record = need_record(folder)
    data = {part: value for part, value in record.data.items() if part != "shard_versions"}
    began = {**data.get("versions", {}), "ropewalk": data["ropewalk"].get("version")}
    groups = _by_versions(shards)
    if any(made.get(name) != began.get(name) for made, _ in groups for name in DECISIVE):
        data["shard_versions"] = [
            {"shards": which, **{name: made.get(name) for name in DECISIVE}} for made, which in groups
        ]
    if data != record.data:
        _write(folder, data)


def _by_versions(shards: ShardVersions) -> list[tuple[Versions, str]]:
    """Each set of versions once, with the shards that were made with it: `first 0-3, 7; second 1`."""
    groups: list[tuple[Versions, dict[str, list[int]]]] = []
    for checkpoint, own in shards.items():
        for number, made in sorted(own.items()):
            numbers = next((which for versions, which in groups if versions == made), None)
            if numbers is None:
                groups.append((made, numbers := {}))
            numbers.setdefault(checkpoint, []).append(number)
    return [(made, "; ".join(f"{name} {spans(own)}" for name, own in which.items())) for made, which in groups]


def _write(folder: Path, record: Mapping[str, Any]) -> None:
    write_text(folder / RECORD, yaml.safe_dump(dict(record), sort_keys=False, allow_unicode=True, width=120))


def outdated(path: Path, number: Any) -> RopewalkError:
    """What to say of a file of another format, or of one that does not tell its format."""
    has = "does not say its format" if number is None else f"has format {number}"
    return RopewalkError(
        f"{path} {has} and this is ropewalk {__version__} with format {FORMAT}: run the study again with "
        "another `results`; a table alone can still be drawn: `ropewalk figures FOLDER/qk.csv`"
    )


def _begun(folder: Path) -> Record | None:
    """The record of a run that goes on: one of which shards are there."""
    if not any(folder.glob("captures/*/shard-*.safetensors")):
        return None
    try:
        return read_record(folder)
    except RopewalkError:
        return None
