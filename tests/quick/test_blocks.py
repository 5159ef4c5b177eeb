"""Long contexts are worked on in blocks: the same sums as of the whole, and memory that does not run away."""

import importlib.util
from contextlib import suppress
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from helpers.collecting import collected
from helpers.paths import ROOT
from helpers.tiny import CONTEXT, tiny_smollm3
from ropewalk.capture.collector import Collection, _Collector
from ropewalk.geometry.distance import distance_edges
from ropewalk.geometry.kernel import turns
from ropewalk.models.layout import Rotary
from ropewalk.models.probe import read_layout
from ropewalk.models.rotary import with_rotary
from ropewalk.models.tap import Finished
from ropewalk.statistics import behaviour, frame, profile, row_plan, stream
from ropewalk.statistics.base import Scope, layers_of
from ropewalk.statistics.behaviour import key_groups
from ropewalk.statistics.registry import BUILT_IN, build
from ropewalk.statistics.row_plan import Bins


def everything() -> list[Any]:
    return list(build({name: {"full": True} if name == "frame" else {} for name in BUILT_IN}))


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (behaviour, "KEYS_AT_ONCE", 1),
        (row_plan, "BLOCK_SCORES", 100),
        (frame, "BLOCK", 7),
        (profile, "BLOCK", 5),
        (stream, "BLOCK", 11),
    ],
    ids=["keys", "scores", "frame", "profile", "moments"],
)
def test_blocks_add_up_to_the_whole(
    module: Any, name: str, value: int, model: Any, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = with_rotary(model, read_layout(model), CONTEXT)
    # Without the heads that would make every group of key heads whole.
    heads = [head for head in layout.heads() if (head.layer + head.head) % 3]
    whole = collected(model, tokens, *everything(), layout=layout, heads=heads, batch=2)
    assert getattr(module, name) > value
    monkeypatch.setattr(module, name, value)
    cut = collected(model, tokens, *everything(), layout=layout, heads=heads, batch=2)
    for key, arrays in whole.items():
        for part, array in arrays.items():
            size = max(float(np.abs(array).max()), 1e-3)
            np.testing.assert_allclose(cut[key][part], array, rtol=0, atol=3e-6 * size, err_msg=f"{key} {part}")


def test_keys_are_cut_only_where_they_are_many(model: Any) -> None:
    (heads,) = layers_of(read_layout(model), [head for head in read_layout(model).heads() if head.layer == 1])
    assert key_groups(heads, 4096) == [heads]
    first, second = key_groups(heads, behaviour.KEYS_AT_ONCE // 16)
    assert (first.heads, first.key_heads, second.heads, second.key_heads) == ((0, 1), (0,), (2, 3), (1,))
    assert len(key_groups(heads, behaviour.KEYS_AT_ONCE * 100)) == 2


def test_angles_of_long_contexts_are_those_of_each_position() -> None:
    rotary = Rotary((0, 1), (2, 3), (1.0, 1e-3))
    positions = torch.arange(3 * frame.BLOCK + 5)
    cosines, sines = frame.angles(rotary, positions, 5)
    for position in (0, frame.BLOCK - 1, frame.BLOCK, len(positions) - 1):
        angles = np.float32(position) * np.float32([1.0, 1e-3, 1.0, 1e-3, 0.0])
        np.testing.assert_allclose(cosines[position], np.cos(angles.astype(float)), atol=1e-7)
        np.testing.assert_allclose(sines[position], np.sin(angles.astype(float)), atol=1e-7)


@pytest.mark.parametrize("context", [64, 1000, 20_000])
def test_every_distance_is_in_its_bin(context: int) -> None:
    bins = Bins.of(context, torch.device("cpu"))
    width = -(-context // row_plan.STRIDE) * row_plan.STRIDE
    values = torch.nn.functional.pad(torch.arange(1.0, context + 1, dtype=torch.float64), (0, width - context)).float()
    edges = distance_edges(context)
    expected = [np.arange(first + 1, last + 1).sum() for first, last in pairwise(edges)]
    np.testing.assert_allclose(bins.sums(values[None, None])[0, 0], expected, rtol=1e-6)


def test_turns_are_means_over_distances() -> None:
    frequencies, context, reach = (1.0, 0.01), 500, 300
    cosines, sines = turns(frequencies, context, reach)
    edges = [int(edge) for edge in distance_edges(context)[:-1] if edge < reach] + [reach]
    for index, (first, last) in enumerate(pairwise(edges)):
        distances = np.arange(first, last)
        for pair, frequency in enumerate(frequencies):
            for found, turn in ((cosines, np.cos), (sines, np.sin)):
                by_hand = np.average(turn(frequency * distances), weights=context - distances)
                assert found[pair, index] == pytest.approx(by_hand, abs=1e-12)


def test_another_batch_of_the_same_vectors_gives_the_same_bits(tokens: np.ndarray, by_hand: list[Any]) -> None:
    """Whatever a model's own last digits do, statistics add document by document."""
    model = tiny_smollm3()
    layout = with_rotary(model, read_layout(model), CONTEXT)
    # Sizes so different that the order of additions shows in the last digits.
    sizes = 10.0 ** torch.linspace(-6, 6, len(tokens))[:, None, None, None]
    calls = [call._replace(query=call.query * sizes, key=call.key * sizes) for call in by_hand]
    found = []
    for batch in (1, 2, 6):
        collector = _Collector(Collection(layout, layout.heads(), everything(), Scope(CONTEXT, len(tokens), 4)))
        for start in range(0, len(tokens), batch):
            some = slice(start, start + batch)
            ids = torch.from_numpy(tokens[some].astype(np.int64))
            collector.begin(range(start, start + len(ids)), ids)
            with suppress(Finished):
                for call in calls:
                    collector.view(call._replace(query=call.query[some], key=call.key[some], value=call.value[some]))
        found.append(collector.result())
    for other in found[1:]:
        for key, arrays in found[0].items():
            for name, array in arrays.items():
                np.testing.assert_array_equal(other[key][name], array, err_msg=f"{key} {name}")


# Memory


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("memory_benchmark", ROOT / "benchmarks" / "memory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_counts_what_is_held_at_once(benchmark: ModuleType) -> None:
    def work() -> None:
        first = torch.zeros(1000, dtype=torch.float64)
        second = torch.zeros(500, dtype=torch.float64)
        del first
        torch.zeros(200, dtype=torch.float64)
        del second

    assert benchmark.peak(work) == pytest.approx(12_000, rel=0.02)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_statistic_holds_less_than_the_vectors_of_its_layer(name: str, benchmark: ModuleType) -> None:
    """What each further token of a context costs: a square of it, or a table of all its angles at once, would show."""
    model = benchmark.tiny_model()
    short, long = 8192, 32_768
    held = [
        benchmark.own_peak(model, with_rotary(model, read_layout(model), context), context, name)
        for context in (short, long)
    ]
    text = model.config
    vectors = 4 * text.head_dim * (text.num_attention_heads + text.num_key_value_heads)
    assert (held[1] - held[0]) / (long - short) < vectors
