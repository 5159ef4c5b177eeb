"""Distances between a query and the keys before it, in bins that grow with the distance (docs/method.md §10)."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FINE = 8
"""Distances below this have a bin each; above it there are `PER_OCTAVE` bins in every octave."""
PER_OCTAVE = 4


@lru_cache(maxsize=64)
def distance_edges(context: int) -> NDArray[np.int64]:
    """Edges of the distance bins: 0, 1, ..., 8, then four to an octave, up to `context`.

    Bin i holds the distances edges[i] <= Δ < edges[i + 1]. Every power of two is an edge.
    """
    octaves = max(context.bit_length() - 3, 0)
    beyond = np.round(FINE * 2.0 ** (np.arange(PER_OCTAVE * octaves + 1) / PER_OCTAVE)).astype(np.int64)
    edges = np.unique([*range(FINE), *beyond.tolist()])
    edges = np.append(edges[edges < context], context)
    # The same array is given to everyone who asks for it.
    edges.flags.writeable = False
    return edges


def octaves(context: int) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """First distances [octaves] of 0, 1, 2-3, 4-7, ..., and the octave [bins] that each distance bin lies in."""
    starts = np.array([0, *(1 << power for power in range(context.bit_length()) if 1 << power < context)])
    return starts, np.searchsorted(starts, distance_edges(context)[:-1], side="right") - 1
