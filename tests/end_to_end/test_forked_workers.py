"""Workers that are forked from a process begun ahead: the same bytes, and nothing of it left, however a run ends."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.workers import Killer, captured, commands_of, of_session
from ropewalk.capture.run import capture_study
from ropewalk.engines import forks, local
from ropewalk.engines.forks import Forks, forks_ahead, taken_forks
from ropewalk.engines.local import LocalEngine
from ropewalk.errors import IncompleteError
from ropewalk.placement import Placement
from ropewalk.studyfile import parse_study

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")

TWO = Placement(workers=2)
ROPEWALK = [sys.executable, "-c", "from ropewalk.cli import main; main()"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not forks._begun
    # Spawned workers leave a tracker behind that Python keeps until it ends.
    assert not [one for one in commands_of(os.getpid()).values() if b"resource_tracker" not in one]


@pytest.fixture
def study_file(study_data: dict[str, Any], whole: dict[str, bytes], tmp_path: Path) -> Path:
    del whole  # it chooses the statistics
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study_data, "results": str(tmp_path / "results")}))
    return tmp_path / "study.yaml"


class Watched(LocalEngine):
    """An engine that notes the commands of its processes when a shard is done."""

    def run(self, account: Any) -> None:
        self.seen: set[bytes] = set()
        done = account.done

        def noted(*arguments: Any) -> None:
            self.seen |= set(commands_of(os.getpid()).values())
            done(*arguments)

        account.done = noted
        super().run(account)

    def saw(self, mark: bytes) -> bool:
        return any(mark in command for command in self.seen)


def begun(arguments: list[str], **options: Any) -> "subprocess.Popen[str]":
    """A command in a session of its own."""
    return subprocess.Popen(
        [*ROPEWALK, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    )


def gone(session: int, seconds: float) -> bool:
    """Whether nothing of a session is left after so many seconds."""
    end = time.monotonic() + seconds
    while of_session(session) and time.monotonic() < end:
        time.sleep(0.02)
    return not of_session(session)


def test_forked_workers_write_the_same_bytes(
    study_data: dict[str, Any], whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, engine = parse_study(study_data), Watched(2)
    with forks_ahead(TWO):
        monkeypatch.setenv("ANY_OTHER", "variable")
        capture_study(study, engine=engine)
        assert not commands_of(os.getpid()), "what workers are forked from ends with the capture"
    assert captured(study.folder) == whole
    assert engine.saw(b"engines.forks")
    assert not engine.saw(b"spawn_main")


@pytest.mark.parametrize("why", ["environment", "import", "killed", "gpu", "not ahead"])
def test_where_none_can_be_forked_they_are_started_as_ever(
    study_data: dict[str, Any], whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    study, engine = parse_study(study_data), Watched(2)
    if why == "import":
        late = "attend.__globals__['NEEDED'] = ['no_such']; attend(end"
        monkeypatch.setattr(forks, "_BEGIN", forks._BEGIN.replace("attend(end", late))
    with forks_ahead(Placement(workers=1) if why == "not ahead" else TWO):
        if why == "environment":
            monkeypatch.setenv("MKL_NUM_THREADS", "1")
        if why == "killed":
            forks._begun[0]._process.kill()
        if why == "gpu":
            monkeypatch.setattr(local, "_on_cpu", lambda _: False)
        capture_study(study, engine=engine)
    assert captured(study.folder) == whole
    assert engine.saw(b"spawn_main")


def test_a_model_on_another_device_is_not_forked(study_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    import torch

    def account(**fields: Any) -> Any:
        checkpoints = [one.model_copy(update=fields) for one in parse_study(study_data).checkpoints]
        return SimpleNamespace(orders=[SimpleNamespace(checkpoint=one) for one in checkpoints])

    assert local._on_cpu(account(device="cpu"))
    assert not local._on_cpu(account(device_map="auto"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not local._on_cpu(account(device="auto"))
    assert local._on_cpu(account(device="cpu"))


def test_any_of_them_killed_at_random_moments_loses_nothing(
    study_data: dict[str, Any], whole: dict[str, bytes]
) -> None:
    study, killer = parse_study(study_data), Killer(random.Random(1), kills=4, marks=(b"engines.forks",))
    with killer:
        for _ in range(6):
            with suppress(IncompleteError), forks_ahead(TWO):
                capture_study(study, engine=LocalEngine(2))
                break
    assert captured(study.folder) == whole


def test_how_a_worker_ended_is_known_until_nobody_is_left_who_knows() -> None:
    import multiprocessing

    made = Forks()
    ours, theirs = multiprocessing.Pipe()
    worker = made.fork(theirs, 1, None)
    theirs.close()
    assert worker is not None
    worker.kill()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    with pytest.raises(EOFError):
        ours.recv()
    ours, theirs = multiprocessing.Pipe()
    worker = made.fork(theirs, 1, None)
    theirs.close()
    assert worker is not None
    made._process.kill()
    made._process.wait()
    worker.kill()
    worker.join()
    assert worker.exitcode is None
    assert Path(f"/proc/{worker.pid}").exists()
    made.close()
    with pytest.raises(EOFError):
        ours.recv()


def test_it_is_begun_only_for_several_processes_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for placement in (Placement(), Placement(workers=1), Placement(name="ray", workers=2)):
        with forks_ahead(placement):
            assert taken_forks() is None
    with forks_ahead(TWO), forks_ahead(TWO):
        assert len(forks._begun) == 1
    monkeypatch.setattr(sys, "platform", "darwin")
    with forks_ahead(TWO):
        assert taken_forks() is None


def test_to_begin_it_needs_no_torch() -> None:
    code = "import sys; import ropewalk.engines.forks; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_command_forks_and_one_with_nothing_to_do_leaves_nothing(
    study_file: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    for expected in (True, False):
        command, seen = begun(["capture", str(study_file), "--workers", "2"]), set[bytes]()
        while command.poll() is None:
            seen |= set(commands_of(command.pid).values())
            time.sleep(0.02)
        assert command.communicate()[1].count("\n") > 1
        assert command.returncode == 0
        assert not of_session(command.pid)
        assert any(b"engines.forks" in one for one in seen), expected
        assert not any(b"spawn_main" in one for one in seen)
    assert captured(tmp_path / "results") == whole


def test_a_study_that_is_refused_ends_with_its_sentence_and_nothing_else(study_file: Path) -> None:
    study = yaml.safe_load(study_file.read_text())
    study["corpus"]["paths"] = ["nowhere/*.txt"]
    study_file.write_text(yaml.safe_dump(study))
    command = begun(["capture", str(study_file), "--workers", "2"])
    _, said = command.communicate(timeout=120)
    assert command.returncode == 2
    assert said.startswith("ropewalk: ")
    assert said.count("\n") == 1
    assert not of_session(command.pid)


@pytest.mark.parametrize("seconds", [0.3, 2.0, None])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_whenever_a_command_is_stopped_nothing_outlives_it(
    study_file: Path, tmp_path: Path, how: signal.Signals, seconds: float | None
) -> None:
    command = begun(["capture", str(study_file), "--workers", "2"])
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
    if how is signal.SIGINT and command.returncode == 130:
        assert said.endswith("ropewalk: stopped; the same command goes on where it was\n")
        assert "Traceback" not in said
        assert not of_session(command.pid)
    assert gone(command.pid, 30)


SCRIPT = """
import sys
import ropewalk
import numpy as np

@ropewalk.register("own")
class Own(ropewalk.Statistic):
    def observe(self, seen):
        import torch

        return {"count": torch.ones(1)}

    def values(self, sums, heads, scope):
        return {"own": np.full(len(heads.heads), 1.0)}

def work():
    from ropewalk.capture.run import capture_study
    from ropewalk.engines.forks import forks_ahead
    from ropewalk.engines import choose_engine
    study = ropewalk.load_study(sys.argv[1])
    with forks_ahead(study.engine):
        capture_study(study, engine=choose_engine(study.engine))

print("imported as", __name__)
"""


def test_what_a_script_defines_is_known_to_workers(study_file: Path, tmp_path: Path) -> None:
    study = yaml.safe_load(study_file.read_text())
    study["capture"]["statistics"] = ["moments", "own"]
    study_file.write_text(yaml.safe_dump({**study, "engine": {"workers": 2}}))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + 'if __name__ == "__main__":\n    work()\n')
    ended = subprocess.run([sys.executable, str(script), str(study_file)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["imported as __main__", *["imported as __mp_main__"] * 2]
    assert len(list(tmp_path.glob("results/captures/*/shard-*"))) == 8


def test_a_script_without_a_guard_is_told_so(study_file: Path, tmp_path: Path) -> None:
    study_file.write_text(yaml.safe_dump({**yaml.safe_load(study_file.read_text()), "engine": {"workers": 2}}))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "work()\n")
    ended = subprocess.run([sys.executable, str(script), str(study_file)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "freeze_support" in ended.stderr
    assert "IncompleteError" in ended.stderr
