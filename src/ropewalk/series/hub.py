"""A checkpoint series on the hub: its branches, and what their files are by metadata, without any weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from ropewalk.errors import RopewalkError
from ropewalk.models.documents import CONFIG, read_document
from ropewalk.models.hub import hub_errors
from ropewalk.models.weights import INDEX, PICKLE_INDEX
from ropewalk.series.branches import Branch, in_order, parse_branch, select
from ropewalk.text import some

READ = (CONFIG, INDEX, PICKLE_INDEX)
"""The only files whose content is fetched: all small."""

_WORKERS = 8


@dataclass(frozen=True)
class File:
    """A file of a branch; `digest` is its SHA-256 where the hub stores it apart from git, else its git blob id."""

    digest: str
    size: int


@dataclass(frozen=True)
class Contents:
    """What one branch holds: its files at the top level, and those of `READ`, parsed (None: not valid JSON)."""

    files: Mapping[str, File]
    documents: Mapping[str, dict[str, Any] | None] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any] | None:
        """The parsed config.json, None where there is none or it cannot be read."""
        return self.documents.get(CONFIG)


@dataclass(frozen=True)
class Series:
    """The checkpoints of a repo in training order, and the names of the branches that no rule reads."""

    repo: str
    branches: tuple[Branch, ...]
    skipped: tuple[str, ...] = ()
    contents: Mapping[str, Contents] = field(default_factory=dict)
    """Branch name to what `scan` found in it; empty before."""

    @property
    def phases(self) -> list[str]:
        """The phases in order, each once."""
        return list(dict.fromkeys(branch.phase for branch in self.branches))


def list_series(repo: str, *, api: HfApi | None = None) -> Series:
    """Read the branches of a hub repo (one request) into an ordered series; branches no rule reads are `skipped`."""
    api = api or HfApi()
    with hub_errors(repo, api.endpoint):
        names = [ref.name for ref in api.list_repo_refs(repo).branches]
    parsed = {name: parse_branch(name) for name in names}
    branches = in_order(branch for branch in parsed.values() if branch is not None)
    skipped = tuple(name for name, branch in parsed.items() if branch is None)
    if not branches:
        raise RopewalkError(
            f"no branch of {repo} is named like a checkpoint (stage1-step-40000, step-1000, step1000, ckpt_100, ...): "
            f"it has {some(skipped) or 'no branches'}; write its checkpoints into a study by hand"
        )
    return Series(repo, tuple(_with_long_context_ranks(branches)), skipped)


def thin(
    series: Series, *, every: int | None = None, log_spaced: int | None = None, phases: Sequence[str] = ()
) -> Series:
    """Keep fewer checkpoints, see `branches.select`."""
    return replace(series, branches=tuple(select(series.branches, every=every, log_spaced=log_spaced, phases=phases)))


def scan(
    series: Series,
    *,
    api: HfApi | None = None,
    progress: Callable[[int, int], object] | None = None,
    one_per_phase: bool = False,
) -> Series:
    """Look into each branch (or the first of each phase): list its files, read its config and weight index.

    One request lists the files of a branch; a config or index that several branches share is fetched once.
    `progress(done, total)` is called after each branch.
    """
    api = api or HfApi()
    branches = (
        {branch.phase: branch for branch in reversed(series.branches)}.values() if one_per_phase else series.branches
    )
    with hub_errors(series.repo, api.endpoint), _no_download_bars(), ThreadPoolExecutor(_WORKERS) as pool:
        try:
            listing = {pool.submit(_files, api, series.repo, branch.name): branch.name for branch in branches}
            files: dict[str, dict[str, File]] = {}
            for done, future in enumerate(as_completed(listing), start=1):
                files[listing[future]] = future.result()
                if progress is not None:
                    progress(done, len(listing))
            reading: dict[tuple[str, str], Future[dict[str, Any] | None]] = {}
            for name in sorted(files):
                for path in READ:
                    if path in files[name] and (path, files[name][path].digest) not in reading:
                        key = path, files[name][path].digest
                        reading[key] = pool.submit(_document, api, series.repo, name, path)
            contents = {
                name: Contents(held, {p: reading[p, held[p].digest].result() for p in READ if p in held})
                for name, held in files.items()
            }
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return replace(series, contents=contents)


def _with_long_context_ranks(branches: Sequence[Branch]) -> list[Branch]:
    orders = sorted({branch.order for branch in branches if branch.short == "LC"})
    rank = {order: f"LC{number}" for number, order in enumerate(orders, start=1)}
    return [replace(branch, short=rank.get(branch.order, branch.short)) for branch in branches]


@contextmanager
def _no_download_bars() -> Iterator[None]:
    """Keep the client from drawing a bar for each small file."""
    group = "huggingface_hub.http_get"
    hidden = are_progress_bars_disabled(group)
    if not hidden:
        disable_progress_bars(group)
    try:
        yield
    finally:
        if not hidden:
            enable_progress_bars(group)


def _files(api: HfApi, repo: str, branch: str) -> dict[str, File]:
    try:
        entries = [entry for entry in api.list_repo_tree(repo, revision=branch) if isinstance(entry, RepoFile)]
    except EntryNotFoundError:  # a branch without any file
        return {}
    return {entry.path: File(entry.lfs.sha256 if entry.lfs else entry.blob_id, entry.size) for entry in entries}


def _document(api: HfApi, repo: str, branch: str, path: str) -> dict[str, Any] | None:
    try:
        return read_document(Path(api.hf_hub_download(repo, path, revision=branch)))
    except ValueError:
        return None
