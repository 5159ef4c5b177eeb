"""Queries and keys of chosen heads on one prompt, as they are: for a look, not for statistics."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ropewalk.capture.collector import before_rotation
from ropewalk.errors import RopewalkError
from ropewalk.models.probe import input_device, read_layout
from ropewalk.models.tap import Call, Finished, evaluating, rotations, tap

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class PromptHead:
    """Vectors [tokens, d] of one head: queries `q` and keys `k` as the dot product takes them, after the rotation.

    `q_before` and `k_before` are the vectors that went into the rotation: equal to q and k in a layer that does not
    rotate, None where the model rotates in a way that cannot be seen. `positions` and `token_ids` are [tokens].
    """

    layer: int
    head: int
    k_head: int
    positions: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    q: Vectors
    k: Vectors
    q_before: Vectors | None
    k_before: Vectors | None


def capture_vectors(
    model: nn.Module,
    text: str | Sequence[int] | torch.Tensor,
    tokenizer: Any = None,
    *,
    heads: Sequence[tuple[int, int]],
) -> dict[tuple[int, int], PromptHead]:
    """Queries and keys of chosen (layer, head) pairs on one prompt: a text with a tokenizer, or token ids.

    >>> vectors = capture_vectors(model, "The rope walks.", tokenizer, heads=[(3, 1)])  # doctest: +SKIP
    >>> vectors[3, 1].q.shape  # doctest: +SKIP
    (5, 64)
    """
    ids = _token_ids(text, tokenizer)
    if not heads:
        raise RopewalkError("no heads are asked for: give (layer, head) pairs, such as heads=[(3, 1)]")
    with evaluating(model), torch.inference_mode():
        layout = read_layout(model)
        chosen = layout.heads(pairs=heads)
        wanted = {layout[head.layer].call_index: layout[head.layer] for head in chosen}
        seen: dict[int, tuple[Call, Any]] = {}
        call_index = -1

        def view(call: Call) -> None:
            nonlocal call_index
            call_index += 1
            if call_index in wanted:
                layer = wanted[call_index]
                rotates = bool(rotary) or layer.rope is not False
                pair = before_rotation(call, rotary) if rotates else (call.query, call.key)
                seen[layer.layer] = call, pair
            rotary.clear()
            if call_index >= max(wanted):
                raise Finished

        with ExitStack() as stack:
            rotary = stack.enter_context(rotations(model))
            stack.enter_context(tap(model, view))
            stack.enter_context(suppress(Finished))
            model(input_ids=torch.from_numpy(ids)[None].to(input_device(model)), use_cache=False)
    found = {}
    for head in chosen:
        call, pair = seen[head.layer]
        found[head.layer, head.head] = PromptHead(
            *head,
            positions=np.arange(len(ids)),
            token_ids=ids,
            q=_array(call.query, head.head),
            k=_array(call.key, head.k_head),
            q_before=None if pair is None else _array(pair[0], head.head),
            k_before=None if pair is None else _array(pair[1], head.k_head),
        )
    return found


def _token_ids(text: Any, tokenizer: Any) -> NDArray[np.int64]:
    if isinstance(text, str):
        if tokenizer is None:
            raise RopewalkError(
                "the prompt is text, so a tokenizer is needed: capture_vectors(model, text, tokenizer, heads=...)"
            )
        text = tokenizer(text)["input_ids"]
    ids = np.asarray(text.cpu() if isinstance(text, torch.Tensor) else text).reshape(-1)
    if not len(ids) or not np.issubdtype(ids.dtype, np.integer):
        raise RopewalkError("the prompt has no tokens: give a text with a tokenizer, or token ids")
    return ids.astype(np.int64)


def _array(vectors: torch.Tensor, head: int) -> Vectors:
    return np.asarray(vectors[0, head].float().cpu().numpy())
