"""At which steps of a training a model is looked at."""

from dataclasses import dataclass
from math import log2

from ropewalk.errors import RopewalkError


@dataclass(frozen=True)
class Schedule:
    """Step 0, and every so many steps (`every`), or so many a doubling of the step (`per_octave`): 1, 2, 3, 4, 6, 8,
    11, 16, ... where there are two."""

    every: int | None = None
    per_octave: int | None = None

    def __post_init__(self) -> None:
        if (self.every is None) == (self.per_octave is None):
            raise RopewalkError("say when to look: `every=100` for every hundred steps, or `log_spaced=True`")
        for name, value in (("every", self.every), ("per_octave", self.per_octave)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise RopewalkError(f"{name} is {value!r}: give a whole number of at least 1")

    def __contains__(self, step: int) -> bool:
        if step <= 0:
            return step == 0
        if self.every is not None:
            return step % self.every == 0
        assert self.per_octave is not None
        near = round(self.per_octave * log2(step))
        return any(round(2 ** (k / self.per_octave)) == step for k in (near - 1, near, near + 1) if k >= 0)
