"""What a worker of any engine does: it keeps a model loaded and computes shards of it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ropewalk.capture.shards import shard_path
from ropewalk.capture.work import Bench, Order, Piece
from ropewalk.files import write_bytes
from ropewalk.study import Checkpoint


class Hand:
    """A worker: it has the model of one order loaded at a time, on its own device if it has one."""

    def __init__(self, device: str | None = None) -> None:
        self._device = device
        self._bench: Bench | None = None

    def open(self, order: Order) -> Mapping[str, Any] | None:
        """Load the model of an order; what it tells for the manifest, or None if it was loaded already."""
        if self._bench is not None and self._bench.order.name == order.name:
            return None
        # The old model goes before the new one comes.
        self._bench = None
        if self._device is not None and is_free(order.checkpoint):
            order = replace(order, checkpoint=order.checkpoint.model_copy(update={"device": self._device}))
        self._bench = Bench(order)
        return self._bench.facts

    def shard(self, piece: Piece, advance: Callable[[int], None]) -> bytes:
        """A shard of the open order, as bytes."""
        return b"".join(self._open_bench.shard(piece, advance))

    def write(self, piece: Piece, advance: Callable[[int], None]) -> None:
        """Compute a shard of the open order and write it where it belongs."""
        bench = self._open_bench
        write_bytes(shard_path(bench.order.folder, piece.number), *bench.shard(piece, advance))

    @property
    def _open_bench(self) -> Bench:
        if self._bench is None:
            raise RuntimeError("no order is open")
        return self._bench


def is_free(checkpoint: Checkpoint) -> bool:
    """Whether it is left open on which GPU a model runs."""
    return checkpoint.device_map is None and checkpoint.device in ("auto", "cuda")
