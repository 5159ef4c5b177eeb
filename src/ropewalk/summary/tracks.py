"""A number over the checkpoints of a study, with its standard error from leaving one shard out."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.jackknife import jackknife_error


class Estimate(NamedTuple):
    """A number and its standard error (NaN where there is none)."""

    value: float
    se: float


@dataclass(frozen=True)
class Track:
    """One measure over the checkpoints of a lineup.

    `values` is [checkpoints]; `left_out` holds, per checkpoint, the value with each shard left out.
    """

    values: NDArray[np.float64]
    left_out: tuple[dict[int, float], ...]

    @cached_property
    def errors(self) -> NDArray[np.float64]:
        """Jackknife standard errors [checkpoints]; NaN without replicates."""
        return np.array([float(jackknife_error(np.array([*parts.values()]))) for parts in self.left_out])

    def at(self, index: int) -> Estimate:
        """The value at one checkpoint."""
        return Estimate(float(self.values[index]), float(self.errors[index]))

    def change(self, first: int, last: int) -> Estimate:
        """`values[last] - values[first]`, its error from leaving the same shard out of both.

        Shards that hold other documents in the two checkpoints only add cross terms of mean zero; with different shards
        the two errors are taken as independent.
        """
        before, after = self.left_out[first], self.left_out[last]
        if before.keys() == after.keys():
            error = float(jackknife_error(np.array([after[shard] - before[shard] for shard in before])))
        else:
            error = float(np.hypot(self.errors[first], self.errors[last]))
        return Estimate(float(self.values[last] - self.values[first]), error)
