"""Whether a training fits into the memory of this machine."""

import torch

from ropewalk.errors import RopewalkError
from ropewalk.models.device import machine_memory
from ropewalk.text import one_line, size
from ropewalk.train.recipe import Recipe


def check_memory(recipe: Recipe, device: torch.device) -> None:
    """Stop at a recipe for more than the memory of this machine: the system would end the process."""
    there = machine_memory()
    if device.type == "cpu" and there is not None and recipe.memory > there:
        raise RopewalkError(
            f"training {one_line(recipe.name, 100)!r} needs {size(recipe.memory)} or more and the memory of this "
            f"machine is {size(there)}: make `model` smaller, or `batch` or `context` of its phases"
        )
