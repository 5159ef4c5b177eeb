"""Attention rows by distance: the torch side of the statistic `behaviour`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ropewalk.statistics.base import LayerHeads, Sums
from ropewalk.statistics.row_plan import COPIES, OF_QUERIES, STRIDE, RowBlock, RowPlan, Visible, visible
from ropewalk.statistics.totals import widened

if TYPE_CHECKING:
    import torch

    from ropewalk.models.tap import Call

OF_HEADS = ("effective", "sink", "first", "first4", *COPIES, "explained", "explained_rows")
"""What is summed over queries for each head, before its mass and its score in every bin of distances."""


def reduce_rows(
    call: "Call", number: int, plan: RowPlan, heads: LayerHeads
) -> Iterator[tuple["torch.Tensor", "torch.Tensor"]]:
    """Sums over the sampled queries of one document (its `number` in the batch), block by block: those of `OF_HEADS`
    with mass and score by bin [heads, ...], and those of `OF_QUERIES` with keys by bin.

    Attention that also sees what comes later has no distances to sum over: nothing.
    """
    import torch

    from ropewalk.models.recomputation import is_causal, score_scale, sinks_of

    if not is_causal(call.module, call.options):
        return
    own = slice(None) if len(heads.heads) == call.query.shape[1] else list(heads.heads)
    keys, middle = _centred(call.key[number], heads.key_heads)
    queries = call.query[number][:, torch.cat([block.rows for block in plan.blocks])][own].float()
    queries = queries * score_scale(call.query, call.options)
    offsets = (queries * middle[torch.from_numpy(heads.key_index)][:, None]).sum(dim=2)
    # Heads are in ascending order, so those that read one key head stand together.
    readers = [slice(*np.searchsorted(heads.key_index, [key_head, key_head + 1])) for key_head in range(len(keys))]
    sinks = sinks_of(call.module, call.options)
    start = 0
    for block in plan.blocks:
        some = slice(start, start + len(block.rows))
        start = some.stop
        raw = torch.empty(len(queries), *block.position.shape, device=queries.device)
        width = raw.shape[2]
        for key_head, members in enumerate(readers):
            query = queries[members, some].reshape(-1, queries.shape[2])
            torch.mm(query, keys[key_head, :width].T, out=raw[members].view(-1, width))
        raw = raw.gather(2, block.position.expand_as(raw))
        rows = _Rows(call, number, own, block, raw, offsets[:, some])
        yield _reduced(rows, None if sinks is None else sinks[own].float())


def _centred(key: "torch.Tensor", heads: Sequence[int]) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Keys [heads, tokens, d] of some heads less their means [heads, d], in float32, up to a multiple of `STRIDE`.

    Scores about the score of the mean key lose no digits where all scores are large. One copy of the keys is held, no
    more.
    """
    import torch

    chosen = key if len(heads) == len(key) else key[list(heads)]
    middle = chosen.float().mean(dim=1)
    keys = torch.zeros(len(chosen), -(-key.shape[1] // STRIDE) * STRIDE, key.shape[2], device=key.device)
    for own, mean, centred in zip(chosen, middle, keys, strict=True):
        torch.sub(own.float(), mean, out=centred[: key.shape[1]])
    return keys, middle


class _Rows(NamedTuple):
    """Scores `raw` [heads, rows, distances] of a block of queries: scaled q·k less `offset` [heads, rows]."""

    call: "Call"
    number: int
    own: list[int] | slice
    block: RowBlock
    raw: "torch.Tensor"
    offset: "torch.Tensor"


def _reduced(rows: _Rows, sink: "torch.Tensor | None") -> tuple["torch.Tensor", "torch.Tensor"]:
    """Sums over the queries of one block."""
    import torch

    block = rows.block
    scores, shift, seen = _as_softmax_takes_them(rows)
    masked = scores + seen.hidden
    weights = torch.softmax(masked, dim=2)
    # log Σ exp of the scores, from the largest of them and its weight.
    level = masked.amax(dim=2) - weights.amax(dim=2).log()
    entropy = level - torch.linalg.vecdot(weights, scores)
    # What a learned sink takes, the keys lose alike.
    on_keys = torch.ones_like(level) if sink is None else torch.sigmoid(level + shift - sink[:, None])
    leading = weights.gather(2, block.leading.clamp(min=0).expand(len(weights), -1, -1)) * (block.leading >= 0)
    on_hits = weights.flatten(1)[:, block.hits]
    on_copies = torch.zeros(len(weights), len(block.rows) * len(COPIES), device=weights.device)
    on_copies = on_copies.index_add_(1, block.owners, on_hits).view(len(weights), -1, len(COPIES))
    by_bin = block.bins.sums(weights)
    masses = torch.cat([leading[:, :, :1], leading.sum(dim=2, keepdim=True), on_copies, by_bin], dim=2)
    masses = masses * on_keys[:, :, None]
    count = 2 + len(COPIES)
    explained, score = _explained(rows, scores, seen)
    own = torch.stack([entropy.exp(), 1 - on_keys], dim=2)
    packed = torch.cat([own, masses[:, :, :count], explained, masses[:, :, count:], score], dim=2)
    return widened(packed).sum(dim=1), seen.totals


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
    """Scores with the model's soft cap and biases, less a shift [heads, rows] that a softmax does not see; and what of
    them the model hides.
    """
    import torch

    from ropewalk.models.recomputation import capped, masking_of

    call, block = rows.call, rows.block
    scores, shift = rows.raw, rows.offset
    if call.options.get("softcap"):
        scores, shift = capped(scores + shift[:, :, None], call.options), torch.zeros_like(shift)
    if not any(call.options.get(name) is not None for name in ("attention_mask", "position_bias", "sliding_window")):
        return scores, shift, block.causal
    masking = masking_of(call.module, call.options, block.rows, call.key.shape[2])
    if masking.bias is not None:
        scores = scores + _aligned(masking.bias.float(), rows)
    assert masking.hidden is not None, "causal attention hides what comes later"
    seen = ~_aligned(masking.hidden, rows) & torch.isfinite(block.causal.hidden)
    return scores, shift, visible(seen, block.position, block.copies, block.bins)


def _aligned(mask: "torch.Tensor", rows: _Rows) -> "torch.Tensor":
    """Of what is known by key [batch or 1, heads or 1, rows, keys]: of one document, the chosen heads, by distance."""
    mask = mask[rows.number if mask.shape[0] > 1 else 0].to(rows.raw.device)
    mask = mask[rows.own] if len(mask) > 1 else mask
    return mask.gather(2, rows.block.position.expand(len(mask), -1, -1))


def _explained(rows: _Rows, scores: "torch.Tensor", seen: Visible) -> tuple["torch.Tensor", "torch.Tensor"]:
    """[heads, rows, 2] how much of the variance of a query's scores the octave of the distance explains, and whether
    that can be said; [heads, rows, bins] its raw scores by distance.
    """
    import torch

    bins = rows.block.bins
    counted = scores * seen.scored
    by_bin = bins.sums(counted)
    raw = by_bin if scores is rows.raw else bins.sums(rows.raw * seen.scored)
    by_octave, n = widened(by_bin @ bins.octaves), widened(seen.counts @ bins.octaves)
    squares = widened(torch.linalg.vector_norm(counted, dim=2)) ** 2
    keys, groups = n.sum(dim=2), (n > 0).sum(dim=2)
    spread = squares - by_octave.sum(dim=2) ** 2 / keys.clamp(min=1)
    within = squares - (by_octave**2 / n.clamp(min=1)).sum(dim=2)
    # One octave alone explains nothing, and scores that do not vary have nothing to explain.
    valid = (groups > 1) & (keys > groups) & (spread > 1e-9 * squares.clamp(min=1e-30))
    # Each part over its degrees of freedom: octaves explain a share of noise too, the more the fewer keys there are.
    noise = (within / (keys - groups).clamp(min=1)) / (spread / (keys - 1).clamp(min=1)).masked_fill(~valid, 1)
    explained = torch.stack([(1 - noise).masked_fill(~valid, 0), valid.double()], dim=2).float()
    explained = explained.to(scores.device)
    return explained, raw + rows.offset[:, :, None] * seen.counts
