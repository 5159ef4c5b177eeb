"""Where a model runs, and in what type it is fast there."""

import errno
from pathlib import Path
from typing import Any

import torch

from ropewalk.errors import RopewalkError
from ropewalk.models.source import ModelSource
from ropewalk.text import one_line

HALVES = {
    torch.bfloat16: ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"),
    torch.float16: ("amx_fp16", "avx512_fp16", "fp16_arith"),
}
"""The half precisions, each with the instructions of x86 and ARM of which one is enough for it not to be slow."""

SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Device maps that accelerate works out by itself."""


def name_of(dtype: torch.dtype) -> str:
    """A type as studies call it: `float32`, `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def choose_device(name: str | int) -> torch.device:
    """The device called `name`; `auto` is a GPU where there is one. A sentence when it is not there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    sentence = f"device {one_line(repr(name), 100)} is not available here"
    try:
        device = torch.empty(0, device=name).device
    # Backends that are not built in, or not imported, each refuse in their own way; a build without CUDA asserts it.
    except Exception as error:
        raise RopewalkError(f"{sentence}: use `auto` or `cpu`") from error
    if device.type == "meta":
        raise RopewalkError(f"{sentence}, as nothing is computed there: use `auto` or `cpu`")
    return device


def device_of(source: ModelSource) -> torch.device:
    """The device a study asks for, or a sentence when it (or one of its device map) is not there."""
    spread = source.device_map
    if isinstance(spread, dict):
        for device in spread.values():
            if device == "auto":
                raise RopewalkError(f"device_map of {source.label!r} names no device: `auto` stands for a whole map")
            if device != "disk":
                choose_device(device)
    elif spread not in (None, *SPREADS):
        choose_device(spread)
    return choose_device(source.device)


def machine_memory() -> int | None:
    """Bytes that a process of this machine can have at most, swap counted; None where the system does not tell."""
    try:
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total = sum(int(facts[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))
    except (OSError, ValueError, KeyError):
        return None
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def memory_of(device: torch.device) -> int | None:
    """Bytes that there are on a device in all; None where it does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return machine_memory() if device.type == "cpu" else None


def free_caches(device: torch.device) -> None:
    """Give back what a device's allocator keeps for later, in pieces that may be too small for what comes."""
    empty = getattr(getattr(torch, device.type, None), "empty_cache", None)
    if empty is not None:
        empty()


_OUT_OF_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "alloc_failed",
    "invalid buffer size",
)
"""Of these words is one in what torch, the C++ library, CUDA's libraries and Apple's say."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out: torch has no exception of its own for it on a CPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in _OUT_OF_MEMORY)


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
