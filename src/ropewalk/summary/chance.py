"""What heads that have nothing to do with each other would show: a model has only so many of them.

Errors from groups of documents say how well a number of these heads is known. They are small where heads are measured
well, and say nothing on whether a correlation over a dozen heads, or a difference between two groups of them, is more
than their number makes by chance.
"""

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.jackknife import critical


def correlation_by_chance(count: int) -> float:
    """The size that the correlation of two unrelated columns over so many heads exceeds in 5% of cases.

    `t / sqrt(n - 2 + t²)` with the 97.5% quantile t of Student's distribution with n - 2 degrees; NaN for fewer than
    three heads.
    """
    t = critical(count - 1)
    return float(t / np.sqrt(count - 2 + t**2)) if count > 2 else float("nan")


def difference_by_chance(first: NDArray[np.float64], second: NDArray[np.float64], candidates: int = 1) -> float:
    """The size that the difference of two means exceeds in 5% of cases where heads are dealt to groups at random.

    Student's t with the pooled variance of both groups, `t s sqrt(1/n + 1/m)`; of the largest of several candidates,
    for all of them at once (Bonferroni). NaN where there are too few heads for a variance.
    """
    n, m = len(first), len(second)
    if min(n, m) < 1 or n + m < 3:
        return float("nan")
    squares = ((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum()
    return float(critical(n + m - 1, candidates) * np.sqrt(squares / (n + m - 2) * (1 / n + 1 / m)))
