"""A device that is not here, pretended on the CPU: Apple's GPU, which has no float64 and mixes with nothing."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

MPS = torch.device("mps")


def on_it(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and getattr(tensor, "pretended", False)


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor, as if it were on the device."""
    copy = tensor.clone()
    copy.pretended = True
    return copy


class Pretended(TorchFunctionMode):
    """While the block runs, tensors that were `moved` say that they are on the device, and so is what is made of them.

    They have no float64, no NumPy array, and no company of tensors on the CPU but numbers and indices.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if func == torch.Tensor.device.__get__:
            return MPS if on_it(args[0]) else func(*args)
        if name == "cpu":
            return args[0].clone()
        there = any(map(on_it, given))
        if name == "numpy" and there:
            raise TypeError("can't convert mps:0 device type tensor to numpy")
        target = [one for one in (*args[1:], *kwargs.values()) if isinstance(one, torch.device | torch.Tensor)]
        goes = any(one == MPS if isinstance(one, torch.device) else name == "to" and on_it(one) for one in target)
        args, kwargs = tree_map(lambda one: torch.device("cpu") if one == MPS else one, (args, kwargs), is_leaf=_plain)
        if there and not goes and name not in ("__getitem__", "__setitem__", "to"):
            alone = [one for one in given if one.ndim and not on_it(one)]
            if alone:
                raise RuntimeError(f"{name}: expected all tensors on the same device, found mps and cpu")
        result = func(*args, **kwargs)
        if there or goes:
            for one in tree_leaves(result):
                if isinstance(one, torch.Tensor):
                    if one.dtype == torch.float64:
                        raise TypeError(f"{name}: MPS does not support float64")
                    one.pretended = True
        return result


def _plain(one: Any) -> bool:
    return isinstance(one, torch.device)
