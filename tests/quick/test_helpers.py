"""Work shared with other processes: the same results, in the same order, the same errors, and nobody left behind."""

import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from helpers import pieces
from helpers.paths import ROOT
from helpers.tables import leave_one_out, synthetic
from helpers.tiny import tabulated
from ropewalk import analysis, helper, helpers
from ropewalk.analysis import Tables, tabulate, tabulate_all
from ropewalk.capture.stored import stored_captures
from ropewalk.figures import gallery
from ropewalk.figures.style import png
from ropewalk.helpers import ALONE, Helpers, spare_processes
from ropewalk.record import need_record
from ropewalk.report import content
from ropewalk.results import load
from ropewalk.seals import LEDGER, Ledger
from ropewalk.statistics import registry
from ropewalk.summary.view import View

FIGURES = ("position_signal", "explained_variance", "concordance")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """The processes of helpers."""
    known = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            # Libraries start processes too, as to ask for the paths of others.
            if self.args[0] == sys.executable:
                known.append(self)

    monkeypatch.setattr(helpers.subprocess, "Popen", Noted)
    return known


def test_each_process_takes_its_part_and_results_come_in_order(started, tmp_path):
    items = [tmp_path / str(number) for number in range(8)]
    with Helpers(1) as own:
        by = list(own.each(items, pieces.noted, pieces.noted, share=1))
        assert (by[0], by[-1]) == (os.getpid(), started[0].pid)
        assert by == sorted(by, key=lambda process: process != os.getpid())
        assert list(own.each(range(50), pieces.square, pieces.square, share=1)) == [one * one for one in range(50)]
        assert started[0].poll() is None
    assert len(started) == 1, "the same process does one work after the other"
    assert started[0].returncode is not None


def test_there_are_as_many_as_the_work_is_worth(started):
    own = Helpers(3)
    assert [own.count(pieces, 6) for pieces in (0, 6, 11, 12, 18, 24, 600)] == [0, 0, 0, 1, 2, 3, 3]
    assert ALONE.count(600, 6) == 0
    with own:
        list(own.each([1, 2], abs, abs, share=2))
        assert not started
        list(own.each([1, 2, 3, 4], abs, abs, share=2))
        assert len(started) == 1
        list(own.each([1, 2, 3, 4], abs, abs, share=1))
        assert len(started) == 3


@pytest.mark.parametrize("trouble", ["raises", "warns", "prints", "logs"])
def test_what_goes_wrong_or_is_said_is_so_here(trouble):
    """A helper leaves it, and its next piece is done as any other."""
    content = pickle.dumps(trouble)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        level = logging.getLogger("ropewalk").level
        assert helper.answer(pieces.troubled, content) is None
        assert logging.getLogger("ropewalk").level == level
        assert pickle.loads(helper.answer(pieces.troubled, pickle.dumps("nothing"))) == "nothing"


def test_an_error_is_the_one_of_this_process(started):
    here = []

    def troubled(item):
        here.append(item)
        return pieces.troubled(item)

    with Helpers(1) as own:
        found = own.each(["nothing", "raises"], troubled, pieces.troubled, share=1)
        assert next(found) == "nothing"
        with pytest.raises(ValueError, match=r"^as it is said here$"):
            next(found)
        assert here == ["nothing", "raises"]
    assert started[0].returncode is not None


def test_what_is_written_past_python_tears_no_answer(started):
    with Helpers(1) as own:
        items = ["writes"] * 20
        assert list(own.each(items, lambda item: time.sleep(0.2) or item, pieces.troubled, share=1)) == items


@pytest.mark.parametrize("by", ["itself", "another"])
def test_a_helper_that_is_killed_loses_nothing(by, started):
    def here(item):
        if by == "another":
            started[0].kill()
        started[0].wait()
        return item

    work = partial(pieces.killed, parent=os.getpid()) if by == "itself" else abs
    with Helpers(1) as own:
        assert list(own.each(range(9), here, work, share=1)) == list(range(9))
        assert list(own.each(range(9), abs, abs, share=1)) == list(range(9))
    assert len(started) == 2, "the next work has another"
    assert all(process.returncode is not None for process in started)


@pytest.mark.parametrize("reason", ["large", "unknown", "no python"])
def test_where_a_helper_cannot_be_there_is_none(reason, tmp_path, started, monkeypatch):
    work = abs
    if reason == "large":
        monkeypatch.setattr(helpers, "LARGEST", 10)
    elif reason == "unknown":
        work = lambda item: abs(item)  # noqa: E731
    else:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with Helpers(1) as own:
        assert list(own.each(range(5), abs, work, share=1)) == list(range(5))
    assert not started


def test_what_cannot_be_sent_or_is_not_known_there_is_done_here(started):
    with Helpers(1) as own:
        odd = [lambda: None, 1, lambda: None]
        assert list(own.each(odd, callable, callable, share=1)) == [True, False, True]
    assert helper.known(b"nonsense") is None
    assert helper.known(pickle.dumps(abs)) is abs


def test_blas_has_one_thread_while_there_are_helpers():
    def threads():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    with threadpool_limits(2, user_api="blas"):
        assert 2 in threads()
        with Helpers(1) as own:
            assert set(threads()) == {1}
            # That of the helper, which has the last of them.
            items = [(0,), (0,), (0,)]
            found = list(own.each(items, lambda _: time.sleep(1) or [], pieces.blas_threads, share=1))
            assert set(found[-1]) == {1}
        assert 2 in threads()
        with Helpers(0):
            assert 2 in threads()


def test_an_interruption_ends_helpers(started):
    def here(_):
        raise KeyboardInterrupt

    own = Helpers(2)
    with pytest.raises(KeyboardInterrupt):
        list(own.each(range(9), here, time.sleep, share=1))
    assert len(started) == 2
    assert all(process.returncode is not None for process in started)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_killed_parent_leaves_no_helper():
    script = """
import time
from ropewalk import helpers
def here(item):
    time.sleep(1)
    print(crew[0].pid, flush=True)
    time.sleep(60)
crew = []
class Noted(helpers.subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        crew.append(self)
helpers.subprocess.Popen = Noted
list(helpers.Helpers(1).each([0.1, 0.1], here, time.sleep, share=1))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        own = int(parent.stdout.readline())
        # As a terminal sends Control-C to both; the helper leaves it to its parent.
        os.kill(own, signal.SIGINT)
        parent.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{own}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{own}").exists()


def test_a_machine_with_one_core_has_no_room(monkeypatch):
    for cores, count in ((1, 0), (2, 1), (64, helpers.MOST)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert spare_processes() == count


# Figures


@pytest.fixture
def view() -> View:
    table = synthetic(2, heads=20)
    return View.of(table, leave_one_out(table))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.*"))}


def test_figures_are_the_same_files_with_a_helper(view, tmp_path, started, monkeypatch):
    monkeypatch.setattr(gallery, "FIGURES", tuple(gallery.find(name) for name in FIGURES))
    monkeypatch.setattr(gallery, "SHARE", 1)
    said = []
    alone = gallery.write_figures(view, tmp_path / "one", "qk.csv", done=said.append)
    assert not started

    def slowly(task, view, source):
        # The helper has the time to draw what is left.
        deadline = time.monotonic() + 60
        while not (tmp_path / "two/03_concordance/README.md").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return written(task, view, source)

    written = gallery.write_task
    there = partial(written, view=view.bare(), source="qk.csv")
    with Helpers(1) as own:
        tasks = [gallery.Task(path.name[3:], tmp_path / "two" / path.name, {}) for path in alone]
        both = list(own.each(tasks, partial(slowly, view=view, source="qk.csv"), there, share=1))
    assert both == list(alone.values())
    with Helpers(1) as own:
        again = gallery.write_figures(view, tmp_path / "three", "qk.csv", done=said.append, helpers=own)
    assert len(started) == 2
    assert [*alone, *again] == said
    drawn = files(tmp_path / "one")
    assert files(tmp_path / "three") == drawn
    assert files(tmp_path / "two") == {name: content for name, content in drawn.items() if "/" in name}


def test_a_bare_view_is_the_same_without_what_was_read(view):
    before = png(gallery.find("position_signal").draw(view))
    turned = view.with_columns("")
    turned.track("mean_r_q")
    bare = turned.bare()
    assert not bare._tracks
    assert not bare.origin._tracks
    assert not any({"columns", "_draws"} & set(sample.__dict__) for sample in bare.samples)
    assert png(gallery.find("position_signal").draw(bare.origin)) == before


def test_a_view_that_cannot_be_given_away_is_drawn_here(view, tmp_path, started, monkeypatch):
    monkeypatch.setattr(gallery, "FIGURES", tuple(gallery.find(name) for name in FIGURES))
    monkeypatch.setattr(gallery, "SHARE", 1)
    with Helpers(1) as own:
        odd = replace(view, tables={"odd": lambda: None})
        assert len(gallery.write_figures(odd, tmp_path / "figures", "qk.csv", helpers=own)) == len(FIGURES)
    assert not started


# Tables


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    others = ("moments", "profile", "behaviour", "sample", "buckets")
    return tabulated(tmp_path_factory.mktemp("helped"), {"frame": {"full": True}, **{name: {} for name in others}})


def captures(results: Path) -> list:
    """One capture as those of four checkpoints."""
    study = need_record(results).study
    (checkpoint,) = study.checkpoints
    return [(stored_captures(results, study)["first"], checkpoint.model_copy(update={"name": name})) for name in "abcd"]


def written(tables: Tables, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    tables.write(folder, {}, {})
    return files(folder)


def test_tables_are_the_same_bytes_with_a_helper(results, tmp_path, started, monkeypatch):
    monkeypatch.setattr(analysis, "SHARE", 1)
    alone = tabulate_all(captures(results))
    assert not started
    by = []

    def slowly(pair, threads, plugins):
        # The helper has the time to take some.
        if by:
            time.sleep(2)
        by.append(threads)
        return tabulate(*pair, threads)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    work = partial(analysis._tabulate_with, threads=2, plugins=())
    with Helpers(1) as own:
        found = list(own.each(captures(results), partial(slowly, threads=2, plugins=()), work, share=1))
        assert len(by) < 4
        both = tabulate_all(captures(results), own)
    assert len(started) == 1
    expected = written(alone, tmp_path / "alone")
    assert written(Tables.concat(found), tmp_path / "found") == expected
    assert written(both, tmp_path / "both") == expected
    pd.testing.assert_frame_equal(both.heads, alone.heads, check_exact=True)


def test_files_are_the_same_bytes_when_a_helper_writes_some(results, tmp_path, started):
    tables = tabulate_all(captures(results))
    expected, folder = written(tables, tmp_path / "alone"), tmp_path / "both"
    here = []

    def made():
        # The helper has the time to write the others.
        time.sleep(2)
        here.append(os.getpid())
        return tables.heads[["layer", "head"]]

    folder.mkdir()
    with Helpers(1) as own:
        tables.write(tmp_path / "alone", {}, {}, own)
        assert not started  # for files alone
        assert list(own.each([1, -2], abs, abs, share=1)) == [1, 2]
        tables.write(folder, {"made": made}, {}, own)
    assert here == [os.getpid()]
    found = files(folder)
    assert {name: found[name] for name in expected if name != LEDGER} == {
        name: content for name, content in expected.items() if name != LEDGER
    }
    assert set(found) - set(expected) == {"made.csv"}
    ledger = Ledger.read(folder)
    assert ledger is not None
    assert not list(ledger.differs(folder))


def test_processes_share_the_threads(results, monkeypatch):
    threads = []
    monkeypatch.setattr(analysis, "SHARE", 1)
    monkeypatch.setattr(analysis, "cores", lambda: 8)
    monkeypatch.setattr(analysis, "tabulate", lambda *given: threads.append(given[-1]) or tabulate(*given))
    monkeypatch.setattr(Helpers, "_begun", lambda *_: [])
    for most, share in ((0, 8), (1, 4), (3, 2)):
        tabulate_all(captures(results), Helpers(most))
        assert set(threads) == {share}
        threads.clear()


def test_an_error_of_a_shard_is_the_same_with_a_helper(results, tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "SHARE", 1)
    damaged = Path(shutil.copytree(results, tmp_path / "results"))
    shard = damaged / "captures/first/shard-0001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    said = []
    for most in (0, 1):
        with Helpers(most) as own, pytest.raises(Exception, match="is damaged") as caught:
            tabulate_all(captures(damaged), own)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.usefixtures("registry_as_before")
def test_which_statistics_other_processes_know():
    assert all(map(registry.is_found_elsewhere, registry.BUILT_IN))
    registry.load_plugin(ROOT / "docs/examples/norms.py")
    assert registry.is_found_elsewhere("norms")

    @registry.register("own")
    class Own(registry.find("norms")):
        pass

    assert not registry.is_found_elsewhere("own")


@pytest.mark.usefixtures("registry_as_before")
def test_a_statistic_of_this_process_alone_is_read_here(results, started, monkeypatch):
    monkeypatch.setattr(analysis, "SHARE", 1)
    moments = registry.find("moments")
    registry.register("moments")(type(moments)(moments.__qualname__, (moments,), {"__module__": __name__}))
    with Helpers(1) as own:
        assert len(tabulate_all(captures(results), own).heads) == 4 * len(tabulate_all(captures(results)[:1]).heads)
    assert not started


def test_helpers_do_not_load_torch():
    code = (
        "import sys, ropewalk.helper, ropewalk.analysis, ropewalk.capture.stored, ropewalk.figures.gallery, "
        "ropewalk.report.pictures; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The page


def test_the_page_is_the_same_with_helpers_and_with_captions_that_were_written(results, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "SHARE", 1)
    monkeypatch.setattr(content, "SHARE", 1)
    copy = Path(shutil.copytree(results, tmp_path / "results"))
    load(copy).write_figures(copy / "figures")
    expected = load(copy).report(copy).read_bytes()
    drawn = files(copy / "figures")
    loaded = load(copy)
    with Helpers(1) as own:
        loaded.write_figures(copy / "figures", helpers=own)
        described = []
        caption = gallery.FigureSpec.caption
        monkeypatch.setattr(
            gallery.FigureSpec,
            "caption",
            lambda self, *given, **o: described.append(self) or caption(self, *given, **o),
        )
        assert loaded.report(copy, own).read_bytes() == expected
        assert not described
        # Those of another axis are other captions.
        loaded.write_figures(copy / "figures_drift", axis="drift", helpers=own)
        assert loaded.report(copy, own).read_bytes() == expected
    described.clear()
    assert load(copy).report(copy).read_bytes() == expected
    assert described, "who wrote no captions has them to make"
    assert files(copy / "figures") == drawn
