"""What a capture holds in memory against the context: a tiny model alone, with all statistics, and each of them apart.

Counts the bytes that torch has given out at once, so that the numbers are the same every time. Attention over 128K
tokens takes some minutes on one core.

    python benchmarks/memory.py [--contexts 1024 32768 131072] [--statistics moments frame]
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ropewalk.capture.collector import Collection, collect
from ropewalk.models.layout import Head, Layout
from ropewalk.models.probe import read_layout
from ropewalk.models.rotary import with_rotary
from ropewalk.statistics.base import Accumulator, LayerHeads, Observation, Scope, Statistic, Sums
from ropewalk.statistics.registry import build
from ropewalk.study import Capture
from ropewalk.text import size, table

CONTEXTS = [1 << power for power in range(10, 18)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    parser.add_argument("--statistics", nargs="+", default=list(Capture().statistics))
    options = parser.parse_args()
    model = tiny_model()
    text: Any = model.config
    print(
        f"{text.num_hidden_layers} layers of {text.num_attention_heads} query heads and {text.num_key_value_heads} key "
        f"heads, head_dim {text.head_dim}, hidden_size {text.hidden_size}, float32, one document at once"
    )
    rows = []
    for context in options.contexts:
        layout = with_rotary(model, read_layout(model), context)
        found = [
            4 * context * text.head_dim * (text.num_attention_heads + text.num_key_value_heads),
            whole_peak(model, layout, context, ()),
            whole_peak(model, layout, context, options.statistics),
            *(own_peak(model, layout, context, name) for name in options.statistics),
        ]
        rows.append([f"{context:,}", *map(size, found)])
    headers = ("context", "queries and keys", "model", "capture", *options.statistics)
    print("\n".join(table(headers, rows, right=range(len(headers)))))


def tiny_model() -> nn.Module:
    """A random SmolLM3 with many positions and few of everything else."""
    torch.manual_seed(0)
    config = transformers.SmolLM3Config(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1 << 20,
        pad_token_id=0,
    )
    model: nn.Module = transformers.SmolLM3ForCausalLM(config).eval()
    return model


def whole_peak(model: nn.Module, layout: Layout, context: int, names: Sequence[str]) -> int:
    """Bytes at once of a capture of one document with these statistics; with none, of the forward pass alone."""
    return peak(lambda: _capture(model, layout, context, build({name: {} for name in names}), layout.heads()))


def own_peak(model: nn.Module, layout: Layout, context: int, name: str) -> int:
    """Bytes at once that a statistic holds while it adds up one call, beside the call's own vectors."""
    (statistic,) = build({name: {}})
    peaks: list[int] = []
    # Of the first layer alone: the pass ends before its attention, which takes the time.
    _capture(model, layout, context, [watched(statistic, peaks)], layout.heads(layers=[0]))
    return max(peaks)


def watched(statistic: Statistic, peaks: list[int]) -> Statistic:
    """The same statistic, which notes what each of its additions holds at once."""

    class Watching:
        def __init__(self, own: Accumulator) -> None:
            self._own = own

        def update(self, seen: Observation) -> None:
            peaks.append(peak(lambda: self._own.update(seen)))

        def sums(self) -> Sums:
            return self._own.sums()

    class Watched(type(statistic)):  # type: ignore[misc]
        def accumulator(self, heads: LayerHeads, scope: Scope) -> Accumulator:
            return Watching(super().accumulator(heads, scope))

    return Watched()


def peak(work: Callable[[], object]) -> int:
    """The most bytes that torch has given out at once on the CPU while something was done."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    assert profiled.profiler is not None
    events = [one for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    changes = [one.nbytes() for one in sorted(events, key=lambda one: one.start_ns())]
    return int(max(np.cumsum(changes), default=0))


def _capture(
    model: nn.Module, layout: Layout, context: int, statistics: Sequence[Statistic], heads: Sequence[Head]
) -> None:
    scope = Scope(context=context, documents=1, bucket_size=max(1, context // 16))
    tokens = np.random.default_rng(0).integers(10, 250, size=(1, context)).astype(np.int32)
    collect(model, Collection(layout, heads, statistics, scope), tokens)


if __name__ == "__main__":
    main()
