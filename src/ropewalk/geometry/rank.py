"""In how many directions vectors spread (docs/method.md §8)."""

import numpy as np

from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import eigenbasis, ratio

ENOUGH = 0.9
"""Share of the variance that the counted components hold."""
MARGIN = 4
"""How many components more than the whole a replicate may need before all are looked at."""


def ranks(scatter: Floats, rest: Floats | None) -> dict[str, Floats]:
    """Effective ranks [1 + groups, heads]: of scatters [heads, d, d], and of the `rest` [groups · heads, d, d] that is
    left without each group.

    `rank` is the participation ratio (tr S)² / tr S², `rank90` the number of leading components that hold 90% of the
    variance, counting of the last one the part that is needed. A replicate's eigenvalues are taken along the whole's
    eigenvectors: to first order they are its own.
    """
    values, vectors = eigenbasis(scatter)
    counts, shares = [components_for(values, ENOUGH)[None]], [_participation(scatter)[None]]
    if rest is not None:
        left = rest.reshape(-1, *scatter.shape)
        counts.append(_components_along(left, vectors, counts[0]))
        shares.append(_participation(left))
    return {"rank": np.concatenate(shares), "rank90": np.concatenate(counts)}


def _participation(scatter: Floats) -> Floats:
    """(tr S)² / tr S² [...] of scatters [..., d, d]."""
    trace = np.trace(scatter, axis1=-2, axis2=-1)
    return ratio(trace**2, np.einsum("...ij,...ij->...", scatter, scatter))


def _components_along(scatter: Floats, vectors: Floats, expected: Floats) -> Floats:
    """`components_for` with the variances along vectors [heads, d, d] in place of eigenvalues."""
    total = np.trace(scatter, axis1=2, axis2=3)
    # Those beyond the last that counts need not be known; where it is further away than expected, all are.
    few = int(np.nan_to_num(expected).max(initial=0)) + MARGIN
    for leading in (vectors[..., :few], vectors):
        along = np.maximum((leading * np.matmul(scatter, leading)).sum(axis=2), 0)
        if np.all(along.sum(axis=-1) >= ENOUGH * total):
            break
    return components_for(along, ENOUGH, total)


def components_for(spectra: Floats, share: float, total: Floats | None = None) -> Floats:
    """How many leading eigenvalues [..., d] hold a share of their sum [...], the last one counted in part.

    With the sum given, those that come after need not be there.
    """
    parts = ratio(spectra, (spectra.sum(axis=-1) if total is None else total)[..., None])
    reached = np.cumsum(np.nan_to_num(parts), axis=-1)
    last = np.minimum((reached < share).sum(axis=-1), spectra.shape[-1] - 1)[..., None]
    own = np.take_along_axis(parts, last, axis=-1)[..., 0]
    before = np.take_along_axis(reached, last, axis=-1)[..., 0] - own
    return np.asarray(last[..., 0] + np.clip(ratio(share - before, own), 0, 1))
