"""Weights from the hub: how much is to be fetched, again where it fails, and out of the cache once they served."""

import errno
import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from ropewalk.errors import RopewalkError
from ropewalk.files import CannotWriteError
from ropewalk.fingerprint import file_fingerprint
from ropewalk.models.hub import HubUnreachableError, RemoteFile, model_folder, remote_files, repo_file
from ropewalk.models.source import ModelSource
from ropewalk.models.weights import weight_names
from ropewalk.progress import logger
from ropewalk.text import one_line

PAUSES = (5.0, 20.0, 60.0)
"""Seconds before a download that failed is tried again: so many times, besides those of the hub's client itself."""

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM)


class DownloadError(RopewalkError):
    """Weights that could not be fetched, however often it was tried."""


class CacheError(CannotWriteError):
    """The hub's cache cannot be written to: other weights would fare no better."""


@dataclass(frozen=True)
class Weights:
    """The weight files of a model on the hub that were not at hand, by name; `folder` is its commit in the cache."""

    repo: str
    folder: Path
    files: Mapping[str, RemoteFile]

    @property
    def commit(self) -> str:
        """Which commit of which repository it is."""
        return f"{self.repo}@{self.folder.name}"

    @property
    def absent(self) -> list[str]:
        """Names of the files that are not at hand now."""
        return [name for name in self.files if not (self.folder / name).is_file()]

    @property
    def blobs(self) -> dict[str, int]:
        """Sizes of what is to be transferred, by blob: what another revision has in the cache is only linked."""
        blobs = self.folder.parent.parent / "blobs"
        wanted = (self.files[name] for name in self.absent)
        return {f"{self.repo}/{file.blob}": file.size for file in wanted if not (blobs / file.blob).is_file()}


def absent_weights(source: ModelSource) -> Weights | None:
    """What of a model's weights must be fetched before it can be loaded; None where nothing must.

    Of random weights that is a GGUF file still, which holds the configuration.
    """
    repo = str(source.repo)
    folder = model_folder(repo, source.revision)
    if folder == Path(repo) or (source.random_weights and not source.gguf_file):
        return None
    names = [source.gguf_file] if source.gguf_file else weight_names(repo, folder)
    absent = [name for name in names if not (folder / name).is_file()]
    # A GGUF file that is not there is said where it is opened.
    listed = remote_files(repo, folder) if absent else {}
    files = {name: listed[name] for name in absent if name in listed}
    return Weights(repo, folder, files) if files else None


def fetch(weights: Weights) -> None:
    """Fetch weights into the cache, a file at a time; what fails for now is tried again after growing pauses."""
    for name in weights.absent:
        for number, pause in enumerate((*PAUSES, None), 1):
            try:
                _fetch_file(weights, name)
                break
            except HubUnreachableError as error:
                if pause is None:
                    raise DownloadError(
                        f"{name} of {weights.repo} could not be fetched in {number} attempts ({one_line(error)})"
                    ) from error
                logger.info("%s of %s was not fetched (%s): again in %g s", name, weights.repo, one_line(error), pause)
                time.sleep(pause)
            except CacheError:
                raise
            except RopewalkError as error:
                raise DownloadError(f"{name} of {weights.repo} could not be fetched ({one_line(error)})") from error


def _fetch_file(weights: Weights, name: str) -> None:
    """Fetch one file, and hold it against its digest; HubUnreachableError where another attempt may help."""
    try:
        path = repo_file(weights.repo, weights.folder, name)
    # What comes from the system, from the client's own check of sizes, and from its faster transfers.
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
            raise CacheError(
                f"{name} of {weights.repo} cannot be written to {constants.HF_HUB_CACHE} ({error.strerror}): free some "
                "space, or set HF_HOME to another disk, and run again"
            ) from error
        raise HubUnreachableError(one_line(error)) from error
    if path is None:
        raise RopewalkError("it is not there any more")
    expected = weights.files[name].sha256
    if expected is not None and file_fingerprint(path) != expected:
        discard(weights.folder, [name], ())
        raise HubUnreachableError("what arrived is not what the hub lists, by its SHA-256")


def discard(folder: Path, names: Collection[str], kept: Collection[str]) -> int:
    """Take files of a commit out of the hub's cache, and their blobs unless they are `kept` or of use to others.

    Of use are blobs that other commits of the repository, or other repositories, hold too. A name that leads out of the
    folder is none of a file there. Returns the bytes freed.
    """
    freed = 0
    for path in (Path(os.path.normpath(folder / name)) for name in names):
        links = list(_links(path)) if path.is_relative_to(folder) else []
        freed_here = links[-1].stat().st_size if links else 0
        for link in links:
            if link != links[0] and (link.name in kept or _is_used(link)):
                freed_here = 0
                break
            link.unlink(missing_ok=True)
        freed += freed_here
    return freed


def _links(path: Path) -> Iterator[Path]:
    """A file in the cache, and what it is a link to: its blob, and where newer clients keep blobs of all repositories.

    What lies outside of the cache is none of it.
    """
    cache = os.path.normpath(constants.HF_HUB_CACHE)
    while path.is_file() and path.is_relative_to(cache):
        yield path
        if not path.is_symlink():
            return
        path = _target(path)


def _is_used(blob: Path) -> bool:
    """Whether anything in the cache is a link to a blob."""
    if blob.parent.name == "blobs":
        links = blob.parents[1].glob("snapshots/*/**/*")
    else:
        # One that is kept for all repositories, of which each that has it holds a link.
        links = blob.parents[2].glob("*--*/blobs/*")
    return any(path.is_symlink() and _target(path) == blob for path in links)


def _target(link: Path) -> Path:
    return Path(os.path.normpath(link.parent / link.readlink()))
