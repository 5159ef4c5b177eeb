"""Findings: claims that hold, how large each of them is for certain, and which of them a caption makes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropewalk.figures.phrases import Unit
from ropewalk.summary.measures import CONSTANT, Mean, Measure, find_measure
from ropewalk.summary.sample import Sample
from ropewalk.summary.sums import Sum
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View

AT_MOST = 3
"""Findings of a caption."""
NEGLIGIBLE = 0.1
"""Standard deviations over heads: what is certain but smaller than this is left out beside a larger finding."""
YES_OR_NO = 0.5
"""Scale of shares and of correlations over heads: the standard deviation of a fair coin."""


@dataclass(frozen=True)
class Finding:
    """A claim in plain words, and its numbers with errors, which follow it in brackets.

    `topics` are what it is about: of two findings with a topic in common a caption makes one. `size` is how much of
    the effect is certain: what its 95% interval leaves between itself and 0, in standard deviations over heads. A
    finding that is `needed` is made wherever it holds, last of all: without it the others would be misread.
    """

    sentence: str
    evidence: str = ""
    topics: frozenset[str] = frozenset()
    size: float = 0.0
    needed: bool = False

    @property
    def text(self) -> str:
        """The whole sentence."""
        return f"{self.sentence} ({self.evidence})." if self.evidence else f"{self.sentence}."


Candidate = Finding | None
"""A claim, or None where the numbers do not bear it."""


def choose(candidates: Iterable[Candidate], nothing: str, at_most: int = AT_MOST) -> tuple[Finding, ...]:
    """At most so many of the claims that hold: the largest first, none on a topic that was spoken of, needed ones last.

    `nothing` is what is said where none holds. Of claims of one size the one that was named first comes first.
    """
    found = sorted((one for one in candidates if one is not None), key=lambda one: -one.size)
    found = [one for one in found if one is found[0] or one.needed or one.size > NEGLIGIBLE]
    needed = _distinct([one for one in found if one.needed], at_most - 1)
    others = _distinct([one for one in found if not one.needed], at_most - len(needed))
    return (*others, *needed) or (Finding(nothing),)


def _distinct(ordered: list[Finding], at_most: int) -> list[Finding]:
    chosen: list[Finding] = []
    for one in ordered:
        if len(chosen) < at_most and not any(one.topics & other.topics for other in chosen):
            chosen.append(one)
    return chosen


def certain(estimate: Estimate, unit: Unit, candidates: int = 1) -> float:
    """What the 95% interval of a number leaves between itself and 0; not above 0 where nothing can be claimed.

    The largest of several candidates is held against the interval that holds for all of them. What is not seen in the
    digits that are shown does not count; without an error, all else does.
    """
    digit = 10.0**-unit.digits / unit.factor
    reach = 0.0 if math.isnan(estimate.se) else estimate.reach(candidates)
    return abs(estimate.value) - reach if abs(estimate.value) > max(reach, digit) else 0.0


def certainly(estimate: Estimate, unit: Unit, candidates: int = 1) -> float:
    """What is certain of a number, with its sign."""
    return math.copysign(certain(estimate, unit, candidates), estimate.value)


def sign(estimate: Estimate, unit: Unit, candidates: int = 1) -> int:
    """1 or -1 where something is certain of a number, else 0."""
    return int(math.copysign(1, estimate.value)) if certain(estimate, unit, candidates) > 0 else 0


class Agreement(NamedTuple):
    """What most of the checkpoints that are compared agree on: which way, the clearest of them, and how large it is.

    `begin` is how the sentence begins: with how many models of how many, where there are several.
    """

    way: int
    at: int
    size: float
    begin: str


def compared(view: View) -> Sequence[int]:
    """The checkpoints that something is said of: the last one of a training, every model of several."""
    last = len(view.lineup) - 1
    return range(last + 1) if view.lineup.side_by_side else [last]


def agreed(view: View, sizes: Mapping[int, float]) -> Agreement | None:
    """What more than half of the checkpoints agree on, given what is certain of each: above 0, below 0, or nothing (0).

    Over models the size is that of the one in the middle of those that agree.
    """
    for way in (1, -1):
        there = {index: abs(size) for index, size in sizes.items() if size * way > 0}
        if 2 * len(there) > len(sizes):
            some = f"all {len(sizes)}" if len(there) == len(sizes) else f"{len(there)} of {len(sizes)}"
            begin = f"in {some} {view.lineup.noun}s, " if len(sizes) > 1 else ""
            clearest = max(there, key=lambda index: there[index])
            return Agreement(way, clearest, float(np.median(list(there.values()))), begin)
    return None


def scale(measure: str | Measure, *samples: Sample) -> float:
    """What effects on a measure are divided by to compare them: the standard deviation of its column over the heads.

    Of several checkpoints, the root of the mean of their squares. Shares, correlations over heads and other measures
    that are no means have that of a fair coin.
    """
    own = find_measure(measure) if isinstance(measure, str) else measure
    if not isinstance(own, Mean | Sum):
        return YES_OR_NO
    squares = [spread(own.of_heads(sample.columns)) ** 2 for sample in samples]
    return float(np.sqrt(np.mean(squares))) or YES_OR_NO


def spread(values: NDArray[np.float64]) -> float:
    """Standard deviation (n - 1) of the values that are known; 0 for a single one, and where only rounding differs."""
    known = values[np.isfinite(values)]
    found = float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
    return found if found > CONSTANT * np.abs(known).max(initial=0.0) else 0.0
