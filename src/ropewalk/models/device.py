"""Where a model runs, and in what type it is fast there."""

from typing import Any

import torch

from ropewalk.errors import RopewalkError
from ropewalk.models.source import ModelSource

HALVES = {
    torch.bfloat16: ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"),
    torch.float16: ("amx_fp16", "avx512_fp16", "fp16_arith"),
}
"""The half precisions, each with the instructions of x86 and ARM of which one is enough for it not to be slow."""


def name_of(dtype: torch.dtype) -> str:
    """A type as studies call it: `float32`, `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def choose_device(name: str | int) -> torch.device:
    """The device called `name`; `auto` is a GPU where there is one. A sentence when it is not there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    # A build without CUDA asserts that it has it.
    except (RuntimeError, AssertionError) as error:
        raise RopewalkError(f"device {name!r} is not available here: use `auto` or `cpu`") from error


def compute_dtype(source: ModelSource, config: Any) -> str:
    """The type a model will run in: the one asked for, or what `auto` comes to on this machine.

    That is the stored one (of a GGUF file float32), except where it is half precision and the model runs on a CPU
    without instructions for it: there float32 is several times faster. A `device_map` is a matter of memory, so it
    keeps the stored type. `auto` is left where the configuration does not tell: then the weight files do, everywhere.
    """
    if source.dtype != "auto":
        return source.dtype
    stored = torch.float32 if source.gguf_file and config.dtype is None else config.dtype
    if stored is None:
        return "auto"
    # A device that is named need not be here: a plan is also made where the study will not run.
    perhaps_cpu = source.device_map is None and source.device in ("auto", "cpu")
    slow = perhaps_cpu and is_slow(choose_device(source.device), stored)
    return name_of(torch.float32 if slow else stored)


def is_slow(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device is a CPU that computes in this type much more slowly than in float32."""
    instructions = torch.cpu.get_capabilities() if device.type == "cpu" and dtype in HALVES else {}
    return bool(instructions) and not any(instructions.get(name) for name in HALVES[dtype])
