"""Moments of groups of documents: of all of them together, and with each of them left out (docs/method.md §7)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.moments import (
    Floats,
    Left,
    Moments,
    left_without_each,
    merge_all,
    scatters_without_each,
)


@dataclass(frozen=True)
class Side:
    """Moments of the queries or of the keys of a stack of heads, `whole` of all groups of documents; `left` holds the
    heads without the first group, then those without the second, and so on, and is None for a single group.

    Scatters without each group are many, and mostly only their products with a few vectors are needed: those come from
    `parts`, the moments of each group, in which the heads stand at `index` (None: these are all, in the same order).
    """

    whole: Moments
    left: Left | None
    parts: Sequence[Moments]
    index: NDArray[np.integer] | None = None
    shared: "Side | None" = None

    @classmethod
    def of(cls, parts: Sequence[Moments]) -> "Side":
        """From the moments of each group."""
        whole = merge_all(parts)
        return cls(whole, left_without_each(whole, parts) if len(parts) > 1 else None, parts)

    def __getitem__(self, heads: NDArray[np.integer]) -> "Side":
        assert self.index is None, "heads are chosen from all"
        left = None if self.left is None else self.left[self._in_every_group(heads)]
        return Side(self.whole[heads], left, self.parts, heads, self)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self.parts)

    @cached_property
    def rest(self) -> Moments | None:
        """Moments [groups · heads, ...] without each group, scatters and all; None for a single group."""
        if self.left is None:
            return None
        if self.shared is None or self.index is None:
            return self.left.with_scatters(scatters_without_each(self.whole, self.parts, self.left))
        assert self.shared.rest is not None, "of the same groups"
        return self.left.with_scatters(self.shared.rest.sxx[self.shared._in_every_group(self.index)])

    def images(self, vectors: Floats) -> Floats:
        """Scatters without each group times vectors [heads, d, m]: [groups, heads, d, m].

        In memory they are [heads, d, groups, m]: all images of a head are the columns of one matrix.
        """
        assert self.left is not None, "a single group has no replicates"
        heads, d, m = vectors.shape
        found = np.empty((heads, d, self.groups, m))
        for group, part in enumerate(self.parts):
            self._multiply(part.sxx, vectors, found[:, :, group])
        # What is taken from, whole V - gap gapᵀV of each group, as one product: fewer passes over arrays of this size.
        gap = self.split(self.left.gap)
        again = np.broadcast_to(np.tile(np.eye(m), self.groups), (heads, m, self.groups * m))
        factors = np.concatenate([np.matmul(self.whole.sxx, vectors), -gap.transpose(1, 2, 0)], axis=2)
        minuend = np.matmul(factors, np.concatenate([again, apart(gap, vectors)], axis=1))
        np.subtract(minuend.reshape(found.shape), found, out=found)
        return found.transpose(2, 0, 1, 3)

    def spreads(self, directions: Floats) -> Floats:
        """Sums of squares vᵀSv [groups · heads, m] without each group along directions [groups · heads, d, m]."""
        assert self.left is not None, "a single group has no replicates"
        vectors = self.split(directions)
        images = np.empty_like(vectors)
        for room, part, own in zip(images, self.parts, vectors, strict=True):
            self._multiply(part.sxx, own, room)
        # Side by side: one product with a scatter takes less than one for each group.
        beside = vectors.transpose(1, 2, 0, 3).reshape(*vectors.shape[1:3], -1)
        squares = np.einsum("hdm,hdm->hm", beside, np.matmul(self.whole.sxx, beside))
        found = np.ascontiguousarray(squares.reshape(len(squares), self.groups, -1).swapaxes(0, 1))
        found -= np.einsum("ghdm,ghdm->ghm", vectors, images)
        found -= np.matmul(self.split(self.left.gap)[..., None, :], vectors)[:, :, 0] ** 2
        return found.reshape(-1, directions.shape[2])

    def chosen(self, which: tuple[Any, ...]) -> Floats:
        """Scatters [n, d, d] without a group, of n pairs of a group and a head."""
        assert self.left is not None, "a single group has no replicates"
        found: Floats = self.whole.sxx[which[1]]
        for scatter, group, head, gap in zip(found, *which, self.split(self.left.gap)[which], strict=True):
            scatter -= self.parts[group].sxx[head if self.index is None else self.index[head]]
            scatter -= gap[:, None] * gap
        return found

    def relabelled(self, differences: Sequence[Floats]) -> "Side":
        """The same vectors with other position labels: Σ x (t' - t) [heads, d] of the new ones, per group."""
        total, left = np.sum(differences, axis=0), self.left
        if left is not None:
            left = replace(left, sxt=left.sxt + np.concatenate([total - one for one in differences]))
        return replace(self, whole=replace(self.whole, sxt=self.whole.sxt + total), left=left)

    def _multiply(self, scatter: Floats, vectors: Floats, out: Floats) -> None:
        """Scatters of a part times vectors [heads, d, m]; one that several heads share is not copied."""
        if self.index is None:
            np.matmul(scatter, vectors, out=out)
            return
        for start, end in self._runs:
            np.matmul(scatter[self.index[start]], vectors[start:end], out=out[start:end])

    @cached_property
    def _runs(self) -> list[tuple[int, int]]:
        """Heads beside each other that share a scatter: the first, and the one after the last."""
        assert self.index is not None, "all have their own"
        return list(pairwise([0, *(np.flatnonzero(np.diff(self.index)) + 1).tolist(), len(self.index)]))

    def split(self, values: Floats) -> Floats:
        """[groups, heads, ...] from what is known of the heads without each group [groups · heads, ...]."""
        return values.reshape(self.groups, -1, *values.shape[1:])

    def _in_every_group(self, heads: NDArray[np.integer]) -> NDArray[np.integer]:
        """Where heads stand among the [groups · heads]."""
        return (np.arange(self.groups)[:, None] * len(self.whole) + heads).ravel()


def apart(directions: Floats, vectors: Floats) -> Floats:
    """aᵀV [heads, groups, groups · m] of a direction for each group [groups, heads, d] and vectors [heads, d, m]: row g
    holds those of group g where its columns are, and zeros elsewhere.

    So that Σ_g a_g aᵀ_gV, each in its own columns, is the product of [heads, d, groups] with it.
    """
    groups, heads, _ = directions.shape
    found = np.zeros((heads, groups, groups, vectors.shape[2]))
    every = np.arange(groups)
    found[:, every, every] = np.matmul(directions.transpose(1, 0, 2), vectors)
    return found.reshape(heads, groups, -1)


@dataclass(frozen=True)
class Grouped:
    """Moments of the queries and of the keys of a stack of heads, both of the same groups of documents."""

    queries: Side
    keys: Side

    @classmethod
    def of(cls, q: Sequence[Moments], k: Sequence[Moments]) -> "Grouped":
        """From the moments of each group."""
        return cls(Side.of(q), Side.of(k))

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return self.queries.groups

    @property
    def q(self) -> Moments:
        """Moments of the queries of all groups."""
        return self.queries.whole

    @property
    def k(self) -> Moments:
        """Moments of the keys of all groups."""
        return self.keys.whole

    @property
    def left(self) -> tuple[Left, Left] | None:
        """Moments of queries and of keys without each group, all but the scatters; None for a single group."""
        if self.queries.left is None or self.keys.left is None:
            return None
        return self.queries.left, self.keys.left

    @property
    def rest(self) -> tuple[Moments, Moments] | None:
        """The same with their scatters, which take as much room as those of all groups together."""
        if self.queries.rest is None or self.keys.rest is None:
            return None
        return self.queries.rest, self.keys.rest

    def relabelled(self, q: Sequence[Floats], k: Sequence[Floats]) -> "Grouped":
        """The same vectors with other position labels: q, k [heads, d] per group are Σ x (t' - t) of the new ones."""
        return Grouped(self.queries.relabelled(q), self.keys.relabelled(k))

    def split(self, values: Floats) -> Floats:
        """[groups, heads, ...] from what is known of the heads without each group."""
        return self.queries.split(values)
