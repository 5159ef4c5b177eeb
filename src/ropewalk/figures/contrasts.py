"""Candidate findings on groups of heads and on relations over heads, held against errors and against chance."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ropewalk.figures.findings import YES_OR_NO, Candidate, Finding, agreed, certain, compared, scale, sign, spread
from ropewalk.figures.phrases import CORRELATION, Unit
from ropewalk.figures.wording import capitalised, clearest, value
from ropewalk.geometry.taxonomy import DEPTH_BINS
from ropewalk.summary.chance import correlation_by_chance, difference_by_chance
from ropewalk.summary.measures import Among, Correlation, Difference, Mean, in_bins, in_layers
from ropewalk.summary.sample import Sample
from ropewalk.summary.sums import Sum
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View

CHANCE_STEP = (
    "**Chance**: a difference between groups of heads, or a correlation over heads, is claimed where it exceeds its "
    "error and also what as many unrelated heads exceed in 5% of cases (Student's t)."
)
"""The step of a caption that says when a relation over heads is claimed."""
ROPE, NOPE = in_layers(True), in_layers(False)
SHALLOW, DEEP = range(3), range(7, DEPTH_BINS)
"""Depth bins of early layers and of late ones."""
EVEN = 0.1
"""A correlation is even over depth where no depth bin is farther from the mean of all heads than this, for certain."""


def both(first: Among, second: Among) -> Among:
    """Heads that are among both."""
    return lambda heads: first(heads) & second(heads)


class Sides(NamedTuple):
    """Two groups of heads, and what they are called."""

    first: Among
    second: Among
    names: tuple[str, str]

    def within(self, group: Among) -> "Sides":
        """The same among some of the heads."""
        return self._replace(first=both(self.first, group), second=both(self.second, group))


LAYERS = Sides(ROPE, NOPE, ("RoPE layers", "NoPE layers"))
DEPTHS = Sides(in_bins(*SHALLOW), in_bins(*DEEP), ("early layers", "late layers"))


class Contrast(NamedTuple):
    """Means of a column over two groups of heads of one checkpoint, how many heads they are of, and the difference.

    `chance` is what the difference exceeds in 5% of cases where heads are dealt to the groups at random, `scale` the
    standard deviation over the heads of both, by which effects are compared.
    """

    means: tuple[Estimate, Estimate]
    counts: tuple[int, int]
    difference: Estimate
    chance: float
    scale: float

    def certain(self, unit: Unit, candidates: int = 1) -> float:
        """What is certain of the difference; nothing where chance would make as much."""
        return certain(self.difference, unit, candidates) if abs(self.difference.value) > self.chance else 0.0

    def way(self, unit: Unit, candidates: int = 1) -> int:
        """1 where the first group has more, -1 where it has less, 0 where neither can be claimed."""
        return sign(self.difference, unit, candidates) if self.certain(unit, candidates) > 0 else 0


def contrast(
    sample: Sample,
    of: "str | Callable[[Among], Mean | Sum]",
    first: Among,
    second: Among,
    candidates: int = 1,
) -> Contrast:
    """The first group of heads set against the second, as one of so many candidates.

    `of` is a column, or gives the mean of a group.
    """
    groups = [Mean(of, among=group) if isinstance(of, str) else of(group) for group in (first, second)]
    values = [group.of_heads(sample.columns) for group in groups]
    known = [one[np.isfinite(one)] for one in values]
    means = [sample.read(group).estimate for group in groups]
    return Contrast(
        (means[0], means[1]),
        (len(known[0]), len(known[1])),
        sample.read(Difference(*groups)).estimate,
        difference_by_chance(known[0], known[1], candidates),
        spread(np.concatenate(known)) or YES_OR_NO,
    )


def opposed(view: View, column: str, sides: Sides, more: str, unit: Unit, topic: str, of: str = "") -> Candidate:
    """Which of two groups of heads has more of a column: at the last checkpoint, or in most models.

    `more` is the verb, such as `have a higher mean r_k`, and `of` says what the numbers are parts of.
    """
    shown = compared(view)
    found = {
        index: contrast(view.samples[index], column, sides.first, sides.second, len(shown))
        for index in shown
        if column in view.samples[index].columns
    }
    return told(view, found, sides, more, unit, topic, of)


def told(
    view: View, found: Mapping[int, Contrast], sides: Sides, more: str, unit: Unit, topic: str, of: str = ""
) -> Candidate:
    """One contrast, or those of several models, as a finding where most of them go one way."""
    shown = compared(view)
    sizes = {
        index: one.way(unit, len(shown)) * one.certain(unit, len(shown)) / one.scale for index, one in found.items()
    }
    claim = agreed(view, {index: sizes.get(index, 0.0) for index in shown})
    if claim is None:
        return None
    names, means = sides.names[:: claim.way], [value(mean, unit) for mean in found[claim.at].means][:: claim.way]
    return Finding(
        capitalised(f"{claim.begin}{names[0]} {more} than {names[1]}"),
        f"{means[0]} against {means[1]}{of}, {clearest(view, claim.at)}",
        frozenset({topic}),
        claim.size,
    )


def farthest(view: View, of: "Callable[[Among], Mean | Sum]", groups: Sequence[Among], unit: Unit) -> "Farthest | None":
    """The two groups of heads of the last checkpoint with the least and the most, as the farthest apart of all pairs.

    None where they do not differ beyond error and chance, and over models.
    """
    sample = view.samples[-1]
    means = [float(of(group)(sample.columns)) for group in groups]
    there = [index for index, mean in enumerate(means) if not np.isnan(mean)]
    if len(there) < 2 or view.lineup.side_by_side:
        return None
    low, high = (pick(there, key=lambda index: means[index]) for pick in (min, max))
    pairs = len(there) * (len(there) - 1) // 2
    found = contrast(sample, of, groups[high], groups[low], pairs)
    size = found.certain(unit, pairs) / found.scale
    texts = [value(mean, unit) for mean in found.means]
    return Farthest(low, high, f"{texts[0]} and {texts[1]}", size) if size > 0 else None


class Farthest(NamedTuple):
    """The group with the least, the one with the most, their numbers (of the most first), and how far apart."""

    low: int
    high: int
    numbers: str
    size: float


def by_depth(view: View, column: str) -> Candidate:
    """Whether early layers have a higher correlation than late ones, and whether RoPE layers alone have it so."""
    found = opposed(view, column, DEPTHS, f"have a higher mean {column}", CORRELATION, "depth")
    last = view.samples[-1]
    nope, rope = (group(last.columns).any() for group in (NOPE, ROPE))
    if found is None or view.lineup.side_by_side or not nope or not rope:
        return found
    whole, inner = (contrast(last, column, side.first, side.second) for side in (DEPTHS, DEPTHS.within(ROPE)))
    if not all(inner.counts) or inner.way(CORRELATION) == whole.way(CORRELATION):
        return found
    means = " against ".join(value(mean, CORRELATION) for mean in inner.means)
    return Finding(
        f"{found.sentence}, but not among RoPE layers", f"{found.evidence}; {means} there", found.topics, found.size
    )


def even(view: View, column: str) -> Candidate:
    """Whether a correlation is much the same at every depth of the last checkpoint."""
    sample = view.samples[-1]
    bins = [one for one in range(DEPTH_BINS) if in_bins(one)(sample.columns).any()]
    away = [sample.read(Difference(Mean(column, among=in_bins(one)), Mean(column))).estimate for one in bins]
    if len(bins) < 3 or view.lineup.side_by_side or any(np.isnan(one.value) for one in away):
        return None
    ends = [abs(one.value) + (0.0 if np.isnan(one.se) else one.reach(len(bins))) for one in away]
    if not max(ends) < EVEN:
        return None
    means = [sample.read(Mean(column, among=in_bins(one))).estimate for one in bins]
    low, high = (value(pick(means, key=lambda mean: mean.value), CORRELATION) for pick in (min, max))
    return Finding(
        f"Mean {column} is nearly the same at every depth of {view.lineup.labels[-1]}",
        f"{low} to {high} over tenths of the depth",
        frozenset({"depth"}),
        (EVEN - max(ends)) / scale(Mean(column), sample),
    )


def lead(column: str) -> Difference:
    """Mean of a column over early layers less that over late ones."""
    return Difference(Mean(column, among=DEPTHS.first), Mean(column, among=DEPTHS.second))


def heads_with(sample: Sample, *columns: str) -> int:
    """How many heads have all of these columns."""
    known = [np.isfinite(sample.columns.get(name, np.full(len(sample), np.nan))) for name in columns]
    return int(np.logical_and.reduce(known).sum())


def related(correlation: Estimate, count: int) -> int:
    """1 or -1 where a correlation over so many heads is beyond its error and beyond chance, else 0."""
    return sign(correlation, CORRELATION) if abs(correlation.value) > correlation_by_chance(count) else 0


class Relation(NamedTuple):
    """The correlation of two columns over the heads of one checkpoint, and how many heads those are."""

    estimate: Estimate
    heads: int

    @classmethod
    def of(cls, sample: Sample, column: str, other: str, size: bool = False) -> "Relation":
        """The correlation of two columns; of the other's size, where `size` says so."""
        found = sample.read(Correlation(column, other, size)).estimate
        return cls(found, heads_with(sample, column, other))

    @property
    def way(self) -> int:
        """1 or -1 where it can be claimed, else 0."""
        return related(self.estimate, self.heads)

    @property
    def size(self) -> float:
        """What is certain of it, as effects are compared."""
        return certain(self.estimate, CORRELATION) / YES_OR_NO if self.way else 0.0
