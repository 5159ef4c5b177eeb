"""Numbers computed a second time, in the plainest way."""

import math
from collections.abc import Sequence

import numpy as np


def jackknife(values: Sequence[float]) -> float:
    """Standard error from delete-one-group values: sqrt((g-1)/g Σ (v - v̄)²)."""
    numbers = np.asarray(values, dtype=float)
    return math.sqrt((len(numbers) - 1) / len(numbers) * sum((v - numbers.mean()) ** 2 for v in numbers))
