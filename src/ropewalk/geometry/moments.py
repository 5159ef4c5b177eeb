"""Exact, mergeable sufficient statistics of vectors and their positions (docs/method.md §2)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """First and second moments of vectors x in R^d and positions t, for a stack of heads, in float64.

    n [heads] tokens, mean [heads, d] = x̄, t_mean [heads] = t̄,
    sxx [heads, d, d] = Σ (x-x̄)(x-x̄)ᵀ, sxt [heads, d] = Σ (x-x̄)(t-t̄), stt [heads] = Σ (t-t̄)².
    """

    n: Floats
    mean: Floats
    t_mean: Floats
    sxx: Floats
    sxt: Floats
    stt: Floats

    def __len__(self) -> int:
        return len(self.n)

    @classmethod
    @cache
    def names(cls) -> tuple[str, ...]:
        """Names of the arrays, in order."""
        return tuple(field.name for field in fields(cls))

    @property
    def head_dim(self) -> int:
        """Length d of the vectors."""
        return int(self.mean.shape[1])

    def __getitem__(self, heads: NDArray[np.integer] | slice) -> "Moments":
        return Moments(*(getattr(self, name)[heads] for name in self.names()))

    def merge(self, other: "Moments") -> "Moments":
        """Moments of both sets of tokens together, head by head (Chan): with δ = x̄_B - x̄_A and w = n_A n_B / n,
        Sxx = Sxx_A + Sxx_B + w δδᵀ, and so on. A head without tokens on one side takes the other side's moments.
        """
        n = self.n + other.n
        share = np.divide(other.n, n, out=np.zeros_like(n), where=n > 0)
        weight = self.n * share
        delta, tau = other.mean - self.mean, other.t_mean - self.t_mean
        return Moments(
            n=n,
            mean=self.mean + share[:, None] * delta,
            t_mean=self.t_mean + share * tau,
            sxx=self.sxx + other.sxx + outer(weight, delta),
            sxt=self.sxt + other.sxt + (weight * tau)[:, None] * delta,
            stt=self.stt + other.stt + weight * tau**2,
        )

    def without(self, part: "Moments") -> "Moments":
        """Moments of the tokens that are left when `part`, one of those merged into self, is taken out again: the
        inverse of `merge`.
        """
        return without_each(self, [part])

    @classmethod
    def of(cls, vectors: Floats, positions: Floats) -> "Moments":
        """Moments of vectors [heads, tokens, d] at positions [tokens], in one go and in float64."""
        x = np.asarray(vectors, dtype=np.float64)
        t = np.asarray(positions, dtype=np.float64)
        heads, n, _ = x.shape
        mean, t_mean = x.mean(axis=1), t.mean()
        x, t = x - mean[:, None], t - t_mean
        return cls(
            n=np.full(heads, float(n)),
            mean=mean,
            t_mean=np.full(heads, t_mean),
            sxx=np.matmul(x.transpose(0, 2, 1), x),
            sxt=np.matmul(t, x),
            stt=np.full(heads, float(t @ t)),
        )


def no_moments(head_dim: int) -> Moments:
    """Moments of one head without tokens: merging them changes nothing."""
    zero, zeros = np.zeros(1), np.zeros((1, head_dim))
    return Moments(n=zero, mean=zeros, t_mean=zero, sxx=np.zeros((1, head_dim, head_dim)), sxt=zeros, stt=zero)


def stack(parts: Sequence[Moments]) -> Moments:
    """Put the heads of several moments one after the other."""
    return Moments(*(np.concatenate([getattr(part, name) for part in parts]) for name in Moments.names()))


@dataclass(frozen=True)
class Left:
    """Moments of what is left of heads without each group of documents [groups · heads, ...]: all but the scatters,
    of which `trace` is known. Sxx = Sxx_whole - Sxx_group - `gap` gapᵀ with gap [groups · heads, d].
    """

    n: Floats
    mean: Floats
    t_mean: Floats
    sxt: Floats
    stt: Floats
    trace: Floats
    gap: Floats

    def __getitem__(self, heads: NDArray[np.integer]) -> "Left":
        return Left(*(getattr(self, field.name)[heads] for field in fields(self)))

    def with_scatters(self, sxx: Floats) -> Moments:
        """Moments with these scatters [groups · heads, d, d]."""
        return Moments(n=self.n, mean=self.mean, t_mean=self.t_mean, sxx=sxx, sxt=self.sxt, stt=self.stt)


def left_without_each(whole: Moments, parts: Sequence[Moments]) -> Left:
    """What is left with each part left out in turn, one stack after the other.

    Sxt = Sxt_whole - Sxt_p - w δτ with δ = x̄_whole - x̄_p, τ = t̄_whole - t̄_p and w = n_p n_whole / (n_whole - n_p),
    and so on; gap = √w δ. Everything is about means, so that a large common offset cannot cancel digits.
    """
    n, mean, t_mean, sxt, stt = (
        np.stack([getattr(part, name) for part in parts]) for name in Moments.names() if name != "sxx"
    )
    rest = whole.n - n
    left = np.maximum(rest, 1)
    delta, tau = whole.mean - mean, whole.t_mean - t_mean
    share, weight = n / left, n * whole.n / left
    gap = np.sqrt(weight)[..., None] * delta
    traces = np.stack([trace(part.sxx) for part in parts])
    found = {
        "n": rest,
        "mean": whole.mean + share[..., None] * delta,
        "t_mean": whole.t_mean + share * tau,
        "sxt": whole.sxt - sxt - (weight * tau)[..., None] * delta,
        "stt": whole.stt - stt - weight * tau**2,
        "trace": trace(whole.sxx) - traces - (gap**2).sum(axis=2),
        "gap": gap,
    }
    return Left(**{name: values.reshape(-1, *values.shape[2:]) for name, values in found.items()})


def scatters_without_each(whole: Moments, parts: Sequence[Moments], left: Left) -> Floats:
    """Scatters [groups · heads, d, d] with each part left out in turn, of what is `left_without_each`."""
    sxx = np.empty((len(parts), *whole.sxx.shape))
    # Part by part: all products at once would be as large as what they are taken from.
    for room, part, gap in zip(sxx, parts, left.gap.reshape(len(parts), *whole.mean.shape), strict=True):
        np.subtract(whole.sxx, part.sxx, out=room)
        room -= outer(np.ones(len(gap)), gap)
    return sxx.reshape(-1, *sxx.shape[2:])


def without_each(whole: Moments, parts: Sequence[Moments]) -> Moments:
    """The moments with each part left out in turn, one stack after the other [groups · heads, ...]."""
    left = left_without_each(whole, parts)
    return left.with_scatters(scatters_without_each(whole, parts, left))


def trace(scatter: Floats) -> Floats:
    """Traces [...] of matrices [..., d, d]."""
    return np.asarray(np.einsum("...ii->...", scatter))


def merge_all(parts: Sequence[Moments]) -> Moments:
    """Merge all parts at once: `merge` from left to right, with one product for the terms between parts.

    Σ_p Sxx_p + Σ_p n_p (x̄_p - x̄)(x̄_p - x̄)ᵀ, and so on. The same order of parts gives the same bits.
    """
    n = np.stack([part.n for part in parts])
    total = n.sum(axis=0)
    share = n / np.maximum(total, 1)
    mean = sum((w[:, None] * part.mean for w, part in zip(share, parts, strict=True)), start=np.zeros(()))
    t_mean = sum((w * part.t_mean for w, part in zip(share, parts, strict=True)), start=np.zeros(()))
    delta = np.stack([part.mean - mean for part in parts], axis=2)
    tau = np.stack([part.t_mean - t_mean for part in parts])
    weighted = delta * n.T[:, None, :]
    sxx = np.matmul(weighted, delta.transpose(0, 2, 1))
    sxt = np.matmul(weighted, tau.T[:, :, None])[:, :, 0]
    stt = (n * tau**2).sum(axis=0)
    for part in parts:
        sxx += part.sxx
        sxt += part.sxt
        stt += part.stt
    return Moments(total, mean, t_mean, sxx, sxt, stt)


def outer(weight: Floats, a: Floats) -> Floats:
    """w aaᵀ [heads, d, d] of vectors [heads, d] and numbers [heads]."""
    # With a second term of zeros it is a product of matrices for BLAS, which takes a third of the time.
    pair = np.zeros((2, *a.shape, 2))
    pair[0, ..., 0], pair[1, ..., 0] = weight[:, None] * a, a
    return np.asarray(np.matmul(pair[0], pair[1].swapaxes(1, 2)))
