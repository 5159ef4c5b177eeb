"""Several columns taken together: attention on a range of distances is the sum of that on its octaves."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ropewalk.summary.measures import Among, Columns, Mean, everywhere


@dataclass(frozen=True)
class Sum:
    """Mean over heads of the sum of several columns; a head that has some of them counts those."""

    columns: tuple[str, ...]
    among: Among = everywhere

    def __call__(self, heads: Columns) -> Any:
        """The mean [...] of columns [..., heads]."""
        return Mean("sum")({**heads, "sum": self.of_heads(heads)})

    def of_heads(self, heads: Columns) -> Any:
        """What the mean is of, [..., heads]."""
        parts = np.stack([Mean(column, among=self.among).of_heads(heads) for column in self.columns])
        return np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
