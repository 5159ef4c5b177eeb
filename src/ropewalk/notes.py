"""Notes: small sealed files that runs leave for each other in a results folder. Each is a model, checked when read."""

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from ropewalk.files import write_bytes
from ropewalk.seals import read_sealed_json, sealed_json

Number = Annotated[StrictInt, Field(ge=0, lt=2**31)]
"""A number of a shard or a process."""

Moment = Annotated[float, Field(ge=0, lt=2**37, allow_inf_nan=False)]
"""Seconds since 1970, before the year 6325: a date can be made of it."""


class Note(BaseModel):
    """What a note holds. It may come from a stranger, who can write a seal: of nonsense nothing is believed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


AnyNote = TypeVar("AnyNote", bound=Note)


def read_note(path: Path, kind: type[AnyNote]) -> AnyNote | None:
    """The note in a file; None where there is no file, or it is not one that was written."""
    data = read_sealed_json(path)
    try:
        return None if data is None else kind.model_validate(data)
    except ValidationError:
        return None


def write_note(path: Path, note: Note) -> None:
    """Write a note, sealed."""
    write_bytes(path, sealed_json(note.model_dump(mode="json")))
