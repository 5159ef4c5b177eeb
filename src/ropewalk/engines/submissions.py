"""Jobs that were submitted and are not waited for: which shards they compute, and what became of them."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.files import write_bytes
from ropewalk.seals import read_sealed_json, sealed_json
from ropewalk.text import install_extra

FOLDER, LIST = "slurm", "submitted.json"
"""Where submitit keeps scripts, inputs and logs of jobs in a results folder, and the list of the jobs there."""

FORGOTTEN = 86400.0
"""Seconds after its time limit when a job of which SLURM knows nothing is taken for ended."""


@dataclass(frozen=True)
class Submission:
    """One job: its number, where it runs (`slurm`, or `here`), its shards, since when, and its time limit."""

    job: str
    cluster: str
    checkpoint: str
    shards: Sequence[int]
    since: float
    minutes: int
    results: str

    @property
    def folder(self) -> Path:
        """Where submitit keeps what belongs to the job."""
        return submissions_folder(Path(self.results))

    def has_ended(self) -> bool:
        """Whether nothing more comes of the job."""
        if self.cluster == "here":
            try:
                os.kill(int(self.job), 0)
            except ProcessLookupError:
                return True
            return False
        job = self._job()
        if job.watcher.get_state(self.job, mode="force") == "UNKNOWN":
            return time.time() - self.since > 60 * self.minutes + FORGOTTEN
        return bool(job.watcher.is_done(self.job, mode="cache"))

    def failures(self) -> Mapping[int, str] | str:
        """Of a job that has ended: the shards that cannot be computed, or why it did not get that far.

        From what the job wrote as JSON: what submitit keeps of results is pickled, and a results folder may come from
        a stranger.
        """
        data = read_sealed_json(failures_path(Path(self.results), self.job))
        if data is None:
            return f"its job {self.job} ended without it (its log is in {self.folder})"
        return {int(number): str(sentence) for number, sentence in data["failures"].items()}

    def _job(self) -> Any:
        submitit = need_submitit()
        kind = submitit.LocalJob if self.cluster == "here" else submitit.SlurmJob
        return kind(folder=self.folder, job_id=self.job)


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


def failures_path(results: Path, job: str) -> Path:
    """Where a job writes the shards that it could not compute."""
    return submissions_folder(results) / f"{job}_failures.json"


def read_submissions(results: Path) -> list[Submission]:
    """The jobs that were submitted for a results folder and not forgotten yet."""
    data = read_sealed_json(submissions_folder(results) / LIST)
    return [] if data is None else [Submission(**one, results=str(results)) for one in data["jobs"]]


def write_submissions(results: Path, submissions: Sequence[Submission]) -> None:
    """Keep the list of jobs; with none left, everything that belongs to jobs goes."""
    folder = submissions_folder(results)
    if submissions:
        jobs = [{name: value for name, value in asdict(one).items() if name != "results"} for one in submissions]
        write_bytes(folder / LIST, sealed_json({"jobs": jobs}))
    elif folder.is_dir():
        rmtree(folder, ignore_errors=True)
