"""Which queries of documents are looked at, in blocks, and what they see by distance."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.distance import distance_edges, octaves
from ropewalk.statistics.base import FIRST
from ropewalk.statistics.totals import widened

if TYPE_CHECKING:
    import torch


BLOCK_SCORES = 1 << 19
"""Scores of all heads that are worked on at once, as far as one query has no more."""
SPLIT = 2
"""A document has no more than this part of a block: its queries in more blocks see more alike numbers of keys."""
NEAR, STRIDE = 256, 64
"""From this distance on every edge of a bin is a multiple of the stride, whose sums are taken first; those of octaves
are from one stride on.
"""


COPIES = ("induction", "duplicate")
MARKED = ("first", "first4", *COPIES)
"""Keys whose mass is looked at: the first of a document, its first few, and those of `COPIES`."""
OF_QUERIES = ("rows", *(f"{name}_rows" for name in COPIES), *(f"{name}_share" for name in COPIES))
"""What is summed over queries alone, before how many keys in every bin have scores that count."""


@dataclass(frozen=True)
class Visible:
    """What queries see, by distance; the axis of heads is 1 where they all see the same.

    hidden [documents, heads, rows, distances] makes scores as small as can be where there is no key, 0 elsewhere (NaN
    for a query that sees nothing); scored alike 1 for the keys whose scores count, else 0; counts [..., rows, bins] how
    many these are, by_octave [..., rows, octaves] alike, in float64; totals [documents, ...] are `OF_QUERIES` and
    counts summed. Of the variance of scores: freedom [..., rows] is (keys - 1) / (keys - octaves), where there are
    `several` octaves and more keys than octaves.
    """

    hidden: "torch.Tensor"
    scored: "torch.Tensor"
    counts: "torch.Tensor"
    by_octave: "torch.Tensor"
    freedom: "torch.Tensor"
    several: "torch.Tensor"
    totals: "torch.Tensor"


@dataclass(frozen=True)
class Marks:
    """Keys of `MARKED`, of the queries of one document: index [marks] into rows x distances, owners [marks] the rows,
    and kinds [marks, 4] 1 for what a key is marked as.
    """

    index: "torch.Tensor"
    owners: "torch.Tensor"
    kinds: "torch.Tensor"


@dataclass(frozen=True)
class RowBlock:
    """Queries at neighbouring positions of one or more documents, seen by distance: key Δ of query t is at t - Δ.

    rows [documents, rows] positions; position [documents, rows, distances] = t - Δ, 0 where there is none (as many
    distances as there are, up to a multiple of `STRIDE`); `causal` what is seen where nothing that came before is
    hidden; `marks` are of each document.
    """

    rows: "torch.Tensor"
    position: "torch.Tensor"
    marks: Sequence[Marks]
    bins: "Bins"
    octaves: "Bins"
    causal: Visible


@dataclass(frozen=True)
class RowPlan:
    """The sampled queries of documents that are worked on together (their numbers in the batch are a slice), in blocks
    of neighbouring ones, which see about as many keys.
    """

    documents: slice
    blocks: Sequence[RowBlock]

    @classmethod
    def of(
        cls, rows: Sequence[NDArray[np.int64]], ends: NDArray[np.int64], tokens: "torch.Tensor", heads: int = 1
    ) -> list["RowPlan"]:
        """Queries at positions `rows` (an array for each document) of documents with these tokens [documents, context].

        `ends` [rows] is beyond the position of each query in any document; a document may lack the first of them.

        `heads` share the memory. Neighbours with equally many queries are taken together as far as one block has room
        for all of them. How wide a block is does not depend on that, or the last digits of its sums would.
        """
        plans, start, context = [], 0, tokens.shape[1]
        for size, same in groupby(rows, len):
            positions = np.stack(list(same))
            count = min(-(-size * context * heads * SPLIT // BLOCK_SCORES), size)
            numbers = np.array_split(np.arange(size), count) if count else []
            together = max(1, BLOCK_SCORES // max(1, max(map(len, numbers), default=0) * context * heads))
            for some in np.split(positions, range(together, len(positions), together)):
                documents = slice(start, start + len(some))
                blocks = [_block(some[:, own], int(ends[own[-1] - size]), tokens[documents]) for own in numbers]
                plans.append(cls(documents, blocks))
                start = documents.stop
        return plans


@dataclass(frozen=True)
class Bins:
    """Which bin a distance is in, as matrices of zeros and ones: near [distances, bins] of the first distances, far
    [strides, bins] of what lies beyond, and zeros for the strides before; one [STRIDE] of ones.
    """

    near: "torch.Tensor"
    far: "torch.Tensor"
    one: "torch.Tensor"

    @classmethod
    def of(cls, context: int, device: "torch.device") -> "Bins":
        """The bins of distances within a context."""
        return _bins(context, device)[0]

    @classmethod
    def octaves(cls, context: int, device: "torch.device") -> "Bins":
        """The octaves of distances within a context."""
        return _bins(context, device)[1]

    def sums(self, x: "torch.Tensor") -> "torch.Tensor":
        """Sums [documents, ..., bins] of x [documents, ..., distances] over the distances of each bin."""
        import torch

        # One document at a time: how a product rounds may depend on how many rows it has.
        return torch.stack([self._sums(one) for one in x])

    def _sums(self, x: "torch.Tensor") -> "torch.Tensor":
        width = min(len(self.near), x.shape[-1])
        near = x[..., :width] @ self.near[:width]
        if x.shape[-1] <= len(self.near):
            return near
        # A product with ones: sums over a short last axis are several times slower.
        strides = (x.reshape(-1, STRIDE) @ self.one).view(*x.shape[:-1], -1)
        return near + strides @ self.far[: strides.shape[-1]]


@lru_cache(maxsize=4)
def _bins(context: int, device: "torch.device") -> tuple[Bins, Bins]:
    import torch

    edges = distance_edges(context)
    starts, octave = octaves(context)
    which = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    # Beyond the context there is nothing to see, but a stride may end there.
    which = np.pad(which, (0, max(NEAR, -(-context // STRIDE) * STRIDE) - context), mode="edge")
    found = []
    for near, of_distance, count in ((NEAR, which, len(edges) - 1), (STRIDE, octave[which], len(starts))):
        first, strides = (
            torch.nn.functional.one_hot(torch.from_numpy(one), count).float()
            for one in (of_distance[:near], of_distance[::STRIDE])
        )
        strides[: near // STRIDE] = 0
        found.append(Bins(first.to(device), strides.to(device), torch.ones(STRIDE, device=device)))
    return found[0], found[1]


def _block(rows: NDArray[np.int64], seen: int, tokens: "torch.Tensor") -> RowBlock:
    """Queries at positions `rows` [documents, rows], none of which sees more than so many keys."""
    import torch

    device, context = tokens.device, tokens.shape[1]
    at = torch.from_numpy(rows).to(device)
    width = -(-seen // STRIDE) * STRIDE
    position = at[:, :, None] - torch.arange(width, device=device)
    there = position >= 0
    position = position.clamp(min=0)
    document = torch.arange(len(at), device=device)[:, None]
    same = (tokens[document[:, :, None], position] == tokens[document, at][:, :, None]) & there
    # The key after an earlier copy is one step nearer than the copy; the query itself is no key of either kind.
    same[:, :, 0] = False
    after = torch.zeros_like(same)
    after[:, :, 1:-1] = same[:, :, 2:]
    marks = []
    for kinds in torch.stack([there & (position == 0), there & (position < FIRST), after, same], dim=3):
        row, distance = kinds.any(dim=2).nonzero(as_tuple=True)
        marks.append(Marks(row * width + distance, row, kinds[row, distance].float()))
    block = position, marks, Bins.of(context, device), Bins.octaves(context, device)
    return RowBlock(at, *block, causal=visible(there[:, None], *block))


def visible(
    seen: "torch.Tensor", position: "torch.Tensor", marks: Sequence[Marks], bins: Bins, by_octave: Bins
) -> Visible:
    """What is `seen` [documents, 1 or heads, rows, distances] of keys at positions [documents, rows, distances]."""
    import torch

    scored = (seen & (position >= FIRST)[:, None]).float()
    counts, n = bins.sums(scored), widened(by_octave.sums(scored))
    keys, groups = n.sum(dim=3), (n > 0).sum(dim=3)
    some = seen[:, 0].float()
    copies = torch.zeros(*some.shape[:2], len(COPIES), device=seen.device)
    for found, own, mark in zip(copies, some, marks, strict=True):
        found.index_add_(0, mark.owners, own.flatten()[mark.index, None] * mark.kinds[:, -len(COPIES) :])
    share = copies / some.sum(dim=2, keepdim=True)
    queries = torch.full((len(some), 1), float(some.shape[1]), device=seen.device)
    hidden = torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, torch.finfo(torch.float32).min)
    return Visible(
        hidden=hidden.masked_fill_(~seen.any(dim=3, keepdim=True), torch.nan),
        scored=scored,
        counts=counts,
        by_octave=n,
        freedom=(keys - 1).clamp(min=1) / (keys - groups).clamp(min=1),
        several=(groups > 1) & (keys > groups),
        totals=widened(torch.cat([queries, (share > 0).sum(dim=1), share.sum(dim=1), counts[:, 0].sum(dim=1)], dim=1)),
    )
