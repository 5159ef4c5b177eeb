"""Figures drawn in several processes: the same files, the same order, the same errors, and nobody left behind."""

import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.tables import leave_one_out, synthetic
from ropewalk.figures import gallery, helper, sharing
from ropewalk.figures.sharing import Task, shared, spare_processes
from ropewalk.figures.style import png
from ropewalk.summary.view import View

FIGURES = ("position_signal", "explained_variance", "concordance")


@pytest.fixture
def view() -> View:
    table = synthetic(2, heads=20)
    return View.of(table, leave_one_out(table))


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "SHARE", 1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """The processes of helpers."""
    known = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            known.append(self)

    monkeypatch.setattr(sharing.subprocess, "Popen", Noted)
    return known


def tasks(folder: Path, figures=FIGURES) -> list[Task]:
    return [Task(figure, folder / figure, {}) for figure in figures]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.*"))}


def test_a_helper_writes_the_same_files_and_they_are_told_in_order(view, tmp_path, started):
    own = []

    def write(task: Task) -> None:
        # The helper has the time to draw what is left.
        deadline = time.monotonic() + 60
        while not (tmp_path / "both/explained_variance/README.md").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        own.append(task.figure)
        gallery.write_task(task, view, "qk.csv")

    told = [task.figure for task in shared(tasks(tmp_path / "both"), write, view, "qk.csv", helpers=1)]
    assert told == list(FIGURES)
    assert own == ["position_signal"]
    assert len(started) == 1
    assert started[0].returncode is not None
    for task in tasks(tmp_path / "alone"):
        gallery.write_task(task, view, "qk.csv")
    assert files(tmp_path / "both") == files(tmp_path / "alone")


def test_the_gallery_takes_as_many_helpers_as_it_is_told(view, tmp_path, started, monkeypatch):
    monkeypatch.setattr(gallery, "FIGURES", tuple(gallery.find(name) for name in FIGURES))
    said = []
    folders = gallery.write_figures(view, tmp_path / "one", "qk.csv", done=said.append)
    assert not started
    assert gallery.write_figures(view, tmp_path / "two", "qk.csv", done=said.append, helpers=1) == said[3:]
    assert len(started) == 1
    assert folders == said[:3]
    assert [folder.name for folder in folders] == [folder.name for folder in said[3:]]
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_what_a_helper_cannot_do_is_done_here_with_the_same_error(view, tmp_path, started):
    here = []

    def write(task: Task) -> None:
        here.append(task.figure)
        if task.figure == "no such figure":
            raise ValueError("as it is said here")

    wanted = tasks(tmp_path, ("position_signal", "no such figure"))
    drawing = shared(wanted, write, view, "qk.csv", helpers=1)
    assert next(drawing).figure == "position_signal"
    with pytest.raises(ValueError, match=r"^as it is said here$"):
        list(drawing)
    assert here[-1] == "no such figure"
    assert started[0].returncode is not None


def test_a_helper_that_is_killed_leaves_its_work_to_others(view, tmp_path, started):
    here = []

    def write(task: Task) -> None:
        started[0].kill()
        started[0].wait()
        here.append(task.figure)

    assert len(list(shared(tasks(tmp_path), write, view, "qk.csv", helpers=1))) == len(FIGURES)
    assert sorted(here) == sorted(FIGURES)


@pytest.mark.parametrize("reason", ["few", "large", "unknown", "no python"])
def test_where_a_helper_is_of_no_use_there_is_none(reason, view, tmp_path, started, monkeypatch):
    if reason == "few":
        monkeypatch.setattr(sharing, "SHARE", 2)
    elif reason == "large":
        monkeypatch.setattr(sharing, "LARGEST", 1000)
    elif reason == "unknown":
        view = replace(view, tables={"odd": lambda: None})
    else:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    here = []
    assert len(list(shared(tasks(tmp_path), lambda task: here.append(task.figure), view, "qk.csv", 1))) == 3
    assert here == list(FIGURES)
    assert not started


def test_a_warning_is_heard_where_people_are(view, tmp_path, monkeypatch):
    monkeypatch.setattr(helper, "write_task", lambda *_: warnings.warn("odd", stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert not helper._is_written(tasks(tmp_path)[0], view, "qk.csv")
    monkeypatch.setattr(helper, "write_task", lambda *_: None)
    assert helper._is_written(tasks(tmp_path)[0], view, "qk.csv")


def test_an_interruption_ends_helpers(view, tmp_path, started):
    def write(task: Task) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(shared(tasks(tmp_path), write, view, "qk.csv", helpers=2))
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_killed_parent_leaves_no_helper(tmp_path):
    script = """
import os, sys, time
from helpers.tables import synthetic
from ropewalk.figures import sharing
from ropewalk.summary.view import View
def write(task):
    time.sleep(1)
    print(crew[0].pid, flush=True)
    time.sleep(60)
crew = []
class Noted(sharing.subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        crew.append(self)
sharing.subprocess.Popen, sharing.SHARE = Noted, 1
tasks = [sharing.Task(name, sharing.Path(sys.argv[1]) / name, {}) for name in ("concordance", "position_signal")]
list(sharing.shared(tasks, write, View.of(synthetic(2, heads=20)), "qk.csv", 1))
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        helper = int(parent.stdout.readline())
        # As a terminal sends Control-C to both; the helper leaves it to its parent.
        os.kill(helper, signal.SIGINT)
        parent.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{helper}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{helper}").exists()


def test_helpers_do_not_load_torch():
    code = "import sys, ropewalk.figures.helper; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_machine_with_one_core_has_no_room(monkeypatch):
    for cores, helpers in ((1, 0), (2, 1), (64, sharing.MOST)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert spare_processes() == helpers


def test_a_bare_view_is_the_same_without_what_was_read(view):
    before = png(gallery.find("position_signal").draw(view))
    turned = view.with_columns("")
    turned.track("mean_r_q")
    bare = turned.bare()
    assert not bare._tracks
    assert not bare.origin._tracks
    assert not any({"columns", "_draws"} & set(sample.__dict__) for sample in bare.samples)
    assert png(gallery.find("position_signal").draw(bare.origin)) == before
