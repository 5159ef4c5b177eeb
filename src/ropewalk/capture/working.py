"""Notes of who computes which shards now, in a results folder: what `ropewalk status` shows as running."""

import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ropewalk.notes import Moment, Note, Number, read_note, write_note

WORKING = "working"
"""Folder of the notes; it is there while somebody works."""

BEAT, SILENCE = 20.0, 120.0
"""Seconds after which a note is touched again, and after which one of another machine is taken for left behind."""


class Worker(Note):
    """One process that computes: how, where, and the shards it is at, by checkpoint."""

    engine: str
    host: str
    pid: Annotated[Number, Field(gt=0)]
    since: Moment
    shards: dict[str, list[Number]]


class Working:
    """The note of this process: it says what is begun and ended. Shards are known by (checkpoint, number)."""

    def __init__(self, results: Path, engine: str) -> None:
        self._engine, self._since = engine, time.time()
        self.path = results / WORKING / f"{platform.node()}-{os.getpid()}-{threading.get_ident()}.json"
        self._shards: dict[str, list[int]] = {}

    def begin(self, checkpoint: str, number: int) -> None:
        """A shard is being computed from now on."""
        self._shards.setdefault(checkpoint, []).append(number)
        self.write()

    def end(self, checkpoint: str, number: int) -> None:
        """A shard is not being computed any more."""
        self._shards[checkpoint].remove(number)
        self.write()

    def write(self) -> None:
        """Write the note."""
        shards = {name: numbers for name, numbers in self._shards.items() if numbers}
        worker = Worker(engine=self._engine, host=platform.node(), pid=os.getpid(), since=self._since, shards=shards)
        write_note(self.path, worker)

    def touch(self) -> None:
        """Say that the process still lives."""
        with suppress(OSError):
            os.utime(self.path)

    def remove(self) -> None:
        """Take the note away, and the folder with the last of them."""
        with suppress(OSError):
            self.path.unlink()
            self.path.parent.rmdir()


@contextmanager
def working(results: Path, engine: str) -> Iterator[Working]:
    """Keep a note in a results folder while the block runs."""
    note, over = Working(results, engine), threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            note.touch()

    note.write()
    threading.Thread(target=beat, daemon=True).start()
    try:
        yield note
    finally:
        over.set()
        note.remove()


def workers(results: Path) -> list[Worker]:
    """The processes that compute shards of a study now; notes that killed ones left are not among them."""
    return [worker for path, worker in _notes(results) if _lives(path, worker)]


def clear_notes(results: Path) -> None:
    """Remove the notes that killed processes left."""
    for path, worker in _notes(results):
        if not _lives(path, worker):
            with suppress(OSError):
                path.unlink()
                path.parent.rmdir()


def is_running(pid: int) -> bool:
    """Whether this machine has a process of this number, whoever's it is."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _notes(results: Path) -> Iterator[tuple[Path, Worker]]:
    for path in sorted((results / WORKING).glob("*.json")):
        worker = read_note(path, Worker)
        if worker is not None:
            yield path, worker


def _lives(path: Path, worker: Worker) -> bool:
    if worker.host == platform.node():
        return is_running(worker.pid)
    with suppress(OSError):
        return time.time() - path.stat().st_mtime < SILENCE
    return False
