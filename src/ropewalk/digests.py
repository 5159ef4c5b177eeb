"""Digests of large files, remembered from one run to the next: weights are not read whole only to be known again."""

import os
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictInt

from ropewalk.fingerprint import file_fingerprint
from ropewalk.notes import Note, read_note, write_note

DIGESTS = "digests.json"
"""In a results folder: the digests of local weights."""

TICK = 0.05
"""Seconds after a change of a file from which on another change has another time; clocks of systems tick faster."""

SECOND = 10**9
"""Nanoseconds of a second: a file system whose times are whole ones is not precise enough."""


class _File(Note):
    state: list[StrictInt]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Remembered(Note):
    """Digests of files, by their paths."""

    files: dict[str, _File] = Field(default_factory=dict)


class Digests:
    """The SHA-256 of files, remembered by where they stand and what the system says of them.

    Size, time of writing, inode and time of change must all be as they were. The last one is set by the system at every
    change of a file or of its times, and no program can set it back: a file that was changed within the same size and
    time of writing is read again. Where the system keeps no such time, or in seconds only, nothing is remembered.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DIGESTS
        self._known = (read_note(self._path, Remembered) or Remembered()).files
        self._new: dict[str, _File] = {}

    def __call__(self, path: Path) -> str:
        """The digest of a file, from memory where it is as it was."""
        name, before = os.path.realpath(path), _state(path)
        # On Windows the time is that of the file's making.
        if os.name != "posix" or before[-1] % SECOND == 0:
            return file_fingerprint(path)
        known = self._new.get(name) or self._known.get(name)
        if known is not None and known.state == before:
            return known.sha256
        # One that was written just now could be changed once more within the same tick of the clock.
        time.sleep(min(max(0.0, TICK - (time.time() - before[-1] / SECOND)), TICK))
        digest = file_fingerprint(path)
        if _state(path) == before:
            self._new[name] = _File(state=before, sha256=digest)
        return digest

    def write(self) -> None:
        """Remember what was read since; nothing is written where nothing was."""
        if self._new:
            write_note(self._path, Remembered(files=self._known | self._new))


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev, status.st_ctime_ns]
