"""Files of hub repositories in the local cache: only those that are needed, all of one commit."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from ropewalk.errors import RopewalkError

LIGHT = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py")
"""Configuration, tokenizer and modelling code: everything of a model but its weights."""

COMMIT = re.compile("[0-9a-f]{40}")

BUSY = (408, 429)
"""Answers, besides those from 500 on, that are about the hub and not about what it was asked."""

_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"
# The client's HTTP library differs between versions of the client: its base exception is taken from the client's own.
_TRANSPORT_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
_BAD_ADDRESS: type[Exception] = getattr(
    sys.modules[_TRANSPORT_ERROR.__module__.split(".")[0]], "InvalidURL", _TRANSPORT_ERROR
)


class HubUnreachableError(RopewalkError):
    """The hub does not answer, or not now: what is known of it already may do."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository on the hub: its size, the name of its blob in the cache, and its SHA-256 where known."""

    size: int
    blob: str
    sha256: str | None


@contextmanager
def hub_errors(repo: str, endpoint: str) -> Iterator[None]:
    """Turn what the hub's client raises about `repo` into one sentence with a remedy."""
    try:
        yield
    except GatedRepoError as error:
        raise RopewalkError(f"{repo} is gated: ask for access on its page on the hub, then {_LOG_IN}") from error
    except RepositoryNotFoundError as error:
        raise RopewalkError(
            f"no repo {repo} on the hub: check the spelling (owner/name), and if it is private, {_LOG_IN}"
        ) from error
    except RevisionNotFoundError as error:
        raise RopewalkError(f"a branch of {repo} went away while it was read: run the command again") from error
    except HFValidationError as error:
        raise RopewalkError(f"'{repo}' is not the name of a hub repo: give it as owner/name") from error
    except OfflineModeIsEnabled as error:
        raise HubUnreachableError(f"HF_HUB_OFFLINE is set, and {repo} is on the hub: unset it and run again") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        passing = status >= 500 or status in BUSY
        kind = HubUnreachableError if passing else RopewalkError
        raise kind(f"the hub answered {status} about {repo}: wait a little and run again") from error
    except (LocalEntryNotFoundError, _TRANSPORT_ERROR, _BAD_ADDRESS) as error:
        raise HubUnreachableError(
            f"cannot reach the hub at {endpoint} for {repo}: check the connection (or HF_ENDPOINT) and run again"
        ) from error


def model_folder(repo: str, revision: str | None) -> Path:
    """A model's folder: a local one as it is, else the cached commit of a hub repository, with its light files."""
    if Path(repo).is_dir():
        return Path(repo)
    if Path(repo).is_absolute():
        raise RopewalkError(f"there is no folder {repo}: put it back, or name another in the study")
    return _commit(repo, revision, constants.ENDPOINT)


def repo_file(repo: str, folder: Path, name: str) -> Path | None:
    """A file of a model in its `folder`, fetched from the hub if `repo` is there; None where there is no such file."""
    if folder == Path(repo):
        return folder / name if (folder / name).is_file() else None
    with _hub(repo, None):
        try:
            return Path(hf_hub_download(repo, name, revision=folder.name))
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            return None


def repo_names(repo: str, folder: Path) -> list[str]:
    """Names of all files at the top of a model's folder or repository."""
    if folder == Path(repo):
        return sorted(path.name for path in folder.iterdir())
    return sorted(remote_files(repo, folder))


def remote_files(repo: str, folder: Path) -> Mapping[str, RemoteFile]:
    """The files of a hub repository at the cached commit `folder`, by name; asked for once, as a commit stays."""
    return _remote_files(repo, folder.name, constants.ENDPOINT)


def dataset_commit(repo: str, revision: str | None) -> str:
    """The commit that a revision of a hub dataset stands at, the same for the life of the process."""
    return revision if revision and COMMIT.fullmatch(revision) else _dataset_commit(repo, revision, constants.ENDPOINT)


def dataset_names(repo: str, revision: str | None) -> tuple[str, list[str]]:
    """The commit of a hub dataset and the names of its files."""
    with _hub(repo, revision):
        info = HfApi().dataset_info(repo, revision=revision)
    return str(info.sha), sorted(sibling.rfilename for sibling in info.siblings or ())


def dataset_folder(repo: str, commit: str, names: Sequence[str]) -> Path:
    """The cached commit of a hub dataset, with the files `names`."""
    with _hub(repo, commit):
        return Path(snapshot_download(repo, repo_type="dataset", revision=commit, allow_patterns=list(names)))


@cache
def _remote_files(repo: str, commit: str, endpoint: str) -> Mapping[str, RemoteFile]:
    del endpoint
    with _hub(repo, commit):
        listed = list(HfApi().list_repo_tree(repo, recursive=True, revision=commit))
    digests = {one.path: one.lfs.sha256 if one.lfs else None for one in listed if isinstance(one, RepoFile)}
    return {
        one.path: RemoteFile(one.size, digests[one.path] or one.blob_id, digests[one.path])
        for one in listed
        if isinstance(one, RepoFile)
    }


@cache
def _dataset_commit(repo: str, revision: str | None, endpoint: str) -> str:
    del endpoint
    return dataset_names(repo, revision)[0]


@cache
def _commit(repo: str, revision: str | None, endpoint: str) -> Path:
    """Remembered for the life of the process: a branch that moves meanwhile cannot mix two commits in one run."""
    del endpoint
    with _hub(repo, revision):
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(LIGHT), ignore_patterns=["*/*"]))


@contextmanager
def without_bars() -> Iterator[None]:
    """While the block runs, the client shows no bars."""
    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()


@contextmanager
def _hub(repo: str, revision: str | None) -> Iterator[None]:
    """Failures become sentences; bars are shown on a terminal only."""
    with nullcontext() if sys.stderr.isatty() else without_bars(), hub_errors(repo, constants.ENDPOINT):
        try:
            yield
        except RevisionNotFoundError as error:
            raise RopewalkError(
                f"{repo} has no revision {revision!r}: `ropewalk checkpoints {repo}` lists its branches"
            ) from error
        except LocalEntryNotFoundError as error:
            raise HubUnreachableError(
                f"the hub cannot be reached and {repo} is not in its cache: "
                "check the connection, or give a local folder"
            ) from error
