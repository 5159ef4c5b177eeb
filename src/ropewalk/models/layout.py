"""Which layers attend, with how many heads, which of them rotate or slide, and which heads a study looks at."""

import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ropewalk.errors import RopewalkError
from ropewalk.text import some

LAYOUT_FILE = "layout.json"
"""Name of a layout beside vectors on disk."""


class Head(NamedTuple):
    """A query head and the key head it reads."""

    layer: int
    head: int
    k_head: int


@dataclass(frozen=True)
class Rotary:
    """How a layer turns its queries and keys: the dimensions (first[f], second[f]) by frequencies[f] radians a token.

    A vector's pair as a complex number x_first + i x_second at position t was turned by e^(i ω_f t).
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    frequencies: tuple[float, ...]

    def others(self, head_dim: int) -> list[int]:
        """The dimensions that do not turn."""
        return sorted(set(range(head_dim)) - {*self.first, *self.second})


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer: `call_index` counts the attention calls of a forward pass, `layer` is its index.

    `rotary` is the share of head dimensions that position moves (None where vectors came without their model, or the
    model takes no position ids), `window` the length of a sliding (or chunked) window. `scale` is what q·k is
    multiplied by, and `rotary_pairs` what turns together (None where that was not measured, or is no turning of pairs);
    layers that differ in them alone count as the same.
    """

    call_index: int
    layer: int
    query_heads: int
    key_heads: int
    head_dim: int
    rotary: float | None
    window: int | None
    scale: float | None = field(default=None, compare=False)
    rotary_pairs: Rotary | None = field(default=None, compare=False)

    @property
    def rope(self) -> bool | None:
        """Whether the layer rotates its queries and keys."""
        return None if self.rotary is None else self.rotary > 0

    def reach(self, context: int) -> int:
        """How many tokens back a query of a document sees, itself counted."""
        return context if self.window is None else min(self.window, context)

    def k_head(self, head: int) -> int:
        """Key head of a query head: head // (query heads / key heads)."""
        return head // (self.query_heads // self.key_heads)


@dataclass(frozen=True)
class Layout:
    """What the analysis needs to know of a model. `depth` counts all its layers, attention or not."""

    model_type: str
    depth: int
    layers: tuple[AttentionLayer, ...]
    absolute_positions: bool

    def __getitem__(self, layer: int) -> AttentionLayer:
        for candidate in self.layers:
            if candidate.layer == layer:
                return candidate
        known = some((candidate.layer for candidate in self.layers), 20)
        raise RopewalkError(f"layer {layer} has no attention in this {self.model_type} model: choose among {known}")

    def heads(
        self,
        count: int | None = None,
        seed: int = 0,
        *,
        layers: Sequence[int] | None = None,
        pairs: Sequence[tuple[int, int]] | None = None,
        full_attention_only: bool = False,
        present: Collection[tuple[int, int]] | None = None,
    ) -> list[Head]:
        """Heads to look at, in layer order: explicit (layer, head) `pairs`, or a sample of all.

        Candidates are all (layer, query head) pairs, layer-major, minus other layers than `layers`, minus sliding ones
        when `full_attention_only` and minus those that are not `present` (of vectors on disk);
        `random.Random(seed).sample(candidates, count)`, or all when there are no more.
        """
        if pairs is not None:
            return [self._head(layer, head) for layer, head in sorted(set(map(tuple, pairs)))]
        wanted = None if layers is None else {self[layer].layer for layer in layers}
        candidates = [
            (layer.layer, head)
            for layer in self.layers
            if (wanted is None or layer.layer in wanted) and not (full_attention_only and layer.window)
            for head in range(layer.query_heads)
            if present is None or (layer.layer, head) in present
        ]
        if not candidates:
            raise RopewalkError(
                "no head is left: every layer of the model slides and `full_attention_only` is set"
                if full_attention_only
                else "no head is left: none of those asked for is there"
            )
        if count is not None and count < len(candidates):
            candidates = sorted(random.Random(seed).sample(candidates, count))
        return [self._head(layer, head) for layer, head in candidates]

    def _head(self, layer: int, head: int) -> Head:
        attention = self[layer]
        if not 0 <= head < attention.query_heads:
            raise RopewalkError(
                f"head {head} is not in layer {layer}, which has heads 0 to {attention.query_heads - 1}"
            )
        return Head(layer, head, attention.k_head(head))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Layout":
        """The inverse of `to_dict`; also of what version 0.1 wrote, which had another name for `call_index`."""
        layers = [
            {("call_index" if key == "call" else key): value for key, value in one.items()} for one in data["layers"]
        ]
        return cls(**{**data, "layers": tuple(AttentionLayer(**_with_rotary(layer)) for layer in layers)})


def _with_rotary(layer: dict[str, Any]) -> dict[str, Any]:
    pairs = layer.get("rotary_pairs")
    return {**layer, "rotary_pairs": pairs and Rotary(**{name: tuple(values) for name, values in pairs.items()})}
