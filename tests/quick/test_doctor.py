"""The examination passes on models that are in order, and fails on each kind of lie."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import accelerate
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask

from helpers.model_types import tiny_model
from ropewalk.errors import RopewalkError
from ropewalk.models.doctor import examine
from ropewalk.models.proof import UNPROVEN, Finding, _compare, prove
from ropewalk.models.recomputation import recompute
from ropewalk.models.tap import Call, replaced_attention

CHECKS = [
    "attention goes through the registry",
    "logits with and without the tap are identical",
    "softmax(qkᵀ)v from the tapped tensors is the attention output",
    "the registry is as it was before",
    "moving the tapped key moves the logits",
]
RECOMPUTED = CHECKS[2]


def failures(model: nn.Module) -> list[str]:
    findings = examine(model)
    assert [finding.check for finding in findings] == CHECKS
    return [finding.check for finding in findings if not finding.passed]


def recomputation(model: nn.Module) -> Finding:
    return prove(model).findings[1]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", ["llama", "smollm3", "gpt_neox", "mistral", "gemma3_text"])
def test_models_in_order_pass(model_type: str, attention: str) -> None:
    assert failures(tiny_model(model_type, attention)) == []


def test_a_model_with_soft_caps_and_one_with_sinks_pass() -> None:
    assert failures(tiny_model("gemma2", "eager")) == []
    assert failures(tiny_model("gpt_oss", "eager")) == []


HALVES = [(torch.bfloat16, 3e-4, 2e-2), (torch.float16, 3e-5, 2e-3)]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("dtype", "least", "most"), HALVES, ids=["bfloat16", "float16"])
def test_half_precision_is_proven_in_float32_and_what_it_adds_is_said(
    dtype: torch.dtype, least: float, most: float, attention: str
) -> None:
    model = tiny_model("llama", attention).to(dtype)
    found = prove(model)
    assert (found.outcome, found.dtype, found.half) == ("proven", "float32", str(dtype).removeprefix("torch."))
    assert found.difference is not None
    assert found.added is not None
    assert found.difference < 1e-6
    assert least < found.added < most
    assert found.findings[1].detail.endswith(f"limit 1e-05, in float32; {found.half} adds {found.added:.1e}")
    assert failures(model) == []
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_float32_says_nothing_of_half_precision() -> None:
    found = prove(tiny_model("llama"))
    assert (found.dtype, found.half, found.added, found.limit) == ("float32", None, None, 1e-5)
    assert (found.calls, found.compared, found.tokens) == (4, 4, 24)


def test_weights_that_are_offloaded_pass() -> None:
    model = accelerate.cpu_offload(tiny_model("llama"), execution_device=torch.device("cpu"))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert failures(model) == []


def test_details_say_what_was_compared() -> None:
    details = {finding.check: finding.detail for finding in examine(tiny_model("qwen3_next"))}
    assert details["attention goes through the registry"] == "1 attention layers of 4"
    assert details["moving the tapped key moves the logits"] == "in every layer"
    assert details[RECOMPUTED].endswith("(call 0), 1 calls compared, limit 1e-05")


@contextmanager
def lying(model: nn.Module, change: Any) -> Iterator[None]:
    """The model's own attention function uses other tensors than those it is given, below any tap."""

    def wrap(original: Any) -> Any:
        def function(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
            changed = change(query, key, value, mask)
            return original(module, *changed, *(mask,)[: 4 - len(changed)], **options)

        return function

    with replaced_attention(model, wrap):
        yield


def one_key_too_many(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Every query also sees the token after its own."""
    seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril(1)
    return q, k, v, seen if mask is None or mask.dtype == torch.bool else torch.where(seen, 0.0, -1e30).to(q.dtype)


LIES: dict[str, Any] = {
    "another scale": lambda q, k, v, _: (q * 1.01, k, v),
    "a wrapped key": lambda q, k, v, _: (q, k * 1.01, v),
    "another mask": one_key_too_many,
    "another value": lambda q, k, v, _: (q, k, v * 1.01),
    "another token's key": lambda q, k, v, _: (q, k.roll(1, dims=2), v),
    "another key head": lambda q, k, v, _: (q, k.flip(1), v),
    "other dimensions": lambda q, k, v, _: (q.flip(-1), k, v),
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lie", LIES)
def test_attention_on_other_tensors_than_those_shown_fails(lie: str, dtype: torch.dtype, attention: str) -> None:
    model = tiny_model("llama", attention).to(dtype)
    assert recomputation(model).passed is True
    with lying(model, LIES[lie]):
        assert recomputation(model).passed is False


def test_a_fault_of_one_percent_hides_in_half_precision_and_shows_in_float32() -> None:
    """As half precision sees it, it is within what half precision adds: that limit alone would let it pass."""
    model = tiny_model("llama").to(torch.bfloat16)
    with lying(model, LIES["another scale"]):
        found = prove(model)
    assert found.added is not None
    assert found.added < 5e-2
    assert found.difference is not None
    assert found.difference > 1e-5
    assert found.outcome == "failed"
    with pytest.raises(RopewalkError) as stop:
        found.check("mine")
    assert str(stop.value) == (
        "what would be captured of 'mine' is not what its attention uses: it is not true that softmax(qkᵀ)v from the "
        f"tapped tensors is the attention output ({found.findings[1].detail}); see `ropewalk doctor`, or set another "
        "`attention`"
    )


def test_a_fault_in_half_precision_alone_fails() -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    with lying(model, lambda q, k, v, _: (q, k, v if q.dtype == torch.float32 else v.flip(2))):
        found = recomputation(model)
    assert found.passed is False
    assert found.detail.endswith(", limit 5e-02")
    assert "in float32; bfloat16 adds" in found.detail


@pytest.mark.parametrize("bias", [0.0, 30.0])
def test_large_scores_are_held_to_what_float32_can_keep(bias: float) -> None:
    """Biases that move all scores by thousands leave few digits for what tells them apart, and no fault hides there."""
    model = tiny_model("qwen2")
    torch.manual_seed(0)
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.bias.data = torch.randn_like(projection.bias) * bias
    found = prove(model)
    assert found.outcome == "proven"
    assert found.limit is not None
    assert (found.limit > 1e-5) == (bias > 0)
    with lying(model, LIES["a wrapped key"]):
        assert prove(model).outcome == "failed"


def half_alone(original: Any) -> Any:
    """An attention function as those of flash attention are: whatever it is given, it computes in half precision."""

    def function(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        half = [tensor.to(torch.bfloat16) for tensor in (query, key, value)]
        return original(module, *half, mask, **options)

    return function


def refusing(original: Any) -> Any:
    """An attention function that refuses float32."""

    def function(module: nn.Module, query: Any, *args: Any, **options: Any) -> Any:
        if query.dtype == torch.float32:
            raise RuntimeError("only half precision")
        return original(module, query, *args, **options)

    return function


@pytest.mark.parametrize("wrap", [half_alone, refusing])
def test_a_function_without_float32_is_proven_in_what_it_has_and_says_so(wrap: Any) -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    with replaced_attention(model, wrap):
        found = prove(model)
        assert (found.outcome, found.dtype, found.half, found.limit) == ("proven", "bfloat16", None, 5e-2)
        assert found.findings[1].detail.endswith("in bfloat16, as the attention function has no float32")
    with lying(model, lambda q, k, v, _: (q, k, v.flip(2))), replaced_attention(model, wrap):
        assert prove(model).outcome == "failed"


def test_rounded_float32_products_are_not_taken_for_a_fault() -> None:
    """Somebody allowed fewer bits: the proof is made without, and leaves the setting as it was."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        seen: list[str] = []
        model = tiny_model("llama")
        hook = model.lm_head.register_forward_hook(lambda *_: seen.append(torch.backends.cuda.matmul.fp32_precision))
        assert prove(model).outcome == "proven"
        hook.remove()
        assert seen == ["ieee", "ieee"]
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


# What cannot be proven


def given(model: nn.Module, **more: Any) -> None:
    """Let every attention module of a llama pass these options on to its attention function."""
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(lambda _, args, own: (args, {**own, **more}), with_kwargs=True)


def test_what_the_recomputation_does_not_know_could_not_be_proven() -> None:
    model = tiny_model("llama")
    given(model, slopes=torch.tensor(1.01))
    assert prove(model).outcome == "proven"

    def wrap(original: Any) -> Any:
        def function(module: nn.Module, query: Any, *args: Any, slopes: Any, **options: Any) -> Any:
            return original(module, query * slopes, *args, **options)

        return function

    with replaced_attention(model, wrap):
        found = prove(model)
    reason = "could not be proven: call 0: it is given slopes, of which the recomputation does not know"
    assert (found.outcome, found.open) == (UNPROVEN, f"{RECOMPUTED}: {reason}")
    assert (found.calls, found.compared, found.difference) == (4, 0, None)
    # It is said, and does not stop anything.
    found.check("mine")


def test_a_model_without_a_call_to_compare_could_not_be_proven() -> None:
    model = tiny_model("llama")
    model.model.layers = nn.ModuleList()
    found = prove(model)
    assert found.outcome == UNPROVEN
    assert found.open == f"{RECOMPUTED}: could not be proven: no attention call has as many queries as keys"


def test_calls_that_cannot_be_compared_are_told_from_those_that_differ() -> None:
    q = torch.randn(1, 2, 4, 8)
    output = recompute(nn.Identity(), q, q, q, {})
    compared = [
        _compare(nn.Identity(), Call(nn.Identity(), q, q, q, {"attention_mask": mask}), result, (mask,), {}).obstacle
        for result, mask in [(output, None), (output[..., :4], None), (output, "causal"), (output * 2, None)]
    ]
    assert compared == ["", "its output has the shape [1, 4, 2, 4]", "its mask is a str", ""]


def test_a_model_that_never_repeats_itself_could_not_be_proven() -> None:
    """As on a GPU, where some kernels add in another order each time; what differs under the tap alone is a fault."""
    model = tiny_model("llama")
    passes: list[int] = []

    def noise(*arguments: Any) -> Any:
        passes.append(len(passes))
        return arguments[2] + 1e-6 * size(passes[-1])

    model.lm_head.register_forward_hook(noise)
    size: Any = float
    found = prove(model)
    assert (found.outcome, found.findings[1].passed) == (UNPROVEN, True)
    assert found.open == f"{CHECKS[1]}: could not be proven: two passes without the tap differ too"
    passes.clear()
    size = {0: 0.0, 1: 1.0, 2: 0.0}.get
    found = prove(model)
    assert found.findings[0] == Finding(CHECKS[1], False, found.findings[0].detail)
    assert found.findings[0].detail.startswith("they differ by up to 1.0e-06")


def test_numbers_that_are_none_could_not_be_proven() -> None:
    """That weights are damaged is for the capture to say, with the head."""
    model = tiny_model("llama")
    model.model.layers[1].self_attn.k_proj.weight.data[0] = torch.nan
    found = prove(model)
    assert found.outcome == UNPROVEN
    assert "could not be proven of 3 calls (call 1: its vectors are not finite)" in found.open
    assert found.findings[0].passed is True


def test_a_key_that_is_shown_and_not_used_fails() -> None:
    model = tiny_model("llama")
    with lying(model, lambda q, k, v, _: (q, torch.ones_like(k), v)):
        found = failures(model)
        detail = examine(model)[-1].detail
    assert found == [RECOMPUTED, CHECKS[4]]
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
    with lying(model, lambda q, k, v, _: (q, kept[0], v)):
        assert failures(model) == CHECKS[4:]


@pytest.mark.parametrize("window", [None, 3])
def test_recomputation_without_a_mask_is_causal_within_the_window(window: int | None) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    found = recompute(nn.Identity(), q, k, v, {"sliding_window": window, "scaling": 0.3})
    for head in range(4):
        for i in range(6):
            seen = range(max(0, i + 1 - window) if window else 0, i + 1)
            scores = torch.stack([0.3 * (q[0, head, i].double() @ k[0, head // 2, j].double()) for j in seen])
            weights = scores.exp() / scores.exp().sum()
            by_hand = sum(weight * v[0, head // 2, j].double() for weight, j in zip(weights, seen, strict=True))
            torch.testing.assert_close(found[0, i, head], by_hand)


def test_recomputation_reads_block_masks() -> None:
    """As flex attention is given them: here causal within three tokens."""
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    near = create_block_mask(lambda b, h, i, j: (j <= i) & (j > i - 3), None, None, 6, 6, device="cpu")
    found = recompute(nn.Identity(), q, k, v, {"attention_mask": near})
    torch.testing.assert_close(found, recompute(nn.Identity(), q, k, v, {"sliding_window": 3}))
    assert not torch.allclose(found, recompute(nn.Identity(), q, k, v, {}))


def test_recomputation_knows_sinks_caps_and_biases() -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 2, 4), torch.randn(1, 1, 2, 4)
    bias, sink, cap = torch.randn(1, 1, 2, 2), torch.tensor([0.7]), 0.5
    options = {"position_bias": bias, "s_aux": sink, "softcap": cap, "is_causal": False}
    found = recompute(nn.Identity(), q, k, v, options)
    scores = cap * torch.tanh((q[0, 0] @ k[0, 0].T).double() / 2 / cap) + bias[0, 0]
    weights = scores.exp() / (scores.exp().sum(dim=1, keepdim=True) + sink.double().exp())
    torch.testing.assert_close(found[0, :, 0], weights @ v[0, 0].double(), atol=1e-6, rtol=1e-5)
