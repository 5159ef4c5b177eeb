"""The note of what a study fetched and has yet to discard: a run that was killed leaves it to the next one."""

from collections.abc import Collection
from pathlib import Path

from pydantic import BaseModel

from ropewalk.files import alone, write_bytes
from ropewalk.progress import logger
from ropewalk.seals import read_note, sealed_json

FETCHED = "fetched.json"
"""In a results folder, as long as something is to be discarded: names of weight files by commit."""


class Fetched(BaseModel):
    """What the note holds."""

    commits: dict[str, list[str]]


def noted(folder: Path) -> dict[str, list[str]]:
    """The files to be discarded, by commit."""
    known = read_note(folder / FETCHED, Fetched)
    return {} if known is None else known.commits


def note(folder: Path, commit: str, names: Collection[str]) -> None:
    """Note files of a commit as ones to be discarded, besides those that were noted."""
    with alone(folder):
        commits = noted(folder)
        _write(folder, commits | {commit: sorted({*commits.get(commit, ()), *names})})


def forget(folder: Path, commit: str) -> None:
    """The files of a commit were discarded."""
    with alone(folder):
        _write(folder, {one: names for one, names in noted(folder).items() if one != commit})


def clear_damaged(folder: Path) -> None:
    """Remove a note that is not what was written: what it named stays in the cache."""
    path = folder / FETCHED
    if path.exists() and read_note(path, Fetched) is None:
        logger.warning("%s is damaged: weights that were fetched earlier are not discarded", path)
        path.unlink()


def _write(folder: Path, commits: dict[str, list[str]]) -> None:
    if commits:
        write_bytes(folder / FETCHED, sealed_json({"commits": commits}))
    else:
        (folder / FETCHED).unlink(missing_ok=True)
