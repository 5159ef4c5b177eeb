"""In how many directions vectors spread (docs/method.md §8)."""

import numpy as np

from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import eigenbasis, ratio

ENOUGH = 0.9
"""Share of the variance that the counted components hold."""


def ranks(scatter: Floats, rest: Floats | None) -> dict[str, Floats]:
    """Effective ranks [1 + groups, heads]: of scatters [heads, d, d], and of the `rest` [groups · heads, d, d] that is
    left without each group.

    `rank` is the participation ratio (tr S)² / tr S², `rank90` the number of leading components that hold 90% of the
    variance, counting of the last one the part that is needed. A replicate's eigenvalues are taken along the whole's
    eigenvectors: to first order they are its own.
    """
    heads, d, _ = scatter.shape
    values, vectors = eigenbasis(scatter)
    spectra = values[None]
    stacked = scatter[None]
    if rest is not None:
        left = rest.reshape(-1, heads, d, d)
        stacked = np.concatenate([stacked, left])
        along = np.einsum("hij,ghij->ghj", vectors, np.matmul(left, vectors))
        spectra = np.concatenate([spectra, np.maximum(along, 0)])
    trace = np.trace(stacked, axis1=2, axis2=3)
    return {
        "rank": ratio(trace**2, np.einsum("ghij,ghij->gh", stacked, stacked)),
        "rank90": components_for(spectra, ENOUGH),
    }


def components_for(spectra: Floats, share: float) -> Floats:
    """How many leading eigenvalues [..., d] hold a share of the sum [...], the last one counted in part."""
    parts = ratio(spectra, spectra.sum(axis=-1, keepdims=True))
    reached = np.cumsum(np.nan_to_num(parts), axis=-1)
    last = np.minimum((reached < share).sum(axis=-1), spectra.shape[-1] - 1)[..., None]
    own = np.take_along_axis(parts, last, axis=-1)[..., 0]
    before = np.take_along_axis(reached, last, axis=-1)[..., 0] - own
    return np.asarray(last[..., 0] + np.clip(ratio(share - before, own), 0, 1))
