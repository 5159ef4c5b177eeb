"""Distances between a query and the keys before it, in bins that grow with the distance (docs/method.md §10)."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FINE = 8
"""Distances below this have a bin each; beyond it every octave is cut into `PER_OCTAVE` even parts."""
PER_OCTAVE = 4


@lru_cache(maxsize=64)
def distance_edges(context: int) -> NDArray[np.int64]:
    """Edges of the distance bins up to `context`: 0, 1, ..., 8, then 10, 12, 14, 16, 20, 24, 28, 32, 40, ...

    Bin i holds the distances edges[i] <= Δ < edges[i + 1]. Every power of two is an edge.
    """
    parts = range(PER_OCTAVE)
    powers = range(FINE.bit_length() - 1, context.bit_length())
    beyond = [(1 << power) + (part << power) // PER_OCTAVE for power in powers for part in parts]
    found = np.array([edge for edge in (*range(FINE), *beyond) if edge < context] + [context], dtype=np.int64)
    # The same array is given to everyone who asks for it.
    found.flags.writeable = False
    return found


def octaves(context: int) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """First distances [octaves] of 0, 1, 2-3, 4-7, ..., and the octave [bins] that each distance bin lies in."""
    starts = np.array([0, *(1 << power for power in range(context.bit_length()) if 1 << power < context)])
    return starts, np.searchsorted(starts, distance_edges(context)[:-1], side="right") - 1
