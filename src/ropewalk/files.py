"""Writing files so that a reader sees the old one or the new one, never half of one."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ropewalk.errors import RopewalkError

try:
    import fcntl
except ImportError:  # not on Windows, where temporary files of killed runs stay
    fcntl = None  # type: ignore[assignment]


class CannotWriteError(RopewalkError):
    """What is to be written cannot be: whatever else would be computed could not be kept either."""


TEMPORARY = ".ropewalk-tmp"
"""How names of temporary files end."""

_CANNOT_WRITE = (
    *(errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG),
    *(errno.ELOOP, errno.EIO, errno.EINVAL, errno.ENOENT),
)


@contextmanager
def atomic_path(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success fsync it and rename it into place, on failure delete it.

    Running out of space becomes one sentence, and leaves what stood at `path` untouched. Without `replace`, whatever
    stands there by then stays, and it is a FileExistsError.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = _temporary(path)
    except OSError as error:
        raise _explained(error, path) from error
    try:
        yield temporary
        _sync(temporary)
        # mkstemp makes private files; results are ordinary ones.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        if replace:
            temporary.replace(path)
        else:
            _put_new(temporary, path)
        _sync(path.parent)
    except OSError as error:
        if isinstance(error, FileExistsError) and not replace:
            raise
        raise _explained(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)
        os.close(descriptor)


def _temporary(path: Path) -> tuple[int, Path]:
    """A new file beside `path`, open and locked as long as the process lives that writes it."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=_prefix(path), suffix=TEMPORARY, dir=path.parent)
        if fcntl is not None:
            with suppress(OSError):  # where files cannot be locked, none is taken for a leftover either
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Another process may have taken it for a leftover before it was locked.
        if os.fstat(descriptor).st_nlink or os.name != "posix":
            return descriptor, Path(name)
        os.close(descriptor)


def _put_new(temporary: Path, path: Path) -> None:
    """Put a file into a place where there is none: of several processes, one does."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without a second name for a file
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.replace(path)


def _prefix(path: Path) -> str:
    return f".{path.name[:100]}."


def is_temporary(path: Path) -> bool:
    """Whether a path has the name of a temporary file of `atomic_path`."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


def clear_leftovers(folder: Path) -> list[Path]:
    """Remove the temporary files that killed processes left below a folder; those of living ones stay."""
    cleared = []
    for path in sorted(folder.rglob(f".*{TEMPORARY}")) if fcntl is not None else ():
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue  # it went away, or is no file of ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
            cleared.append(path)
        except OSError:
            pass  # its process lives
        finally:
            os.close(descriptor)
    return cleared


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes that ask for the same; where folders cannot be locked, nothing is held."""
    with ExitStack() as held:
        if fcntl is not None:
            descriptor = os.open(folder, os.O_RDONLY)
            held.callback(os.close, descriptor)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8 with Unix line ends."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(path: Path, *pieces: bytes | memoryview, replace: bool = True) -> None:
    """Write pieces of data, one after the other, to `path` atomically; see `atomic_path`."""
    with atomic_path(path, replace=replace) as temporary, temporary.open("wb") as file:
        file.writelines(pieces)


def check_writable(folder: Path) -> None:
    """Stop if a folder, or the nearest one above it that is there, cannot be written to; nothing is written."""
    for path in (folder, *folder.absolute().parents):
        if path.is_symlink() and not path.exists():
            raise RopewalkError(f"{path} is a link to a folder that is not there: make it, or remove the link")
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise RopewalkError(f"cannot write {folder} ({there} is not a folder that can be written to): choose another")


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
    if about not in path.parts and not about.startswith(_prefix(path)):
        return error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CannotWriteError(
            f"no space left for {path}: free some space and run the same command again; finished parts are kept"
        )
    if error.errno == errno.EISDIR and path.is_dir():
        return CannotWriteError(f"cannot write {path}: there is a folder in its place; move it away")
    if error.errno in _CANNOT_WRITE:
        return CannotWriteError(f"cannot write {path} ({error.strerror}): choose another folder to write to")
    return error
