"""`make faults`: every kind of fault so many times, within so many minutes, and what came of it."""

import argparse
import os
import platform
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from faults.disks import disks
from faults.flips import flips
from faults.inputs import inputs
from faults.kills import kills
from faults.strangers import strangers
from faults.together import together
from faults.workers import workers
from faults.workshop import Budget, Tally, Workshop, warm_up

Fault = Callable[[Workshop, Budget, random.Random], Tally]

FAULTS: dict[str, tuple[Fault, int, float, str]] = {
    "kills": (
        kills,
        280,
        12,
        "a run is killed at a random moment, or just before or after a file is put into its place",
    ),
    "workers": (workers, 24, 4, "a worker of a run is killed"),
    "flips": (
        flips,
        1350,
        6,
        "a bit of a file in a results folder is flipped, or the file is cut short, replaced, gone",
    ),
    "strangers": (strangers, 600, 4, "a file of a results folder is nonsense with a right seal"),
    "disks": (disks, 20, 1, "a run on a disk that is too small"),
    "together": (together, 20, 1, "two or three runs of one study at once, some of them killed"),
    "inputs": (inputs, 3000, 6, "a study, model, tokenizer, corpus, dataset, folder, table or command that is wrong"),
}
"""Each kind, how often it is tried, its part of the time, and what it is."""

BEGIN, END = "<!-- counts -->", "<!-- end of counts -->"
"""Between these, a page of the docs holds the counts of the last run."""


def main(arguments: list[str] | None = None) -> int:
    """Try everything and print the counts; the exit code says whether the promises held."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of faults")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the faults that are tried")
    parser.add_argument("--minutes", type=float, default=75.0, help="time that all of them may take")
    parser.add_argument("--only", choices=list(FAULTS), action="append", help="only this kind; may be given again")
    parser.add_argument("--write", type=Path, help="write the counts into this page of the docs")
    chosen = parser.parse_args(arguments)
    # What is asked of the hub is refused at once, as without a network.
    os.environ |= {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1"}
    warm_up()
    tallies: dict[str, Tally] = {}
    names = chosen.only or list(FAULTS)
    end = time.monotonic() + 60 * chosen.minutes
    with TemporaryDirectory(prefix="ropewalk-faults-") as home:
        workshop = Workshop(Path(home))
        for number, name in enumerate(names):
            fault, times, _, _ = FAULTS[name]
            started = time.monotonic()
            # What one kind leaves of its time goes to the others.
            parts = [FAULTS[other][2] for other in names[number:]]
            seconds = (end - started) * parts[0] / sum(parts)
            budget = Budget(max(1, round(times * chosen.scale)), seconds)
            tally = fault(workshop, budget, random.Random(f"{chosen.seed} {name}"))
            tallies[name] = tally
            print("\n".join(_lines(name, tally, time.monotonic() - started)), flush=True)
    if chosen.write is not None:
        _write(chosen.write, tallies, chosen.seed)
    tried, wrong = (sum(numbers) for numbers in zip(*map(_counts, tallies.values()), strict=True))
    print(f"{tried:,} faults tried, {wrong} broke a promise")
    return 1 if wrong else 0


def _counts(tally: Tally) -> tuple[int, int]:
    return tally.tried.total(), len(tally.wrong)


def _lines(name: str, tally: Tally, seconds: float) -> list[str]:
    tried, wrong = _counts(tally)
    listed = [*sorted(tally.tried.items()), *sorted(tally.besides.items())]
    return [
        f"{name}: {tried:,} in {seconds:.0f} s, {wrong} broke a promise",
        *(f"  {count:6,}  {what}" for what, count in listed),
        *(f"  WRONG: {problem}" for problem in tally.wrong),
    ]


def _write(page: Path, tallies: dict[str, Tally], seed: int) -> None:
    lines = [
        f"`make faults SEED={seed}`, Python {platform.python_version()} on {platform.system()}:",
        "",
        "| what was done | how often | promises broken |",
        "|---|---|---|",
    ]
    for name, tally in tallies.items():
        tried, wrong = _counts(tally)
        lines.append(f"| **{FAULTS[name][3]}** | **{tried:,}** | **{wrong}** |")
        lines += [f"| {what} | {count:,} | |" for what, count in sorted(tally.tried.items())]
        lines += [f"| *{what}* | {count:,} | |" for what, count in sorted(tally.besides.items())]
    text = page.read_text(encoding="utf-8")
    lines += _other_rows(text, [FAULTS[name][3] for name in tallies])
    body = "\n".join([BEGIN, *lines, END])
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: body, text, flags=re.S), encoding="utf-8")


def _other_rows(text: str, written: list[str]) -> list[str]:
    """The rows that a page has of kinds that were not tried now: kinds may be tried one at a time."""
    (counts,) = re.findall(f"{BEGIN}(.*){END}", text, flags=re.S)
    kept, rows = False, []
    for row in counts.splitlines():
        if found := re.match(r"\| \*\*(.+?)\*\* \|", row):
            kept = found[1] in [kind[3] for kind in FAULTS.values()] and found[1] not in written
        rows += [row] if kept and row.startswith("|") else []
    return rows


if __name__ == "__main__":
    sys.exit(main())
