"""Every decoder type of transformers that can be tapped, on a tiny random model: what is shown is what is used."""

import importlib.util

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from helpers.model_types import (
    NO_DISPATCH,
    NORM_LAST,
    NOT_BUILT,
    QK_NORM,
    REFUSED,
    TOKENS,
    TYPES,
    check,
    tiny_config,
    tiny_model,
)
from helpers.paths import ROOT
from ropewalk.capture.collector import changes_after_rotation
from ropewalk.errors import RopewalkError
from ropewalk.models.doctor import examine
from ropewalk.models.loading import model_class
from ropewalk.models.probe import read_layout
from ropewalk.models.proof import prove

BROUGHT_BY_USERS = [
    "llama",
    "mistral",
    "ministral",
    "ministral3",
    "mllama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gemma4_text",
    "glm",
    "glm4",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "gpt_neox",
    "phi",
    "phi3",
    "stablelm",
    "starcoder2",
    "cohere",
    "cohere2",
    "exaone4",
    "granite",
    "gpt_oss",
    "apertus",
    "mixtral",
    "nanochat",
]


@pytest.mark.parametrize("model_type", TYPES)
def test_what_is_tapped_is_what_attention_uses(model_type: str) -> None:
    expected, found = TYPES[model_type], check(model_type)
    assert [finding for finding in found.findings if not finding.passed] == []
    layers = found.layout.layers
    assert tuple(layer.layer for layer in layers) == expected.layers
    assert found.layout.depth == expected.depth
    assert {layer.query_heads for layer in layers} == {4}
    assert tuple(layer.key_heads for layer in layers) == expected.each("key_heads")
    assert tuple(layer.head_dim for layer in layers) == expected.each("head_dim")
    assert tuple(layer.rotary for layer in layers) == tuple(
        share if share is None else pytest.approx(share) for share in expected.each("rotary")
    )
    assert tuple(layer.window for layer in layers) == expected.each("window")
    # The window is what the mask lets through, not what the configuration says.
    assert found.visible == tuple(window or TOKENS for window in expected.each("window"))
    assert found.layout.absolute_positions is expected.absolute
    assert found.qk_norm is expected.qk_norm
    assert model_class(tiny_config(model_type)) is not None


def test_the_types_that_users_bring_are_checked() -> None:
    assert set(BROUGHT_BY_USERS) <= set(TYPES)


def test_every_causal_type_of_transformers_is_accounted_for() -> None:
    accounted = [*TYPES, *REFUSED, *NOT_BUILT, *NO_DISPATCH]
    assert len(accounted) == len(set(accounted))
    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) <= set(accounted)


@pytest.mark.parametrize("model_type", NO_DISPATCH)
def test_a_type_that_does_not_dispatch_is_refused_before_weights(model_type: str) -> None:
    with pytest.raises(RopewalkError) as refusal:
        model_class(CONFIG_MAPPING[model_type]())
    assert str(refusal.value) == (
        f"model type {model_type!r} is not supported: its attention does not go through transformers' registry, "
        "so its queries and keys cannot be seen; `docs/models.md` lists the types that do"
    )


@pytest.mark.parametrize(
    ("model_type", "sentence"),
    [
        (
            "blt",
            "model type 'blt' is not supported: an attention call has 34 queries and 16 keys for 16 tokens, "
            "so they have no token positions",
        ),
        (
            "deepseek_v4",
            "model type 'deepseek_v4' is not supported: an attention call has 16 queries and 20 keys for 16 tokens, "
            "so they have no token positions",
        ),
        (
            "gemma4_unified_assistant",
            "model type 'gemma4_unified_assistant' is not supported: it does not run on tokens alone "
            "(inputs_embeds and shared_kv_states cannot be None)",
        ),
        ("git", "no attention call of this git model goes through transformers' registry: it cannot be tapped"),
    ],
)
def test_a_type_that_dispatches_something_else_is_refused(model_type: str, sentence: str) -> None:
    assert model_type in REFUSED
    with pytest.raises(RopewalkError) as refusal:
        read_layout(tiny_model(model_type))
    assert str(refusal.value) == sentence


def test_scaling_queries_by_position_is_no_rotation() -> None:
    """Llama 4 scales the queries of its NoPE layers beyond `floor_scale` tokens; its keys stay where they are."""
    model = tiny_model("llama4_text", attn_temperature_tuning=True, floor_scale=4, attn_scale=0.5)
    assert [layer.rotary for layer in read_layout(model).layers] == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("cohere", {"use_qk_norm": True}),
        ("glm4_moe", {"use_qk_norm": True}),
        ("phi", {"qk_layernorm": True}),
        ("stablelm", {"qk_layernorm": True}),
    ],
)
def test_qk_norm_that_a_configuration_asks_for(model_type: str, change: dict[str, bool]) -> None:
    model = tiny_model(model_type, **change)
    assert all(finding.passed for finding in examine(model))
    assert any(QK_NORM.fullmatch(name.rpartition(".")[2]) for name, _ in model.named_modules())


@pytest.mark.parametrize("model_type", TYPES)
def test_a_norm_after_the_rotation_is_found_on_the_model(model_type: str) -> None:
    assert changes_after_rotation(tiny_model(model_type)) == (TYPES[model_type].note == NORM_LAST)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", TYPES)
def test_half_precision_is_proven_in_float32(model_type: str, dtype: torch.dtype) -> None:
    found = prove(tiny_model(model_type).to(dtype))
    assert (found.outcome, found.dtype, found.limit) == ("proven", "float32", 1e-5)
    assert found.added is not None
    assert found.added < 2e-2


@pytest.mark.parametrize("model_type", TYPES)
def test_plain_attention_is_proven_too(model_type: str) -> None:
    assert prove(tiny_model(model_type, "eager")).outcome == "proven"


@pytest.mark.parametrize("model_type", ["llama", "smollm3", "glm"])
def test_rotation_is_measured_in_half_precision_too(model_type: str) -> None:
    model = tiny_model(model_type).to(torch.bfloat16)
    assert tuple(layer.rotary for layer in read_layout(model).layers) == TYPES[model_type].each("rotary")


def test_rotation_is_measured_not_believed() -> None:
    """A configuration that says NoPE everywhere is not believed where the model rotates."""
    model = tiny_model("smollm3")
    model.config.no_rope_layers = [0, 0, 0, 0]
    assert [layer.rope for layer in read_layout(model).layers] == [True, True, True, False]
    for layer in model.model.layers:
        layer.self_attn.use_rope = False
    assert [layer.rope for layer in read_layout(model).layers] == [False] * 4


def test_the_document_lists_what_the_check_covers() -> None:
    spec = importlib.util.spec_from_file_location("generate_models_doc", ROOT / "scripts" / "generate_models_doc.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [*(script.expected_row(name) for name in TYPES), *script.refused_rows()]
