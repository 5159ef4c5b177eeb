"""Attention by hand, in float64: what an attention function must give for its query, key, value and options."""

from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_mask


def recompute(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, options: dict[str, Any]) -> torch.Tensor:
    """softmax(scale · qkᵀ + mask) v in float64, [batch, tokens, heads, d], with a model's sinks, soft caps and biases.

    Without a mask the attention is causal, within the sliding window if there is one.
    """
    q, k, v = wide(query), wide(key), wide(value)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(2, 3) * _scale(q, options)
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    if options.get("position_bias") is not None:
        scores = scores + wide(options["position_bias"])
    count = q.shape[2]
    if isinstance(mask, BlockMask):
        mask = create_mask(mask.mask_mod, q.shape[0], q.shape[1], count, count, device=str(query.device))
    if mask is None:
        causal = options.get("is_causal")
        if causal if causal is not None else getattr(module, "is_causal", True):
            near = torch.ones(count, count, dtype=torch.bool, device=q.device).tril()
            window = options.get("sliding_window")
            scores = scores.masked_fill(~(near.triu(1 - window) if window else near), -torch.inf)
    elif mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask[..., :count].cpu(), -torch.inf)
    else:
        scores = scores + wide(mask[..., :count])
    sinks = options.get("s_aux")
    sinks = getattr(module, "sinks", None) if sinks is None else sinks
    if sinks is not None:
        column = wide(sinks).reshape(1, -1, 1, 1).expand(q.shape[0], -1, count, 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    output: torch.Tensor = (weights @ v).transpose(1, 2)
    return output


def score_size(query: torch.Tensor, key: torch.Tensor, options: dict[str, Any]) -> float:
    """The largest Σ|qᵢkᵢ| · scale: what rounding errors of a score are relative to."""
    q, k = wide(query).abs(), wide(key).abs()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return float((q @ k.transpose(2, 3)).max() * abs(_scale(q, options)))


def _scale(query: torch.Tensor, options: dict[str, Any]) -> float:
    scale = options.get("scaling")
    return float(query.shape[3] ** -0.5 if scale is None else scale)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float64 on the CPU: not every device has it."""
    return tensor.cpu().double()
