"""The examination passes on models that are in order, and fails on each kind of lie."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import accelerate
import pytest
import torch
from torch import nn

from helpers.model_types import tiny_model
from ropewalk.models.doctor import examine, recompute
from ropewalk.models.tap import replaced_attention

CHECKS = [
    "attention goes through the registry",
    "logits with and without the tap are identical",
    "the registry is as it was before",
    "softmax(qkᵀ)v from the tapped tensors is the attention output",
    "moving the tapped key moves the logits",
]


def failures(model: nn.Module) -> list[str]:
    findings = examine(model)
    assert [finding.check for finding in findings] == CHECKS
    return [finding.check for finding in findings if not finding.passed]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", ["llama", "smollm3", "gpt_neox", "mistral", "gemma3_text"])
def test_models_in_order_pass(model_type: str, attention: str) -> None:
    assert failures(tiny_model(model_type, attention)) == []


def test_a_model_with_soft_caps_and_one_with_sinks_pass() -> None:
    assert failures(tiny_model("gemma2", "eager")) == []
    assert failures(tiny_model("gpt_oss", "eager")) == []


def test_half_precision_passes() -> None:
    assert failures(tiny_model("llama").to(torch.bfloat16)) == []


def test_weights_that_are_offloaded_pass() -> None:
    model = accelerate.cpu_offload(tiny_model("llama"), execution_device=torch.device("cpu"))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert failures(model) == []


def test_details_say_what_was_compared() -> None:
    details = {finding.check: finding.detail for finding in examine(tiny_model("qwen3_next"))}
    assert details["attention goes through the registry"] == "1 attention layers of 4"
    assert details["moving the tapped key moves the logits"] == "in every layer"
    assert details["softmax(qkᵀ)v from the tapped tensors is the attention output"].endswith(
        "(call 0), 1 calls compared, limit 1e-04"
    )


@contextmanager
def lying(model: nn.Module, change: Any) -> Iterator[None]:
    """The model's own attention function uses other tensors than those it is given, below any tap."""

    def wrap(original: Any) -> Any:
        def function(module: nn.Module, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
            return original(module, *change(query, key, value), *args, **options)

        return function

    with replaced_attention(model, wrap):
        yield


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: (q * 1.01, k, v),
        lambda q, k, v: (q, k.roll(1, dims=2), v),
        lambda q, k, v: (q, k.flip(1), v),
        lambda q, k, v: (q.flip(-1), k, v),
    ],
    ids=["another scale", "another token's key", "another key head", "other dimensions"],
)
def test_attention_on_other_tensors_than_those_shown_fails(change: Any) -> None:
    model = tiny_model("llama")
    with lying(model, change):
        assert failures(model) == ["softmax(qkᵀ)v from the tapped tensors is the attention output"]


def test_a_key_that_is_shown_and_not_used_fails() -> None:
    model = tiny_model("llama")
    with lying(model, lambda q, k, v: (q, torch.ones_like(k), v)):
        found = failures(model)
        detail = examine(model)[-1].detail
    assert found == CHECKS[3:]
    assert detail == "not in attention calls [0, 1, 2, 3]"


def test_a_model_that_answers_differently_each_time_fails() -> None:
    model = tiny_model("gpt2")
    model.train()
    assert CHECKS[1] in failures(model)


def test_a_tap_that_is_not_in_the_way_of_attention_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the wrapper is shown copies, moving them moves nothing."""
    model = tiny_model("llama")
    source = sys.modules[type(model).__module__]
    rotate = source.apply_rotary_pos_emb
    kept: list[torch.Tensor] = []

    def keeping(*args: Any, **options: Any) -> Any:
        q, k = rotate(*args, **options)
        kept[:] = [k]
        return q, k.clone()

    monkeypatch.setattr(source, "apply_rotary_pos_emb", keeping)
    with lying(model, lambda q, k, v: (q, kept[0], v)):
        assert failures(model) == CHECKS[4:]


@pytest.mark.parametrize("window", [None, 3])
def test_recomputation_without_a_mask_is_causal_within_the_window(window: int | None) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    found = recompute(nn.Identity(), q, k, v, None, {"sliding_window": window, "scaling": 0.3})
    for head in range(4):
        for i in range(6):
            seen = range(max(0, i + 1 - window) if window else 0, i + 1)
            scores = torch.stack([0.3 * (q[0, head, i].double() @ k[0, head // 2, j].double()) for j in seen])
            weights = scores.exp() / scores.exp().sum()
            by_hand = sum(weight * v[0, head // 2, j].double() for weight, j in zip(weights, seen, strict=True))
            torch.testing.assert_close(found[0, i, head], by_hand)


def test_recomputation_knows_sinks_caps_and_biases() -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 2, 4), torch.randn(1, 1, 2, 4)
    bias, sink, cap = torch.randn(1, 1, 2, 2), torch.tensor([0.7]), 0.5
    options = {"position_bias": bias, "s_aux": sink, "softcap": cap, "is_causal": False}
    found = recompute(nn.Identity(), q, k, v, None, options)
    scores = cap * torch.tanh((q[0, 0] @ k[0, 0].T).double() / 2 / cap) + bias[0, 0]
    weights = scores.exp() / (scores.exp().sum(dim=1, keepdim=True) + sink.double().exp())
    torch.testing.assert_close(found[0, :, 0], weights @ v[0, 0].double(), atol=1e-6, rtol=1e-5)
