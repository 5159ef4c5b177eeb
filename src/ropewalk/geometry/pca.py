"""Combined QK PCA and the correlation of each component with position (docs/method.md §3)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.moments import Floats, Moments

COMPONENTS = 10
UNDECIDED = 0.05
"""Below this |r_q| the sign of a component is taken from r_k."""
CONSTANT = 1e-14
"""A projection with less than this share of the pooled variance is constant: float64 cannot tell it from rounding."""


@dataclass(frozen=True)
class PCA:
    """Components of a stack of heads, largest first: explained_variance, r_q, r_k [heads, components],
    vectors [heads, d, components], eigenvalues [heads, components].
    """

    explained_variance: Floats
    r_q: Floats
    r_k: Floats
    vectors: Floats
    eigenvalues: Floats

    @property
    def eigengap(self) -> Floats:
        """(λ0 - λ1) / λ0 per head: near zero, PC0 is not a stable direction. NaN without variance or a second PC."""
        values = self.eigenvalues
        if values.shape[1] < 2:
            return np.full(len(values), np.nan)
        return _ratio(values[:, 0] - values[:, 1], values[:, 0])


def pooled_scatter(q: Moments, k: Moments) -> Floats:
    """Scatter [heads, d, d] of queries and keys together: Sxx_q + Sxx_k + (n_q n_k/(n_q+n_k)) ΔΔᵀ, Δ = x̄_q - x̄_k."""
    delta = q.mean - k.mean
    weight = q.n * k.n / (q.n + k.n)
    return np.asarray(q.sxx + k.sxx + weight[:, None, None] * delta[:, :, None] * delta[:, None, :])


def combined_pca(q: Moments, k: Moments, components: int = COMPONENTS, total: Floats | None = None) -> PCA:
    """PCA of queries and keys pooled, for heads whose queries are q and whose keys are k (both [heads, ...]).

    S v_j = λ_j v_j with S the pooled scatter; explained_variance_j = λ_j / tr S;
    r_q(j) = v_jᵀ Sxt_q / sqrt(v_jᵀ Sxx_q v_j · Stt_q), r_k likewise. Each v_j is oriented so that r_q ≥ 0, or r_k ≥ 0
    where |r_q| < 0.05. A constant projection or position has no correlation: NaN. `total` [heads] is tr S where it is
    more than the trace of these moments because they are a projection.
    """
    scatter = pooled_scatter(q, k)
    spectrum, basis = eigenbasis(scatter)
    return describe(q, k, scatter, spectrum[:, :components], basis[:, :, :components], total)


def eigenbasis(scatter: Floats) -> tuple[Floats, Floats]:
    """All eigenvalues [heads, d], largest first, and eigenvectors [heads, d, d] of symmetric matrices."""
    values, vectors = np.linalg.eigh(scatter)
    # Rounding can leave tiny negative values on a rank-deficient scatter.
    return np.maximum(values[:, ::-1], 0), np.ascontiguousarray(vectors[:, :, ::-1])


def describe(
    q: Moments, k: Moments, scatter: Floats, values: Floats, vectors: Floats, total: Floats | None = None
) -> PCA:
    """Components with eigenvalues [heads, m] and vectors [heads, d, m] of a pooled scatter, oriented by the rule."""
    total = np.trace(scatter, axis1=1, axis2=2) if total is None else total
    r_q = correlation(q, vectors, total)
    r_k = correlation(k, vectors, total)
    sign = _orientation(r_q, r_k)
    return PCA(
        explained_variance=_ratio(values, total[:, None]),
        r_q=r_q * sign,
        r_k=r_k * sign,
        vectors=vectors * sign[:, None, :],
        eigenvalues=values,
    )


def correlation(moments: Moments, directions: Floats, total: Floats) -> Floats:
    """Pearson correlation [heads, m] with position of the projections on directions [heads, d, m].

    `total` [heads] is the scale against which a projection counts as constant.
    """
    covariance = np.matmul(moments.sxt[:, None, :], directions)[:, 0]
    variance = np.einsum("hdm,hdm->hm", directions, np.matmul(moments.sxx, directions))
    variance = np.where(variance > CONSTANT * total[:, None], variance, 0)
    return np.clip(_ratio(covariance, np.sqrt(variance * moments.stt[:, None])), -1, 1)


def _orientation(r_q: Floats, r_k: Floats) -> Floats:
    decided = np.abs(r_q) >= UNDECIDED
    leading = np.where(decided, r_q, r_k)
    return np.where(leading < 0, -1.0, 1.0)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    wanted: NDArray[np.bool_] = np.broadcast_to(denominator > 0, shape)
    return np.asarray(np.divide(numerator, denominator, out=np.full(shape, np.nan), where=wanted))
