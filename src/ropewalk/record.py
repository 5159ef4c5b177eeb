"""The record of a results folder: `study.yaml`, the resolved study and what it was run with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError
from ropewalk.files import write_bytes
from ropewalk.seals import BLANK, is_intact, seal
from ropewalk.study import Study
from ropewalk.text import cut, spans
from ropewalk.versions import DECISIVE, OTHERS, Versions, installed
from ropewalk.yamlfile import dump_yaml, read_own

RECORD = "study.yaml"
FORMAT = 4
"""Number of the layout of results: records, manifests, shards and tables. A reader refuses another."""

LARGEST = 1_000_000
"""Characters of a file that is not ours that are looked at to say what it is."""

ShardVersions = Mapping[str, Mapping[int, Versions]]
"""By checkpoint and number of shard: the versions that the shard says it was made with."""


_Fact = str | int | float | None


class _Made(BaseModel):
    format: Literal[4]
    version: str


class _Origin(BaseModel):
    checkpoint: str


class _Contents(BaseModel):
    """What a record holds, as far as it is relied on."""

    seal: str
    ropewalk: _Made
    created: str
    versions: dict[str, _Fact]
    study: dict[str, Any]
    origins: list[_Origin]
    documents: list[dict[str, _Fact]]
    shard_versions: list[dict[str, _Fact]] = []


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
            raise _damaged(self.path) from error


def read_record(results: Path) -> Record | None:
    """The record of a results folder; None where there is none (a table from elsewhere)."""
    path = results / RECORD
    try:
        whole = is_intact(path)
        if not path.is_file():
            raise _damaged(path)
        text = path.read_text(encoding="utf-8")
        if not whole:
            raise _not_a_record(path, text)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise _damaged(path) from error
    except OSError as error:
        raise RopewalkError(f"{path} cannot be read ({error.strerror}): check who may read it, and the disk") from error
    try:
        data = read_own(text)
    except ValueError as error:
        raise _damaged(path) from error
    number = _format(data)
    if isinstance(number, int) and number != FORMAT:
        raise outdated(path, number)
    try:
        _Contents.model_validate(data)
    except ValidationError as error:
        # It may come from a stranger, who can write a seal.
        raise _damaged(path) from error
    del data["seal"]
    return Record(path, text.split("\n", 1)[1], data)


def _not_a_record(path: Path, text: str) -> RopewalkError:
    """What to say of a file that is not a record as it was written: a study, one of another format, a damaged one."""
    try:
        data = read_own(text[:LARGEST])
    except ValueError:
        return _damaged(path)
    if isinstance(data, Mapping) and "checkpoints" in data and "study" not in data:
        return RopewalkError(
            f"{path} is a study and not the record of a run: keep it outside of {path.parent} and run it "
            "(`ropewalk run STUDY`), or look at the table alone: `ropewalk figures FOLDER/qk.csv`"
        )
    number = _format(data)
    # What has a seal and is not intact is damaged, whatever it says of its format; earlier formats had none.
    if text.startswith("seal") or not isinstance(number, int) or number == FORMAT:
        return _damaged(path)
    return outdated(path, number)


def _format(data: Any) -> Any:
    made = data.get("ropewalk") if isinstance(data, Mapping) else None
    return made.get("format") if isinstance(made, Mapping) else None


def _damaged(path: Path) -> RopewalkError:
    return RopewalkError(
        f"{path} is not as it was written (it is damaged, or was changed by hand): run `ropewalk capture STUDY` again, "
        "which writes it anew"
    )


def is_recorded(study: Study) -> bool:
    """Whether the record in a study's folder is of the very same study; results of another format are an error."""
    try:
        record = read_record(study.folder)
    except OutdatedError:
        raise
    except RopewalkError:
        return False  # it is written anew, if the folder is the study's
    if record is None:
        return False
    recorded, now = (one.model_dump(mode="json", exclude={"results"}) for one in (record.study, study))
    return recorded == now


def need_record(results: Path) -> Record:
    """The record of a folder that must have one."""
    record = read_record(results)
    if record is None:
        raise RopewalkError(
            f"{results} is not a results folder: it has no {RECORD}; run `ropewalk capture` on a study first, which "
            "writes it"
        )
    return record


def write_record(
    folder: Path,
    study: Study,
    documents: Sequence[Mapping[str, Any]] = (),
    origins: Sequence[Mapping[str, str]] = (),
    begun: Record | None = None,
    *,
    partial: bool = False,
) -> None:
    """Write the resolved study, the versions, and where models and documents came from: how results were made.

    A run that goes on is the same run: date and versions are those of the record `begun` earlier, or of the one that is
    there if shards of it are, and so are the origins of checkpoints that are not looked at now. A `partial` run looks
    at some of them only: documents that were noted before are then not forgotten.
    """
    before = (begun or _begun(folder) or Record(folder / RECORD, "", {})).data
    known = {one["checkpoint"]: dict(one) for one in (*before.get("origins", ()), *origins)}
    noted = [dict(one) for one in before.get("documents", ())] if partial else []
    record = {
        "ropewalk": {"version": __version__, **before.get("ropewalk", {}), "format": FORMAT},
        "created": before.get("created") or datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": before.get("versions") or installed((*DECISIVE[1:], *OTHERS)),
        "study": study.model_dump(mode="json", exclude_defaults=False),
        "origins": [known[checkpoint.name] for checkpoint in study.checkpoints if checkpoint.name in known],
        "documents": noted + [dict(one) for one in documents if dict(one) not in noted],
    }
    store(folder, record)


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
        store(folder, data)


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


def store(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the data of a record as it is, with its seal."""
    text = dump_yaml({"seal": BLANK, **record})
    write_bytes(folder / RECORD, seal(text.encode()))


class OutdatedError(RopewalkError):
    """Results that were written by a version with another format."""


def outdated(path: Path, number: Any) -> OutdatedError:
    """What to say of a file of another format."""
    return OutdatedError(
        f"{path} has format {cut(repr(number), 40)} and this is ropewalk {__version__} with format {FORMAT}: run the "
        "study again with another `results`; a table alone can still be drawn: `ropewalk figures FOLDER/qk.csv`"
    )


def _begun(folder: Path) -> Record | None:
    """The record of a run that goes on: one of which shards are there."""
    if not any(folder.glob("captures/*/shard-*.safetensors")):
        return None
    try:
        return read_record(folder)
    except RopewalkError:
        return None
