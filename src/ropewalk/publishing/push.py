"""Pushing a results folder to a dataset on the hub, in one commit."""

from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from ropewalk.errors import RopewalkError
from ropewalk.hubfiles import CARD, NAME, is_ours, pushed_names
from ropewalk.models.hub import dataset_folder, dataset_names, hub_errors
from ropewalk.progress import logger
from ropewalk.publishing.card import card
from ropewalk.record import RECORD, need_record, read_record
from ropewalk.results import load
from ropewalk.text import count, one_line, some
from ropewalk.verify import verify

MAY_NOT = (401, 403)
UNCOUNTED = (".gitattributes",)
"""Files that the hub puts into a new dataset."""


def push(folder: Path, repo: str, *, private: bool = False, sums: bool = True) -> str:
    """Push results as the dataset `owner/name`: tables, figures, report, sums and a card; returns its address.

    The folder must be whole (see `ropewalk verify`), the dataset new, empty or of the same study. What it holds of an
    earlier push and is not there any more is taken away. All of it is one commit.
    """
    if not NAME.fullmatch(repo):
        raise RopewalkError(f"{repo!r} is not the name of a dataset: give it as owner/name")
    record = need_record(folder)
    wrong = [one for one in verify(folder) if one.state is not None]
    if wrong:
        raise RopewalkError(
            f"{count(len(wrong), 'file')} of {folder} not as written ({wrong[0].path.name} is {wrong[0].state}): make "
            f"it whole with `ropewalk verify {folder} --repair` first"
        )
    results = load(folder)
    names = pushed_names(folder, sums=sums)
    local = _local(record.study.model_dump(mode="json"))
    if local:
        logger.warning("%s and report.html name folders of this machine, and are pushed as they are: %s", RECORD, local)
    api = HfApi()
    with hub_errors(repo, constants.ENDPOINT):
        try:
            address = api.create_repo(repo, repo_type="dataset", private=private or None, exist_ok=True)
            before = _before(repo, record.study.name)
            operations: list[Any] = [CommitOperationAdd(name, folder / name) for name in names]
            operations.append(CommitOperationAdd(CARD, card(results, repo, names).encode()))
            gone = [name for name in before if is_ours(name) and name not in (*names, CARD)]
            operations += [CommitOperationDelete(name) for name in gone]
            message = f"ropewalk push: {count(len(names) + 1, 'file')} of {record.study.name}"
            api.create_commit(repo, operations, repo_type="dataset", commit_message=message)
        except RuntimeError as error:
            # So the client says that a file did not arrive, whatever stood against it.
            raise RopewalkError(
                f"a file could not be sent to {repo} ({one_line(error)}): run the same command again; nothing changed"
            ) from error
        except HfHubHTTPError as error:
            if error.response.status_code in MAY_NOT and not isinstance(error, RepositoryNotFoundError):
                raise RopewalkError(
                    f"the hub does not let you write to {repo}: log in with `hf auth login` (a token that may write), "
                    "or name a dataset of your own"
                ) from error
            raise
    return str(address)


def _before(repo: str, study: str) -> list[str]:
    """Names of the files that a dataset holds; one with files that are not those of this study is refused."""
    commit, names = dataset_names(repo, None)
    held = [name for name in names if name not in UNCOUNTED]
    if not held:
        return names
    remedy = "give the name of a new dataset; nothing was written"
    if RECORD not in held:
        raise RopewalkError(f"the dataset {repo} holds {some(held)} and no results: {remedy}")
    known = read_record(dataset_folder(repo, commit, [RECORD]))
    if known is None or known.study.name != study:
        other = "" if known is None else f" {known.study.name!r}"
        raise RopewalkError(f"the dataset {repo} holds the results of another study{other}: {remedy}")
    return names


def _local(study: dict[str, Any]) -> str:
    """Paths of this machine that a study names, a few of them."""
    named = [one.get(field) for one in study["checkpoints"] for field in ("repo", "tokenizer", "source")]
    paths = [str(one) for one in (*named, *study["corpus"]["paths"]) if one and Path(str(one)).is_absolute()]
    return some(dict.fromkeys(paths))
