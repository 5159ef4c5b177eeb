"""Jobs of SLURM: the script that is submitted, what is known of jobs afterwards, and what they tell at their end."""

import json
import os
import platform
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.command import Run
from helpers.workers import captured
from ropewalk.capture.account import ComputedElsewhereError
from ropewalk.capture.run import capture_study
from ropewalk.capture.shards import shard_path
from ropewalk.engines import choose_engine
from ropewalk.engines import slurm as engine
from ropewalk.engines.schedule import ATTEMPTS
from ropewalk.engines.submissions import LIST, Outcome, Submission, read_submissions, submissions_folder
from ropewalk.errors import IncompleteError, RopewalkError
from ropewalk.files import CannotWriteError
from ropewalk.placement import Placement
from ropewalk.seals import sealed_json
from ropewalk.study import Study
from ropewalk.studyfile import parse_study

SBATCH = """#!{python}
import json, pathlib, sys
home = pathlib.Path(__file__).parent
state = json.loads((home / "state.json").read_text())
if pathlib.Path(sys.argv[0]).name == "sbatch":
    (home / f"script-{{len(state)}}.sh").write_text(pathlib.Path(sys.argv[1]).read_text())
    state[str(100 + len(state))] = "PENDING"
    (home / "state.json").write_text(json.dumps(state))
    print(f"Submitted batch job {{99 + len(state)}}")
else:
    print("JobID|State|NodeList")
    for job, word in state.items():
        print(f"{{job}}|{{word}}|n1")
        for element in range(9):
            print(f"{{job}}_{{element}}|{{word}}|n1")
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands of SLURM that keep what they are given, and say of all jobs what `state.json` says."""
    home = tmp_path / "slurm-commands"
    home.mkdir()
    (home / "state.json").write_text("{}")
    for name in ("sbatch", "srun", "sacct"):
        (home / name).write_text(SBATCH.format(python=sys.executable))
        (home / name).chmod((home / name).stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    return home


def submit(study: Study) -> str:
    with pytest.raises(ComputedElsewhereError) as told:
        capture_study(study, engine=choose_engine(study.engine))
    return str(told.value)


def test_the_script_that_slurm_gets(study_data: dict[str, Any], slurm: Path, run: Run) -> None:
    options = {"partition": "gpu", "account": "physics", "clusters": "north"}
    engine = {"name": "slurm", "workers": 4, "gpus": 1, "cpus": 6, "minutes": 90, "memory_gb": 12.5, "options": options}
    study = parse_study({**study_data, "engine": engine})
    assert "8 shards of 'small' are with SLURM (4 jobs submitted now)" in submit(study)
    script = (slurm / "script-0.sh").read_text()
    for line in (
        "--array=0-3%4",
        "--job-name=ropewalk-small",
        "--partition=gpu",
        "--account=physics",
        "--clusters=north",
        "--gpus-per-node=1",
        "--cpus-per-task=6",
        "--mem=13GB",
        "--time=90",
    ):
        assert f"#SBATCH {line}\n" in script
    jobs = read_submissions(study.folder)
    assert [(one.job, one.checkpoint, list(one.shards)) for one in jobs] == [
        ("100_0", "first", [0, 1]),
        ("100_1", "first", [2, 3]),
        ("100_2", "second", [0, 1]),
        ("100_3", "second", [2, 3]),
    ]
    # What is under way is not submitted again, and is told to be queued.
    assert "(0 jobs submitted now)" in submit(study)
    assert "in all: 0 of 8 shards done, 0 running, 8 queued, 0 missing" in run("status", str(study.folder))[1]
    # What ended without its shards is; time and memory come from the plan, then.
    (slurm / "state.json").write_text(json.dumps({"100": "TIMEOUT"}))
    assert "(2 jobs submitted now)" in submit(parse_study({**study_data, "engine": "slurm"}))
    script = (slurm / "script-1.sh").read_text()
    assert "#SBATCH --mem=3GB\n" in script
    assert "#SBATCH --time=20\n" in script
    assert "gpu" not in script.replace("gpus-per-node=0", "")
    # What is computed otherwise in the meantime leaves nothing of the jobs.
    (slurm / "state.json").write_text(json.dumps({"101": "CANCELLED"}))
    capture_study(study)
    capture_study(study, engine=choose_engine(study.engine))
    assert not (study.folder / "slurm").exists()


def test_without_slurm_it_says_so(study_data: dict[str, Any]) -> None:
    study = parse_study({**study_data, "engine": "slurm"})
    with pytest.raises(RopewalkError, match=r"SLURM did not take the jobs .*run this where `sbatch` is"):
        capture_study(study, engine=choose_engine(study.engine))


class Jobs:
    """In place of submitit: jobs that run at once in this process, the first few of which do nothing."""

    FailedSubmissionError = RuntimeError

    def __init__(self, monkeypatch: pytest.MonkeyPatch, idle: int = 0) -> None:
        self.ran, self._idle = 0, idle
        self.core = self.utils = self
        monkeypatch.setattr(engine, "need_submitit", lambda: self)
        monkeypatch.setattr(engine, "PATIENCE", 0.0)

    def AutoExecutor(self, **_: Any) -> "Jobs":  # noqa: N802
        return self

    def JobEnvironment(self) -> "Jobs":  # noqa: N802
        return self

    def update_parameters(self, **_: Any) -> None:
        pass

    @property
    def job_id(self) -> str:
        return f"{2**22 + self.ran}"  # beyond what processes are numbered by

    def map_array(self, work: Callable[..., None], *columns: Any) -> list[Any]:
        jobs = []
        for arguments in zip(*columns, strict=True):
            self.ran += 1
            if self.ran > self._idle:
                work(*arguments)
            jobs.append(SimpleNamespace(job_id=self.job_id, done=lambda: True))
        return jobs


def waiting() -> Any:
    return choose_engine(Placement(name="slurm", cluster="here"), wait=True)


def test_a_damaged_shard_that_is_there_has_not_come(
    study_data: dict[str, Any], whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, jobs = parse_study(study_data), Jobs(monkeypatch, idle=1)
    capture_study(study)
    path = shard_path(study.folder / "captures" / "first", 1)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    capture_study(study, engine=waiting())
    assert jobs.ran == 2
    assert captured(study.folder) == whole
    assert not submissions_folder(study.folder).exists()


def test_jobs_that_never_bring_their_shards_are_named(
    study_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, jobs = parse_study(study_data), Jobs(monkeypatch, idle=100)
    with pytest.raises(IncompleteError, match=r"A: its job \d+ ended without it \(its log is in .*3 attempts\)"):
        capture_study(study, engine=waiting())
    assert jobs.ran == 2 * ATTEMPTS


def test_what_a_job_cannot_write_stops_everything(study_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise CannotWriteError("no space left for it: free some space")

    study, jobs = parse_study(study_data), Jobs(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr("ropewalk.engines.hand.write_bytes", full)
        with pytest.raises(CannotWriteError, match="no space left for it: free some space"):
            capture_study(study, engine=waiting())
    assert jobs.ran == 2
    # With more space the same command goes on.
    capture_study(study, engine=waiting())
    assert jobs.ran == 4


def test_a_package_that_is_not_there_is_named(study_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, package, words in (("slurm", "submitit", "needs submitit"), ("ray", "ray", "needs Ray")):
        study = parse_study({**study_data, "engine": name})
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, package, None)
            with pytest.raises(RopewalkError, match=rf"the engine `{name}` {words}: pip install 'ropewalk\[{name}\]'"):
                capture_study(study, engine=choose_engine(study.engine))


JOB = {"job": "7_0", "cluster": "slurm", "checkpoint": "first", "shards": [1], "since": 1e9, "minutes": 10}
WORKER = {"engine": "local", "host": platform.node(), "pid": os.getpid(), "since": 1e9, "shards": {"first": [1]}}
NONSENSE: list[Any] = [None, True, -1, 2**80, 1e400, "x", "../../x", "\x1b[2J", [], [[]], [-1], [2**80], {}, {"a": "b"}]


def written(folder: Path, name: str, data: dict[str, Any]) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(sealed_json(data))


@pytest.mark.parametrize("field", [*JOB, "jobs", "more"])
def test_a_strangers_list_of_jobs_is_not_believed(
    study_data: dict[str, Any], run: Run, slurm: Path, field: str
) -> None:
    study = parse_study(study_data)
    capture_study(study, shards=[0])
    for value in NONSENSE:
        data = {"jobs": value} if field == "jobs" else {"jobs": [{**JOB, field: value}]}
        written(study.folder, f"slurm/{LIST}", data)
        code, said, _ = run("status", str(study.folder))
        assert code == 0
        assert "in all: 2 of 8 shards done" in said
        assert "\x1b" not in said
    # What is right is, so that this can fail.
    written(study.folder, f"slurm/{LIST}", {"jobs": [{**JOB, "since": time.time()}]})
    assert "1 queued" in run("status", str(study.folder))[1]


@pytest.mark.parametrize("field", [*WORKER, "more"])
def test_a_strangers_note_of_who_works_is_not_believed(study_data: dict[str, Any], run: Run, field: str) -> None:
    study = parse_study(study_data)
    capture_study(study, shards=[0])
    for value in NONSENSE:
        written(study.folder, "working/a.json", {**WORKER, field: value})
        code, said, _ = run("status", str(study.folder))
        assert code == 0
        assert "in all: 2 of 8 shards done" in said
        assert "\x1b" not in said
    written(study.folder, "working/a.json", WORKER)
    assert "1 running" in run("status", str(study.folder))[1]
    # Nor does it keep a run from its work.
    written(study.folder, "working/a.json", {**WORKER, field: NONSENSE})
    capture_study(study)


def test_what_a_job_told_is_checked(tmp_path: Path) -> None:
    job = Submission(**{**JOB, "shards": (1,)})
    for value in NONSENSE:
        written(tmp_path, "slurm/7_0_outcome.json", {"failures": value})
        assert not (job.outcome(tmp_path) or Outcome()).failures
    written(tmp_path, "slurm/7_0_outcome.json", {"failures": {"1": "why"}})
    assert job.outcome(tmp_path) == Outcome(failures={1: "why"})
