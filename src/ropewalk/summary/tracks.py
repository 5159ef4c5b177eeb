"""A number over the checkpoints of a study, with its standard error from groups of documents (docs/method.md §7)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.jackknife import critical, jackknife_error

UNSEEN = 2.0
"""Weight of each head's own bias in the error of a share: what simulations need for intervals that cover."""
ONE_UNDECIDED = 0.5
"""Standard deviation that one undecided head (either with probability 1/2) gives to a count: the least there is."""


class Estimate(NamedTuple):
    """A number, its standard error (NaN where there is none), and the groups of documents that the error is from."""

    value: float
    se: float
    groups: int = 0

    def reach(self, candidates: int = 1) -> float:
        """Half the width of the 95% interval; of the largest of so many candidates, all of whose intervals must hold
        together (Bonferroni).
        """
        return critical(self.groups, candidates) * self.se


@dataclass(frozen=True)
class Reading:
    """A measure at one checkpoint: its value, and what its error comes from.

    A smooth measure has `left_out` [groups], its values with each group of documents left out, and `shift`, how far
    noise moves it to one side: the size of a correlation is too large where there is hardly any. A share of heads has
    `draws` [draws], its values with the heads' correlations moved by as much as their errors (jointly), `bias` [heads],
    how much more often each head is counted in them than in the value, as a part of the share, and `step`, the share
    that one head makes. `groups` names the groups, and `heads` the heads.
    """

    value: float
    groups: tuple[int, ...] = ()
    heads: tuple[tuple[int, int], ...] = ()
    left_out: NDArray[np.float64] | None = None
    shift: float = 0.0
    draws: NDArray[np.float64] | None = None
    bias: NDArray[np.float64] | None = None
    step: float = float("nan")

    @property
    def estimate(self) -> Estimate:
        """The value with its error."""
        return Estimate(self.value, self._error(), len(self.groups))

    def _error(self) -> float:
        if len(self.groups) < 2 or np.isnan(self.value):
            return float("nan")
        if self.left_out is not None:
            return float(np.hypot(jackknife_error(self.left_out), self.shift))
        draws, bias = self._drawn()
        return _share_error(draws - self.value, bias, self.step)

    def since(self, before: "Reading") -> Estimate:
        """The change from another checkpoint: paired by group of documents, and by head."""
        change, groups = self.value - before.value, min(len(self.groups), len(before.groups))
        if groups < 2 or np.isnan(change):
            return Estimate(change, float("nan"), groups)
        if self.groups != before.groups:
            return Estimate(change, float(np.hypot(self._error(), before._error())), groups)
        if self.left_out is not None and before.left_out is not None:
            spread = float(jackknife_error(self.left_out - before.left_out))
            return Estimate(change, float(np.hypot(spread, self.shift - before.shift)), groups)
        (draws, bias), (earlier, earlier_bias) = self._drawn(), before._drawn()
        bias = bias - earlier_bias if self.heads == before.heads else np.concatenate([bias, earlier_bias])
        error = _share_error(draws - earlier - change, bias, max(self.step, before.step))
        return Estimate(change, error, groups)

    def _drawn(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.draws is None or self.bias is None:
            raise TypeError("a share cannot be set against a measure that is none")
        return self.draws, self.bias


def _share_error(away: NDArray[np.float64], bias: NDArray[np.float64], step: float) -> float:
    """Error of a share (or a change of one) from draws away from it, each head's own bias, and the part of one head.

    sqrt(E[(s* - s)²] + 2 Σ_h b_h²), and never less than one undecided head would make. The first term holds the spread
    of the draws and how far heads spill over a threshold more one way than the other; the second, that a head near one
    stands on the same wrong side of it in all draws.
    """
    return float(max(np.sqrt((away**2).mean() + UNSEEN * (bias**2).sum()), ONE_UNDECIDED * step))


@dataclass(frozen=True)
class Track:
    """One measure over the checkpoints of a lineup."""

    readings: Sequence[Reading]

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """Values [checkpoints]."""
        return np.array([reading.value for reading in self.readings])

    @cached_property
    def errors(self) -> NDArray[np.float64]:
        """Standard errors [checkpoints]; NaN without groups of documents."""
        return np.array([reading.estimate.se for reading in self.readings])

    def at(self, index: int) -> Estimate:
        """The value at one checkpoint."""
        return self.readings[index].estimate

    def change(self, first: int, last: int) -> Estimate:
        """`values[last] - values[first]`, paired by head and by group of documents.

        Groups that hold other documents at the two checkpoints only add cross terms of mean zero; with different groups
        the two errors are taken as independent.
        """
        return self.readings[last].since(self.readings[first])


@dataclass(frozen=True)
class Gap:
    """How far one measure lies from another of the same checkpoints, `after - before`, paired by head and group."""

    before: Track
    after: Track

    @cached_property
    def _estimates(self) -> list[Estimate]:
        return [after.since(before) for before, after in zip(self.before.readings, self.after.readings, strict=True)]

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """Differences [checkpoints]."""
        return np.array([estimate.value for estimate in self._estimates])

    @cached_property
    def errors(self) -> NDArray[np.float64]:
        """Their standard errors [checkpoints]; NaN without groups of documents."""
        return np.array([estimate.se for estimate in self._estimates])

    def at(self, index: int) -> Estimate:
        """The difference at one checkpoint."""
        return self._estimates[index]
