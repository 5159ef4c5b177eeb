"""A tiny study and its results, runs of it in forked processes that can be killed, and comparing what they leave."""

import contextlib
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from ropewalk.fingerprint import file_fingerprint

FIGURES = ("explained_variance", "category_flows")
"""The figures that are drawn: all are written in the same way, and two that are simple take the least time."""

LONGEST = 120.0
"""Seconds after which a run is taken to hang."""

_logs = 0


class _Clock(datetime):
    """Stands still, so that two runs of the same study can be the same to the last byte."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(2000, 1, 1, tzinfo=tz or UTC)


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code, negative for a signal, what it printed, and the most memory it had (bytes)."""

    code: int
    said: str
    memory: int = 0

    @property
    def is_traceback(self) -> bool:
        """Whether it ended in an exception that is not a sentence."""
        return "Traceback (most recent call last)" in self.said


class Workshop:
    """A folder with a tiny model, a tokenizer, texts and a study of them."""

    def __init__(self, home: Path) -> None:
        self.home, self.study = home, home / "study.yaml"
        self._trials = 0
        assert in_child(lambda: _furnish(home), home).code == 0
        self.reference = self.trial()
        ended = self.run(self.reference)
        assert ended.code == 0, ended.said
        self.expected = contents(self.reference / "results")
        _rehearse(self.reference / "results")
        started = time.monotonic()
        self.run(self.trial())
        self.seconds = time.monotonic() - started

    def trial(self, copy: bool = False) -> Path:
        """A new folder to run in: empty, or with a copy of the results of the first run."""
        folder = self.home / "trials" / f"{self._trials:04d}"
        self._trials += 1
        folder.mkdir(parents=True)
        if copy:
            shutil.copytree(self.reference / "results", folder / "results")
        return folder

    def run(self, folder: Path, *words: str, **options: Any) -> Ended:
        """The study in a folder, from wherever it is to its end; options are those of `in_child`."""
        return self.command(folder, "run", str(self.study), "--results", "results", *words, **options)

    def command(self, folder: Path, *words: str, **options: Any) -> Ended:
        """Any command in a folder."""
        return in_child(lambda: command(*words), folder, **options)

    def differences(self, folder: Path) -> list[str]:
        """Files of a trial's results that are not those of the first run."""
        found = contents(folder / "results")
        return sorted(
            name for name in found.keys() | self.expected.keys() if found.get(name) != self.expected.get(name)
        )


def _furnish(home: Path) -> int:
    from helpers.tiny import furnish

    furnish(home, texts=8, words=150)
    study = {
        "name": "faults",
        "defaults": {"repo": "./model", "tokenizer": "./tokenizer", "device": "cpu"},
        "checkpoints": [{"name": "first", "step": 1, "context": 32}, {"name": "second", "step": 2, "context": 48}],
        "corpus": {"source": "files", "paths": ["texts/*.txt"]},
        "capture": {"shards": 4, "statistics": ["moments", "frame", "profile", "behaviour", "sample"]},
    }
    (home / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    return 0


def command(*words: str) -> int:
    """Run a command of the command line in this process; its exit code."""
    from ropewalk.cli import main

    try:
        main(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def warm_up() -> None:
    """Import what runs need, before they are forked: that takes longer than a run. Nothing is computed here."""
    import ropewalk.capture.run
    import ropewalk.pipeline
    import ropewalk.verify  # noqa: F401


def _rehearse(results: Path) -> None:
    """Draw once in this process: what matplotlib remembers of fonts and formulas, all that are forked know then."""
    from ropewalk.results import load

    with TemporaryDirectory() as folder, _few_figures():
        load(results).save(Path(folder))


@contextlib.contextmanager
def _few_figures() -> Iterator[None]:
    from ropewalk.figures import gallery

    whole = gallery.FIGURES
    gallery.FIGURES = tuple(figure for figure in whole if figure.name in FIGURES)
    try:
        yield
    finally:
        gallery.FIGURES = whole


def in_child(
    call: Callable[[], int],
    folder: Path,
    *,
    kill_after: float | None = None,
    prepare: Callable[[], object] = lambda: None,
) -> Ended:
    """Call in a forked process whose current folder is `folder`, killed after so many seconds if it is still alive."""
    return finish(start(call, folder, prepare), kill_after)


@dataclass(frozen=True)
class Child:
    """A forked process, and where its standard error goes."""

    pid: int
    log: Path
    started: float


def start(call: Callable[[], int], folder: Path, prepare: Callable[[], object] = lambda: None) -> Child:
    """Fork a process that makes the call in a folder, with a clock that stands still and few figures."""
    global _logs
    _logs += 1
    log = folder / f"log-{_logs}.txt"
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid, log, time.monotonic())
    code = 70
    try:
        os.chdir(folder)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        _settle()
        prepare()
        code = call()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def finish(child: Child, kill_after: float | None = None) -> Ended:
    """Wait for a forked process, and kill it where told to, or where it hangs."""
    limit = LONGEST if kill_after is None else kill_after
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() - child.started > limit:
            os.kill(child.pid, signal.SIGKILL)
            _, status, usage = os.wait4(child.pid, 0)
            break
        time.sleep(0.002)
    said = child.log.read_text(errors="replace") if child.log.exists() else ""
    return Ended(os.waitstatus_to_exitcode(status), said, usage.ru_maxrss * 1024)


def _settle() -> None:
    import torch

    from ropewalk import record
    from ropewalk.figures import gallery

    torch.set_num_threads(1)
    record.datetime = _Clock  # type: ignore[misc]
    gallery.FIGURES = tuple(figure for figure in gallery.FIGURES if figure.name in FIGURES)


def contents(folder: Path) -> dict[str, str]:
    """Digests of all files below a folder, by their names in it."""
    return {
        path.relative_to(folder).as_posix(): file_fingerprint(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


@dataclass
class Tally:
    """What came of a kind of fault: how often each form of it was tried, what was done besides, what went wrong."""

    tried: Counter[str] = field(default_factory=Counter)
    besides: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Budget:
    """So many trials at most, in so many seconds at most."""

    def __init__(self, trials: int, seconds: float) -> None:
        self.trials, self._end = trials, time.monotonic() + seconds

    def __iter__(self) -> Iterator[int]:
        for number in range(self.trials):
            if time.monotonic() > self._end:
                return
            yield number


def kinds_of(results: Path) -> dict[str, list[Path]]:
    """The files of a results folder by their kind, for a choice that does not fall on pictures alone."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(path for path in results.rglob("*") if path.is_file()):
        kinds.setdefault(kind_of(path.relative_to(results)), []).append(path)
    return kinds


def kind_of(name: Path) -> str:
    """What kind of file one of a results folder is."""
    if name.parts[0] == "captures":
        return "kept vectors" if "vectors" in name.parts else "manifest" if name.suffix == ".json" else "shard"
    if name.parts[0] == "tokens":
        return "tokens" if name.suffix == ".bin" else "record of tokens"
    if name.parts[0] in ("figures", "figures_drift"):
        return "figures"
    if name.parts[0] == "heads":
        return "pages of heads"
    if name.parts[0] == "exported":
        return "exported"
    if name.suffix in (".csv", ".parquet"):
        return "tables"
    named = {"study.yaml": "record", "report.html": "report", "ropewalk.json": "mark", "digests.json": "digests"}
    return named.get(name.name, "ledger")


def choose(kinds: dict[str, list[Path]], chance: random.Random) -> tuple[str, Path]:
    """A file, every kind as often as another."""
    kind = chance.choice(sorted(kinds))
    return kind, chance.choice(kinds[kind])
