"""Measuring side by side: contenders take turns for some rounds; each run gives its seconds and its peak memory."""

import cProfile
import gc
import json
import platform
import pstats
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pyarrow as pa

from ropewalk.allocator import give_back_freed
from ropewalk.threads import cores

KEPT = Path(__file__).parent.parent / "build" / "bench"
"""Where benchmarks keep what they measured."""

SAMPLING = 0.005
"""Seconds between two looks at the memory, where the system keeps no high-water mark that can be set back."""

OFTEN = 3
"""How many times as many rounds contenders take that need seconds: machines are noisy, and these cost little."""

T = TypeVar("T")
_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(frozen=True)
class Series:
    """One number a round: seconds or bytes of a contender, or how many times those of another they are."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def least(self) -> float:
        """The smallest one."""
        return min(self.values)

    @property
    def most(self) -> float:
        """The largest one."""
        return max(self.values)

    def over(self, other: "Series") -> "Series":
        """Ratios to another series, round by round: what slows a whole round down drops out."""
        return Series(tuple(a / b for a, b in zip(self.values, other.values, strict=True)))


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Run:
    """One run of a piece of work: its seconds, and its bytes of resident memory at the most."""

    seconds: float
    peak: int


def run(work: Callable[[], object], base: int | None = None) -> Run:
    """Time and weigh one call. Memory is counted above `base`, or above what is resident right before."""
    before = resident()
    with _HighWater() as water:
        taken = seconds(work)
    return Run(taken, water.highest - (before if base is None else base))


def alternate(runs: Mapping[str, Callable[[], T]], rounds: int, warmups: int = 1) -> dict[str, list[T]]:
    """Let all contenders take turns, `rounds` times after some that do not count; what each gave in every round.

    A contender may be another process. Every round begins with the next one, so that none always runs first.
    """
    names = list(runs)
    found: dict[str, list[T]] = {name: [] for name in names}
    for number in range(warmups + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            value = runs[name]()
            if number >= warmups:
                found[name].append(value)
    return found


def side_by_side(works: Mapping[str, Callable[[], object]], rounds: int, warmups: int = 1) -> dict[str, dict[str, Any]]:
    """Pieces of work of this process in turn: the seconds and peaks of each, as they are kept."""
    found = alternate({name: partial(run, work) for name, work in works.items()}, rounds, warmups)
    return {name: columns(runs) for name, runs in found.items()}


def columns(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Runs as they are kept: all seconds, all peaks."""
    return {"seconds": [one.seconds for one in runs], "peaks": [one.peak for one in runs]}


def shares(work: Callable[[], object], steps: Mapping[str, Sequence[Callable[..., Any]]]) -> dict[str, float]:
    """Shares of the functions of some steps in the time of one call, by a profiler; none may call another."""
    profiler = cProfile.Profile()
    profiler.runcall(work)
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    codes = {step: [getattr(one, "__func__", one).__code__ for one in functions] for step, functions in steps.items()}
    found = {
        step: sum(
            cumulative
            for (file, line, _), (*_, cumulative, _) in stats.items()
            if any((file, line) == (code.co_filename, code.co_firstlineno) for code in own)
        )
        for step, own in codes.items()
    }
    assert all(found.values()), "a step that nobody took"
    total = sum(own for _, _, own, _, _ in stats.values())
    return {step: taken / total for step, taken in {**found, "the rest": total - sum(found.values())}.items()}


def resident() -> int:
    """Bytes of resident memory of this process, after memory that was freed has gone back to the system.

    Work that took it again would seem to need less: glibc and pyarrow are asked for it.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    give_back_freed()
    return int(psutil.Process().memory_info().rss)


class _HighWater:
    """The most resident memory of this process while a block runs: Linux's own mark, or else by looking often."""

    highest = 0

    def __enter__(self) -> "_HighWater":
        self._done, self._thread = threading.Event(), threading.Thread(target=self._look, daemon=True)
        try:
            _REFS.write_text("5")  # sets the mark to what is resident now
        except OSError:
            self.highest = resident()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._thread.is_alive():
            self.highest = _status("VmHWM")
            return
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        process = psutil.Process()
        while not self._done.wait(SAMPLING):
            self.highest = max(self.highest, process.memory_info().rss)


def _status(field: str) -> int:
    """A field of the process's status that is given in kB, in bytes."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def keep(name: str, data: Mapping[str, Any]) -> None:
    """Keep what a benchmark measured, with the machine it ran on, for `benchmarks/results.py`."""
    KEPT.mkdir(parents=True, exist_ok=True)
    facts = {"machine": machine(), **data}
    (KEPT / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    """What numbers depend on: the processor, its cores, and versions."""
    names = ("torch", "transformers", "numpy", "scipy", "scikit-learn", "transformer-lens", "nnsight")
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {
        "processor": model,
        "cores": cores(),
        "python": platform.python_version(),
        "versions": {name: found for name in names if (found := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
