"""What one shard's forward passes leave behind: moments of every token, and a small sample of vectors."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ropewalk.errors import RopewalkError
from ropewalk.geometry.moments import Moments
from ropewalk.models.layout import Head, Layout
from ropewalk.models.probe import input_device
from ropewalk.models.tap import Call, Finished, rotary_inputs, tap
from ropewalk.statistics.accumulator import Accumulator

KINDS = ("q", "k")
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Settings:
    """What of each document is collected; see the fields of the same names in a study's `capture`."""

    heads: Sequence[Head]
    bucket_size: int
    keep: float = 0.0
    seed: int = 0
    skip_first: int = 0
    pre_rope: bool = False


@dataclass(frozen=True)
class Sample:
    """Kept vectors [heads, kept, d] in float32 with their document and position [kept]."""

    vectors: NDArray[np.float32]
    document: Integers
    position: Integers


@dataclass(frozen=True)
class LayerResult:
    """Moments (and sample) of the chosen heads of one layer, for one kind; `heads` names them in order."""

    heads: tuple[int, ...]
    moments: Moments
    sample: Sample


ShardResult = dict[tuple[int, str], LayerResult]
"""By (layer, kind)."""


@dataclass
class _Channel:
    """The chosen heads of one layer and kind while they are being collected."""

    heads: tuple[int, ...]
    available: int
    accumulator: Accumulator = field(default_factory=Accumulator)
    kept: list[torch.Tensor] = field(default_factory=list)
    kept_at: list[tuple[int, Integers]] = field(default_factory=list)

    def choose(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors if len(self.heads) == self.available else vectors[:, list(self.heads)]

    def result(self) -> tuple[Moments, Sample]:
        moments = self.accumulator.result()
        empty = np.zeros((len(self.heads), 0, moments.head_dim), dtype=np.float32)
        vectors = torch.cat(self.kept, dim=1).cpu().numpy() if self.kept else empty
        document = np.concatenate([np.full(len(at), number) for number, at in self.kept_at] or [np.zeros(0, np.int64)])
        position = np.concatenate([at for _, at in self.kept_at] or [np.zeros(0, np.int64)])
        return moments, Sample(np.ascontiguousarray(vectors), document.astype(np.int64), position.astype(np.int64))


def kept_positions(seed: int, document: int, layer: int, kind: str, context: int, rate: float) -> Integers:
    """Positions of a document whose vectors are kept, each with probability `rate`; the same for the same arguments."""
    generator = np.random.default_rng([seed, document, layer, KINDS.index(kind)])
    return np.flatnonzero(generator.random(context) < rate)


@torch.inference_mode()
def collect(
    model: nn.Module,
    layout: Layout,
    settings: Settings,
    tokens: NDArray[np.int32],
    *,
    first_document: int = 0,
    batch: int = 1,
    advance: Callable[[int], None] = lambda _: None,
) -> ShardResult:
    """Run documents [documents, context] through the model and gather its queries and keys.

    Each forward pass stops as soon as the last layer that matters has given its queries and keys, so neither the rest
    of the model nor the vocabulary projection runs. `advance` is told the tokens done after each batch.
    """
    collector = _Collector(layout, settings, tokens.shape[1])
    device = input_device(model)
    with ExitStack() as stack:
        if settings.pre_rope:
            collector.rotary = stack.enter_context(rotary_inputs(model))
        stack.enter_context(tap(model, collector.view))
        for start in range(0, len(tokens), batch):
            rows = np.ascontiguousarray(tokens[start : start + batch], dtype=np.int64)
            collector.begin(range(first_document + start, first_document + start + len(rows)))
            try:
                model(input_ids=torch.from_numpy(rows).to(device), use_cache=False)
            except Finished:
                pass
            except torch.cuda.OutOfMemoryError as error:
                raise RopewalkError(
                    f"the device has no memory for {rows.size} tokens at once: lower `batch_tokens` or "
                    "`context`, or set `device_map: auto`"
                ) from error
            collector.end()
            advance(rows.size)
    return collector.result()


class _Collector:
    def __init__(self, layout: Layout, settings: Settings, context: int) -> None:
        self._settings, self._context = settings, context
        self.rotary: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self._layers = {layer.call: layer for layer in layout.layers}
        self._channels: dict[int, dict[str, _Channel]] = {}
        for layer in layout.layers:
            queries = tuple(head.head for head in settings.heads if head.layer == layer.layer)
            keys = tuple(sorted({head.k_head for head in settings.heads if head.layer == layer.layer}))
            if queries:
                self._channels[layer.call] = {
                    "q": _Channel(queries, layer.query_heads),
                    "k": _Channel(keys, layer.key_heads),
                }
        self._last = max(self._channels)
        self._positions = torch.arange(settings.skip_first, context)
        self._documents: Iterable[int] = ()
        self._place = 0

    def begin(self, documents: Iterable[int]) -> None:
        self._documents, self._place = documents, 0

    def end(self) -> None:
        if self._place <= self._last:
            raise RopewalkError(
                f"the model made {self._place} attention calls where {self._last + 1} were expected: its "
                "layers differ from one input to another"
            )

    def view(self, call: Call) -> None:
        place, self._place = self._place, self._place + 1
        channels = self._channels.get(place)
        if channels is not None:
            self._check_place(call, place)
            query, key = self._before_rope(call, place) if self.rotary is not None else (call.query, call.key)
            self._take(channels["q"], query, place, "q")
            self._take(channels["k"], key, place, "k")
        if self.rotary is not None:
            self.rotary.clear()
        if place == self._last:
            raise Finished

    def _check_place(self, call: Call, place: int) -> None:
        """A layer is known by its place among the calls; one that looks otherwise than it was seen to is not it."""
        layer = self._layers[place]
        seen = (call.query.shape[1], call.key.shape[1], call.query.shape[3])
        if seen != (layer.query_heads, layer.key_heads, layer.head_dim):
            raise RopewalkError(
                f"attention call {place} has {seen[0]} query heads, {seen[1]} key heads and head_dim {seen[2]}, not "
                f"those of layer {layer.layer}: the model takes another way through its layers than on a short input"
            )

    def _take(self, channel: _Channel, vectors: torch.Tensor, place: int, kind: str) -> None:
        settings = self._settings
        vectors = channel.choose(vectors)
        channel.accumulator.update(vectors[:, :, settings.skip_first :], self._positions)
        rate = settings.keep / settings.bucket_size
        for document, own in zip(self._documents, vectors, strict=True) if rate else ():
            at = kept_positions(settings.seed, document, self._layers[place].layer, kind, self._context, rate)
            at = at[at >= settings.skip_first]
            channel.kept.append(own[:, torch.from_numpy(at).to(own.device)].float())
            channel.kept_at.append((document, at))

    def _before_rope(self, call: Call, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys as they went into the rotation; a layer that does not rotate gives them as they are."""
        if not self.rotary and not self._layers[place].rope:
            return call.query, call.key
        before_q, before_k = self.rotary[-1] if self.rotary else (None, None)
        query = None if before_q is None else _unrotated(before_q, call.query)
        key = None if before_k is None else _unrotated(before_k, call.key)
        if query is None or key is None:
            raise RopewalkError(
                f"pre_rope is not available for {type(call.module).__name__}: it rotates in a way of its own; "
                "capture after RoPE instead"
            )
        return query, key

    def result(self) -> ShardResult:
        results: ShardResult = {}
        for place, channels in self._channels.items():
            layer = self._layers[place].layer
            for kind, channel in channels.items():
                moments, sample = channel.result()
                broken = np.flatnonzero(~moments.is_finite())
                if len(broken):
                    raise RopewalkError(
                        f"layer {layer} head {channel.heads[broken[0]]} has NaN or infinite "
                        f"{'queries' if kind == 'q' else 'keys'}: "
                        "the weights are damaged, or the type is too narrow (try `dtype: float32`)"
                    )
                results[layer, kind] = LayerResult(channel.heads, moments, sample)
        return results


def _unrotated(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor | None:
    """`before` in the shape of `after`: heads first, with the dimensions that do not rotate; None if it cannot be."""
    if before.shape[1] != after.shape[1]:
        before = before.transpose(1, 2)
    if before.shape[:3] != after.shape[:3]:
        return None
    return before if before.shape[3] == after.shape[3] else torch.cat([before, after[..., before.shape[3] :]], dim=3)
