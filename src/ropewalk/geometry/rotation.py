"""Planar rotation: the axis along which queries and keys drift, the one that tells them apart (docs/method.md §5)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ropewalk.geometry.moments import Floats, Moments
from ropewalk.geometry.pca import correlation, drift_axis, pooled_variance, ratio, weight, weighted_offset

METRICS: Mapping[str, str] = {
    "mu_q_a": "mean of the queries along the drift axis a",
    "mu_k_a": "mean of the keys along the drift axis",
    "mu_q_b": "mean of the queries along the separation axis b",
    "mu_k_b": "mean of the keys along the separation axis",
    "alpha_q": "change of the queries' projection on the drift axis per token",
    "alpha_k": "change of the keys' projection on the drift axis per token",
    "alpha_q_context": "alpha_q times the context: the change over a whole document",
    "alpha_k_context": "alpha_k times the context",
    "r_q_a": "correlation of the queries' projection on the drift axis with position, a growing with position",
    "r_k_a": "correlation of the keys' projection on the drift axis with position",
    "bias_strength": "mu_q_a · alpha_k: how much the mean score grows per token of a key's position; positive: later "
    "keys score higher (recency)",
    "bias_strength_context": "bias_strength times the context: from the first key of a document to the last",
    "separation_strength": "share of the scatter of independent query-key pairs that lies along the separation axis",
    "var_frac_a": "share of the pooled variance along the drift axis",
    "var_frac_b": "share of the pooled variance along the separation axis",
    "plane_var_fraction": "var_frac_a + var_frac_b",
    "residual_pos_r": "largest |correlation| with position that is left outside the drift axis: rounding",
}
"""The numbers of a head in its plane, each with a sentence on what it is."""
OF_PAIRS: Mapping[str, str] = {
    "drift_wavelength": "wavelength in tokens of where the drift axis lies: geometric mean over pairs weighted by "
    "energy",
    "drift_slow": "share of the drift axis' energy in pairs that do not turn once within the context",
    "pc0_slow": "share of PC0's energy in such pairs",
}
"""The same of layers that turn pairs of dimensions."""


def separation_axis(q: Moments, k: Moments, a: Floats) -> Floats:
    """The separation axis b [heads, d]: Δ - (Δᵀa) a with Δ = x̄_q - x̄_k, as a unit vector; NaN where Δ lies along a."""
    offset = q.mean - k.mean
    across = offset - (offset * a).sum(axis=1, keepdims=True) * a
    length = np.linalg.norm(across, axis=1, keepdims=True)
    # What rounding leaves of an offset along a points anywhere.
    return ratio(across, np.where(length > 1e-12 * np.linalg.norm(offset, axis=1, keepdims=True), length, 0))


def rotation(q: Moments, k: Moments, context: int) -> dict[str, Floats]:
    """The `METRICS` [heads] of heads whose queries are q and whose keys are k.

    a = c / |c| with c the pooled vectors' covariance with position (see `drift_axis`), b the separation axis;
    mu = aᵀx̄, alpha = aᵀSxt / Stt per kind, separation_strength = bᵀCb / tr C with C = Σ_q + Σ_k + ΔΔᵀ, var_frac_a =
    aᵀSa / tr S with S the pooled scatter. Everything is NaN where nothing drifts.
    """
    a = drift_axis(q, k)[:, :, 0]
    b = separation_axis(q, k, a)
    plane, total = _Plane.of(q, k, np.stack([a, b], axis=2)), pooled_variance(q, k)
    slopes = {kind: ratio((a * one.sxt).sum(axis=1), one.stt) for kind, one in (("q", q), ("k", k))}
    mean = {f"mu_{kind}_{name}": (axis * one.mean).sum(axis=1) for kind, one, name, axis in _each(q, k, a, b)}
    shares = dict(zip("ab", ratio(plane.pooled, total[:, None]).T, strict=True))
    bias = mean["mu_q_a"] * slopes["k"]
    return {
        **mean,
        **{f"alpha_{kind}": slope for kind, slope in slopes.items()},
        **{f"alpha_{kind}_context": slope * context for kind, slope in slopes.items()},
        "r_q_a": correlation(q, plane.axes[:, :, :1], total, plane.q[:, :1])[:, 0],
        "r_k_a": correlation(k, plane.axes[:, :, :1], total, plane.k[:, :1])[:, 0],
        "bias_strength": bias,
        "bias_strength_context": bias * context,
        "separation_strength": _separation_strength(q, k, plane),
        "var_frac_a": shares["a"],
        "var_frac_b": shares["b"],
        "plane_var_fraction": shares["a"] + shares["b"],
        "residual_pos_r": _residual(q, k, plane, total),
    }


def pair_energy(axes: Floats, first: Sequence[int], second: Sequence[int]) -> Floats:
    """Share of the energy of unit vectors [..., d] in each pair of dimensions that turn together, [..., pairs]."""
    return np.asarray(axes[..., list(first)] ** 2 + axes[..., list(second)] ** 2)


def by_wavelength(drift: Floats, pc0: Floats, frequencies: Sequence[float], context: int) -> dict[str, Floats]:
    """The `OF_PAIRS` [...] from the energies [..., pairs] of the drift axis and of PC0.

    A pair is slow where its wavelength 2π/ω is longer than the context.
    """
    wavelengths = 2 * np.pi / np.asarray(frequencies)
    slow = wavelengths > context
    mean = ratio((drift * np.log(wavelengths)).sum(axis=-1), drift.sum(axis=-1))
    return {
        "drift_wavelength": np.exp(mean),
        "drift_slow": drift[..., slow].sum(axis=-1),
        "pc0_slow": pc0[..., slow].sum(axis=-1),
    }


def _each(q: Moments, k: Moments, a: Floats, b: Floats) -> list[tuple[str, Moments, str, Floats]]:
    return [(kind, one, name, axis) for name, axis in (("a", a), ("b", b)) for kind, one in (("q", q), ("k", k))]


class _Plane(NamedTuple):
    """The axes a and b [heads, d, 2] and the sums of squares along them [heads, 2]: of queries, of keys, and of both
    pooled; `image` [heads, d] is Sa with S the pooled scatter, which is not formed: only its products are needed.
    """

    axes: Floats
    q: Floats
    k: Floats
    pooled: Floats
    image: Floats

    @classmethod
    def of(cls, q: Moments, k: Moments, axes: Floats) -> "_Plane":
        image_q, image_k = np.matmul(q.sxx, axes), np.matmul(k.sxx, axes)
        offset = weighted_offset(q, k)
        image = image_q + image_k + offset[:, :, None] * np.matmul(offset[:, None], axes)
        along_q, along_k, along = ((axes * one).sum(axis=1) for one in (image_q, image_k, image))
        return cls(axes, along_q, along_k, along, image[:, :, 0])


def _separation_strength(q: Moments, k: Moments, plane: _Plane) -> Floats:
    offset = q.mean - k.mean
    along, whole = ((offset * plane.axes[:, :, 1]).sum(axis=1)) ** 2, (offset**2).sum(axis=1)
    for one, spread in ((q, plane.q), (k, plane.k)):
        along = along + ratio(spread[:, 1], one.n)
        whole = whole + ratio(np.trace(one.sxx, axis1=1, axis2=2), one.n)
    return ratio(along, whole)


def _residual(q: Moments, k: Moments, plane: _Plane, total: Floats) -> Floats:
    """Largest |correlation| [heads] with position of the dimensions of what is left of the pooled vectors without a.

    With P = 1 - aaᵀ: max_i |(Pc)_i| / sqrt((PSP)_ii Stt), of the dimensions in which something is left.
    """
    a, share = plane.axes[:, :, 0], weight(q, k)
    covariance = q.sxt + k.sxt + (share * (q.t_mean - k.t_mean))[:, None] * (q.mean - k.mean)
    spread = q.stt + k.stt + share * (q.t_mean - k.t_mean) ** 2
    left = np.abs(covariance - (covariance * a).sum(axis=1, keepdims=True) * a)
    own = sum(np.diagonal(one.sxx, axis1=1, axis2=2) for one in (q, k)) + share[:, None] * (q.mean - k.mean) ** 2
    variance = own - 2 * a * plane.image + a**2 * plane.pooled[:, :1]
    # A dimension of which nothing is left has no correlation, only rounding.
    kept = np.where(variance > 1e-10 * total[:, None], variance, 0)
    found = ratio(left, np.sqrt(np.maximum(kept * spread[:, None], 0)))
    return np.where(np.isnan(a[:, 0]), np.nan, np.nan_to_num(found).max(axis=1))
