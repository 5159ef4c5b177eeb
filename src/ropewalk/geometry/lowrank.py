"""Scores from fewer dimensions: bases of a given rank, and what each loses of q·k (docs/export.md).

With queries and keys drawn apart from each other, G_q = E[qqᵀ] and G_k = E[kkᵀ] decide everything: a score qᵀk that is
computed as (Aᵀq)·(Bᵀk) is off by qᵀ(I - ABᵀ)k, whose mean square is tr((I - ABᵀ)ᵀ G_q (I - ABᵀ) G_k), and the scores'
own is tr(G_q G_k). Errors are the one over the other: the share of the scores' mean square that is lost. What all keys
have in common adds the same to every score of a query, which a softmax does not see: with the covariance of keys in
place of G_k, errors are of what it does see.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.moments import Floats, Moments
from ropewalk.geometry.pca import eigenbasis, ratio

LEAST = 1e-10
"""Singular values below this share of the largest are rounding: no direction is made of them."""

ROUNDING = 1e-12
"""What sums of shares may be off by."""

TITLES = {
    "pooled": "combined PCA",
    "joint": "leading directions of both together",
    "key": "leading directions of keys",
    "query": "leading directions of queries",
    "optimal": "score-optimal pair",
}
"""The bases that are set beside each other, and what captions call them."""


@dataclass(frozen=True)
class Bases:
    """A pair of bases for each of a stack of heads, best directions first: query [heads, d, d] = A, key [heads, d, d] =
    B. The first r columns of both give the scores of rank r. `energy` [heads, d] is what each direction holds of what
    the basis was chosen by: of the vectors' mean square, or of the scores'.
    """

    query: Floats
    key: Floats
    energy: Floats

    def rank_for(self, share: float) -> NDArray[np.intp]:
        """[heads] The fewest directions that hold this share of the energy; at least one."""
        parts = np.nan_to_num(ratio(self.energy, self.energy.sum(axis=1, keepdims=True)))
        # A share that is reached but for rounding is reached.
        needed = (np.cumsum(parts, axis=1) < share - ROUNDING).sum(axis=1) + 1
        return np.asarray(np.minimum(needed, parts.shape[1]))


def gram(moments: Moments) -> Floats:
    """E[xxᵀ] [heads, d, d] = Sxx / n + x̄x̄ᵀ."""
    return np.asarray(moments.sxx / moments.n[:, None, None] + moments.mean[:, :, None] * moments.mean[:, None, :])


def covariance(moments: Moments, ddof: int = 0) -> Floats:
    """Sxx / (n - ddof) [heads, d, d]."""
    return np.asarray(moments.sxx / (moments.n - ddof)[:, None, None])


def projection(matrix: Floats) -> Bases:
    """The leading eigenvectors of a symmetric matrix [heads, d, d], for queries and keys alike."""
    values, vectors = eigenbasis(matrix)
    return Bases(vectors, vectors, values)


def score_optimal(query: Floats, key: Floats) -> Bases:
    """The pair of bases whose scores have the least mean square error at every rank, from G_q and G_k [heads, d, d].

    With G_q^½ G_k^½ = U S Wᵀ the best rank-r matrix M makes G_q^½ M G_k^½ the first r terms (Eckart and Young), so
    M = A Bᵀ with A = G_k^½ W S^-½ and B = G_q^½ U S^-½ (as G_q^½ G_k^½ W = U S, no inverse of a Gram matrix is
    needed). Its mean square error is the sum of the S² beyond r. What lies in no score has no direction: zeros.
    """
    root_q, root_k = _root(query), _root(key)
    u, s, w = np.linalg.svd(np.matmul(root_q, root_k))
    known = s > LEAST * s[:, :1]
    scale = np.where(known, 1 / np.sqrt(np.where(known, s, 1.0)), 0.0)[:, None, :]
    return Bases(
        np.matmul(root_k, w.transpose(0, 2, 1)) * scale, np.matmul(root_q, u) * scale, np.where(known, s, 0.0) ** 2
    )


def all_bases(query: Floats, key: Floats, pooled: Floats) -> Mapping[str, Bases]:
    """The bases of `TITLES` from the matrices G_q and G_k and the pooled scatter [heads, d, d]: leading eigenvectors of
    the scatter (the components of qk.csv), of G_q + G_k, of G_k and of G_q, and the score-optimal pair.
    """
    return {
        "pooled": projection(pooled),
        "joint": projection(query + key),
        "key": projection(key),
        "query": projection(query),
        "optimal": score_optimal(query, key),
    }


def score_errors(bases: Bases, query: Floats, key: Floats) -> Floats:
    """Errors [heads, d + 1] of the scores of rank 0, 1, ..., d, under matrices G_q and G_k [heads, d, d].

    tr(G_q G_k) - 2 tr(AᵀG_qG_kB) + tr(AᵀG_qA BᵀG_kB) over tr(G_q G_k), of which every rank takes the leading columns of
    A and B.
    """
    total = np.einsum("hij,hij->h", query, key)
    crossed = np.einsum("hdi,hde,hei->hi", bases.query, np.matmul(query, key), bases.key)
    inside_q = np.matmul(bases.query.transpose(0, 2, 1), np.matmul(query, bases.query))
    inside_k = np.matmul(bases.key.transpose(0, 2, 1), np.matmul(key, bases.key))
    block = np.cumsum(np.cumsum(inside_q * inside_k, axis=1), axis=2)
    square = np.diagonal(block, axis1=1, axis2=2) - 2 * np.cumsum(crossed, axis=1)
    square = np.concatenate([np.zeros((len(total), 1)), square], axis=1) + total[:, None]
    # At full rank nothing is left but rounding, which may be below zero.
    return np.maximum(ratio(square, total[:, None]), 0)


def turned_gram(matrix: Floats, first: list[int], second: list[int], cosines: Floats, sines: Floats) -> Floats:
    """Gram matrices [heads, d, d] as keys before their rotation see queries: the mean over positions t of R_tᵀ G R_t.

    cosines and sines [positions, d] are of each dimension's angle at t. R_tᵀx = cos ∘ x + sin ∘ Jx, where J swaps the
    dimensions of a pair and turns the sign of the second, so the mean needs only the means of products of cosines and
    sines.
    """
    swapped, sign = np.arange(matrix.shape[-1]), np.zeros(matrix.shape[-1])
    swapped[first], swapped[second] = second, first
    sign[first], sign[second] = 1.0, -1.0
    rows = sign[:, None] * matrix[:, swapped]
    columns = matrix[:, :, swapped] * sign
    both = rows[:, :, swapped] * sign
    cc, cs, ss = (a.T @ b / len(cosines) for a, b in ((cosines, cosines), (cosines, sines), (sines, sines)))
    return np.asarray(cc * matrix + cs * columns + cs.T * rows + ss * both)


def leading_direction(moments: Moments) -> tuple[Floats, Floats]:
    """The direction u [heads, d] with the largest E[(uᵀx)²], signed so that uᵀx̄ ≥ 0, and its share of E|x|² [heads]."""
    values, vectors = eigenbasis(gram(moments))
    direction = vectors[:, :, 0]
    sign = np.where((direction * moments.mean).sum(axis=1) < 0, -1.0, 1.0)
    return direction * sign[:, None], ratio(values[:, 0], values.sum(axis=1))


def _root(matrix: Floats) -> Floats:
    """The symmetric root of positive semi-definite matrices [heads, d, d]."""
    values, vectors = eigenbasis(matrix)
    return np.asarray(np.matmul(vectors * np.sqrt(values)[:, None, :], vectors.transpose(0, 2, 1)))
