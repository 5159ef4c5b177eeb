"""Workers that are forked from a process which imports beside the command: the same bytes, and nothing of it left."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from helpers.workers import FORKED, RUNS, SPAWNED, Killer, captured, commands_of, of_session
from ropewalk.engines import ahead, local
from ropewalk.placement import Placement
from ropewalk.studyfile import parse_study

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")

ROPEWALK = [sys.executable, "-c", "from ropewalk.cli import main; main()"]


@pytest.fixture
def study_file(study_data: dict[str, Any], whole: dict[str, bytes], tmp_path: Path) -> Path:
    del whole  # it chooses the statistics
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study_data, "results": str(tmp_path / "results")}))
    return tmp_path / "study.yaml"


def begun(study: Path, command: list[str] = ROPEWALK, **options: Any) -> "subprocess.Popen[str]":
    """A capture by two workers in a session of its own."""
    arguments = [*command, "capture", str(study), "--workers", "2"]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, start_new_session=True, **options)


def watched(command: "subprocess.Popen[str]") -> tuple[set[bytes], str]:
    """The commands of the processes that it had until it ended, and what it said."""
    seen: set[bytes] = set()
    while command.poll() is None:
        seen |= set(commands_of(command.pid).values())
        time.sleep(0.02)
    return seen, command.communicate()[1]


def has(seen: set[bytes], mark: bytes) -> bool:
    return any(mark in one for one in seen)


def gone(session: int, seconds: float = 30) -> bool:
    """Whether nothing of a session is left after so many seconds."""
    end = time.monotonic() + seconds
    while of_session(session) and time.monotonic() < end:
        time.sleep(0.02)
    return not of_session(session)


def test_forked_workers_write_the_same_bytes(study_file: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    command = begun(study_file)
    seen, said = watched(command)
    assert command.returncode == 0, said
    assert captured(tmp_path / "results") == whole
    assert has(seen, FORKED)
    assert not has(seen, SPAWNED)
    assert gone(command.pid)


def test_where_variables_were_changed_since_they_are_spawned(
    study_file: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    late = (
        "import os; from ropewalk.engines import ahead; begin = ahead.import_ahead\n"
        "def then_change(placement):\n    begin(placement); os.environ['MKL_NUM_THREADS'] = '1'\n"
        "ahead.import_ahead = then_change; from ropewalk.cli import main; main()"
    )
    seen, said = watched(begun(study_file, [sys.executable, "-c", late]))
    assert captured(tmp_path / "results") == whole, said
    assert has(seen, SPAWNED)


def test_nothing_is_imported_from_the_current_folder(study_file: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('imported from the current folder')")
    command = begun(study_file, [sys.executable, "-P", "-c", ROPEWALK[2]], cwd=tmp_path)
    seen, said = watched(command)
    assert command.returncode == 0, said
    assert "current folder" not in said
    assert has(seen, FORKED)
    assert captured(tmp_path / "results") == whole


def test_any_of_them_killed_at_random_moments_loses_nothing(
    study_file: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    killed = 0
    for attempt in range(RUNS):
        command = begun(study_file)
        with Killer(random.Random(attempt), kills=2, marks=(FORKED,), parent=command.pid) as killer:
            command.communicate()
        killed += killer.killed
        if command.returncode == 0 and killed > 1:
            break
        if command.returncode == 0:
            next((tmp_path / "results").glob("captures/*/shard-*")).unlink()
    assert killed > 1
    assert captured(tmp_path / "results") == whole


def test_they_are_forked_only_where_models_are_on_the_cpu(
    study_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def account(**fields: Any) -> Any:
        checkpoints = [one.model_copy(update=fields) for one in parse_study(study_data).checkpoints]
        return SimpleNamespace(orders=[SimpleNamespace(checkpoint=one) for one in checkpoints])

    assert local._on_cpu(account(device="cpu"))
    assert not local._on_cpu(account(device_map="auto"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not local._on_cpu(account(device="auto"))
    assert local._on_cpu(account(device="cpu"))


def test_how_a_worker_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    failing: list[type[Exception]] = []

    def context(method: str) -> Any:
        def start() -> None:
            if method == "forkserver" and failing:
                raise failing[0]

        return SimpleNamespace(Process=lambda **_: SimpleNamespace(start=start, method=method))

    def method(*, on_cpu: bool = True) -> str:
        found: Any = ahead.started(print, on_cpu=on_cpu)
        return str(found.method)

    monkeypatch.setattr(ahead.multiprocessing, "get_context", context)
    monkeypatch.setattr(ahead, "_known", [ahead._read_early()])
    assert method() == "forkserver"
    assert method(on_cpu=False) == "spawn"
    for error in (EOFError, ConnectionRefusedError):
        failing[:] = [error]
        assert method() == "spawn"
    failing.clear()
    monkeypatch.setenv("HF_HOME", "elsewhere")
    assert method() == "spawn"
    monkeypatch.setattr(ahead, "_known", [])
    assert method() == "spawn"


@pytest.mark.parametrize(
    ("placement", "platform", "expected"),
    [
        ({"workers": 2}, "linux", 1),
        ({"workers": 2}, "darwin", 0),
        ({}, "linux", 0),
        ({"workers": 1}, "linux", 0),
        ({"name": "ray", "workers": 2}, "linux", 0),
    ],
)
def test_it_is_begun_only_for_several_processes_of_this_machine(
    placement: Mapping[str, Any], platform: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(ahead, "_known", [])
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ahead.multiprocessing, "set_forkserver_preload", lambda _: None)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: found.append(os.environ["PYTHONSAFEPATH"]))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    ahead.import_ahead(Placement(**placement))
    ahead.import_ahead(Placement(**placement))
    assert found == ["1"] * expected
    assert "PYTHONSAFEPATH" not in os.environ
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_to_begin_it_needs_no_torch() -> None:
    code = "import sys; import ropewalk.engines.ahead; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_study_that_is_refused_ends_with_its_sentence_and_nothing_else(study_file: Path) -> None:
    study = yaml.safe_load(study_file.read_text())
    study["corpus"]["paths"] = ["nowhere/*.txt"]
    study_file.write_text(yaml.safe_dump(study))
    command = begun(study_file)
    _, said = command.communicate(timeout=120)
    assert command.returncode == 2
    assert said.startswith("ropewalk: ")
    assert said.count("\n") == 1
    assert gone(command.pid)


@pytest.mark.parametrize("seconds", [0.3, 2.0, None])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_whenever_a_command_is_stopped_nothing_outlives_it(
    study_file: Path, tmp_path: Path, how: signal.Signals, seconds: float | None
) -> None:
    command = begun(study_file)
    while command.poll() is None and not commands_of(command.pid):
        time.sleep(0.01)
    if seconds is not None:
        time.sleep(seconds)
    while seconds is None and command.poll() is None and not list(tmp_path.glob("results/captures/*/shard-*")):
        time.sleep(0.01)
    if how is signal.SIGINT:
        # As from a terminal, which tells all of them.
        os.killpg(command.pid, how)
    else:
        command.send_signal(how)
    _, said = command.communicate(timeout=60)
    if how is signal.SIGINT:
        assert command.returncode == 130
        assert said.endswith("ropewalk: stopped; the same command goes on where it was\n")
        assert "Traceback" not in said
    assert gone(command.pid)


@pytest.mark.parametrize(("modules", "is_short"), [(ahead.NEEDED, "True"), (["ropewalk.engines.worker"], "False")])
def test_the_process_that_workers_are_forked_from_ends_without_a_search(modules: list[str], is_short: str) -> None:
    """Who reads a command's output to its end waits for it too; what workers need has no short end by itself."""
    # What is registered first is called last.
    code = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0)); "
    ended = subprocess.run(
        [sys.executable, "-c", code + f"import {', '.join(modules)}"], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, is_short)
