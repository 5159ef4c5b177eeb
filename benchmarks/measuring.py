"""Measuring side by side: seconds over rounds in which contenders take turns, and peak memory of one piece of work."""

import ctypes
import gc
import json
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

KEPT = Path(__file__).parent.parent / "build" / "bench"
"""Where benchmarks keep what they measured."""

SAMPLING = 0.005
"""Seconds between two looks at the memory, where the system keeps no high-water mark that can be set back."""

_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass(frozen=True)
class Series:
    """One number a round: seconds of a contender, or how many times those of another they are."""

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


def alternate(timers: Mapping[str, Callable[[], float]], rounds: int, warmups: int = 1) -> dict[str, Series]:
    """Let all contenders take turns, `rounds` times after some that do not count; each timer returns its seconds.

    A timer may ask another process. Every round begins with the next contender, so that none always runs first.
    """
    names = list(timers)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warmups + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            value = timers[name]()
            if number >= warmups:
                found[name].append(value)
    return {name: Series(tuple(values)) for name, values in found.items()}


def peak_above(work: Callable[[], object]) -> int:
    """Bytes of resident memory of this process while something was done, at the most, above those before it.

    Memory that was freed earlier is given back to the system first, where that can be asked for (glibc): work that
    took it again would seem to need less. Other allocators (pyarrow's) keep theirs, so the first run of a process is
    the one to measure. What the work leaves behind counts as what it needs.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    try:
        _REFS.write_text("5")  # sets the high-water mark to what is resident now (Linux)
    except OSError:
        return _sampled_peak(work)
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    """A field of the process's status that is given in kB, in bytes."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _sampled_peak(work: Callable[[], object]) -> int:
    """The same by looking every few milliseconds, which misses what is shorter."""
    process, done = psutil.Process(), threading.Event()
    before = highest = process.memory_info().rss

    def look() -> None:
        nonlocal highest
        while not done.wait(SAMPLING):
            highest = max(highest, process.memory_info().rss)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return int(max(highest, process.memory_info().rss) - before)


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
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: found for name in names if (found := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
