"""Running documents through a model under the tap, and letting statistics see its queries and keys."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ropewalk.allocator import give_back_freed
from ropewalk.capture.memory import affordable, enough_memory, lower, too_long
from ropewalk.capture.shards import ShardSums
from ropewalk.errors import RopewalkError
from ropewalk.models.device import is_out_of_memory
from ropewalk.models.layout import Head, Layout
from ropewalk.models.probe import input_device, probe_tokens
from ropewalk.models.tap import Call, Finished, Rotation, rotations, tap
from ropewalk.statistics.base import Accumulator, LayerHeads, Observation, Scope, Statistic, Sums, layers_of
from ropewalk.text import count

FEWER_HEADS = "choose fewer `heads` or `statistics`, or close other programs"
LARGE = 1 << 24
"""Bytes of a shard from which on it is worth giving memory back for, which the next pass has to take again."""


@dataclass(frozen=True)
class Collection:
    """What is collected of a model: chosen heads, statistics, settings, before or after the rotation."""

    layout: Layout
    heads: Sequence[Head]
    statistics: Sequence[Statistic]
    scope: Scope
    pre_rope: bool = False


@torch.inference_mode()
def collect(
    model: nn.Module,
    collection: Collection,
    tokens: NDArray[np.int32],
    *,
    first_document: int = 0,
    batch: int = 1,
    advance: Callable[[int], None] = lambda _: None,
) -> ShardSums:
    """Run documents [documents, context] through the model and add up what the statistics see.

    Each forward pass stops as soon as the last layer that matters has given its queries and keys, so neither the rest
    of the model nor the vocabulary projection runs. `advance` is told the tokens done after each batch. Where memory
    runs out, all documents begin again, half as many at once, and no later call for this model tries more: layers
    before the one that failed have added up theirs already, and half a batch cannot be taken out again.
    """
    context, told = tokens.shape[1], 0

    def reached(done: int) -> None:
        nonlocal told
        advance(max(done - told, 0))
        told = max(done, told)

    needed = f"the sums of {count(len(collection.heads), 'head')}"
    while True:
        with enough_memory(needed, FEWER_HEADS):
            collector = _Collector(collection)
        size = affordable(model, min(batch, len(tokens)), context)
        try:
            _run(model, collector, tokens, first_document, size, reached)
            break
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if size == 1:
                raise too_long(model, context, collector.adding) from error
        # Not before the exception is gone: its traceback holds all that the failed pass has made.
        del collector
        lower(model, size, context)
    if _stored_bytes(collection) >= LARGE:
        # Activations that were freed and kept would lie beside the arrays of the sums, and the copies of writing.
        give_back_freed()
    with enough_memory(needed, FEWER_HEADS):
        return collector.result()


def _stored_bytes(collection: Collection) -> float:
    """About how many bytes the sums take."""
    return sum(
        statistic.stored_bytes(len(own.heads) + len(own.key_heads), own.layer.head_dim, collection.scope, 1)
        for own in layers_of(collection.layout, collection.heads)
        for statistic in collection.statistics
    )


def _run(
    model: nn.Module,
    collector: "_Collector",
    tokens: NDArray[np.int32],
    first_document: int,
    batch: int,
    reached: Callable[[int], None],
) -> None:
    """Let a collector see all documents, `batch` at once; `reached` is told the tokens done."""
    device = input_device(model)
    with ExitStack() as stack:
        if collector.pre_rope:
            collector.rotary = stack.enter_context(rotations(model))
        stack.enter_context(tap(model, collector.view))
        for start in range(0, len(tokens), batch):
            rows = torch.from_numpy(np.ascontiguousarray(tokens[start : start + batch], dtype=np.int64)).to(device)
            collector.begin(range(first_document + start, first_document + start + len(rows)), rows)
            with suppress(Finished):
                model(input_ids=rows, use_cache=False)
            collector.end()
            reached((start + len(rows)) * tokens.shape[1])


class _Collector:
    def __init__(self, collection: Collection) -> None:
        self.pre_rope = collection.pre_rope
        self.adding: str | None = None
        """The statistic that is being added to, where one is."""
        self._skip_first = collection.scope.skip_first
        self._layers = {layer.call_index: layer for layer in collection.layout.layers}
        self._heads = {one.layer.call_index: one for one in layers_of(collection.layout, collection.heads)}
        self._accumulators: dict[int, dict[str, Accumulator]] = {
            call_index: {
                statistic.name: statistic.accumulator(heads, collection.scope) for statistic in collection.statistics
            }
            for call_index, heads in self._heads.items()
        }
        self._last = max(self._heads)
        self._positions = torch.arange(self._skip_first, collection.scope.context)
        self._documents: Sequence[int] = ()
        self._token_ids = self._whole_token_ids = torch.empty(0)
        self._shared: dict[str, Any] = {}
        self._call_index = 0
        self.rotary: list[Rotation] | None = None

    def begin(self, documents: Sequence[int], token_ids: torch.Tensor) -> None:
        self._documents, self._call_index = documents, 0
        self._whole_token_ids, self._shared = token_ids, {}
        self._token_ids = token_ids[:, self._skip_first :]

    def end(self) -> None:
        if self._call_index <= self._last:
            raise RopewalkError(
                f"the model made {self._call_index} attention calls where {self._last + 1} were expected: its "
                "layers differ from one input to another"
            )

    def view(self, call: Call) -> None:
        call_index, self._call_index = self._call_index, self._call_index + 1
        heads = self._heads.get(call_index)
        if heads is not None:
            self._check_layer(call, call_index)
            query, key = self._before_rope(call, call_index) if self.rotary is not None else (call.query, call.key)
            seen = Observation(
                heads,
                self._chosen(query, heads.heads),
                self._chosen(key, heads.key_heads),
                self._positions,
                self._token_ids,
                self._documents,
                call,
                self._whole_token_ids,
                self._shared,
                rotated=self.rotary is None,
            )
            for name, accumulator in self._accumulators[call_index].items():
                self.adding = name
                accumulator.update(seen)
            self.adding = None
        if self.rotary is not None:
            self.rotary.clear()
        if call_index == self._last:
            raise Finished

    def _chosen(self, vectors: torch.Tensor, heads: Sequence[int]) -> torch.Tensor:
        # Heads are in ascending order, so as many as there are means all of them, and nothing is copied.
        vectors = vectors if len(heads) == vectors.shape[1] else vectors[:, list(heads)]
        return vectors[:, :, self._skip_first :]

    def _check_layer(self, call: Call, call_index: int) -> None:
        """A layer is known by the index of its call; one that looks otherwise than it was seen to is not it."""
        layer = self._layers[call_index]
        seen = (call.query.shape[1], call.key.shape[1], call.query.shape[3])
        if seen != (layer.query_heads, layer.key_heads, layer.head_dim):
            raise RopewalkError(
                f"attention call {call_index} has {seen[0]} query heads, {seen[1]} key heads and head_dim {seen[2]}, "
                f"not those of layer {layer.layer}: the model takes another way through its layers than on a short "
                "input"
            )

    def _before_rope(self, call: Call, call_index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys as they went into the rotation; a layer that does not rotate gives them as they are."""
        pair = before_rotation(call, self.rotary or [])
        if pair is None and (self.rotary or self._layers[call_index].rope):
            raise RopewalkError(
                f"pre_rope is not available for {type(call.module).__name__}: it rotates in a way of its own; "
                "capture after RoPE instead"
            )
        return (call.query, call.key) if pair is None else pair

    def result(self) -> ShardSums:
        sums: dict[tuple[str, int], Sums] = {}
        for call_index, heads in self._heads.items():
            # A layer at a time goes over from accumulators to sums, so that there are never all of both.
            for name, accumulator in self._accumulators.pop(call_index).items():
                # In one order in memory, as shards are read back: other orders would be summed to other last digits.
                arrays = {part: np.asarray(array, order="C") for part, array in accumulator.sums().items()}
                _check_finite(name, arrays, heads)
                sums[name, heads.layer.layer] = arrays
        return sums


def before_rotation(call: Call, rotary: Sequence[Rotation]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The query and key of a call as they went into its rotation (see `rotations`); None where that is not seen."""
    if not rotary:
        return None
    query, key = _unrotated(rotary[-1].query, call.query), _unrotated(rotary[-1].key, call.key)
    return None if query is None or key is None else (query, key)


@torch.inference_mode()
def changes_after_rotation(model: nn.Module) -> bool:
    """Whether a short input shows keys that change once more between their rotation and attention, as by a QK-norm.

    Keys alone are asked: queries may also be scaled by position there, which is no norm.
    """
    changed: list[bool] = []

    def view(call: Call) -> None:
        rotated = _unrotated(rotary[-1].rotated_key, call.key) if rotary else None
        changed.append(rotated is not None and not torch.equal(rotated.to(call.key.dtype), call.key))
        rotary.clear()

    with rotations(model) as rotary, tap(model, view):
        model(input_ids=probe_tokens(model), use_cache=False)
    return any(changed)


def _unrotated(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor | None:
    """`before` in the shape of `after`: heads first, with the dimensions that do not rotate; None if it cannot be."""
    if before.shape[1] != after.shape[1]:
        before = before.transpose(1, 2)
    if before.shape[:3] != after.shape[:3]:
        return None
    return before if before.shape[3] == after.shape[3] else torch.cat([before, after[..., before.shape[3] :]], dim=3)


def _check_finite(statistic: str, arrays: Sums, heads: LayerHeads) -> None:
    """Stop at sums that are not numbers, with the head where they tell it."""
    remedy = "the weights are damaged, or the type is too narrow (try `dtype: float32`)"
    for name, array in arrays.items():
        if np.isfinite(array).all():
            continue
        kind = name.split(".")[0]
        if kind not in ("q", "k"):
            raise RopewalkError(f"layer {heads.layer.layer} gives NaN or infinite numbers to {statistic!r}: {remedy}")
        broken = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0])
        number, what = (heads.heads[broken], "queries") if kind == "q" else (heads.key_heads[broken], "keys")
        raise RopewalkError(f"layer {heads.layer.layer} head {number} has NaN or infinite {what}: {remedy}")
