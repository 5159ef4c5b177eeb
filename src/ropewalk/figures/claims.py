"""What may be said of relations over heads: beyond their errors, and beyond what as many unrelated heads would show."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ropewalk.figures.phrases import CORRELATION, Unit
from ropewalk.figures.wording import amount, sign, value
from ropewalk.summary.chance import correlation_by_chance, difference_by_chance
from ropewalk.summary.measures import Among, Difference, Mean
from ropewalk.summary.sample import Sample
from ropewalk.summary.tracks import Estimate

CHANCE_STEP = (
    "**Chance**: a correlation over heads, or a difference between groups of heads, is called one where it exceeds its "
    "error and also what unrelated heads, as many, exceed in 5% of cases (Student's t)."
)
"""The step of a caption that says when a relation over heads is called one."""


def heads_with(sample: Sample, *columns: str) -> int:
    """How many heads have all of these columns."""
    known = [np.isfinite(sample.columns.get(name, np.full(len(sample), np.nan))) for name in columns]
    return int(np.logical_and.reduce(known).sum())


def related(correlation: Estimate, count: int) -> int:
    """1 or -1 where a correlation over so many heads is beyond its error and beyond chance, else 0."""
    return sign(correlation, CORRELATION) if abs(correlation.value) > correlation_by_chance(count) else 0


def correlations(found: Mapping[str, tuple[Estimate, int]]) -> str:
    """Correlations, each with the heads it is over, by what follows them, such as `0.910 ± 0.004 with r_q`.

    It is said which of them are no more than errors or unrelated heads would make.
    """
    texts = [f"{value(estimate, CORRELATION)} {words}" for words, (estimate, _) in found.items()]
    remarks = [_remark(*pair) for pair in found.values()]
    if len(set(remarks)) == 1 and remarks[0]:
        return f"{listed(texts)} ({'each ' if len(found) > 1 else ''}{remarks[0]})"
    return listed([f"{text} ({remark})" if remark else text for text, remark in zip(texts, remarks, strict=True)])


def _remark(correlation: Estimate, count: int) -> str:
    if np.isnan(correlation.value) or related(correlation, count):
        return ""
    small = not abs(correlation.value) > correlation_by_chance(count)
    return f"no more than {count} unrelated heads show" if small else "not beyond its error"


def listed(texts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


class Contrast(NamedTuple):
    """Means of a column over two groups of heads of one checkpoint, how many heads they are of, and the difference.

    `chance` is what the difference exceeds in 5% of cases where heads are dealt to the groups at random.
    """

    means: tuple[Estimate, Estimate]
    counts: tuple[int, int]
    difference: Estimate
    chance: float

    def way(self, unit: Unit, candidates: int = 1) -> int:
        """1 where the first group has more, -1 where it has less, 0 where neither can be claimed."""
        return sign(self.difference, unit, candidates) if abs(self.difference.value) > self.chance else 0

    def words(self, unit: Unit) -> str:
        """The difference in words."""
        way = self.way(unit)
        if not way:
            size = f"{unit.number(self.difference.value)}{unit.error(self.difference.se)}{unit.change}"
            return f"{size}, not beyond error and chance"
        return f"{amount(self.difference, unit)} {'more' if way > 0 else 'less'}"


def contrast(sample: Sample, column: str, first: Among, second: Among, candidates: int = 1) -> Contrast:
    """The first group of heads set against the second, as one of so many candidates."""
    groups = Mean(column, among=first), Mean(column, among=second)

    values = [sample.columns[column][group.among(sample.columns)] for group in groups]
    known = [group[np.isfinite(group)] for group in values]
    return Contrast(
        (sample.read(groups[0]).estimate, sample.read(groups[1]).estimate),
        (len(known[0]), len(known[1])),
        sample.read(Difference(*groups)).estimate,
        difference_by_chance(known[0], known[1], candidates),
    )
