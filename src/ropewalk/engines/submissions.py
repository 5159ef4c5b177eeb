"""Jobs that were submitted and are not waited for: which shards they compute, and what became of them."""

import time
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any, Literal

from pydantic import Field

from ropewalk.capture.working import is_running
from ropewalk.errors import RopewalkError
from ropewalk.notes import Moment, Note, Number, read_note, write_note
from ropewalk.text import install_extra

FOLDER, LIST = "slurm", "submitted.json"
"""Where submitit keeps scripts, inputs and logs of jobs in a results folder, and the list of the jobs there."""

FORGOTTEN = 86400.0
"""Seconds after its time limit when a job of which SLURM knows nothing is taken for ended."""


class Submission(Note):
    """One job: its number, where it runs (`slurm`, or `here`), its shards, since when, and its time limit."""

    job: Annotated[str, Field(pattern=r"^[0-9]{1,18}(_[0-9]{1,9})?$")]
    cluster: Literal["slurm", "here"]
    checkpoint: str
    shards: tuple[Number, ...]
    since: Moment
    minutes: Number

    def has_ended(self, results: Path) -> bool:
        """Whether nothing more comes of the job."""
        if self.cluster == "here":
            return not is_running(int(self.job.split("_")[0]))
        watcher = need_submitit().SlurmJob(folder=submissions_folder(results), job_id=self.job).watcher
        if watcher.get_state(self.job, mode="force") == "UNKNOWN":
            return time.time() - self.since > 60 * self.minutes + FORGOTTEN
        return bool(watcher.is_done(self.job, mode="cache"))

    def outcome(self, results: Path) -> "Outcome | None":
        """What the job told when it ended; None if it did not get that far.

        It is JSON: what submitit keeps of results is pickled, and a results folder may come from a stranger.
        """
        return read_note(outcome_path(results, self.job), Outcome)


class Outcome(Note):
    """What a job tells at its end: the shards that cannot be computed, or that nothing could be written any more."""

    failures: dict[int, str] = Field(default_factory=dict)
    cannot_write: str | None = None


class _Submissions(Note):
    jobs: tuple[Submission, ...]


def need_submitit() -> Any:
    """The package submitit, or how to install it."""
    try:
        import submitit
    except ImportError as error:
        raise RopewalkError(f"the engine `slurm` needs submitit: {install_extra('slurm')}") from error
    return submitit


def submissions_folder(results: Path) -> Path:
    """Where submitit keeps what belongs to jobs."""
    return results.absolute() / FOLDER


def outcome_path(results: Path, job: str) -> Path:
    """Where a job tells how it ended."""
    return submissions_folder(results) / f"{job}_outcome.json"


def read_submissions(results: Path) -> list[Submission]:
    """The jobs that were submitted for a results folder and not forgotten yet."""
    known = read_note(submissions_folder(results) / LIST, _Submissions)
    return [] if known is None else list(known.jobs)


def write_submissions(results: Path, submissions: Sequence[Submission]) -> None:
    """Keep the list of jobs; with none left, everything that belongs to jobs goes."""
    folder = submissions_folder(results)
    if submissions:
        write_note(folder / LIST, _Submissions(jobs=tuple(submissions)))
    elif folder.is_dir():
        rmtree(folder, ignore_errors=True)
