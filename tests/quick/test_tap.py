"""The tap shows every attention call, changes nothing, and leaves nothing behind."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from helpers.collecting import collected
from helpers.model_types import TOKENS, tiny_config, tiny_model
from ropewalk.capture.shards import ShardSums
from ropewalk.errors import RopewalkError
from ropewalk.models.layout import Layout
from ropewalk.models.loading import model_class
from ropewalk.models.probe import probe_tokens, read_layout
from ropewalk.models.tap import Call, Finished, dispatches, rotations, tap
from ropewalk.statistics.base import Scope
from ropewalk.statistics.moments import MomentSums
from ropewalk.statistics.sample import VectorSample


def registry_of(model: nn.Module) -> Any:
    return sys.modules[type(model).__module__].ALL_ATTENTION_FUNCTIONS


def state_of(registry: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return dict(registry._local_mapping), dict(registry._global_mapping)


def run(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=probe_tokens(model, TOKENS), use_cache=False).logits


@pytest.mark.parametrize(
    ("model_type", "attention"),
    [(name, attention) for name in ("llama", "gpt2", "doge", "gemma3", "diffllama") for attention in ("eager", "sdpa")]
    + [("gpt_oss", "eager")],
)
def test_the_registry_is_restored_and_logits_are_the_same(model_type: str, attention: str) -> None:
    model = tiny_model(model_type, attention)
    registry = registry_of(model)
    before, plain = state_of(registry), run(model)
    calls: list[Call] = []
    with tap(model, calls.append):
        tapped = run(model)
        assert state_of(registry) != before
    assert state_of(registry) == before
    assert torch.equal(plain, tapped)
    assert len(calls) == (8 if model_type == "diffllama" else 4)
    assert all(
        call.query.shape == (1, 4, TOKENS, 8) and call.key.shape == (1, 2 if model_type != "gpt2" else 4, TOKENS, 8)
        for call in calls
    )


def fail(call: Call) -> None:
    raise KeyError("the viewer failed")


def test_the_registry_is_restored_when_the_viewer_fails() -> None:
    model = tiny_model("llama")
    before = state_of(registry_of(model))
    with pytest.raises(KeyError, match="the viewer failed"), tap(model, fail):
        run(model)
    assert state_of(registry_of(model)) == before


def test_the_registry_is_restored_when_the_model_fails() -> None:
    model = tiny_model("llama")
    before = state_of(registry_of(model))
    with pytest.raises(IndexError), tap(model, lambda call: None):
        model(input_ids=torch.tensor([[10**6]]))
    assert state_of(registry_of(model)) == before


def test_an_entry_of_the_registrys_own_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that somebody registered on the instance is wrapped, and is there again afterwards."""
    model = tiny_model("llama")
    registry = registry_of(model)
    used: list[int] = []
    shared = registry["sdpa"]

    def own(*args: Any, **options: Any) -> Any:
        used.append(1)
        return shared(*args, **options)

    monkeypatch.setitem(registry._local_mapping, "sdpa", own)
    calls: list[Call] = []
    with tap(model, calls.append):
        run(model)
    assert registry._local_mapping["sdpa"] is own
    assert len(used) == len(calls) == 4


def test_taps_nest() -> None:
    model = tiny_model("llama")
    before = state_of(registry_of(model))
    outer: list[Call] = []
    inner: list[Call] = []
    with tap(model, outer.append):
        with tap(model, inner.append):
            run(model)
        run(model)
    assert (len(outer), len(inner)) == (8, 4)
    assert all(torch.equal(a.key, b.key) for a, b in zip(outer[:4], inner, strict=True))
    assert state_of(registry_of(model)) == before


def test_another_model_under_the_same_entry_is_not_seen() -> None:
    """Registries are shared by all models: only calls of the tapped model's own modules count."""
    first, second = tiny_model("llama"), tiny_model("qwen3")
    calls: list[Call] = []
    with tap(first, calls.append):
        run(first)
        run(second)
    modules = set(first.modules())
    assert [call.module in modules for call in calls] == [True] * 4


def test_taps_can_be_left_in_any_order() -> None:
    first, second = tiny_model("llama"), tiny_model("qwen3")
    before = state_of(registry_of(first))
    one: list[Call] = []
    other: list[Call] = []
    outer, inner = tap(first, one.append), tap(second, other.append)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    run(first)
    run(second)
    assert (len(one), len(other)) == (0, 4)
    inner.__exit__(None, None, None)
    run(second)
    assert len(other) == 4
    assert state_of(registry_of(first)) == before


@pytest.mark.parametrize("shared", [False, True], ids=["two models", "one model"])
def test_threads_do_not_see_each_other(shared: bool) -> None:
    """Two threads that measure at once get the moments that each gets alone, and the registry is as it was."""
    first = tiny_model("llama")
    models = [first, first if shared else tiny_model("qwen3")]
    before = state_of(registry_of(first))
    documents = [np.random.default_rng(seed).integers(3, 60, (6, 32)) for seed in (1, 2)]
    # Measuring a layout puts hooks on the model itself, which two threads cannot do at once to one model.
    work = [(model, tokens, read_layout(model)) for model, tokens in zip(models, documents, strict=True)]

    def measured(part: tuple[Any, np.ndarray, Layout]) -> ShardSums:
        model, tokens, layout = part
        return collected(model, tokens, MomentSums(), layout=layout)

    alone = [measured(part) for part in work]
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(measured, work))
        for expected, found in zip(alone, together, strict=True):
            for key, arrays in expected.items():
                for name, array in arrays.items():
                    np.testing.assert_array_equal(found[key][name], array)
    assert state_of(registry_of(first)) == before


def test_a_tap_sees_its_model_run_by_another_thread() -> None:
    model = tiny_model("llama")
    calls: list[Call] = []
    with tap(model, calls.append), ThreadPoolExecutor(1) as pool:
        pool.submit(run, model).result()
    assert len(calls) == 4


def test_finished_ends_the_pass_and_nothing_later_runs() -> None:
    model = tiny_model("llama")
    ran: list[str] = []
    for name in ("model.layers.1.mlp", "model.layers.2", "model.norm", "lm_head"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: ran.append(name))
    seen: list[Call] = []

    def view(call: Call) -> None:
        seen.append(call)
        if len(seen) == 2:
            raise Finished

    before = state_of(registry_of(model))
    with pytest.raises(Finished), tap(model, view):
        run(model)
    assert len(seen) == 2
    assert ran == []
    assert state_of(registry_of(model)) == before
    run(model)
    assert ran == ["model.layers.1.mlp", "model.layers.2", "model.norm", "lm_head"]


def test_a_registry_of_a_models_own_is_tapped_and_the_shared_one_left_alone() -> None:
    model = tiny_model("doge")
    registry = registry_of(model)
    assert registry is not ALL_ATTENTION_FUNCTIONS
    shared = dict(ALL_ATTENTION_FUNCTIONS._global_mapping)
    calls: list[Call] = []
    with tap(model, calls.append):
        assert ALL_ATTENTION_FUNCTIONS._global_mapping == shared
        run(model)
    assert len(calls) == 4


def test_the_tensors_shown_are_those_that_attention_takes() -> None:
    """By hand: the rotation written out, on the projections of the first layer."""
    model = tiny_model("llama")
    calls: list[Call] = []
    with tap(model, calls.append):
        run(model)
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        states = model.model.layers[0].input_layernorm(model.model.embed_tokens(probe_tokens(model, TOKENS)))
        query = attention.q_proj(states).reshape(TOKENS, 4, 8).transpose(0, 1)
    angle = torch.arange(TOKENS)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    low, high = query[..., :4], query[..., 4:]
    by_hand = torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], dim=-1)
    torch.testing.assert_close(calls[0].query[0], by_hand, rtol=1e-5, atol=1e-6)


def test_cross_attention_is_passed_by() -> None:
    model = tiny_model("bart", is_decoder=True, add_cross_attention=True)
    calls: list[Call] = []
    with tap(model, calls.append), torch.inference_mode():
        model(input_ids=probe_tokens(model, TOKENS), encoder_hidden_states=torch.randn(1, 5, 32), use_cache=False)
    assert [tuple(call.key.shape) for call in calls] == [(1, 4, TOKENS, 8)] * 2


def test_what_dispatches() -> None:
    assert dispatches(model_class(tiny_config("llama")))
    assert dispatches(model_class(tiny_config("llava")))
    for name in ("falcon", "bloom", "mpt", "gptj"):
        with pytest.raises(RopewalkError, match="is not supported"):
            model_class(CONFIG_MAPPING[name]())


def project(projection: nn.Module, states: torch.Tensor, heads: int) -> torch.Tensor:
    bias = 0 if projection.bias is None else projection.bias
    return (states @ projection.weight.T + bias).reshape(len(states), heads, -1).transpose(0, 1)


def rms(vectors: torch.Tensor, norm: nn.Module) -> torch.Tensor:
    return vectors / (vectors.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).sqrt() * norm.weight


def plain(attention: nn.Module, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return project(attention.q_proj, states, 4), project(attention.k_proj, states, 2)


def normed(attention: nn.Module, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    query, key = plain(attention, states)
    return rms(query, attention.q_norm), rms(key, attention.k_norm)


def fused(attention: nn.Module, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, _ = project(attention.query_key_value, states, 4).chunk(3, dim=-1)
    return query, key


BY_HAND: dict[str, Callable[[nn.Module, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "llama": plain,
    "qwen3": normed,
    "smollm3": plain,
    "gpt_neox": fused,
    "phi": plain,
    "glm": plain,
}


@pytest.mark.parametrize("model_type", BY_HAND)
def test_before_rope_are_the_projections(model_type: str) -> None:
    model = tiny_model(model_type)
    layout = read_layout(model)
    tokens = probe_tokens(model, TOKENS)
    given: dict[int, torch.Tensor] = {}
    modules: dict[int, nn.Module] = {}

    def keep(call: Call) -> None:
        modules[call.module.layer_idx] = call.module

    with tap(model, keep):
        run(model)
    for number, module in modules.items():
        module.register_forward_pre_hook(
            lambda _, args, options, number=number: given.update(
                {number: (args[0] if args else options["hidden_states"])[0].clone()}
            ),
            with_kwargs=True,
        )
    run(model)
    everything = Scope(context=TOKENS, documents=1, bucket_size=1)
    found = collected(model, tokens.numpy(), VectorSample(), scope=everything, pre_rope=True)
    after = collected(model, tokens.numpy(), VectorSample(), scope=everything)
    for layer in layout.layers:
        with torch.no_grad():
            expected = BY_HAND[model_type](modules[layer.layer], given[layer.layer])
        for kind, by_hand in zip("qk", expected, strict=True):
            vectors = found["sample", layer.layer][f"{kind}.vectors"]
            np.testing.assert_allclose(vectors, by_hand.numpy(), rtol=1e-4, atol=1e-6)
            moved = np.abs(after["sample", layer.layer][f"{kind}.vectors"] - vectors).max() > 1e-3
            assert moved == layer.rope


def test_rotary_functions_are_put_back() -> None:
    model = tiny_model("llama")
    source: ModuleType = sys.modules[type(model).__module__]
    original = source.apply_rotary_pos_emb
    with rotations(model) as seen:
        run(model)
        assert [part.shape for part in seen[0]] == [(1, 4, TOKENS, 8), (1, 2, TOKENS, 8), (1, 2, TOKENS, 8)]
    assert source.apply_rotary_pos_emb is original
    with pytest.raises(IndexError), rotations(model):
        model(input_ids=torch.tensor([[10**6]]))
    assert source.apply_rotary_pos_emb is original


def test_queries_and_keys_that_are_rotated_apart_are_not_taken_for_a_pair() -> None:
    model = tiny_model("gemma4_text")
    with rotations(model) as seen:
        run(model)
    assert seen == []
    with pytest.raises(RopewalkError, match=r"^pre_rope is not available for Gemma4TextAttention"):
        collected(model, probe_tokens(model, 8).numpy(), MomentSums(), pre_rope=True)
