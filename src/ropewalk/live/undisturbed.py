"""Looking into a model in the middle of its training without leaving a trace."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn

from ropewalk.errors import RopewalkError
from ropewalk.models.tap import evaluating

PATCHED = "_original_forward"
"""Where accelerate keeps the forward that it has wrapped in autocast."""


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and `DistributedDataParallel`; one that is cut over processes is an error."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            break
        model = inner
    if any(hasattr(weights, "ds_id") or hasattr(weights, "device_mesh") for weights in model.parameters()) or any(
        type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()
    ):
        raise RopewalkError(
            "the weights of this model are cut over processes (FSDP, ZeRO-3), so that none of them can run it alone: "
            "save checkpoints and run a study of them with `ropewalk run`"
        )
    return model


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """While the block runs, the model evaluates as a loaded checkpoint would; afterwards training goes on to the bit.

    Kept and put back: the mode of every module, the state of all generators of random numbers, buffers. Left aside
    meanwhile: compiled code, autocast (entered or wrapped around the model by accelerate), gradients.
    """
    devices = sorted({weights.device for weights in model.parameters()}, key=str)
    with ExitStack() as stack:
        stack.enter_context(_random_numbers(devices))
        stack.enter_context(_buffers(model))
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for kind in sorted({"cpu", *(device.type for device in devices)}):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(_own_forward(model))
        yield


@contextmanager
def _random_numbers(devices: list[torch.device]) -> Iterator[None]:
    """Nothing that draws random numbers within changes those that come after."""
    python, numpy = random.getstate(), np.random.get_state()
    accelerators = {device.type for device in devices} - {"cpu", "meta"}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for kind in sorted(accelerators):
            own = [device for device in devices if device.type == kind]
            stack.enter_context(torch.random.fork_rng(devices=own, device_type=kind))
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def _buffers(model: nn.Module) -> Iterator[None]:
    """Buffers that a forward pass changes or replaces, as those of a rotation that depends on length, are put back."""
    kept = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.device.type != "meta"
    ]
    try:
        yield
    finally:
        for module, name, buffer, before in kept:
            module._buffers[name] = buffer
            if not torch.equal(buffer, before):
                with torch.no_grad():
                    buffer.copy_(before)


@contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """The forward of the model's class, where accelerate has put one of its own around it for mixed precision."""
    wrapped = model.__dict__.pop("forward", None) if PATCHED in model.__dict__ else None
    try:
        yield
    finally:
        if wrapped is not None:
            model.__dict__["forward"] = wrapped
