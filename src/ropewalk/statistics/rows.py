"""Attention rows by distance: the torch side of the statistic `behaviour`."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ropewalk.statistics.base import LayerHeads, Observation, Sums
from ropewalk.statistics.row_plan import (
    BLOCK_SCORES,
    MARKED,
    OF_QUERIES,
    STRIDE,
    Marks,
    RowBlock,
    RowPlan,
    Visible,
    visible,
)
from ropewalk.statistics.totals import widened

if TYPE_CHECKING:
    import torch

    from ropewalk.models.tap import Call

OF_HEADS = ("explained", "explained_rows", "effective", "sink", *MARKED)
"""What is summed over queries for each head, before its mass and its score in every bin of distances."""


def reduce_rows(seen: Observation, plan: RowPlan, heads: LayerHeads) -> Iterator[tuple["torch.Tensor", "torch.Tensor"]]:
    """Sums over the sampled queries of each of the plan's documents, block by block: those of `OF_HEADS` with mass and
    score by bin [documents, heads, ...], and those of `OF_QUERIES` with keys by bin [documents, ...].

    Attention that also sees what comes later has no distances to sum over: nothing.
    """
    import torch

    from ropewalk.models.recomputation import is_causal, score_scale, sinks_of

    call = seen.call
    if not plan.blocks or not is_causal(call.module, call.options):
        return
    own = slice(None) if len(heads.heads) == call.query.shape[1] else list(heads.heads)
    keys, middle = _centred(call.key[plan.documents], heads.key_heads)
    rows = torch.cat([block.rows for block in plan.blocks], dim=1)
    document = torch.arange(len(rows), device=rows.device)[:, None]
    queries = call.query[plan.documents].transpose(1, 2)[document, rows][:, :, own].transpose(1, 2).float()
    queries = queries.contiguous() * score_scale(call.query, call.options)
    offsets = (queries * middle[:, torch.from_numpy(heads.key_index), None]).sum(dim=3)
    # Heads are in ascending order, so those that read one key head stand together.
    readers = [slice(*np.searchsorted(heads.key_index, [key, key + 1])) for key in range(len(heads.key_heads))]
    sinks = sinks_of(call.module, call.options)
    size = len(heads.heads) * max(block.position.numel() for block in plan.blocks)
    memory = seen.memory("rows", (2, max(size, BLOCK_SCORES)))
    start = 0
    for block in plan.blocks:
        some = slice(start, start + block.rows.shape[1])
        start = some.stop
        raw, free = _by_distance(queries[:, :, some], keys, readers, block, memory)
        own_rows = _Rows(call, plan.documents, own, block, raw, offsets[:, :, some])
        yield _reduced(own_rows, None if sinks is None else sinks[own].float(), free)


def _centred(key: "torch.Tensor", heads: Sequence[int]) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Keys [documents, heads, tokens, d] of some heads less their means [documents, heads, d], in float32, up to a
    multiple of `STRIDE`.

    Scores about the score of the mean key lose no digits where all scores are large. One copy of the keys is held, no
    more.
    """
    import torch

    chosen = key if len(heads) == key.shape[1] else key[:, list(heads)]
    documents, count, tokens, d = chosen.shape
    middle = chosen.mean(dim=2, dtype=torch.float32)
    keys = torch.empty(documents, count, -(-tokens // STRIDE) * STRIDE, d, device=key.device)
    keys[:, :, tokens:] = 0
    # One head at a time: a difference of different types makes a copy first.
    for own, mean, centred in zip(chosen.flatten(0, 1), middle.flatten(0, 1), keys.flatten(0, 1), strict=True):
        torch.sub(own, mean, out=centred[:tokens])
    return keys, middle


def _by_distance(
    queries: "torch.Tensor", keys: "torch.Tensor", readers: Sequence[slice], block: RowBlock, memory: "torch.Tensor"
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Products [documents, heads, rows, distances] of queries [documents, heads, rows, d] and the keys that they read,
    in one half of the memory; and the other half, in the same shape, free to work in.
    """
    import torch

    shape = (*queries.shape[:3], block.position.shape[2])
    by_key, found = (half[: math.prod(shape)].view(shape) for half in memory)
    for query, key, scores in zip(queries, keys, by_key, strict=True):
        for own, members in zip(key, readers, strict=True):
            rows, products = query[members].flatten(0, 1), scores[members].flatten(0, 1)
            torch.mm(rows, own[: shape[3]].T, out=products)
    torch.gather(by_key, 3, block.position[:, None].expand(shape), out=found)
    return found, by_key


class _Rows(NamedTuple):
    """Scaled q·k of a block, `raw` [documents, heads, rows, distances], less `offset` [documents, heads, rows]."""

    call: "Call"
    documents: slice
    own: list[int] | slice
    block: RowBlock
    raw: "torch.Tensor"
    offset: "torch.Tensor"


def _reduced(rows: _Rows, sink: "torch.Tensor | None", free: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
    """Sums over the queries of one block; overwrites its scores, and works in what is `free`, of their shape."""
    import torch

    bins, marks = rows.block.bins, rows.block.marks
    scores, shift, seen = _as_softmax_takes_them(rows)
    raw = None if scores is rows.raw else rows.raw
    scores += seen.hidden
    weights = torch.softmax(scores, dim=3, out=free)
    # log Σ exp of the scores, from the largest of them and its weight.
    level = scores.amax(dim=3) - weights.amax(dim=3).log()
    # What a learned sink takes, the keys lose alike.
    on_keys = torch.ones_like(level) if sink is None else torch.sigmoid(level + shift - sink[:, None])
    on_marks = torch.stack([_on_marks(*one) for one in zip(weights, on_keys, marks, strict=True)])
    mass = bins.sums((on_keys[:, :, None] @ weights)[:, :, 0])
    effective = (level - weights.mul_(scores).sum(dim=3)).exp()
    scores *= seen.scored
    explained = _explained(scores, seen, rows.block)
    counted = (scores if raw is None else raw.mul_(seen.scored)).sum(dim=2)
    lifted = torch.stack([(one[:, None] @ n)[:, 0] for one, n in zip(rows.offset, seen.counts, strict=True)])
    score = bins.sums(counted) + lifted
    own = torch.stack([effective, 1 - on_keys], dim=2).sum(dim=3)
    of_heads = widened(torch.cat([own, on_marks, mass, score], dim=2))
    return torch.cat([explained, of_heads], dim=2), seen.totals


def _on_marks(weights: "torch.Tensor", on_keys: "torch.Tensor", marks: Marks) -> "torch.Tensor":
    """[heads, 4] mass on the marked keys of a document, from weights [heads, rows, distances] and the share [heads,
    rows] that no sink takes.
    """
    return weights.flatten(1).index_select(1, marks.index) * on_keys.index_select(1, marks.owners) @ marks.kinds


def unpacked(of_heads: "torch.Tensor", of_queries: "torch.Tensor", sink: bool) -> Sums:
    """What `reduce_rows` gives, by name: `q.first`, ..., `q.mass` and `q.score` [heads, bins], `rows`, ..., `keys`."""
    heads, queries = of_heads.cpu().numpy(), of_queries.cpu().numpy()
    first, bins = len(OF_HEADS), len(queries) - len(OF_QUERIES)
    named = {f"q.{name}": heads[:, number] for number, name in enumerate(OF_HEADS) if name != "sink" or sink}
    return {
        **named,
        "q.mass": heads[:, first : first + bins],
        "q.score": heads[:, first + bins :],
        **{name: queries[number] for number, name in enumerate(OF_QUERIES)},
        "keys": queries[len(OF_QUERIES) :],
    }


def _as_softmax_takes_them(rows: _Rows) -> tuple["torch.Tensor", "torch.Tensor", Visible]:
    """Scores with the model's soft cap and biases, less a shift [documents, heads, rows] that a softmax does not see;
    and what of them the model hides.
    """
    import torch

    from ropewalk.models.recomputation import capped, masking_of

    call, block = rows.call, rows.block
    scores, shift = rows.raw, rows.offset
    if call.options.get("softcap"):
        scores, shift = capped(scores + shift[..., None], call.options), torch.zeros_like(shift)
    if not any(call.options.get(name) is not None for name in ("attention_mask", "position_bias", "sliding_window")):
        return scores, shift, block.causal
    hidden = []
    for index, own in enumerate(block.rows):
        masking = masking_of(call.module, call.options, own, call.key.shape[2])
        assert masking.hidden is not None, "causal attention hides what comes later"
        hidden.append(_aligned(masking.hidden, index, rows))
        if masking.bias is not None:
            scores = scores.clone() if scores is rows.raw else scores
            scores[index] += _aligned(masking.bias.float(), index, rows)
    seen = ~torch.stack(hidden) & (block.causal.hidden == 0)
    return scores, shift, visible(seen, block.position, block.marks, block.bins, block.octaves)


def _aligned(mask: "torch.Tensor", index: int, rows: _Rows) -> "torch.Tensor":
    """Of what is known by key [batch or 1, heads or 1, rows, keys]: of the block's document of this index, the chosen
    heads, by distance.
    """
    mask = mask[rows.documents.start + index if mask.shape[0] > 1 else 0].to(rows.raw.device)
    mask = mask[rows.own] if len(mask) > 1 else mask
    return mask.gather(2, rows.block.position[index].expand(len(mask), -1, -1))


def _explained(scores: "torch.Tensor", seen: Visible, block: RowBlock) -> "torch.Tensor":
    """[documents, heads, 2] how much of the variance of a query's scores the octave of the distance explains, and
    whether that can be said, summed over queries; scores [documents, heads, rows, distances] are 0 where they do not
    count.
    """
    import torch

    by_octave, n = widened(block.octaves.sums(scores)), seen.by_octave
    squares = widened(torch.linalg.vector_norm(scores, dim=3)) ** 2
    spread = squares - by_octave.sum(dim=3) ** 2 / n.sum(dim=3).clamp(min=1)
    within = squares - (by_octave**2 / n.clamp(min=1)).sum(dim=3)
    # One octave alone explains nothing, and scores that do not vary have nothing to explain.
    valid = seen.several & (spread > 1e-9 * squares.clamp(min=1e-30))
    # Each part over its degrees of freedom: octaves explain a share of noise too, the more the fewer keys there are.
    noise = seen.freedom * within / spread.masked_fill(~valid, 1)
    return torch.stack([(1 - noise).masked_fill(~valid, 0).sum(dim=2), valid.double().sum(dim=2)], dim=2)
