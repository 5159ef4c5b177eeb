"""Where a model runs."""

import torch

from ropewalk.errors import RopewalkError


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
