"""Opening files that users bring: only whole, regular, plain ones, and the reason where one cannot be read."""

import errno
import glob
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ropewalk.errors import RopewalkError
from ropewalk.text import cut, is_control, one_line

PACKED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"\x04\x22\x4d\x18": "lz4",
}
"""First bytes of compressed files, and what they were compressed with."""
MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""First bytes of text in another encoding than UTF-8."""
START = 8
"""First bytes of a file that tell what it is."""
LONGEST = 200
"""Characters of a path in a message."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading bytes; folders, pipes and devices are no files (a pipe would be waited for).

    Whatever stands against reading it is an `OSError` or a `ValueError`, whose reason `why` gives in words.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(None, "it is a folder" if is_folder(path) else "not a regular file")
    # Between the two calls something else may have taken its place.
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(None, "not a regular file")
    return file


def check_name(path: Path | str) -> None:
    """Stop at a path that is no text: records could not hold it, and not every library opens it."""
    if any(is_control(one) for one in str(path)):
        raise RopewalkError(
            f"{named(path)} cannot be used, as it holds control characters or bytes that are no UTF-8: rename it"
        )


def is_folder(path: Path | str) -> bool:
    """Whether there is a folder; a name that no file system takes is none."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def why(error: BaseException) -> str:
    """Why a file cannot be read, in a few words and without its name."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return (error.strerror if isinstance(error, OSError) else None) or one_line(error, 160)


def unreadable(path: Path | str, error: BaseException, remedy: str) -> RopewalkError:
    """The sentence for a file that is there and cannot be read."""
    reason = why(error)
    if isinstance(error, FileNotFoundError) and Path(path).is_symlink():
        reason = f"it leads to {str(Path(path).readlink())!r}, which is not there"
    return RopewalkError(f"{named(path)} cannot be read ({reason}): {remedy}")


def check_searchable(pattern: str) -> None:
    """Stop where a folder that a pattern names may not be read: what is in it is not missing."""
    for folder in reversed(Path(pattern).parents):
        if not glob.has_magic(str(folder)) and is_folder(folder) and not os.access(folder, os.R_OK | os.X_OK):
            denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            raise unreadable(folder, denied, "check who may read it")


def named(path: Path | str) -> str:
    """A path on a part of a line."""
    return cut(str(path), LONGEST) if str(path).isprintable() else cut(repr(str(path)), LONGEST)


def not_text(start: bytes) -> str | None:
    """What a file that begins so is instead of UTF-8 text, and what to do about it; None where it may be text."""
    for mark, kind in PACKED.items():
        if start.startswith(mark):
            return f"is compressed ({kind}): unpack it"
    for mark, kind in MARKS.items():
        if start.startswith(mark):
            return f"is {kind} text: convert it to UTF-8"
    return None
