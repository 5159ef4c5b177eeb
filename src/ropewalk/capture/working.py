"""Notes of who computes which shards now, in a results folder: what `ropewalk status` shows as running."""

import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ropewalk.files import write_bytes
from ropewalk.seals import read_sealed_json, sealed_json

WORKING = "working"
"""Folder of the notes; it is there while somebody works."""

BEAT, SILENCE = 20.0, 120.0
"""Seconds after which a note is touched again, and after which one of another machine is taken for left behind."""


@dataclass(frozen=True)
class Note:
    """One process that computes: how, where, and the shards it is at, by checkpoint."""

    engine: str
    host: str
    pid: int
    since: float
    shards: Mapping[str, Sequence[int]]


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
        note = Note(self._engine, platform.node(), os.getpid(), self._since, shards)
        write_bytes(self.path, sealed_json(asdict(note)))

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


def workers(results: Path) -> list[Note]:
    """The processes that compute shards of a study now; notes that killed ones left are not among them."""
    return [note for path, note in _notes(results) if _lives(path, note)]


def clear_notes(results: Path) -> None:
    """Remove the notes that killed processes left."""
    for path, note in _notes(results):
        if not _lives(path, note):
            with suppress(OSError):
                path.unlink()
                path.parent.rmdir()


def _notes(results: Path) -> Iterator[tuple[Path, Note]]:
    for path in sorted((results / WORKING).glob("*.json")):
        data = read_sealed_json(path)
        if data is not None:
            yield path, Note(**data)


def _lives(path: Path, note: Note) -> bool:
    if note.host == platform.node():
        try:
            os.kill(note.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    with suppress(OSError):
        return time.time() - path.stat().st_mtime < SILENCE
    return False
