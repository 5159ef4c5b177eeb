"""How every model type rotates: what is measured turns its queries and keys back to what went into the rotation."""

from typing import Any

import pytest
import torch

from helpers.model_types import TYPES, tiny_model
from ropewalk.capture.collector import before_rotation
from ropewalk.errors import RopewalkError
from ropewalk.models.layout import AttentionLayer, Layout
from ropewalk.models.probe import Replay, probe_tokens, read_layout
from ropewalk.models.rotary import with_rotary
from ropewalk.models.tap import Call, rotations, tap
from ropewalk.statistics.frame import angles, turned_back

TOKENS = 48
NO_PAIRS = ["hunyuan_v1_dense", "hunyuan_v1_moe"]
"""A norm with weights follows the rotation there: what attention takes is no rotation of anything."""
NORM_LAST = ["nanochat"]
"""A norm without weights follows the rotation: what went into the rotation is no longer there."""
OWN_WAY = [
    "axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "gemma3n_text", "gemma4",
    "gemma4_text", "gemma4_unified", "gemma4_unified_text", "glm4_moe_lite", "glm_moe_dsa", "hy_v4", "jetmoe", "llama4",
    "llama4_text", "longcat_flash", "minicpm3", "youtu",
]  # fmt: skip
"""They rotate a part of the vectors, or queries and keys apart: what goes in is not seen, but at position 0 it is."""
ROTATING = [name for name in TYPES if any(TYPES[name].each("rotary")) and name not in NO_PAIRS]


def measured(model: Any, context: int = TOKENS) -> Layout:
    return with_rotary(model, read_layout(model), context)


def off(layer: AttentionLayer, post: torch.Tensor, pre: torch.Tensor) -> float:
    """Largest difference between vectors turned back and those before the rotation, as a share of the largest entry."""
    pairs = layer.rotary_pairs
    assert pairs is not None
    back = turned_back(post.float(), pairs, *angles(pairs, torch.arange(post.shape[2]), post.shape[3]))
    turning = [*pairs.first, *pairs.second]
    return float((back - pre)[..., turning].abs().max()) / float(pre.abs().max())


@pytest.mark.parametrize("model_type", ROTATING)
def test_queries_and_keys_are_turned_back_to_position_zero(model_type: str) -> None:
    """At position 0 a rotation does nothing: what a module gives there is what went into its rotation."""
    model = tiny_model(model_type)
    layout = measured(model)
    tokens = probe_tokens(model, TOKENS)
    with torch.inference_mode():
        replay = Replay.of(model, tokens, torch.zeros_like(tokens), torch.arange(TOKENS)[None])
    assert [layer.rotary_pairs is not None for layer in layout.layers] == [bool(layer.rope) for layer in layout.layers]
    for layer in layout.layers:
        if layer.rotary_pairs is None:
            continue
        before, after = replay.before[layer.call_index], replay.after[layer.call_index]
        assert off(layer, after.query, before.query) < 1e-6
        assert off(layer, after.key, before.key) < 1e-6
        # Negative control: vectors turned back as if each stood one token further on.
        assert off(layer, after.key[:, :, 1:], before.key[:, :, 1:]) > 1e-3


@pytest.mark.parametrize("model_type", [name for name in ROTATING if name not in (*OWN_WAY, *NORM_LAST)])
def test_queries_and_keys_are_turned_back_to_what_the_models_own_rotation_was_given(model_type: str) -> None:
    model = tiny_model(model_type)
    layers = {layer.call_index: layer for layer in measured(model).layers}
    differences: list[float] = []
    count = 0

    def view(call: Call) -> None:
        nonlocal count
        layer, count = layers.get(count), count + 1
        if layer is not None and layer.rotary_pairs is not None:
            given = before_rotation(call, rotary)
            assert given is not None
            for post, pre in zip((call.query, call.key), given, strict=True):
                # YaRN also scales the vectors, by the same factor everywhere.
                factor = float(post.double().norm() / pre.double().norm()) if model_type == "gpt_oss" else 1.0
                differences.append(off(layer, post / factor, pre))
        rotary.clear()

    with torch.inference_mode(), rotations(model) as rotary, tap(model, view):
        model(input_ids=probe_tokens(model, TOKENS), use_cache=False)
    assert len(differences) == 2 * sum(layer.rotary_pairs is not None for layer in layers.values())
    assert max(differences) < 1e-6


def test_the_usual_layouts_of_pairs() -> None:
    def pairs(model_type: str, index: int = 0) -> tuple[Any, Any, Any]:
        found = measured(tiny_model(model_type)).layers[index].rotary_pairs
        assert found is not None
        return found.first, found.second, [pytest.approx(one, rel=1e-4) for one in found.frequencies]

    assert pairs("llama") == ((0, 1, 2, 3), (4, 5, 6, 7), [1.0, 0.1, 0.01, 0.001])
    assert pairs("glm") == ((0, 2), (1, 3), [1.0, 0.01])  # neighbours, half of the dimensions
    assert pairs("deepseek_v3") == ((8, 9), (10, 11), [1.0, 0.01])  # the last dimensions of twelve
    layers = measured(tiny_model("gemma3_text")).layers
    second = {layer.window is None: layer.rotary_pairs and layer.rotary_pairs.frequencies[1] for layer in layers}
    assert second == {False: pytest.approx(0.1), True: pytest.approx(1e6**-0.25)}  # a theta for each kind of layer


def test_layers_without_rope_have_no_pairs() -> None:
    assert [layer.rotary_pairs is None for layer in measured(tiny_model("smollm3")).layers] == [False] * 3 + [True]
    assert all(layer.rotary_pairs is None for layer in measured(tiny_model("gpt2")).layers)


@pytest.mark.parametrize("model_type", NO_PAIRS)
def test_a_norm_with_weights_after_the_rotation_leaves_no_pairs(model_type: str) -> None:
    layers = measured(tiny_model(model_type)).layers
    assert all(layer.rope and layer.rotary_pairs is None for layer in layers)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [1.0, 2.0, 3.0, 4.0],
            "original_max_position_embeddings": 16,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_scaled_rope_is_measured_as_it_is_in_documents_of_the_context(scaling: dict[str, Any]) -> None:
    model = tiny_model("llama", rope_parameters={"rope_theta": 10000.0, **scaling})
    model.eval()
    layer = measured(model).layers[0]
    assert layer.rotary_pairs is not None
    calls: list[Call] = []
    with torch.inference_mode(), rotations(model) as rotary, tap(model, lambda call: calls.append(call)):
        model(input_ids=probe_tokens(model, TOKENS), use_cache=False)
        query, key = rotary[-1].query, rotary[-1].key
    # YaRN and LongRoPE also scale the vectors.
    for post, pre in ((calls[-1].query, query), (calls[-1].key, key)):
        factor = float(post.norm() / pre.norm())
        assert off(layer, post / factor, pre) < 3e-6
    assert (layer.rotary_pairs.frequencies[-1] == pytest.approx(0.001)) == (scaling["rope_type"] == "dynamic")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", ["llama", "glm", "deepseek_v3", "gemma3_text", "smollm3"])
def test_pairs_are_measured_in_half_precision_too(model_type: str, dtype: torch.dtype) -> None:
    exact = measured(tiny_model(model_type)).layers
    for one, other in zip(measured(tiny_model(model_type).to(dtype)).layers, exact, strict=True):
        assert one.rotary_pairs == other.rotary_pairs


def test_a_configuration_that_says_something_else_is_an_error_that_names_both() -> None:
    model = tiny_model("llama")
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_theta": 500.0}
    with pytest.raises(RopewalkError) as error:
        measured(model)
    assert str(error.value) == (
        "layer 0 of this llama model turns 4 pairs of dimensions by 1 to 0.001 radians a token, and its configuration "
        "says 4 pairs of dimensions by 1 to 0.009457 radians a token: load it with the configuration that its code "
        "uses, or set `rope_parameters` right"
    )


@pytest.mark.parametrize("change", [{"rope_theta": 10100.0}, {"partial_rotary_factor": 0.5}])
def test_a_small_disagreement_is_found_too(change: dict[str, float]) -> None:
    model = tiny_model("llama")
    model.config.rope_parameters = {**model.config.rope_parameters, **change}
    with pytest.raises(RopewalkError, match="and its configuration says"):
        measured(model)


def test_a_configuration_that_does_not_tell_leaves_what_was_measured() -> None:
    model = tiny_model("llama")
    exact = measured(model).layers[0].rotary_pairs
    model.config.rope_parameters = None
    found = measured(model).layers[0].rotary_pairs
    assert exact is not None
    assert found is not None
    assert found.frequencies == pytest.approx(exact.frequencies, rel=1e-4)
    assert (found.first, found.second) == (exact.first, exact.second)
