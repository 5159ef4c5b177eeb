"""Combined QK PCA and the correlation of directions with position (docs/method.md §3)."""

from dataclasses import dataclass, replace

import numpy as np

from ropewalk.geometry.moments import Floats, Left, Moments, outer, trace

COMPONENTS = 10
UNDECIDED = 0.05
"""Below this |r_q| the sign of a component is taken from r_k."""
CONSTANT = 1e-14
"""A projection with less than this share of the pooled variance is constant: float64 cannot tell it from rounding."""


@dataclass(frozen=True)
class PCA:
    """Components of a stack of heads, largest first: explained_variance, r_q, r_k, separation_share
    [heads, components], vectors [heads, d, components], eigenvalues [heads, components].
    """

    explained_variance: Floats
    r_q: Floats
    r_k: Floats
    separation_share: Floats
    vectors: Floats
    eigenvalues: Floats

    @property
    def eigengap(self) -> Floats:
        """(λ0 - λ1) / λ0 per head: near zero, PC0 is not a stable direction. NaN without variance or a second PC."""
        return eigengap(self.eigenvalues)

    def oriented(self) -> "PCA":
        """Each component turned so that r_q ≥ 0, or r_k ≥ 0 where |r_q| < 0.05."""
        sign = orientation(self.r_q, self.r_k)
        return replace(self, r_q=self.r_q * sign, r_k=self.r_k * sign, vectors=self.vectors * sign[:, None, :])


def pooled_scatter(q: Moments, k: Moments) -> Floats:
    """Scatter [heads, d, d] of queries and keys together: Sxx_q + Sxx_k + (n_q n_k/(n_q+n_k)) ΔΔᵀ, Δ = x̄_q - x̄_k."""
    scatter = centred_scatter(q, k)
    scatter += outer(weight(q, k), q.mean - k.mean)
    return scatter


def weighted_offset(q: Moments | Left, k: Moments | Left) -> Floats:
    """sqrt(n_q n_k/(n_q+n_k)) Δ [heads, d], whose product with itself is what pooling adds to the scatter."""
    return np.asarray(np.sqrt(weight(q, k))[:, None] * (q.mean - k.mean))


def centred_scatter(q: Moments, k: Moments) -> Floats:
    """Scatter [heads, d, d] of queries about their mean and keys about theirs: Sxx_q + Sxx_k."""
    return np.asarray(q.sxx + k.sxx)


def pooled_variance(q: Moments | Left, k: Moments | Left) -> Floats:
    """Trace [heads] of the pooled scatter."""
    spread = sum(one.trace if isinstance(one, Left) else trace(one.sxx) for one in (q, k))
    return np.asarray(spread + weight(q, k) * ((q.mean - k.mean) ** 2).sum(axis=1))


def combined_pca(q: Moments, k: Moments, components: int = COMPONENTS) -> PCA:
    """PCA of queries and keys pooled, for heads whose queries are q and whose keys are k (both [heads, ...]).

    S v_j = λ_j v_j with S the pooled scatter; explained_variance_j = λ_j / tr S;
    r_q(j) = v_jᵀ Sxt_q / sqrt(v_jᵀ Sxx_q v_j · Stt_q), r_k likewise. Each v_j is oriented so that r_q ≥ 0, or r_k ≥ 0
    where |r_q| < 0.05. A constant projection or position has no correlation: NaN.
    """
    scatter = pooled_scatter(q, k)
    spectrum, basis = eigenbasis(scatter)
    return describe(q, k, scatter, spectrum[:, :components], basis[:, :, :components]).oriented()


def eigenbasis(scatter: Floats) -> tuple[Floats, Floats]:
    """All eigenvalues [..., d], largest first, and eigenvectors [..., d, d] of symmetric matrices."""
    # Of the negative, because they come smallest first, and turning the vectors' order round costs a tenth of all.
    values, vectors = np.linalg.eigh(-scatter)
    # Rounding can leave tiny negative values on a rank-deficient scatter.
    return np.maximum(-values, 0), vectors


def eigengap(values: Floats) -> Floats:
    """(λ0 - λ1) / λ0 [...] of eigenvalues [..., m]; NaN without variance or a second eigenvalue."""
    if values.shape[-1] < 2:
        return np.full(values.shape[:-1], np.nan)
    return ratio(values[..., 0] - values[..., 1], values[..., 0])


def describe(q: Moments, k: Moments, scatter: Floats, values: Floats, vectors: Floats) -> PCA:
    """Components with eigenvalues [heads, m] and vectors [heads, d, m] of a scatter, as the vectors are oriented."""
    total = trace(scatter)
    return PCA(
        explained_variance=ratio(values, total[:, None]),
        r_q=correlation(q, vectors, total, spread(q.sxx, vectors)),
        r_k=correlation(k, vectors, total, spread(k.sxx, vectors)),
        separation_share=separation_share(q, k, vectors, values),
        vectors=vectors,
        eigenvalues=values,
    )


def separation_share(q: Moments | Left, k: Moments | Left, vectors: Floats, values: Floats) -> Floats:
    """How much of each component's variance is the offset between queries and keys [heads, m].

    (n_q n_k/(n_q+n_k)) (v_jᵀΔ)² / λ_j with Δ = x̄_q - x̄_k, of components of the pooled scatter.
    """
    offset = np.matmul((q.mean - k.mean)[:, None], vectors)[:, 0]
    return np.clip(ratio(weight(q, k)[:, None] * offset**2, values), 0, 1)


def spread(scatter: Floats, directions: Floats) -> Floats:
    """Sum of squares vᵀSv [heads, m] along directions [heads, d, m]."""
    return np.asarray((directions * np.matmul(scatter, directions)).sum(axis=1))


def correlation(moments: Moments | Left, directions: Floats, total: Floats, along: Floats) -> Floats:
    """Pearson correlation [heads, m] with position of the projections on directions [heads, d, m].

    `total` [heads] is the scale against which a projection counts as constant, `along` [heads, m] the `spread` along
    the directions.
    """
    covariance = np.matmul(moments.sxt[:, None, :], directions)[:, 0]
    variance = np.where(along > CONSTANT * total[:, None], along, 0)
    return np.clip(ratio(covariance, np.sqrt(np.maximum(variance * moments.stt[:, None], 0))), -1, 1)


def drift_axis(q: Moments | Left, k: Moments | Left) -> Floats:
    """The drift axis a [heads, d, 1]: all of the pooled vectors' covariance with position lies along it.

    a = c / |c|, c = Sxt_q + Sxt_k + (n_q n_k/(n_q+n_k)) (x̄_q - x̄_k)(t̄_q - t̄_k); NaN where nothing drifts.
    """
    c = q.sxt + k.sxt + (weight(q, k) * (q.t_mean - k.t_mean))[:, None] * (q.mean - k.mean)
    return ratio(c, np.linalg.norm(c, axis=1, keepdims=True))[:, :, None]


def orientation(r_q: Floats, r_k: Floats) -> Floats:
    """Sign (1 or -1) of each direction that makes r_q ≥ 0, or r_k ≥ 0 where |r_q| < 0.05."""
    leading = np.where(np.abs(r_q) >= UNDECIDED, r_q, r_k)
    return np.where(leading < 0, -1.0, 1.0)


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """numerator / denominator, NaN where the denominator is not positive."""
    return np.asarray(numerator / np.where(denominator > 0, denominator, np.nan))


def weight(q: Moments | Left, k: Moments | Left) -> Floats:
    """n_q n_k / (n_q + n_k) [heads], with which the offset between queries and keys counts."""
    return np.asarray(q.n * k.n / np.maximum(q.n + k.n, 1))
