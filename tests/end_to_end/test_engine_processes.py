"""Engines with real processes: the same bytes from each, workers and drivers killed."""

import random
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.workers import RUNS, Killer, captured, kill_driver
from ropewalk.capture.run import capture_study
from ropewalk.engines import choose_engine
from ropewalk.engines.local import LocalEngine
from ropewalk.errors import IncompleteError
from ropewalk.placement import Placement
from ropewalk.studyfile import parse_study


def test_two_processes_and_three_jobs_write_the_same_bytes_as_one(
    study_data: dict[str, Any], whole: dict[str, bytes], tmp_path: Path
) -> None:
    for number, (placement, wait) in enumerate(
        [(Placement(workers=2), False), (Placement(name="slurm", cluster="here", workers=3), True)]
    ):
        study = parse_study({**study_data, "results": str(tmp_path / str(number))})
        capture_study(study, engine=choose_engine(placement, wait=wait))
        assert captured(study.folder) == whole
        assert {path.name for path in study.folder.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}


def test_workers_killed_at_random_moments_lose_nothing(study_data: dict[str, Any], whole: dict[str, bytes]) -> None:
    study, killer = parse_study(study_data), Killer(random.Random(0), kills=3)
    with killer:
        for _ in range(RUNS):
            shutil.rmtree(study.folder, ignore_errors=True)
            for _ in range(4):
                # A shard that is killed in each of its attempts is told; the same command tries it again.
                with suppress(IncompleteError):
                    capture_study(study, engine=LocalEngine(2))
                    break
            assert captured(study.folder) == whole
            if killer.killed == 3:
                break
    assert killer.killed == 3


def test_a_killed_driver_takes_its_workers_along_and_the_same_command_goes_on(
    study_data: dict[str, Any], whole: dict[str, bytes], tmp_path: Path
) -> None:
    results = tmp_path / "killed"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study_data, "results": str(results)}))
    command = [sys.executable, "-c", "from ropewalk.cli import main; main()", "capture", str(tmp_path / "study.yaml")]
    workers = kill_driver([*command, "--workers", "2"], results)
    assert len(workers) >= 2
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < end, "a worker outlives its driver"
        time.sleep(0.1)
    subprocess.run([*command, "--workers", "2"], stderr=subprocess.DEVNULL, check=True)
    assert captured(results) == whole
    assert not (results / "working").exists()


def test_a_job_that_fails_is_named_by_its_last_line(study_data: dict[str, Any], tmp_path: Path) -> None:
    """The weights go away after the jobs were submitted."""
    shutil.copytree(study_data["defaults"]["repo"], tmp_path / "model")
    study_data["defaults"] = {**study_data["defaults"], "repo": str(tmp_path / "model")}
    study = parse_study(study_data)
    weights = tmp_path / "model" / "model.safetensors"
    engine = choose_engine(Placement(name="slurm", cluster="here", workers=1), wait=True)
    real = engine._submit

    def submit(*arguments: Any) -> None:
        real(*arguments)
        weights.unlink(missing_ok=True)

    engine._submit = submit
    with pytest.raises(IncompleteError, match=r"A: .*has no weights"):
        capture_study(study, engine=engine)
    assert not (study.folder / "slurm").exists()
