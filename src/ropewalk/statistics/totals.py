"""Adding up tensors under names, in float64."""

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


class Totals:
    """Named sums; what is added under a name has the same shape every time."""

    def __init__(self) -> None:
        self._totals: dict[str, torch.Tensor] = {}

    def add(self, name: str, part: "torch.Tensor") -> None:
        """Add a tensor."""
        part = widened(part)
        self._totals[name] = self._totals[name] + part if name in self._totals else part

    def sums(self) -> dict[str, NDArray[Any]]:
        """Everything added so far, as arrays."""
        return {name: total.cpu().numpy() for name, total in self._totals.items()}


def widened(part: "torch.Tensor") -> "torch.Tensor":
    """In float64; on the CPU where the device has none (Apple's GPUs)."""
    return part.cpu().double() if part.device.type == "mps" else part.double()
