"""Which layers and heads there are, and which of them a study looks at."""

import random

import pytest
import torch
from torch import nn

from helpers.model_types import tiny_model
from ropewalk.errors import RopewalkError
from ropewalk.models.layout import AttentionLayer, Head, Layout
from ropewalk.models.probe import input_device, read_layout


def layout(layers: int = 4, heads: int = 4, key_heads: int = 2, window: dict[int, int] | None = None) -> Layout:
    windows = window or {}
    every = tuple(
        AttentionLayer(
            call_index=layer,
            layer=layer,
            query_heads=heads,
            key_heads=key_heads,
            head_dim=8,
            rotary=float(layer % 4 != 3),
            window=windows.get(layer),
        )
        for layer in range(layers)
    )
    return Layout("smollm3", layers, every, absolute_positions=False)


def test_key_heads_of_grouped_queries() -> None:
    found = read_layout(tiny_model("llama", num_attention_heads=8, num_key_value_heads=2, head_dim=4))
    assert [found[0].k_head(head) for head in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    single = read_layout(tiny_model("gpt_bigcode"))
    assert [single[0].k_head(head) for head in range(4)] == [0, 0, 0, 0]
    own = read_layout(tiny_model("gpt_neox"))
    assert [own[0].k_head(head) for head in range(4)] == [0, 1, 2, 3]


def test_nope_partial_rotary_and_sliding_layers_of_a_model() -> None:
    assert [layer.rope for layer in read_layout(tiny_model("smollm3", num_hidden_layers=8)).layers] == [
        True,
        True,
        True,
        False,
    ] * 2
    pattern = [1, 0, 0, 1]
    assert [layer.rope for layer in read_layout(tiny_model("smollm3", no_rope_layers=pattern)).layers] == [
        True,
        False,
        False,
        True,
    ]
    partial = tiny_model(
        "glm", rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    )
    assert [layer.rotary for layer in read_layout(partial).layers] == [0.25] * 4
    sliding = tiny_model("gemma3_text", layer_types=["full_attention", "sliding_attention"] * 2, sliding_window=5)
    assert [layer.window for layer in read_layout(sliding).layers] == [None, 5, None, 5]


def test_tokens_go_where_the_first_weights_are() -> None:
    model = nn.ModuleList([nn.Linear(2, 2, device="meta"), nn.Linear(2, 2)])
    assert input_device(model) == torch.device("cpu")
    assert input_device(nn.Linear(2, 2, device="meta")) == torch.device("cpu")


def test_a_hybrid_keeps_the_numbers_of_its_attention_layers() -> None:
    found = read_layout(tiny_model("jamba"))
    assert found.depth == 4
    assert [(layer.call_index, layer.layer) for layer in found.layers] == [(0, 1), (1, 3)]


def test_a_sample_of_heads_is_the_published_call() -> None:
    candidates = [(layer, head) for layer in range(36) for head in range(16)]
    drawn = random.Random(0).sample(candidates, 300)
    smollm3 = layout(36, 16, 4)
    chosen = smollm3.heads(300, 0)
    assert [(head.layer, head.head) for head in chosen] == sorted(drawn)
    assert all(head.k_head == head.head // 4 for head in chosen)
    nope = [head for head in chosen if not smollm3[head.layer].rope]
    assert len(nope) == 73
    assert {head.layer for head in nope} == set(range(3, 36, 4))
    assert smollm3.heads(300, 1) != chosen


@pytest.mark.parametrize("count", [None, 16, 17])
def test_all_heads_when_there_are_no_more(count: int | None) -> None:
    assert layout().heads(count) == [Head(layer, head, head // 2) for layer in range(4) for head in range(4)]


def test_sliding_layers_are_left_out_before_the_draw() -> None:
    mixed = layout(window={0: 8, 2: 8})
    drawn = random.Random(5).sample([(layer, head) for layer in (1, 3) for head in range(4)], 3)
    assert [(head.layer, head.head) for head in mixed.heads(3, 5, full_attention_only=True)] == sorted(drawn)


def test_chosen_layers_and_pairs() -> None:
    assert [head.layer for head in layout().heads(layers=[2, 1])] == [1] * 4 + [2] * 4
    assert layout().heads(pairs=[(3, 1), (0, 3), (3, 1)]) == [Head(0, 3, 1), Head(3, 1, 0)]


def test_a_layout_survives_a_manifest() -> None:
    assert Layout.from_dict(layout(window={1: 8}).to_dict()) == layout(window={1: 8})


def test_messages() -> None:
    with pytest.raises(
        RopewalkError, match=r"^layer 9 has no attention in this smollm3 model: choose among 0, 1, 2, 3$"
    ):
        layout().heads(layers=[9])
    with pytest.raises(
        RopewalkError, match=r"^layer 4 has no attention in this smollm3 model: choose among 0, 1, 2, 3$"
    ):
        layout().heads(pairs=[(4, 0)])
    with pytest.raises(RopewalkError, match=r"^head 7 is not in layer 2, which has heads 0 to 3$"):
        layout().heads(pairs=[(2, 7)])
    with pytest.raises(RopewalkError, match=r"^head -1 is not in layer 2, which has heads 0 to 3$"):
        layout().heads(pairs=[(2, -1)])
    with pytest.raises(
        RopewalkError, match=r"^no head is left: every layer of the model slides and `full_attention_only` is set$"
    ):
        layout(2, window={0: 8, 1: 8}).heads(full_attention_only=True)
