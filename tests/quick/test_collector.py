"""The collector and the statistics it drives: every sum against vectors taken by hand."""

from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from helpers.collecting import collected
from helpers.tiny import CONTEXT, DOCUMENTS, tiny_smollm3
from ropewalk.capture import collector
from ropewalk.errors import RopewalkError
from ropewalk.models.layout import Layout
from ropewalk.models.probe import read_layout
from ropewalk.models.tap import Call
from ropewalk.statistics.base import Scope, Statistic
from ropewalk.statistics.moments import MomentSums
from ropewalk.statistics.profile import Profile, bucket_edges
from ropewalk.statistics.sample import VectorSample, kept_positions


def scope(**changes: Any) -> Scope:
    return Scope(**{"context": CONTEXT, "documents": DOCUMENTS, "bucket_size": 4, **changes})


def vectors(call: Call, kind: str, head: int, first: int = 0) -> np.ndarray:
    """Vectors [documents, tokens, d] of one head, in float64."""
    return (call.query if kind == "q" else call.key)[:, head, first:].double().numpy()


def test_moments_are_those_of_every_token(model: Any, tokens: np.ndarray, by_hand: list[Call]) -> None:
    """Each of the six moments against a plain computation over all vectors and their positions."""
    sums = collected(model, tokens, MomentSums(), scope=scope(skip_first=2), batch=4)
    t = np.tile(np.arange(2, CONTEXT), DOCUMENTS).astype(float)
    for layer, call in enumerate(by_hand):
        own = sums["moments", layer]
        for kind, heads in (("q", 4), ("k", 2)):
            for head in range(heads):
                x = vectors(call, kind, head, 2).reshape(-1, 16)
                deviations = x - x.mean(axis=0)
                expected = {
                    "n": DOCUMENTS * (CONTEXT - 2),
                    "mean": x.mean(axis=0),
                    "t_mean": t.mean(),
                    "sxx": np.cov(x.T, bias=True) * len(x),
                    "sxt": [np.sum(column * (t - t.mean())) for column in deviations.T],
                    "stt": np.var(t) * len(t),
                }
                for name, value in expected.items():
                    np.testing.assert_allclose(own[f"{kind}.{name}"][head], value, rtol=1e-4, atol=1e-3, err_msg=name)


def test_positions_count_within_each_document(model: Any, tokens: np.ndarray) -> None:
    """Moments of a token depend on its position in its own document and not on the batch it came in."""
    one = collected(model, tokens, MomentSums(), batch=1)
    for batch in (2, 6):
        other = collected(model, tokens, MomentSums(), batch=batch)
        for name, array in one["moments", 0].items():
            np.testing.assert_allclose(other["moments", 0][name], array, rtol=1e-7, atol=1e-6)


def test_the_profile_is_the_mean_of_every_bucket(model: Any, tokens: np.ndarray, by_hand: list[Call]) -> None:
    sums = collected(model, tokens, Profile(), scope=scope(skip_first=3), batch=4)
    edges = bucket_edges(CONTEXT)
    for layer in (0, 3):
        for kind, head in (("q", 3), ("k", 1)):
            x = vectors(by_hand[layer], kind, head)
            for bucket, (start, stop) in enumerate(pairwise(edges)):
                inside = x[:, max(start, 3) : max(stop, 3)].reshape(-1, 16)
                own = sums["profile", layer]
                assert own["n"][bucket] == len(inside)
                np.testing.assert_allclose(own[f"{kind}.sum"][head, bucket], inside.sum(axis=0), rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(own[f"{kind}.square"][head, bucket], (inside**2).sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (4, [0, 1, 2, 3, 4]),
        (256, [0, 1, 2, 4, 8, 12]),
        (2048, [0, 1, 2, 4, 8, 16, 32, 64]),
        (4096, [0, 1, 2, 4, 8, 16, 32, 64, 128]),
    ],
)
def test_buckets_are_octaves_and_then_even_steps(context: int, expected: list[int]) -> None:
    edges = bucket_edges(context)
    assert edges[: len(expected)].tolist() == expected
    assert edges[-1] == context
    assert (np.diff(edges) > 0).all()
    if context > 64:
        assert (np.diff(edges[edges >= context // 64]) == context // 64).all()


@pytest.mark.parametrize("context", [65, 100, 1000, 65536])
def test_buckets_cover_any_context(context: int) -> None:
    edges = bucket_edges(context)
    assert (edges[0], edges[-1]) == (0, context)
    assert np.diff(edges).max() <= -(-context // 64)


def test_kept_vectors_are_a_deterministic_sample(model: Any, tokens: np.ndarray, by_hand: list[Call]) -> None:
    settings = scope(seed=3, skip_first=2)
    sample = collected(model, tokens, VectorSample(), scope=settings, batch=3)["sample", 1]
    assert len(sample["position.k"]) > 50
    for index, (document, position) in enumerate(zip(sample["document.k"], sample["position.k"], strict=True)):
        np.testing.assert_allclose(sample["k.vectors"][:, index], by_hand[1].key[document, :, position], atol=1e-5)
    part = collected(model, tokens[4:], VectorSample(), scope=settings, first_document=4)["sample", 1]
    later = sample["document.k"] >= 4
    np.testing.assert_array_equal(part["position.k"], sample["position.k"][later])
    np.testing.assert_allclose(part["k.vectors"], sample["k.vectors"][:, later], atol=1e-6)
    assert sample["position.k"].min() >= 2
    assert not np.array_equal(kept_positions(0, 0, 0, "q", 64, 0.25), kept_positions(0, 0, 0, "k", 64, 0.25))
    assert len(kept_positions(0, 1, 2, "q", 100_000, 0.25)) == pytest.approx(25_000, rel=0.05)


def test_a_sample_stays_below_its_limit() -> None:
    few = VectorSample(at_most=10)
    assert few.probability(scope()) * DOCUMENTS * CONTEXT == pytest.approx(10)
    assert VectorSample(rate=0.5).probability(scope()) == pytest.approx(0.5 / 4)


def test_several_statistics_see_the_same_pass(model: Any, tokens: np.ndarray) -> None:
    together = collected(model, tokens, MomentSums(), Profile(), VectorSample())
    for statistic in (MomentSums(), Profile(), VectorSample()):
        alone = collected(model, tokens, statistic)
        for key, arrays in alone.items():
            for name, array in arrays.items():
                np.testing.assert_array_equal(together[key][name], array)


@pytest.mark.parametrize("statistic", [MomentSums(), Profile(), VectorSample()], ids=lambda one: one.name)
def test_merged_groups_equal_the_whole(model: Any, tokens: np.ndarray, statistic: Statistic) -> None:
    whole = collected(model, tokens, statistic)
    parts = [collected(model, tokens[i : i + 2], statistic, first_document=i) for i in (0, 2, 4)]
    for key, arrays in whole.items():
        merged = statistic.merge([part[key] for part in parts])
        assert merged.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_allclose(merged[name], array, rtol=1e-7, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("statistic", [MomentSums(), Profile()], ids=lambda one: one.name)
def test_a_group_left_out_equals_the_rest(model: Any, tokens: np.ndarray, statistic: Statistic) -> None:
    parts = [collected(model, tokens[i : i + 2], statistic, first_document=i) for i in (0, 2, 4)]
    for key in parts[0]:
        left = statistic.without(statistic.merge([part[key] for part in parts]), parts[1][key])
        rest = statistic.merge([parts[0][key], parts[2][key]])
        for name, array in rest.items():
            np.testing.assert_allclose(left[name], array, rtol=1e-7, atol=1e-6, err_msg=name)


def test_the_forward_pass_stops_after_the_last_needed_layer(model: Any, tokens: np.ndarray) -> None:
    ran: list[Any] = []
    handles = [
        layer.mlp.register_forward_hook(lambda *_, i=i: ran.append(i)) for i, layer in enumerate(model.model.layers)
    ]
    handles.append(model.lm_head.register_forward_hook(lambda *_: ran.append("vocabulary")))
    layout = read_layout(model)
    ran.clear()
    try:
        collected(model, tokens[:1], MomentSums(), layout=layout, heads=layout.heads(layers=[2]))
    finally:
        for handle in handles:
            handle.remove()
    assert ran == [0, 1]


@pytest.mark.parametrize("statistic", [MomentSums(), Profile()], ids=lambda one: one.name)
def test_nan_weights_are_named(tokens: np.ndarray, statistic: Statistic) -> None:
    broken = tiny_smollm3()
    with torch.no_grad():
        broken.model.layers[2].self_attn.q_proj.weight[0, 0] = float("nan")
    with pytest.raises(RopewalkError, match="layer 2 head 0 has NaN or infinite queries"):
        collected(broken, tokens, statistic)


def test_another_way_through_the_layers_is_noticed(model: Any, tokens: np.ndarray) -> None:
    layout = read_layout(model)
    wrong = Layout.from_dict({**layout.to_dict(), "layers": [{**asdict(x), "head_dim": 8} for x in layout.layers]})
    with pytest.raises(
        RopewalkError, match="attention call 0 has 4 query heads, 2 key heads and head_dim 16, not those"
    ):
        collected(model, tokens, MomentSums(), layout=wrong)


def test_a_model_that_stops_attending_is_noticed(model: Any, tokens: np.ndarray) -> None:
    layout = read_layout(model)
    more = replace(layout, layers=(*layout.layers, replace(layout.layers[-1], call_index=5, layer=5)))
    with pytest.raises(RopewalkError, match="the model made 5 attention calls where 6 were expected"):
        collected(model, tokens, MomentSums(), layout=more)


def test_pre_rope_is_refused_where_it_cannot_be_had(
    model: Any, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the modelling file's rotation to listen to, a layer that rotates has nothing to give."""
    monkeypatch.setattr("ropewalk.capture.collector.rotations", lambda _: nullcontext([]))
    layout = read_layout(model)
    with pytest.raises(RopewalkError, match="pre_rope is not available for SmolLM3Attention"):
        collected(model, tokens, MomentSums(), pre_rope=True)
    only_nope = layout.heads(layers=[3])
    np.testing.assert_array_equal(
        collected(model, tokens, MomentSums(), heads=only_nope, pre_rope=True)["moments", 3]["q.sxx"],
        collected(model, tokens, MomentSums(), heads=only_nope)["moments", 3]["q.sxx"],
    )


def test_another_failure_keeps_its_traceback(model: Any, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ropewalk.capture.collector.Observation", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("x"))
    )
    with pytest.raises(RuntimeError, match=r"^x$"):
        collected(model, tokens, MomentSums())


def test_any_whole_number_is_a_seed() -> None:
    chosen = [kept_positions(seed, 0, 0, "q", 1000, 0.5).tolist() for seed in (-1, 0, 1, 2**70)]
    assert len({tuple(one) for one in chosen}) == 4


@pytest.mark.parametrize(("large", "expected"), [(1, ["given back", "put together"]), (1 << 24, ["put together"])])
def test_memory_is_given_back_before_sums_of_a_large_shard_are_put_together(
    model: Any, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch, large: int, expected: list[str]
) -> None:
    """Once and not later than that; for a small shard never: the next pass would only have to take it again."""
    seen: list[str] = []
    put_together = collector._Collector.result

    def result(self: Any) -> Any:
        seen.append("put together")
        return put_together(self)

    monkeypatch.setattr(collector, "LARGE", large)
    monkeypatch.setattr(collector, "give_back_freed", lambda: seen.append("given back"))
    monkeypatch.setattr(collector._Collector, "result", result)
    collected(model, tokens, MomentSums())
    assert seen == expected
