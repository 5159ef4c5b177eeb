"""What sums over attention rows mean (docs/method.md §10)."""

import numpy as np

from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import ratio


def octave_name(start: int) -> str:
    """Column of the attention on the octave of distances that begins here."""
    return {0: "mass_self", 1: "mass_previous"}.get(start, f"mass_{start}")


def lift(mass: Floats, rows: Floats, share: Floats) -> tuple[Floats, Floats]:
    """Mean mass on some keys over the rows that have such keys, and the mass over their share of the keys."""
    return ratio(mass, np.broadcast_to(rows, mass.shape)), ratio(mass, np.broadcast_to(share, mass.shape))


def fit(kernel: Floats, score: Floats) -> dict[str, Floats]:
    """How the kernel K and the measured mean score [..., heads, bins] go together over the bins of distances that have
    a score, each counting alike.

    A constant in a score is nothing to a softmax, so both are taken about their means: `kernel_r` is their correlation,
    `kernel_misfit` = Σ (M - K)² / Σ M². A score that does not vary has neither.
    """
    known = np.isfinite(score).all(axis=tuple(range(score.ndim - 1)))
    if not known.any():
        nothing = np.full(score.shape[:-1], np.nan)
        return {"kernel_misfit": nothing, "kernel_r": nothing}
    k, m = (curve[..., known] - curve[..., known].mean(axis=-1, keepdims=True) for curve in (kernel, score))
    kk, mm, km = ((a * b).sum(axis=-1) for a, b in ((k, k), (m, m), (k, m)))
    return {
        "kernel_misfit": ratio(((m - k) ** 2).sum(axis=-1), mm),
        "kernel_r": np.clip(ratio(km, np.sqrt(kk * mm)), -1, 1),
    }
