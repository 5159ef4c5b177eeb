"""The engine `ray` on a local cluster of two CPUs: the same bytes, whoever is killed, and without shared storage."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from helpers.workers import Killer, captured, kill_driver
from ropewalk.capture.account import Account
from ropewalk.capture.run import capture_study
from ropewalk.engines import choose_engine
from ropewalk.engines.ray import RayEngine
from ropewalk.errors import IncompleteError, RopewalkError
from ropewalk.placement import Placement
from ropewalk.status import study_status
from ropewalk.studyfile import parse_study

ACTOR = b"ray::_Seat"
"""How the command of an actor begins."""

KILLS = int(os.environ.get("KILLS", "6"))
"""Workers that are killed; `KILLS=30 make ray` takes some minutes more."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two CPUs, which tests of this module share: starting one takes seconds."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_write_the_same_bytes_as_one_process(
    cluster: Any, study_data: dict[str, Any], whole: dict[str, bytes], workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    study = parse_study(study_data)
    with caplog.at_level("INFO", "ropewalk"):
        capture_study(study, engine=choose_engine(Placement(name="ray", workers=workers)))
    assert captured(study.folder) == whole
    assert not (study.folder / "working").exists()
    # What workers say comes here, in one place.
    assert "A (1/2): 4 shards done" in caplog.messages


def test_a_command_joins_a_cluster_that_is_there(
    cluster: Any, study_data: dict[str, Any], whole: dict[str, bytes], tmp_path: Path
) -> None:
    results = tmp_path / "joined"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study_data, "results": str(results), "engine": "ray"}))
    address = cluster.get_runtime_context().gcs_address
    command = [sys.executable, "-c", "from ropewalk.cli import main; main()", "capture", str(tmp_path / "study.yaml")]
    done = subprocess.run([*command, "--address", address], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert captured(results) == whole
    # Still there, and free again.
    assert cluster.cluster_resources()["CPU"] == 2


class WithoutSharedStorage(RayEngine):
    """Workers look for the note of the driver, and do not find it."""

    def __init__(self) -> None:
        super().__init__(Placement(name="ray", workers=2))
        self.sent: list[int] = []

    def run(self, account: Account) -> None:
        note, done = account.note, account.done
        account.note = SimpleNamespace(path=Path("/nowhere"), begin=note.begin, end=note.end)
        account.done = lambda order, number, data: (self.sent.append(len(data)), done(order, number, data))
        super().run(account)


def test_where_there_is_no_shared_storage_shards_are_sent_back(
    cluster: Any, study_data: dict[str, Any], whole: dict[str, bytes]
) -> None:
    study, engine = parse_study(study_data), WithoutSharedStorage()
    capture_study(study, engine=engine)
    assert len(engine.sent) == 8
    assert captured(study.folder) == whole


def test_workers_killed_at_random_moments_lose_nothing(
    cluster: Any, study_data: dict[str, Any], whole: dict[str, bytes], tmp_path: Path
) -> None:
    killed, number = 0, 0
    while killed < KILLS:
        study = parse_study({**study_data, "results": str(tmp_path / f"killed-{number}")})
        with Killer(random.Random(number), kills=min(3, KILLS - killed), marks=(ACTOR,)) as killer:
            for _ in range(5):
                # A shard that is killed in each of its attempts is told; the same command tries it again.
                with suppress(IncompleteError):
                    capture_study(study, engine=choose_engine(Placement(name="ray", workers=2)))
                    break
        assert captured(study.folder) == whole
        killed, number = killed + killer.killed, number + 1
    print(f"{killed} workers killed in {number} runs")


def test_a_shard_that_always_fails_is_named_and_the_rest_is_finished(
    cluster: Any, study_data: dict[str, Any], whole: dict[str, bytes], tmp_path: Path
) -> None:
    """By a statistic of the user's own, which comes along as a file."""
    from ropewalk.statistics.registry import load_plugin

    plugin = tmp_path / "faulty.py"
    plugin.write_text(FAULTY)
    load_plugin(plugin)
    study_data["capture"] = {**study_data["capture"], "statistics": {"moments": {}, "faulty": {"first": 3}}}
    study = parse_study(study_data)
    with pytest.raises(IncompleteError, match=r"(?s)shard 1 of 4: ValueError: not these \(in each of 3 attempts\)"):
        capture_study(study, engine=choose_engine(Placement(name="ray", workers=2)))
    assert [one.missing for one in study_status(study.folder)] == [(1,), (1,)]


FAULTY = """
from ropewalk.statistics.base import Accumulator
from ropewalk.statistics.registry import register
from ropewalk.statistics.base import Statistic
import numpy as np

class Failing(Accumulator):
    def __init__(self, first):
        self.first = first
    def update(self, seen):
        if self.first in list(seen.documents):
            raise ValueError("not these")
    def sums(self):
        return {"none": np.zeros(1)}

@register("faulty")
class Faulty(Statistic):
    first: int
    def accumulator(self, heads, scope):
        return Failing(self.first)
    def values(self, sums, heads, scope):
        return {}
"""


def test_a_killed_driver_leaves_what_the_same_command_goes_on_with(
    study_data: dict[str, Any], whole: dict[str, bytes], tmp_path: Path
) -> None:
    """With a cluster of its own, which ends with it."""
    results = tmp_path / "driver"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study_data, "results": str(results)}))
    command = [sys.executable, "-c", "from ropewalk.cli import main; main()", "capture", str(tmp_path / "study.yaml")]
    command += ["--engine", "ray", "--workers", "2"]
    started = kill_driver(command, results)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert captured(results) == whole
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_cluster_that_is_not_there_and_memory_that_nobody_has(cluster: Any, study_data: dict[str, Any]) -> None:
    with pytest.raises(RopewalkError, match=r"no node of the cluster has 2 CPUs, 0 GPUs and .* of memory for a worker"):
        capture_study(parse_study(study_data), engine=choose_engine(Placement(name="ray", workers=1, memory_gb=1e6)))
    cluster.shutdown()
    with pytest.raises(RopewalkError, match=r"no Ray cluster at '127.0.0.1:9'"):
        capture_study(parse_study(study_data), engine=choose_engine(Placement(name="ray", address="127.0.0.1:9")))
