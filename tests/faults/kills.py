"""Runs that are killed, at any moment and at every write: nothing is lost, and the end is the same to the byte."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.workshop import Budget, Tally, Workshop
from ropewalk.files import is_temporary


def kills(workshop: Workshop, budget: Budget, chance: random.Random) -> Tally:
    """Kill a run a few times in a row, let it come to its end, and begin anew."""
    tally = Tally()
    writes = _count_writes(workshop)
    folder, left = workshop.trial(), chance.randint(2, 6)
    for _ in budget:
        before = _shards(folder)
        if chance.random() < 0.5:
            how = "at any moment"
            ended = workshop.run(folder, kill_after=chance.uniform(0, 1.05 * workshop.seconds))
        else:
            moment = chance.choice(("before", "after"))
            how = f"just {moment} a file is put into its place"
            ended = workshop.run(folder, prepare=_dying(chance.randint(1, writes), moment))
        killed = ended.code == -signal.SIGKILL
        (tally.tried if killed else tally.besides)[how if killed else "runs that ended before the kill"] += 1
        if ended.code not in (-signal.SIGKILL, 0):
            tally.wrong.append(f"a run that went on ended with {ended.code}: {ended.said[-500:]}")
        if any(_shards(folder).get(path) != mark for path, mark in before.items()):
            tally.wrong.append(f"a finished shard was computed again in {folder}")
        left -= 1
        if left == 0 or ended.code == 0:
            tally.besides["runs to the end, compared byte for byte"] += 1
            tally.wrong += _at_the_end(workshop, folder)
            folder, left = workshop.trial(), chance.randint(2, 6)
    return tally


def _at_the_end(workshop: Workshop, folder: Path) -> list[str]:
    before = _shards(folder)
    ended = workshop.run(folder)
    if ended.code != 0:
        return [f"a killed run did not come to its end: {ended.said[-500:]}"]
    wrong = [f"{name} is not what it is without kills" for name in workshop.differences(folder)]
    if any(_shards(folder).get(path) != mark for path, mark in before.items()):
        wrong.append(f"a finished shard was computed again in {folder}")
    if any(is_temporary(path) for path in folder.rglob("*")):
        wrong.append(f"a temporary file of a killed run is left in {folder}")
    return wrong


def _shards(folder: Path) -> dict[Path, tuple[int, int]]:
    found = folder.glob("results/captures/*/shard-*.safetensors")
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def _dying(number: int, moment: str) -> Callable[[], object]:
    """Have the process kill itself at the n-th file that it puts into its place: just before, or just after."""

    def prepare() -> None:
        real, count = Path.replace, 0

        def replace(path: Path, target: Any) -> Path:
            nonlocal count
            count += 1
            if count == number and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(path, target)
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        Path.replace = replace  # type: ignore[method-assign, assignment]

    return prepare


def _count_writes(workshop: Workshop) -> int:
    """How many files a whole run puts into their places."""
    folder = workshop.trial()

    def prepare() -> None:
        real = Path.replace

        def replace(path: Path, target: Any) -> Path:
            with (folder / "writes").open("a") as file:
                file.write(f"{target}\n")
            return real(path, target)

        Path.replace = replace  # type: ignore[method-assign, assignment]

    workshop.run(folder, prepare=prepare)
    return len((folder / "writes").read_text().splitlines())
