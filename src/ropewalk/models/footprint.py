"""What attention holds at once where that grows with the square of the context: scores, and masks of windows."""

from typing import Any

import torch
from torch import nn

from ropewalk.errors import OutOfMemoryError
from ropewalk.models.device import memory_of
from ropewalk.models.probe import text_config
from ropewalk.text import count, size

WINDOWED = ("sliding", "chunked")
"""How kinds of layers begin whose queries do not see everything before."""


def attention_of(model: nn.Module) -> str | None:
    """The attention implementation of a model, by transformers' name."""
    return getattr(text_config(model), "_attn_implementation", None)


def square_bytes(model: nn.Module, context: int, itemsize: int) -> int:
    """Bytes, at least, that attention over one document holds beside its vectors; 0 where it works in blocks.

    `eager` has scores and weights for each head, and a mask; `sdpa` a mask of booleans and the same as numbers, of
    models with a sliding window shorter than the context. (20 and 5 bytes per context² were measured, of two heads in
    float32.)
    """
    text, name = text_config(model), attention_of(model)
    if name == "eager":
        heads = getattr(text, "num_attention_heads", 1)
        most = max(heads) if isinstance(heads, list | tuple) else int(heads)
        return context**2 * itemsize * (2 * most + 1)
    return context**2 * (1 + itemsize) if name == "sdpa" and _slides(text, context) else 0


def check_fits_context(model: nn.Module, device: torch.device, context: int, itemsize: int, label: str) -> None:
    """Stop at a context whose attention does not fit into the memory that there is, before it is tried."""
    needed, there = square_bytes(model, context, itemsize), memory_of(device)
    if there is not None and needed > there:
        name = attention_of(model)
        remedy = "set `attention: sdpa`" if name == "eager" else "set `attention: flash_attention_2` on a GPU"
        raise OutOfMemoryError(
            f"`{name}` attention of {label!r} holds at least {size(needed)} at once over {count(context, 'token')}, "
            f"and the memory is {size(there)}: {remedy}, or lower `context`"
        )


def _slides(text: Any, context: int) -> bool:
    kinds = getattr(text, "layer_types", None)
    windowed = any(str(kind).startswith(WINDOWED) for kind in kinds) if kinds else True
    windows = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return windowed and any(isinstance(window, int) and 0 < window < context for window in windows)
