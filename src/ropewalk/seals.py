"""Seals: by its digest, a file that is read again is known to be the one that was written.

A file of our own formats carries its seal near its beginning: the SHA-256 of the file in which the seal itself is
blank. Tables, pictures and Parquet files have no place for one; a `Ledger` beside them holds their digests.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.files import write_bytes
from ropewalk.fingerprint import file_fingerprint

BLANK = "0" * 64
"""What stands in place of a seal while its digest is computed."""

REACH = 4096
"""The seal stands within so many bytes from the beginning of a file."""

LEDGER = "seals.json"
LONGEST = 1000
"""Characters of a name in it."""
_SEAL = re.compile(rb"seal\W{1,16}([0-9a-f]{64})")


def seal(data: bytes) -> bytes:
    """Data that begins with `seal` and BLANK (as JSON, YAML, ...), with its digest in place of the latter."""
    return b"".join(sealed_pieces(data))


def sealed_pieces(data: bytes) -> tuple[bytes | memoryview, ...]:
    """The same in pieces, which are views of the data: put together they would be another copy of a shard."""
    found = _SEAL.search(data, 0, REACH)
    assert found is not None, "no place for a seal"
    assert found[1] == BLANK.encode(), "sealed already"
    whole, digest = memoryview(data), hashlib.sha256(data).hexdigest().encode()
    return whole[: found.start(1)], digest, whole[found.end(1) :]


def sealed_json(data: Mapping[str, Any]) -> bytes:
    """Plain data as JSON with its seal."""
    return seal((json.dumps({"seal": BLANK, **data}, indent=1) + "\n").encode())


def is_intact(path: Path) -> bool:
    """Whether a file with a seal holds what was written; a folder or a pipe in its place does not.

    A file that is not there, or cannot be read, raises OSError.
    """
    if not path.is_file():
        if path.exists():
            return False
        # Of a link that leads to itself the system says something else.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    status = path.stat()
    return _is_intact(str(path), status.st_ino, status.st_size, status.st_mtime_ns)


# Shards are asked about several times in one run, and hashing them takes as long as reading them.
@lru_cache(maxsize=100_000)
def _is_intact(path: str, *_: int) -> bool:
    with Path(path).open("rb") as file:
        start = file.read(REACH)
        found = _SEAL.search(start)
        if found is None:
            return False
        digest = hashlib.sha256(start[: found.start(1)] + BLANK.encode() + start[found.end(1) :])
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest() == found[1].decode()


def read_sealed_json(path: Path) -> dict[str, Any] | None:
    """The data of a sealed JSON file; None where there is no file or it is not what was written."""
    try:
        if not is_intact(path):
            return None
    except FileNotFoundError:
        return None
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    return {name: value for name, value in data.items() if name != "seal"} if isinstance(data, dict) else None


def _is_inside(name: str) -> bool:
    """Whether a name in a ledger can be one of a file in its folder."""
    path = PurePosixPath(name)
    return name.isprintable() and len(name) < LONGEST and not path.is_absolute() and ".." not in path.parts


@dataclass(frozen=True)
class Ledger:
    """The digests of files that one step wrote into a folder, by their names in it, and what they were made from.

    A digest is None while its file is being written: so a file of an interrupted step is known to be ours, and not to
    be whole.
    """

    files: Mapping[str, str | None]
    made_from: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shards(self) -> Mapping[str, Any]:
        """The shards that tables were made from, by checkpoint, as far as it says."""
        known = self.made_from.get("shards")
        return known if isinstance(known, dict) else {}

    @classmethod
    def read(cls, folder: Path) -> "Ledger | None":
        """The ledger of a folder; None where there is none, or a damaged one."""
        data = read_sealed_json(folder / LEDGER) or {}
        files, made_from = data.get("files"), data.get("made_from")
        # It may come from a stranger, who can write a seal.
        if not isinstance(files, dict) or not isinstance(made_from, dict):
            return None
        return cls(files, made_from) if all(map(_is_inside, files)) else None

    @classmethod
    def begin(cls, folder: Path, names: Iterable[str], *, replace: bool = False) -> None:
        """Say which files are about to be written; one that is not ours is replaced only where told to."""
        known, names = cls.read(folder), list(names)
        mine = [] if known is None else list(known.files)
        # A ledger that is damaged does not tell what is ours, but that something is.
        replace = replace or (known is None and (folder / LEDGER).is_file())
        for name in names:
            if not replace and name not in mine and (folder / name).exists():
                raise RopewalkError(
                    f"{folder / name} is there already and was not written by ropewalk: move it away, or write to "
                    "another folder"
                )
        cls(dict.fromkeys([*mine, *names])).write(folder)

    @classmethod
    def of(cls, folder: Path, names: Iterable[str], made_from: Mapping[str, Any]) -> "Ledger":
        """The ledger of files as they stand now."""
        return cls({name: file_fingerprint(folder / name) for name in names}, made_from)

    def write(self, folder: Path) -> None:
        """Write it into the folder; last, because it says that everything else is there."""
        write_bytes(folder / LEDGER, sealed_json({"files": dict(self.files), "made_from": dict(self.made_from)}))

    def differs(self, folder: Path) -> list[tuple[str, str]]:
        """The files that are not what was written, and how: `missing`, `unfinished`, `damaged`."""
        states = ((name, self.state(folder, name)) for name in self.files)
        return [(name, state) for name, state in states if state is not None]

    def state(self, folder: Path, name: str) -> str | None:
        """What is wrong with a file of the ledger; None if nothing is."""
        path, digest = folder / name, self.files.get(name)
        if not path.is_file():
            return "damaged" if path.exists() else "missing"
        if digest is None:
            return "unfinished"
        return None if file_fingerprint(path) == digest else "damaged"
