"""The note of what a study fetched and has yet to discard: a run that was killed leaves it to the next one."""

from collections.abc import Collection
from pathlib import Path

from pydantic import Field

from ropewalk.files import alone
from ropewalk.notes import Note, read_note, write_note
from ropewalk.progress import logger

FETCHED = "fetched.json"
"""In a results folder, as long as something is to be discarded: names of weight files by commit."""


class Fetched(Note):
    """Names of files, by commit."""

    commits: dict[str, list[str]] = Field(default_factory=dict)


def noted(folder: Path) -> dict[str, list[str]]:
    """The files to be discarded, by commit."""
    return (read_note(folder / FETCHED, Fetched) or Fetched()).commits


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
        write_note(folder / FETCHED, Fetched(commits=commits))
    else:
        (folder / FETCHED).unlink(missing_ok=True)
