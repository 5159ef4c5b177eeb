"""Writing files so that a reader sees the old one or the new one, never half of one."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ropewalk.errors import RopewalkError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success fsync it and rename it into place, on failure delete it.

    Running out of space becomes one sentence, and leaves what stood at `path` untouched.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise _explained(error, path) from error
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        # mkstemp makes private files; results are ordinary ones.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise _explained(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8 with Unix line ends."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name != "posix":
        return  # elsewhere a folder cannot be opened, and renames need no help
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explained(error: OSError, path: Path) -> Exception:
    """A sentence for a failure to write `path`; an error that is about another file is passed on as it is."""
    about = path.name if error.filename is None else Path(error.filename).name
    if about not in (path.name, path.parent.name) and not about.startswith(f".{path.name}."):
        return error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RopewalkError(
            f"no space left for {path}: free some space and run the same command again; finished parts are kept"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
        return RopewalkError(f"cannot write {path} ({error.strerror}): choose another folder for the results")
    return error
