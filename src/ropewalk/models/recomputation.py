"""Attention by hand: what an attention function makes of its query, key, value and options."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask


class Masking(NamedTuple):
    """What a model does to scores [batch, heads, queries, keys] before the softmax: `bias` is added, what is `hidden`
    is not seen at all. Both are broadcast, and None where there is nothing to do.
    """

    bias: torch.Tensor | None
    hidden: torch.Tensor | None


def recompute(module: nn.Module, query: Any, key: Any, value: Any, options: dict[str, Any]) -> torch.Tensor:
    """softmax(scale · qkᵀ + mask) v in float64, [batch, tokens, heads, d], with a model's sinks, soft caps and biases.

    Without a mask the attention is causal, within the sliding window if there is one.
    """
    q, k, v = wide(query), wide(key), wide(value)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = capped(q @ k.transpose(2, 3) * score_scale(q, options), options)
    masking = masking_of(module, options, torch.arange(q.shape[2]), k.shape[2])
    if masking.bias is not None:
        scores = scores + wide(masking.bias)
    if masking.hidden is not None:
        scores = scores.masked_fill(masking.hidden.cpu(), -torch.inf)
    sinks = sinks_of(module, options)
    if sinks is not None:
        column = wide(sinks).reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    output: torch.Tensor = (weights @ v).transpose(1, 2)
    return output


def capped(scores: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """Scores with a model's soft cap c, c · tanh(s / c), where it has one."""
    cap = options.get("softcap")
    return cap * torch.tanh(scores / cap) if cap else scores


def masking_of(module: nn.Module, options: dict[str, Any], rows: torch.Tensor, keys: int) -> Masking:
    """Biases and mask of the queries at positions `rows` [queries] over the first `keys` keys."""
    mask = options.get("attention_mask")
    bias = options.get("position_bias")
    if bias is not None:
        bias = bias[..., rows.to(bias.device), :][..., :keys]
    if isinstance(mask, torch.Tensor):
        mask = mask[..., rows.to(mask.device), :][..., :keys]
        if mask.dtype == torch.bool:
            return Masking(bias, ~mask)
        # A mask that is added hides what it makes as small as its type can hold, and shifts the rest.
        hidden = mask <= torch.finfo(mask.dtype).min / 2
        shift = mask.masked_fill(hidden, 0)
        if not shift.any():
            return Masking(bias, hidden)
        return Masking(shift if bias is None else bias + shift, hidden)
    query, key = rows[:, None], torch.arange(keys, device=rows.device)[None]
    if isinstance(mask, BlockMask):
        first = torch.zeros((), dtype=torch.int64, device=rows.device)
        return Masking(bias, ~mask.mask_mod(first, first, query, key)[None, None])
    window = options.get("sliding_window")
    later = key > query if is_causal(module, options) else None
    if later is None or not window:
        return Masking(bias, None if later is None else later[None, None])
    return Masking(bias, (later | (query - key >= window))[None, None])


def is_causal(module: nn.Module, options: dict[str, Any]) -> bool:
    """Whether queries see no later keys: where there is a mask, its first query tells; else options and module do."""
    mask = options.get("attention_mask")
    if mask is not None:
        device = mask.device if isinstance(mask, torch.Tensor) else torch.device("cpu")
        hidden = masking_of(module, options, torch.zeros(1, dtype=torch.int64, device=device), mask.shape[-1]).hidden
        return hidden is not None and bool(hidden[..., 1:].all())
    causal = options.get("is_causal")
    return bool(causal if causal is not None else getattr(module, "is_causal", True))


def sinks_of(module: nn.Module, options: dict[str, Any]) -> torch.Tensor | None:
    """The learned sink [heads] that takes part in the softmax and gives nothing; None of models without one."""
    sinks = options.get("s_aux")
    return getattr(module, "sinks", None) if sinks is None else sinks


def score_size(query: torch.Tensor, key: torch.Tensor, options: dict[str, Any]) -> float:
    """The largest Σ|qᵢkᵢ| · scale: what rounding errors of a score are relative to."""
    q, k = wide(query).abs(), wide(key).abs()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return float((q @ k.transpose(2, 3)).max() * abs(score_scale(q, options)))


def score_scale(query: torch.Tensor, options: dict[str, Any]) -> float:
    """What an attention function multiplies q·k by."""
    scale = options.get("scaling")
    return float(query.shape[3] ** -0.5 if scale is None else scale)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float64 on the CPU: not every device has it."""
    return tensor.cpu().double()
