"""Hub datasets of documents, held to one commit: a branch moves, and documents must not."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from ropewalk.corpora import Corpus
from ropewalk.files import write_bytes
from ropewalk.models.hub import HubUnreachableError, dataset_commit
from ropewalk.progress import logger
from ropewalk.seals import read_note, sealed_json

COMMITS = "commits.json"
"""Beside token files: the commits that datasets stood at."""


class _Note(BaseModel):
    commits: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{40}$")]]


def is_on_hub(corpus: Corpus) -> bool:
    """Whether the documents are a dataset of the hub, and not of a folder."""
    return corpus.source == "dataset" and not Path(str(corpus.repo)).is_dir()


def pinned(corpus: Corpus, folder: Path, *, note: bool = True) -> Corpus:
    """The corpus with the commit that a hub dataset stands at as its revision.

    It is noted in `folder` (unless nothing is to be written), and looked up there, so that tokens that are there can be
    used where the hub cannot be reached.
    """
    if not is_on_hub(corpus):
        return corpus
    noted = read_note(folder / COMMITS, _Note)
    known = {} if noted is None else noted.commits
    asked = f"{corpus.repo}@{corpus.revision or 'main'}"
    try:
        commit = dataset_commit(str(corpus.repo), corpus.revision)
    except HubUnreachableError:
        if asked not in known:
            raise
        commit = known[asked]
        logger.info("the hub cannot be reached: %s is taken as it was, at commit %s", asked, commit)
    if note and known.get(asked) != commit:
        write_bytes(folder / COMMITS, sealed_json({"commits": known | {asked: commit}}))
    return corpus.model_copy(update={"revision": commit})
