"""Files that are damaged on disk: noticed by `verify` under their own names, never believed, and made again."""

import random
from collections.abc import Callable
from pathlib import Path

from faults.workshop import Budget, Tally, Workshop, choose, contents, kinds_of
from ropewalk.capture.sources import open_dataset
from ropewalk.capture.stored import StoredCapture
from ropewalk.errors import RopewalkError
from ropewalk.export.claims import read_claim
from ropewalk.freshness import fresh_pictures, pictures_made_from
from ropewalk.results import load
from ropewalk.statistics.base import layers_of
from ropewalk.study import Capture, Checkpoint
from ropewalk.verify import verify

REPAIRED = 0.025
"""Share of the damages after which the folder is repaired and compared with what it was."""

MADE_AGAIN = ("tokens", "record of tokens", "mark", "digests", "report", "figures", "pages of heads")
"""Kinds of files of which a damaged one is made again, or is read by people alone."""

DAMAGES: dict[str, tuple[float, Callable[[bytes, bytes, random.Random], bytes | None]]] = {
    "bit flipped": (0.8, lambda data, _, chance: _flipped(data, chance)),
    "cut short": (0.08, lambda data, _, chance: data[: chance.randrange(len(data))]),
    "longer than it was": (0.03, lambda data, _, chance: data + chance.randbytes(chance.randint(1, 100))),
    "another of its kind": (0.04, lambda data, other, _: other if other != data else data + data),
    "gone": (0.05, lambda *_: None),
}
"""Each damage, how often it is chosen, and what a file holds then: of its bytes, and those of another of its kind."""


def flips(workshop: Workshop, budget: Budget, chance: random.Random) -> Tally:
    """Flip a bit of a file, cut it short, put another in its place, over and over."""
    tally = Tally()
    results = workshop.trial(copy=True) / "results"
    _complete(workshop, results)
    kinds, whole = kinds_of(results), contents(results)
    weights = [share for share, _ in DAMAGES.values()]
    for _ in budget:
        kind, path = choose(kinds, chance)
        (how,) = chance.choices(list(DAMAGES), weights)
        if how == "gone" and kind in ("report", "digests"):
            # Nothing is made of them, and what was never made is not missed.
            how = "cut short"
        before = path.read_bytes()
        after = DAMAGES[how][1](before, chance.choice(kinds[kind]).read_bytes(), chance)
        path.unlink() if after is None else path.write_bytes(after)
        tally.tried[f"{how}: {kind}"] += 1
        where = f"{how}, {path.relative_to(results)}"
        tally.wrong += [f"{where}: {problem}" for problem in _unnoticed(results, kind, path)]
        if chance.random() < REPAIRED and kind != "exported":
            tally.besides["repairs, compared byte for byte"] += 1
            ended = workshop.command(results.parent, "verify", "results", "--repair")
            if ended.code == 0 and kind == "mark":
                # What file the study stands in, only the study can tell.
                ended = workshop.run(results.parent)
            if ended.code != 0:
                tally.wrong.append(f"{where}: it is not repaired: {ended.said[-500:]}")
            now = contents(results)
            for aside in results.glob("captures/*/*.other-*"):
                # A shard of other documents is somebody's work, and kept.
                now.pop(aside.relative_to(results).as_posix())
                aside.unlink()
            names = sorted(name for name in now.keys() | whole.keys() if now.get(name) != whole.get(name))
            tally.wrong += [f"{where}: {name} is not as before after a repair" for name in names]
        path.write_bytes(before)
    return tally


def _complete(workshop: Workshop, results: Path) -> None:
    """Add what a run does not make: figures on another axis, the page of a head, an export."""
    for words in (
        ("figures", "results", "--axis", "drift"),
        ("head", "results", "--layer", "1", "--head", "0"),
        ("export", "results", "results/exported/sums.safetensors", "--to", "safetensors"),
    ):
        ended = workshop.command(results.parent, *words)
        assert ended.code == 0, ended.said


def _flipped(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def _unnoticed(results: Path, kind: str, path: Path) -> list[str]:
    """What of a damaged file went unnoticed: by `verify`, and by what reads it."""
    problems = []
    if kind != "exported":
        states = {check.path: check.state for check in verify(results)}
        named = [one for one, state in states.items() if state not in (None, "out of date")]
        problems += [] if path in named else ["verify does not name it"]
        problems += [f"verify blames {other}" for other in named if other != path][:1]
    try:
        _use(results, kind, path)
    except RopewalkError as error:
        if path.name not in str(error):
            problems.append(f"another file is blamed: {error}")
    else:
        if kind not in MADE_AGAIN:
            problems.append("it is believed")
    return problems


def _use(results: Path, kind: str, path: Path) -> None:
    """Read a file as the program would; those that are made again without a word are looked at otherwise."""
    if kind in ("shard", "manifest"):
        captured = StoredCapture(path.parent, path.parent.name)
        captured.parts("moments", layers_of(captured.layout, captured.heads)[0])
    elif kind == "kept vectors":
        source = next(parent for parent in path.parents if parent.name == "vectors")
        open_dataset(Checkpoint(source=str(source), context=48, name="kept"), Capture())
    elif kind == "exported":
        read_claim(path)
    elif kind == "figures":
        loaded = load(results)
        shown = fresh_pictures(results, pictures_made_from(loaded.digest, loaded.figure_options()))
        assert path.name != "figure.png" or path.parent.name not in shown, "a damaged picture is shown"
    else:
        load(results)
