"""Several processes that train one model together: each looks at some documents, the first writes."""

from typing import Any

import torch.distributed as dist


class Processes:
    """This process among those of `torch.distributed`, or alone where there is none.

    What is passed on is on the CPU, whatever the backend of the training, so a group of its own is made: all processes
    must make one at the same point.
    """

    def __init__(self) -> None:
        self.rank, self.count, self._group = 0, 1, None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.rank, self.count = dist.get_rank(), dist.get_world_size()
            self._group = dist.new_group(backend="gloo")

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def gather(self, mine: Any) -> list[Any]:
        """What every process has, in their order, for the first; nothing for the others."""
        if self._group is None:
            return [mine]
        found: list[Any] | None = [None] * self.count if self.first else None
        dist.gather_object(mine, found, dst=0, group=self._group)
        return found or []

    def share(self, value: Any) -> Any:
        """What the first process has, for all."""
        if self._group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]
