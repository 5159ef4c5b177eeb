"""Which queries of a document are looked at, in blocks, and what they see by distance."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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
NEAR, STRIDE = 256, 64
"""From this distance on every edge of a bin is a multiple of the stride, whose sums are taken first."""


COPIES = ("induction", "duplicate")
OF_QUERIES = ("rows", *(f"{name}_rows" for name in COPIES), *(f"{name}_share" for name in COPIES))
"""What is summed over queries alone, before how many keys in every bin have scores that count."""


@dataclass(frozen=True)
class Visible:
    """What queries see, by distance: hidden [1 or heads, rows, distances] is -inf for no key, else 0; scored alike 1
    for the keys whose scores count, else 0, and counts [1 or heads, rows, bins] how many these are; totals are
    `OF_QUERIES` and counts summed.
    """

    hidden: "torch.Tensor"
    scored: "torch.Tensor"
    counts: "torch.Tensor"
    totals: "torch.Tensor"


@dataclass(frozen=True)
class RowBlock:
    """Queries of one document at neighbouring positions, seen by distance: key Δ of query t stands at position t - Δ.

    rows [rows] positions; position [rows, distances] = t - Δ, 0 where there is none (as many distances as there are, up
    to a multiple of `STRIDE`); copies [rows, distances, 2] 1 for keys after an earlier copy of the query's token, and
    for the copies themselves, hits and owners [hits] where in copies the ones are, and for which (row, kind); leading
    [rows, FIRST] the distances of the first keys; `causal` what is seen where nothing that came before is hidden.
    """

    rows: "torch.Tensor"
    position: "torch.Tensor"
    copies: "torch.Tensor"
    hits: "torch.Tensor"
    owners: "torch.Tensor"
    leading: "torch.Tensor"
    bins: "Bins"
    causal: Visible


@dataclass(frozen=True)
class RowPlan:
    """The sampled queries of a document in blocks of neighbouring ones, which see about as many keys."""

    blocks: Sequence[RowBlock]

    @classmethod
    def of(cls, rows: NDArray[np.int64], tokens: "torch.Tensor", heads: int = 1) -> "RowPlan":
        """Queries at positions `rows` of a document with these tokens [context]; `heads` share the memory."""
        bins = Bins.of(len(tokens), tokens.device)
        count = min(-(-len(rows) * len(tokens) * heads // BLOCK_SCORES), len(rows))
        return cls([_block(some, tokens, bins) for some in np.array_split(rows, max(count, 1)) if len(some)])


@dataclass(frozen=True)
class Bins:
    """Which bin a distance is in, as matrices of zeros and ones: near [NEAR, bins], far [strides, bins] of what lies
    beyond, and octaves [bins, octaves].
    """

    near: "torch.Tensor"
    far: "torch.Tensor"
    octaves: "torch.Tensor"

    @classmethod
    def of(cls, context: int, device: "torch.device") -> "Bins":
        """The bins of distances within a context."""
        return _bins(context, device)

    def sums(self, x: "torch.Tensor") -> "torch.Tensor":
        """Sums [..., bins] of x [..., distances] over the distances of each bin."""
        width = min(NEAR, x.shape[-1])
        near = x[..., :width] @ self.near[:width]
        if x.shape[-1] <= NEAR:
            return near
        beyond = x[..., NEAR:]
        strides = beyond.view(*beyond.shape[:-1], -1, STRIDE).sum(dim=-1)
        return near + strides @ self.far[: strides.shape[-1]]


@lru_cache(maxsize=4)
def _bins(context: int, device: "torch.device") -> Bins:
    import torch

    edges = distance_edges(context)
    # Beyond the context there is nothing to see, but a stride may end there.
    which = torch.from_numpy(np.repeat(np.arange(len(edges) - 1), np.diff(edges)))
    padding = max(NEAR, -(-context // STRIDE) * STRIDE) - context
    which = torch.cat([which, which[-1:].expand(padding)])
    starts, octave = octaves(context)
    members = (
        (which[:NEAR], len(edges) - 1),
        (which[NEAR::STRIDE], len(edges) - 1),
        (torch.from_numpy(octave), len(starts)),
    )
    return Bins(*(torch.nn.functional.one_hot(*one).float().to(device) for one in members))


def _block(rows: NDArray[np.int64], tokens: "torch.Tensor", bins: Bins) -> RowBlock:
    import torch

    device = tokens.device
    at = torch.from_numpy(rows).to(device)
    width = -(-(int(rows.max()) + 1) // STRIDE) * STRIDE
    position = at[:, None] - torch.arange(width, device=device)
    there = position >= 0
    position = position.clamp(min=0)
    same = (tokens[position] == tokens[at][:, None]) & there
    # The key after an earlier copy is one step nearer than the copy; the query itself is no key of either kind.
    after = torch.zeros_like(same)
    after[:, :-1] = same[:, 1:]
    copies = torch.stack([after, same], dim=2)
    copies[:, 0] = False
    row, distance, kind = copies.nonzero(as_tuple=True)
    return RowBlock(
        rows=at,
        position=position,
        copies=copies.float(),
        hits=row * width + distance,
        owners=row * len(COPIES) + kind,
        leading=at[:, None] - torch.arange(FIRST, device=device),
        bins=bins,
        causal=visible(there[None], position, copies.float(), bins),
    )


def visible(seen: "torch.Tensor", position: "torch.Tensor", copies: "torch.Tensor", bins: Bins) -> Visible:
    """What is `seen` [1 or heads, rows, distances] of keys at these positions [rows, distances]."""
    import torch

    scored = (seen & (position >= FIRST)).float()
    counts, some = bins.sums(scored), seen[0].float()
    share = (some[:, None] @ copies)[:, 0] / some.sum(dim=1, keepdim=True)
    rows = torch.full((1,), float(len(position)), device=seen.device)
    return Visible(
        hidden=torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, -torch.inf),
        scored=scored,
        counts=counts,
        totals=widened(torch.cat([rows, (share > 0).sum(dim=0), share.sum(dim=0), counts[0].sum(dim=0)])),
    )
