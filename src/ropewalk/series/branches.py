"""Branch names of checkpoint repos, read by rule into phase, step and tokens; their order, labels and thinning."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby

from ropewalk.errors import RopewalkError

_COUNT = r"\d+(?:(?:\.\d+)?[km])?"
_TOKENS = r"\d+(?:\.\d+)?[mbt]"
LONGEST_NUMBER = 12
"""Digits of a number in the name of a branch."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


@dataclass(frozen=True)
class Branch:
    """One checkpoint of a series, as its branch name tells it."""

    name: str
    rule: str
    phase: str
    """`stage 1`, `LC 4K->32K`, or empty where the series has no phases."""
    short: str
    """The phase as it stands in a label: `S1`, `LC1`, or empty."""
    order: tuple[int, int, int]
    """(0, stage, ingredient), or (1, target context, source context) for long-context phases, which come last."""
    step: int
    tokens: int | None = None


def _stage(found: Mapping[str, str]) -> tuple[str, str, tuple[int, int, int]]:
    stage, ingredient = found["stage"], found.get("ingredient")
    if ingredient is None:
        return f"stage {stage}", f"S{stage}", (0, int(stage), 0)
    return f"stage {stage} ingredient {ingredient}", f"S{stage}i{ingredient}", (0, int(stage), int(ingredient))


def _long_context(found: Mapping[str, str]) -> tuple[str, str, tuple[int, int, int]]:
    source, target = found["source"].upper(), found["target"].upper()
    return f"LC {source}->{target}", "LC", (1, _number(target), _number(source))


def _no_phase(_: Mapping[str, str]) -> tuple[str, str, tuple[int, int, int]]:
    return "", "", (0, 0, 0)


@dataclass(frozen=True)
class Rule:
    """How one family names its branches; the whole name must match, in any case of letters."""

    name: str
    pattern: str
    phase: Callable[[Mapping[str, str]], tuple[str, str, tuple[int, int, int]]]


RULES = (
    Rule(
        "SmolLM3 long context",
        rf"lc-(?P<source>\d+k)-to-(?P<target>\d+k)-step-(?P<step>{_COUNT})",
        _long_context,
    ),
    Rule(
        "SmolLM3, OLMo-2, OLMo-3 stages",
        rf"stage(?P<stage>\d+)(?:-ingredient(?P<ingredient>\d+))?-step-?(?P<step>{_COUNT})(?:-tokens(?P<tokens>{_TOKENS}))?",
        _stage,
    ),
    Rule("OLMo steps with tokens", rf"step-?(?P<step>{_COUNT})-tokens(?P<tokens>{_TOKENS})", _no_phase),
    Rule(
        "TinyLlama, FineWeb steps with tokens",
        rf"(?:tinyllama-[\w.]+-)?(?:intermediate-)?step-(?P<step>{_COUNT})-(?:token-)?(?P<tokens>{_TOKENS})t?",
        _no_phase,
    ),
    Rule("Pythia, SmolLM2, TinyLlama steps", rf"step-?(?P<step>{_COUNT})", _no_phase),
    Rule("Amber checkpoints", r"ckpt_(?P<step>\d+)", _no_phase),
)


def _number(text: str) -> int:
    digits = text.rstrip("kmbtKMBT")
    return round(Decimal(digits) * _UNITS[text[len(digits) :].lower()])


def parse_branch(name: str) -> Branch | None:
    """Read a branch name by the first rule of `RULES` that fits it whole; None where none does (`main`, `it-SFT`)."""
    for rule in RULES:
        match = re.fullmatch(rule.pattern, name, re.IGNORECASE | re.ASCII)
        # Longer numbers count nothing that was trained.
        if match and not re.search(rf"\d{{{LONGEST_NUMBER + 1}}}", name):
            found = {key: value for key, value in match.groupdict().items() if value is not None}
            phase, short, order = rule.phase(found)
            tokens = _number(found["tokens"]) if "tokens" in found else None
            return Branch(name, rule.name, phase, short, order, _number(found["step"]), tokens)
    return None


def in_order(branches: Iterable[Branch]) -> list[Branch]:
    """Sort by phase (stages by number, then long-context phases by context), then by step."""
    return sorted(branches, key=lambda branch: (branch.order, branch.step, branch.name))


def short_number(number: int, decimals: int = 1) -> str:
    """Write 1200000 as 1.2M and 40000 as 40K, with at most `decimals` digits after the point."""
    scaled = [(round(Decimal(number) / size, decimals), letter.upper()) for letter, size in _UNITS.items()]
    value, letter = next((pair for pair in scaled if pair[0] < 1000), scaled[-1])
    return f"{value:f}".rstrip("0").rstrip(".") + letter


def labels(branches: Sequence[Branch]) -> dict[str, str]:
    """Give each branch name a label such as `S1-1.2M`: as few decimals as keep all labels apart.

    Two branches with the same phase and step keep their whole names.
    """
    for decimals in range(1, 10):
        named = {b.name: "-".join(filter(None, (b.short, short_number(b.step, decimals)))) for b in branches}
        if len(set(named.values())) == len(named):
            return named
    seen = Counter(named.values())
    return {name: label if seen[label] == 1 else name for name, label in named.items()}


def select(
    branches: Sequence[Branch], *, every: int | None = None, log_spaced: int | None = None, phases: Sequence[str] = ()
) -> list[Branch]:
    """Thin an ordered series, always to the same branches.

    `phases` keeps these phases (`stage 1` or `S1`). `every` keeps each N-th branch of a phase, and the first and the
    last of each phase, so that no short phase is lost. `log_spaced` keeps N branches at about equal distances of
    log(1 + step), the first and the last among them; where a phase counts its steps from the start again, they are
    added to those of the phase before.
    """
    if every is not None and log_spaced is not None:
        raise RopewalkError("--every and --log-spaced exclude each other: give one of them")
    if every is not None and every < 1:
        raise RopewalkError(f"--every {every} keeps nothing: give a number of at least 1")
    if log_spaced is not None and log_spaced < 2:
        raise RopewalkError(
            f"--log-spaced {log_spaced} is too few: the first and the last checkpoint are always kept, give at least 2"
        )
    kept = _of_phases(branches, phases) if phases else list(branches)
    if every is not None:
        groups = [list(group) for _, group in groupby(kept, key=lambda branch: branch.order)]
        return [
            branch
            for group in groups
            for index, branch in enumerate(group)
            if index % every == 0 or index == len(group) - 1
        ]
    if log_spaced is not None and log_spaced < len(kept):
        return _log_spaced(kept, log_spaced)
    return kept


def _of_phases(branches: Sequence[Branch], phases: Sequence[str]) -> list[Branch]:
    wanted = {phase.casefold() for phase in phases}
    there = {branch.phase: branch.short for branch in branches}
    known = {name.casefold() for pair in there.items() for name in pair}
    for phase in phases:
        if phase.casefold() not in known or not phase:
            names = ", ".join(f"'{name}'" for name in there if name) or "none: its branches have no phases"
            raise RopewalkError(f"no phase '{phase}' in this series: its phases are {names}")
    return [b for b in branches if b.phase.casefold() in wanted or b.short.casefold() in wanted]


def _log_spaced(branches: Sequence[Branch], count: int) -> list[Branch]:
    places: list[float] = []
    offset = reached = 0
    for before, branch in zip([branches[0], *branches], branches, strict=False):
        if branch.order != before.order and offset + branch.step < reached:
            offset = reached
        reached = offset + branch.step
        places.append(math.log1p(reached))
    first, last = places[0], places[-1]
    chosen = {0, len(branches) - 1}
    for number in range(1, count - 1):
        target = first + (last - first) * number / (count - 1)
        free = (index for index in range(len(branches)) if index not in chosen)
        chosen.add(min(free, key=lambda index: abs(places[index] - target)))
    return [branches[index] for index in sorted(chosen)]
