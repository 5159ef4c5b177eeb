"""The RoPE frame: what is constant in a head's vectors before they are turned, and what that does to scores
(docs/method.md §8).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.distance import distance_edges
from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import ratio

Complex = NDArray[np.complex128]


@dataclass(frozen=True)
class Turned:
    """Vectors turned back by the angles of their positions, as means over tokens; any number of leading axes.

    mean [..., heads, pairs] = m_f (complex), length [..., heads, pairs] = mean |u_f|, energy [..., heads, pairs] =
    mean |u_f|²; of the dimensions that do not turn, rest [..., heads, others] = x̄ and rest_energy [..., heads] their
    mean |x|².
    """

    mean: Complex
    length: Floats
    energy: Floats
    rest: Floats
    rest_energy: Floats

    @property
    def total(self) -> Floats:
        """E|x|² [..., heads] over all dimensions."""
        return np.asarray(self.energy.sum(axis=-1) + self.rest_energy)

    @property
    def fixed(self) -> Floats:
        """|m_f|² / E|x|² [..., heads, pairs]: what is one constant vector before the rotation."""
        return ratio(np.abs(self.mean) ** 2, self.total[..., None])

    @property
    def energy_share(self) -> Floats:
        """e_f / E|x|² [..., heads, pairs]."""
        return ratio(self.energy, self.total[..., None])

    @property
    def concentration(self) -> Floats:
        """R_f = |m_f| / mean |u_f| [..., heads, pairs]: 1 where all tokens point the same way before the rotation."""
        return ratio(np.abs(self.mean), self.length)

    @property
    def mean_concentration(self) -> Floats:
        """R_f [..., heads] as a mean over pairs, each weighing what it holds of the energy."""
        weighted = np.nan_to_num(self.concentration) * self.energy
        return ratio(weighted.sum(axis=-1), self.energy.sum(axis=-1))

    def __getitem__(self, heads: NDArray[np.intp]) -> "Turned":
        return Turned(
            self.mean[..., heads, :],
            self.length[..., heads, :],
            self.energy[..., heads, :],
            self.rest[..., heads, :],
            self.rest_energy[..., heads],
        )


@dataclass(frozen=True)
class Kernel:
    """What constant queries and keys give to scores: `strength` [..., heads, pairs] = s · conj(m^q_f) m^k_f (complex),
    and `constant` [..., heads], the score of the dimensions that do not turn.
    """

    strength: Complex
    constant: Floats
    frequencies: tuple[float, ...]

    @classmethod
    def of(cls, q: Turned, k: Turned, frequencies: tuple[float, ...], scale: float) -> "Kernel":
        """The kernel of heads from their queries and keys."""
        return cls(scale * q.mean.conj() * k.mean, scale * (q.rest * k.rest).sum(axis=-1), frequencies)

    def by_distance(self, context: int, reach: int) -> Floats:
        """K(Δ) = s (Σ_f Re(conj(m^q_f) m^k_f e^(-iω_f Δ)) + Σ_unrotated x̄^q x̄^k) [..., heads, bins], as means over the
        distances of each bin below `reach`.
        """
        cosines, sines = turns(self.frequencies, context, reach)
        found = self.strength.real @ cosines + self.strength.imag @ sines
        return np.asarray(found + self.constant[..., None])

    def shares(self, context: int, reach: int) -> Floats:
        """How much of what moves K over the bins each pair gives [..., heads, pairs]: its own variance over the sum."""
        parts = turns(self.frequencies, context, reach)
        cosines, sines = (part - part.mean(axis=1, keepdims=True) for part in parts)
        count = cosines.shape[1]
        cc, ss, cs = ((a * b).sum(axis=1) / count for a, b in ((cosines, cosines), (sines, sines), (cosines, sines)))
        re, im = self.strength.real, self.strength.imag
        moved = np.maximum(re**2 * cc + im**2 * ss + 2 * re * im * cs, 0)
        return ratio(moved, moved.sum(axis=-1, keepdims=True))


@lru_cache(maxsize=8)
def turns(frequencies: tuple[float, ...], context: int, reach: int) -> tuple[Floats, Floats]:
    """cos ωΔ and sin ωΔ [pairs, bins] as means over the distances of each bin that starts below `reach`.

    A distance counts as often as two tokens of a document lie so far apart.
    """
    edges = distance_edges(context)
    distances = np.arange(min(reach, context))
    weights = (context - distances).astype(np.float64)
    starts = edges[:-1][edges[:-1] < reach]
    total = np.add.reduceat(weights, starts)

    def mean(turn: np.ufunc) -> Floats:
        # Pair by pair: all of them at every distance of a long context would be gigabytes.
        return np.stack([np.add.reduceat(turn(one * distances) * weights, starts) / total for one in frequencies])

    return mean(np.cos), mean(np.sin)


def summary(
    q: Turned, k: Turned, kernel: Floats, shares: Floats, frequencies: tuple[float, ...]
) -> Mapping[str, Floats]:
    """Numbers [..., heads] of the frame: fixed shares, concentrations, and how K moves."""
    wavelengths = 2 * np.pi / np.array(frequencies)
    known = np.isfinite(shares).all(axis=-1)
    weights = np.nan_to_num(shares)
    largest = weights.argmax(axis=-1)
    return {
        "fixed_share_q": q.fixed.sum(axis=-1),
        "fixed_share_k": k.fixed.sum(axis=-1),
        "concentration_q": q.mean_concentration,
        "concentration_k": k.mean_concentration,
        "kernel_range": kernel.max(axis=-1) - kernel.min(axis=-1),
        "kernel_wavelength": np.where(known, np.exp(weights @ np.log(wavelengths)), np.nan),
        "dominant_wavelength": np.where(known, wavelengths[largest], np.nan),
    }
