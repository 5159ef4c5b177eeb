"""Memory that runs out during a capture: fewer documents at once while there are any, then what would help."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from torch import nn

from ropewalk.allocator import give_back_freed
from ropewalk.errors import OutOfMemoryError
from ropewalk.models.device import free_caches, is_out_of_memory
from ropewalk.models.footprint import attention_of, square_bytes
from ropewalk.models.probe import input_device
from ropewalk.progress import logger
from ropewalk.text import count, size

_at_once: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Tokens that run at once, of the models whose memory has run out with more: no later shard tries more again."""


def affordable(model: nn.Module, batch: int, context: int) -> int:
    """Documents of `context` tokens to run at once: `batch`, or what is left of it since memory ran out."""
    return max(1, min(batch, _at_once.get(model, batch * context) // context))


def lower(model: nn.Module, batch: int, context: int) -> None:
    """After `batch` documents were too many: half as many from now on. Nothing may hold on to the failed pass."""
    half = batch // 2
    _at_once[model] = half * context
    give_back(model)
    logger.warning(
        "no memory for %s of %s at once: going on with %d at a time (`batch_tokens: %d` does so from the start)",
        *(count(batch, "document"), count(context, "token"), half, half * context),
    )


def give_back(model: nn.Module) -> None:
    """Let go of what a pass that failed has left on the model's device."""
    # Tracebacks make cycles, which keep what they hold until somebody looks for them.
    gc.collect()
    free_caches(input_device(model))
    give_back_freed()


@contextmanager
def enough_memory(what: str, remedy: str) -> Iterator[None]:
    """Memory that runs out becomes a sentence on what needed it, where no smaller batch would help."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(f"there is no memory for {what}: {remedy}") from error


def too_long(model: nn.Module, context: int, statistic: str | None) -> OutOfMemoryError:
    """What to say when one document alone is too much, for a `statistic` or (None) for the model itself."""
    device = input_device(model)
    where = "this machine" if device.type == "cpu" else f"the device ({device})"
    if statistic is not None:
        what = f"what `{statistic}` adds up of one document of {count(context, 'token')}"
        remedies = ["choose fewer `heads`", f"leave `{statistic}` out of `statistics`"]
    else:
        what = f"one document of {count(context, 'token')}"
        remedies = list(_for_the_model(model, context, device.type))
    if device.type == "cpu":
        remedies.append("close other programs")
    last = "or lower `context`" if remedies else "lower `context`"
    return OutOfMemoryError(f"{where} has no memory for {what}: {', '.join([*remedies, last])}")


def _for_the_model(model: nn.Module, context: int, device: str) -> Iterator[str]:
    """What makes a forward pass smaller, of what has not been done yet."""
    dtype = next((weights.dtype for weights in model.parameters() if weights.is_floating_point()), None)
    width = 4 if dtype is None else dtype.itemsize
    scores = square_bytes(model, context, width)
    if scores and attention_of(model) == "eager":
        yield f"set `attention: sdpa` (`eager` holds all scores of a layer at once, here {size(scores)})"
    elif scores:
        yield f"set `attention: flash_attention_2` on a GPU (masks of sliding windows take {size(scores)} here)"
    if width > 2:
        yield "set `dtype: bfloat16`"
    if device != "cpu" and not hasattr(model, "hf_device_map"):
        yield "set `device_map: auto`"
