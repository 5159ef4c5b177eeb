"""Files that are damaged on disk: noticed by `verify` under their own names, never believed, and made again."""

import random
from pathlib import Path

from faults.workshop import Budget, Tally, Workshop, choose, kinds_of
from ropewalk.capture.sources import open_dataset
from ropewalk.capture.stored import StoredCapture
from ropewalk.errors import RopewalkError
from ropewalk.freshness import fresh_pictures, pictures_made_from
from ropewalk.results import load
from ropewalk.statistics.base import layers_of
from ropewalk.study import Capture, Checkpoint
from ropewalk.verify import verify

REPAIRED = 0.05
"""Share of the damages after which the folder is repaired and compared with what it was."""


def flips(workshop: Workshop, budget: Budget, chance: random.Random) -> Tally:
    """Flip a bit of a file, or cut it short, over and over."""
    tally = Tally()
    results = workshop.trial(copy=True) / "results"
    kinds = kinds_of(results)
    for _ in budget:
        kind, path = choose(kinds, chance)
        whole = path.read_bytes()
        how, damaged = _damage(whole, chance)
        path.write_bytes(damaged)
        tally.tried[f"{how}: {kind}"] += 1
        tally.wrong += [
            f"{how} in {path.relative_to(results)}: {problem}" for problem in _unnoticed(results, kind, path)
        ]
        if chance.random() < REPAIRED:
            tally.besides["repairs, compared byte for byte"] += 1
            ended = workshop.command(results.parent, "verify", "results", "--repair")
            if ended.code != 0:
                tally.wrong.append(f"{how} in {path.relative_to(results)} is not repaired: {ended.said[-500:]}")
            tally.wrong += [f"{name} is not as before after a repair" for name in workshop.differences(results.parent)]
        path.write_bytes(whole)
    return tally


def _damage(data: bytes, chance: random.Random) -> tuple[str, bytes]:
    if chance.random() < 0.15:
        return "cut short", data[: chance.randrange(len(data))]
    at = chance.randrange(len(data))
    return "bit flipped", data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def _unnoticed(results: Path, kind: str, path: Path) -> list[str]:
    """What of a damaged file went unnoticed: by `verify`, and by what reads it."""
    named = [check.path for check in verify(results) if check.state == "damaged"]
    problems = [] if path in named else ["verify does not name it"]
    if set(named) - {path}:
        problems.append(f"verify blames {sorted(str(other) for other in set(named) - {path})[0]}")
    try:
        _use(results, kind, path)
    except RopewalkError as error:
        if str(path.name) not in str(error):
            problems.append(f"another file is blamed: {error}")
    else:
        if kind not in ("tokens", "record of tokens", "mark", "report", "figures"):
            problems.append("it is believed")
    return problems


def _use(results: Path, kind: str, path: Path) -> None:
    """Read a file as the program would; those that are made again without a word are looked at otherwise."""
    if kind in ("shard", "manifest"):
        captured = StoredCapture(path.parent, path.parent.name)
        captured.parts("moments", layers_of(captured.layout, captured.heads)[0])
    elif kind == "kept vectors" or (kind == "ledger" and "vectors" in path.parts):
        source = next(parent for parent in path.parents if parent.name == "vectors")
        open_dataset(Checkpoint(source=str(source), context=48, name="kept"), Capture())
    elif kind == "figures":
        loaded = load(results)
        shown = fresh_pictures(results, pictures_made_from(loaded.digest, loaded.figure_options()))
        assert path.name != "figure.png" or path.parent.name not in shown, "a damaged picture is shown"
    else:
        load(results)
