"""Attention rows by distance: the torch side of the statistic `behaviour`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.distance import distance_edges, octaves
from ropewalk.statistics.base import LayerHeads

if TYPE_CHECKING:
    import torch

    from ropewalk.models.tap import Call

FIRST = 4
"""Keys at the start of a document that are left out of scores: attention sinks have extreme ones."""
BLOCK_SCORES = 1 << 17
"""Scores of all heads that are worked on at once, as far as one query has no more: those of a few neighbouring queries,
which see about as many keys.
"""


@dataclass(frozen=True)
class Visible:
    """What queries see, by distance: hidden [1 or heads, rows, distances] is -inf for no key, else 0; scored alike 1
    for the keys whose scores count, else 0, and counts [1 or heads, rows, bins] how many these are; share [rows, 2] is
    that of keys after an earlier copy of the query's token, and of the copies.
    """

    hidden: "torch.Tensor"
    scored: "torch.Tensor"
    counts: "torch.Tensor"
    share: "torch.Tensor"


@dataclass(frozen=True)
class RowBlock:
    """Queries of one document at neighbouring positions, seen by distance: key Δ of query t stands at position t - Δ.

    rows [rows] positions; position [rows, distances] = t - Δ, 0 where there is none; copies [rows, distances, 2] 1 for
    keys after an earlier copy of the query's token, and for the copies themselves; leading [rows, FIRST] the distances
    of the first keys; bins [distances, bins] 1 for the bin of a distance; `causal` what is seen where nothing that came
    before is hidden.
    """

    rows: "torch.Tensor"
    position: "torch.Tensor"
    copies: "torch.Tensor"
    leading: "torch.Tensor"
    bins: "torch.Tensor"
    causal: Visible


@dataclass(frozen=True)
class RowPlan:
    """The sampled queries of a document in blocks, and the octave [bins, octaves] of each bin of distances, 1 or 0."""

    blocks: Sequence[RowBlock]
    octaves: "torch.Tensor"

    @classmethod
    def of(cls, rows: NDArray[np.int64], tokens: "torch.Tensor", heads: int = 1) -> "RowPlan":
        """Queries at positions `rows` of a document with these tokens [context]; `heads` share the memory."""
        bins, octave = (part.to(tokens.device) for part in membership(len(tokens)))
        size = max(BLOCK_SCORES // (len(tokens) * heads), 1)
        return cls([_block(rows[start : start + size], tokens, bins) for start in range(0, len(rows), size)], octave)


@lru_cache(maxsize=4)
def membership(context: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """[context, bins] which bin each distance is in, [bins, octaves] which octave each bin is in: 1 or 0."""
    import torch

    edges = distance_edges(context)
    which = torch.from_numpy(np.repeat(np.arange(len(edges) - 1), np.diff(edges)))
    starts, octave = octaves(context)
    bins = torch.nn.functional.one_hot(which, len(edges) - 1).float()
    return bins, torch.nn.functional.one_hot(torch.from_numpy(octave), len(starts)).float()


def _block(rows: NDArray[np.int64], tokens: "torch.Tensor", bins: "torch.Tensor") -> RowBlock:
    import torch

    device = tokens.device
    at = torch.from_numpy(rows).to(device)
    width = int(rows.max()) + 1
    position = at[:, None] - torch.arange(width, device=device)
    there = position >= 0
    position = position.clamp(min=0)
    same = (tokens[position] == tokens[at][:, None]) & there
    # The key after an earlier copy is one step nearer than the copy; the query itself is no key of either kind.
    after = torch.zeros_like(same)
    after[:, :-1] = same[:, 1:]
    copies = torch.stack([after, same], dim=2)
    copies[:, 0] = False
    return RowBlock(
        rows=at,
        position=position,
        copies=copies.float(),
        leading=at[:, None] - torch.arange(FIRST, device=device),
        bins=bins[:width],
        causal=_visible(there[None], position, copies.float(), bins[:width]),
    )


def _visible(seen: "torch.Tensor", position: "torch.Tensor", copies: "torch.Tensor", bins: "torch.Tensor") -> Visible:
    """What is `seen` [1 or heads, rows, distances] of keys at these positions [rows, distances]."""
    import torch

    scored = (seen & (position >= FIRST)).float()
    some = seen[0].float()
    return Visible(
        hidden=torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, -torch.inf),
        scored=scored,
        counts=scored @ bins,
        share=(some[:, None] @ copies)[:, 0] / some.sum(dim=1, keepdim=True),
    )


def reduce_rows(call: "Call", number: int, plan: RowPlan, heads: LayerHeads) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Named sums over the sampled queries of one document (its `number` in the batch), block by block.

    Attention that also sees what comes later has no distances to sum over: nothing.
    """
    import torch

    from ropewalk.models.recomputation import is_causal, score_scale, sinks_of

    if not is_causal(call.module, call.options):
        return
    device = call.query.device
    own, index = torch.tensor(heads.heads, device=device), torch.from_numpy(heads.key_index).to(device)
    keys = call.key[number][list(heads.key_heads)].float()
    middle = keys.mean(dim=1)
    # Scores about the score of the mean key, which loses no digits where all scores are large.
    keys = (keys - middle[:, None]).transpose(1, 2)
    queries = call.query[number][own]
    sinks = sinks_of(call.module, call.options)
    sink = None if sinks is None else sinks.to(device)[own].float()
    for block in plan.blocks:
        query = queries[:, block.rows].float() * score_scale(call.query, call.options)
        raw = torch.empty(len(own), *block.position.shape, device=device)
        for key_head in range(len(keys)):
            members = index == key_head
            raw[members] = query[members] @ keys[key_head, :, : raw.shape[2]]
        offset = (query * middle[index][:, None]).sum(dim=2)
        raw = raw.gather(2, block.position.expand_as(raw))
        yield from _reduced(_Rows(call, number, own, block, raw, offset), plan.octaves, sink)


class _Rows(NamedTuple):
    """Scores `raw` [heads, rows, distances] of a block of queries: scaled q·k less `offset` [heads, rows]."""

    call: "Call"
    number: int
    own: "torch.Tensor"
    block: RowBlock
    raw: "torch.Tensor"
    offset: "torch.Tensor"


def _reduced(rows: _Rows, octave: "torch.Tensor", sink: "torch.Tensor | None") -> Iterator[tuple[str, "torch.Tensor"]]:
    """Sums over the queries of one block."""
    import torch

    block = rows.block
    scores, shift, seen = _as_softmax_takes_them(rows)
    masked = scores + seen.hidden
    peak = masked.amax(dim=2)
    if sink is not None:
        peak = torch.maximum(peak, sink[:, None] - shift)
    weights = masked.sub_(peak[:, :, None]).exp_()
    mass = weights @ block.bins
    total = on_keys = mass.sum(dim=2)
    if sink is not None:
        on_sink = (sink[:, None] - shift - peak).exp()
        total = on_keys + on_sink
        yield "q.sink", (on_sink / total).sum(dim=1)
    yield "rows", torch.tensor(float(len(block.rows)))
    yield "q.mass", (mass / total[:, :, None]).sum(dim=1)
    leading = weights.gather(2, block.leading.clamp(min=0).expand(len(weights), -1, -1)) / total[:, :, None]
    leading = leading * (block.leading >= 0)
    yield "q.first", leading[:, :, 0].sum(dim=1)
    yield "q.first4", leading.sum(dim=(1, 2))
    entropy = on_keys.log() + peak - torch.linalg.vecdot(weights, scores) / on_keys
    yield "q.effective", entropy.exp().sum(dim=1)
    on_copies = (weights.transpose(0, 1) @ block.copies).transpose(0, 1) / total[:, :, None]
    there = seen.share > 0
    for column, name in enumerate(("induction", "duplicate")):
        yield f"q.{name}", (on_copies[:, :, column] * there[:, column]).sum(dim=1)
        yield f"{name}_rows", there[:, column].sum()
        yield f"{name}_share", seen.share[:, column].sum()
    yield from _explained(rows, scores, seen, octave)


def _as_softmax_takes_them(rows: _Rows) -> tuple["torch.Tensor", "torch.Tensor", Visible]:
    """Scores with the model's soft cap and biases, less a shift [heads, rows] that a softmax does not see; and what of
    them the model hides.
    """
    import torch

    from ropewalk.models.recomputation import capped, masking_of

    call, block = rows.call, rows.block
    scores, shift = rows.raw, rows.offset
    if call.options.get("softcap"):
        scores, shift = capped(scores + shift[:, :, None], call.options), torch.zeros_like(shift)
    masking = masking_of(call.module, call.options, block.rows, scores.shape[2])
    if masking.bias is not None:
        scores = scores + _aligned(masking.bias.float(), rows)
    if masking.hidden is None:
        return scores, shift, block.causal
    seen = ~_aligned(masking.hidden, rows) & torch.isfinite(block.causal.hidden)
    return scores, shift, _visible(seen, block.position, block.copies, block.bins)


def _aligned(mask: "torch.Tensor", rows: _Rows) -> "torch.Tensor":
    """Of what is known by key [batch or 1, heads or 1, rows, keys]: of one document, the chosen heads, by distance."""
    mask = mask[rows.number if mask.shape[0] > 1 else 0].to(rows.raw.device)
    mask = mask[rows.own] if len(mask) > 1 else mask
    return mask.gather(2, rows.block.position.expand(len(mask), -1, -1))


def _explained(
    rows: _Rows, scores: "torch.Tensor", seen: Visible, octave: "torch.Tensor"
) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Mean scores by distance, and how much of the variance of scores the octave of the distance explains."""
    import torch

    bins = rows.block.bins
    counted = scores * seen.scored
    by_bin = counted @ bins
    raw = by_bin if scores is rows.raw else (rows.raw * seen.scored) @ bins
    yield "keys", seen.counts[0].sum(dim=0)
    yield "q.score", (raw + rows.offset[:, :, None] * seen.counts).sum(dim=1)
    by_octave, n = (by_bin @ octave).double(), (seen.counts @ octave).double()
    squares = torch.linalg.vecdot(counted, counted).double()
    keys, groups = n.sum(dim=2), (n > 0).sum(dim=2)
    centre = by_octave.sum(dim=2) ** 2 / keys.clamp(min=1)
    within = squares - (by_octave**2 / n.clamp(min=1)).sum(dim=2)
    spread = squares - centre
    # One octave alone explains nothing, and scores that do not vary have nothing to explain.
    valid = (groups > 1) & (keys > groups) & (spread > 1e-9 * squares.clamp(min=1e-30))
    # Each part over its degrees of freedom: octaves explain a share of noise too, the more the fewer keys there are.
    noise = (within / (keys - groups).clamp(min=1)) / (spread / (keys - 1).clamp(min=1)).masked_fill(~valid, 1)
    yield "q.explained", (1 - noise).masked_fill(~valid, 0).sum(dim=1)
    yield "q.explained_rows", valid.sum(dim=1)
