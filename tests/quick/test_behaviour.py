"""Attention at sampled queries: every number against weights taken from the model, key by key."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk
from helpers.behaviour import explained, looked_at
from helpers.tiny import tiny_smollm3
from ropewalk.models.layout import AttentionLayer
from ropewalk.models.tap import Call, tap
from ropewalk.statistics import row_plan
from ropewalk.statistics.base import LayerHeads, Observation, Readout, Scope, layers_of
from ropewalk.statistics.behaviour import Behaviour, query_ends, query_positions

CONTEXT, DOCUMENTS, SHARDS = 64, 8, 4


@pytest.fixture(scope="module")
def model() -> Any:
    """Scores far enough apart that attention is not nearly even."""
    model = tiny_smollm3()
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data *= 30
        layer.self_attn.k_proj.weight.data *= 30
    model.set_attn_implementation("eager")
    return model


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(3, 12, (DOCUMENTS, CONTEXT))


@pytest.fixture(scope="module")
def weights(model: Any, tokens: np.ndarray) -> list[np.ndarray]:
    """[documents, heads, queries, keys] of every layer, as the model gives them."""
    with torch.inference_mode():
        output = model(input_ids=torch.from_numpy(tokens), use_cache=False, output_attentions=True)
    return [one.double().numpy() for one in output.attentions]


def measured(model: Any, tokens: np.ndarray, **options: Any) -> ropewalk.Results:
    statistics = {"behaviour": options.pop("behaviour", {})}
    return ropewalk.measure(model, tokens.tolist(), context=CONTEXT, shards=SHARDS, statistics=statistics, **options)


def expected(weights: np.ndarray, tokens: np.ndarray, rows: Callable[[int], Any]) -> dict[str, float]:
    """Of one head [documents, queries, keys]: means over documents of what every query has."""
    found = [looked_at(one, ids, rows(number)) for number, (one, ids) in enumerate(zip(weights, tokens, strict=True))]
    names = {name for one in found for name in one if "_induction" not in name and "_duplicate" not in name}
    return {name: float(np.mean([one.get(name, 0.0) for one in found])) for name in names}


def column(name: str) -> str:
    """`mass 4` of the oracle as a column."""
    return {"mass 0": "mass_self", "mass 1": "mass_previous"}.get(name, name.replace(" ", "_"))


def sampled(document: int) -> Any:
    return query_positions(0, document, CONTEXT, 32, 0.125)


@pytest.mark.parametrize("options", [{}, {"rows": 1000, "start": 0.0}, {"rows": 5, "start": 0.5}])
def test_every_mass_is_that_of_the_models_own_weights(
    model: Any, tokens: np.ndarray, weights: list[np.ndarray], options: dict[str, Any]
) -> None:
    own = Behaviour(**options)
    for row in measured(model, tokens, behaviour=options).heads.itertuples():
        by_hand = expected(
            weights[row.layer][:, row.head], tokens, lambda n: query_positions(0, n, CONTEXT, own.rows, own.start)
        )
        for name, value in by_hand.items():
            if name != "mass_sink":
                assert getattr(row, column(name)) == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_masses_on_copies_are_over_the_queries_that_have_some(
    model: Any, tokens: np.ndarray, weights: list[np.ndarray]
) -> None:
    for row in measured(model, tokens).heads.itertuples():
        for name, back in (("induction", 1), ("duplicate", 0)):
            masses, shares = [], []
            for n in range(DOCUMENTS):
                for t in sampled(n):
                    chosen = [j for j in range(back, t) if tokens[n, j - back] == tokens[n, t]]
                    if chosen:
                        masses.append(weights[row.layer][n, row.head, t, chosen].sum())
                        shares.append(len(chosen) / (t + 1))
            assert getattr(row, f"mass_{name}") == pytest.approx(np.mean(masses), rel=1e-5)
            assert getattr(row, f"lift_{name}") == pytest.approx(np.sum(masses) / np.sum(shares), rel=1e-5)


def test_scores_by_distance_and_what_distance_explains(model: Any, tokens: np.ndarray) -> None:
    calls: list[Call] = []
    with torch.inference_mode(), tap(model, calls.append):
        model(input_ids=torch.from_numpy(tokens), use_cache=False)
    results = measured(model, tokens)
    for row in results.heads.itertuples():
        q = calls[row.layer].query[:, row.head].double().numpy()
        k = calls[row.layer].key[:, row.k_head].double().numpy()
        shares, by_distance = [], [[] for _ in range(CONTEXT)]
        for n in range(DOCUMENTS):
            for t in sampled(n):
                scores = np.array([0.25 * (q[n, t] @ k[n, j]) for j in range(t + 1)])
                shares.append(explained(scores, range(4, t + 1)))
                for j in range(4, t + 1):
                    by_distance[t - j].append(scores[j])
        assert row.score_r2_distance == pytest.approx(np.mean(shares), rel=1e-4, abs=1e-5)
        own = results.tables.others["distance"].query(f"layer == {row.layer} and head == {row.head}")
        for bin_ in own.itertuples():
            scores = [score for one in by_distance[bin_.distance : bin_.distance_stop] for score in one]
            assert bin_.score == pytest.approx(np.mean(scores), rel=1e-4, abs=1e-4)


def test_errors_are_from_leaving_a_shard_out(model: Any, tokens: np.ndarray) -> None:
    whole = measured(model, tokens)
    parts = np.array_split(np.arange(DOCUMENTS), SHARDS)
    captured = whole.captures["model"]
    heads = layers_of(captured.layout, captured.heads)[0]
    sums = captured.parts("behaviour", heads)
    statistic, scope = Behaviour(), captured.scope
    for name in ("mass_first", "effective_keys", "lift_induction", "score_r2_distance", "mass_4"):
        left = [
            statistic.read([*sums[:shard], *sums[shard + 1 :]], heads, scope, {}).values[name]
            for shard in range(len(parts))
        ]
        found = whole.replicates
        assert found is not None
        own = found[found["layer"] == 0].pivot(index="left_out", columns="head", values=name).to_numpy()
        np.testing.assert_allclose(own, left, rtol=1e-9)


def test_sampled_queries_agree_with_all_of_them_within_their_error(model: Any) -> None:
    tokens = np.random.default_rng(3).integers(3, 12, (24, CONTEXT))
    some, every = (
        ropewalk.measure(
            model, tokens.tolist(), context=CONTEXT, shards=8, statistics={"behaviour": {"rows": rows}}
        ).heads
        for rows in (32, 1000)
    )
    for name in ("mass_first", "mass_previous", "effective_keys", "score_r2_distance", "mass_induction"):
        away = (some[name] - every[name]).abs() / some[f"se_{name}"]
        assert (away < 2.36).mean() > 0.9
        assert away.max() < 5
    assert not np.allclose(some["mass_first"], every["mass_first"], rtol=1e-6)


def test_blocks_heads_and_first_tokens_change_nothing(
    model: Any, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measured(model, tokens).heads
    columns = [name for name in whole if str(name).startswith(("mass_", "lift_", "effective", "score_r2"))]
    monkeypatch.setattr(row_plan, "BLOCK_SCORES", 300)
    same = np.testing.assert_allclose
    same(measured(model, tokens, batch_tokens=64).heads[columns], whole[columns], rtol=1e-5, atol=1e-7)
    # What a head does is the same whichever heads are looked at, and whether or not its first tokens count elsewhere.
    pairs = ((1, 2), (1, 3), (4, 1))
    chosen = whole.set_index(["layer", "head"]).loc[list(pairs)]
    same(measured(model, tokens, pairs=pairs).heads[columns], chosen[columns], rtol=1e-5, atol=1e-7)
    same(measured(model, tokens, skip_first=6).heads[columns], whole[columns], rtol=1e-5, atol=1e-7)


def test_positions_of_queries() -> None:
    found = [query_positions(0, document, 1024, 32, 0.125) for document in range(50)]
    for one in found:
        assert len(one) == 32
        assert one.min() >= 128
        assert one.max() < 1024
        assert (np.diff(one) > 0).all()
        # One from each even piece.
        assert ((one - 128) // 28 == np.arange(32)).all()
    assert any((one != found[0]).any() for one in found)
    assert (np.stack(found) < query_ends(1024, 32, 0.125)).all()
    np.testing.assert_array_equal(found[7], query_positions(0, 7, 1024, 32, 0.125))
    assert query_positions(0, 0, 16, 32, 0.125).tolist() == list(range(2, 16))


def looks(q: torch.Tensor, k: torch.Tensor, ids: torch.Tensor, **options: Any) -> Readout:
    """What is read of one head with these queries and keys [tokens, d]."""
    context, d = q.shape
    module = options.pop("module", torch.nn.Identity())
    heads = LayerHeads(AttentionLayer(0, 0, 1, 1, d, 0.0, None), (0,), (0,))
    scope = Scope(context=context, documents=1, bucket_size=4)
    statistic = Behaviour()
    accumulator = statistic.accumulator(heads, scope)
    q, k = q[None, None], k[None, None]
    call = Call(module, q, k, k, options)
    accumulator.update(Observation(heads, q, k, torch.arange(context), ids[None], [0], call, ids[None]))
    return statistic.read([accumulator.sums()], heads, scope, {})


def test_hand_built_heads_score_one_or_chance() -> None:
    """Previous token, sink, induction and uniform heads, made of one-hot vectors."""
    size = 256
    ids = torch.from_numpy(np.random.default_rng(0).permutation(size // 2)).repeat(2)
    at, word = torch.eye(size), torch.eye(size // 2)
    strong = 40 * size**0.5

    previous = looks(strong * at[(torch.arange(size) - 1).clamp(min=0)], at, ids).values
    assert previous["mass_previous"][0] == pytest.approx(1, abs=1e-6)
    assert previous["effective_keys"][0] == pytest.approx(1, abs=1e-4)
    sink = looks(strong * at[torch.zeros(size, dtype=torch.int64)], at, ids).values
    assert sink["mass_first"][0] == pytest.approx(1, abs=1e-6)
    assert sink["mass_first4"][0] == pytest.approx(1, abs=1e-6)
    # Keys hold the token before them, queries look for their own.
    induction = looks(strong * word[ids], word[torch.roll(ids, 1)], ids).values
    assert induction["mass_induction"][0] == pytest.approx(1, abs=1e-6)
    assert induction["mass_duplicate"][0] == pytest.approx(0, abs=1e-6)
    duplicate = looks(strong * word[ids], word[ids], ids).values
    assert duplicate["mass_duplicate"][0] == pytest.approx(0.5, abs=1e-6)  # the other half is on the token itself
    uniform = looks(0 * at, at, ids).values
    for name in ("lift_induction", "lift_duplicate"):
        assert uniform[name][0] == pytest.approx(1, abs=1e-5)
    rows = query_positions(0, 0, size, 32, 0.125)
    assert uniform["effective_keys"][0] == pytest.approx(np.mean(rows + 1), rel=1e-5)
    assert uniform["mass_first"][0] == pytest.approx(np.mean(1 / (rows + 1)), rel=1e-5)


def test_scores_that_are_a_function_of_the_octave_are_explained_whole() -> None:
    size = 128
    distance = np.maximum(np.arange(size)[:, None] - np.arange(size)[None], 0)
    octave = np.floor(np.log2(np.maximum(distance, 1))) + (distance > 0)
    ids, at = torch.arange(size), torch.eye(size)
    q = torch.from_numpy(octave).float() * size**0.5
    assert looks(q, at, ids).values["score_r2_distance"][0] == pytest.approx(1, abs=1e-5)
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(size, size))).float() * size**0.5
    assert abs(looks(noise, at, ids).values["score_r2_distance"][0]) < 0.05
    assert np.isnan(looks(0 * noise, at, ids).values["score_r2_distance"][0])


def test_windows_caps_sinks_and_biases_are_the_models() -> None:
    """Each option against a softmax by hand."""
    size, d = 40, 8
    generator = torch.Generator().manual_seed(0)
    q, k = (3 * torch.randn(size, d, generator=generator) for _ in range(2))
    ids = torch.arange(size)
    rows = query_positions(0, 0, size, 32, 0.125)
    bias = torch.randn(1, 1, size, size, generator=generator)
    later = torch.full((size, size), torch.finfo(torch.float32).min).triu(1)
    cases: list[tuple[dict[str, Any], Callable[[np.ndarray], np.ndarray], int, float]] = [
        ({}, lambda s: s, size, -np.inf),
        ({"sliding_window": 7}, lambda s: s, 7, -np.inf),
        ({"softcap": 2.0}, lambda s: 2 * np.tanh(s / 2), size, -np.inf),
        ({"s_aux": torch.tensor([0.7])}, lambda s: s, size, 0.7),
        ({"position_bias": bias}, lambda s: s + bias[0, 0].numpy(), size, -np.inf),
        ({"attention_mask": (bias + later)}, lambda s: s + bias[0, 0].numpy(), size, -np.inf),
        ({"scaling": 1.5}, lambda s: s * 1.5 * d**0.5, size, -np.inf),
        ({"attention_mask": torch.ones(1, 1, size, size, dtype=torch.bool).tril().triu(-4)}, lambda s: s, 5, -np.inf),
    ]
    for options, change, window, sink in cases:
        scores = change((q.double() @ k.double().T).numpy() * d**-0.5)
        first, onto_sink, keys = [], [], []
        for t in rows:
            seen = range(max(0, t + 1 - window), t + 1)
            e = np.exp(scores[t, list(seen)])
            total = e.sum() + np.exp(sink)
            first.append(e[0] / total if 0 in seen else 0.0)
            onto_sink.append(np.exp(sink) / total)
            own = e / e.sum()
            keys.append(np.exp(-(own * np.log(own)).sum()))
        found = looks(q, k, ids, **options).values
        assert found["mass_first"][0] == pytest.approx(np.mean(first), rel=1e-4, abs=1e-6), options
        assert found["effective_keys"][0] == pytest.approx(np.mean(keys), rel=1e-4), options
        assert ("mass_sink" in found) == (sink > -np.inf)
        if "mass_sink" in found:
            assert found["mass_sink"][0] == pytest.approx(np.mean(onto_sink), rel=1e-4)


def test_attention_that_sees_later_tokens_has_no_behaviour() -> None:
    q = torch.randn(16, 4)
    assert looks(q, q, torch.arange(16), is_causal=False).values == {}
    everything = torch.ones(1, 1, 16, 16, dtype=torch.bool)
    assert looks(q, q, torch.arange(16), attention_mask=everything).values == {}
    assert looks(q, q, torch.arange(16), attention_mask=everything.tril()).values != {}


@pytest.mark.parametrize("context", [2, 3, 5])
def test_documents_of_a_few_tokens_have_masses_and_no_scores(context: int) -> None:
    tokens = np.random.default_rng(0).integers(3, 12, (4, context)).tolist()
    heads = ropewalk.measure(tiny_smollm3(), tokens, context=context, shards=2).heads
    np.testing.assert_allclose(
        heads["mass_self"] + heads["mass_previous"] + heads.get("mass_2", 0) + heads.get("mass_4", 0), 1
    )
    assert heads["score_r2_distance"].isna().all()


def test_long_documents_are_worked_on_in_blocks() -> None:
    """At 32,768 tokens the scores of all sampled queries would be 134 MB for 32 heads; a block has a few MB."""
    context, heads = 32768, 32
    rows = [query_positions(0, document, context, 32, 0.125) for document in range(2)]
    plans = row_plan.RowPlan.of(rows, query_ends(context, 32, 0.125), torch.zeros(2, context, dtype=torch.int64), heads)
    assert [plan.documents for plan in plans] == [slice(0, 1), slice(1, 2)]
    for plan in plans:
        assert sum(block.rows.numel() for block in plan.blocks) == 32
        for block in plan.blocks:
            assert block.rows.numel() == 1 or heads * block.position.numel() <= row_plan.BLOCK_SCORES
            assert block.position.shape[2] >= int(block.rows.max()) + 1


@pytest.mark.parametrize(
    ("context", "heads", "together"), [(256, 8, [5]), (1024, 8, [2, 2, 1]), (2048, 8, [2, 2, 1]), (65536, 8, [1] * 5)]
)
def test_documents_are_taken_together_as_far_as_they_fit(context: int, heads: int, together: list[int]) -> None:
    rows = [query_positions(0, document, context, 32, 0.125) for document in range(5)]
    plans = row_plan.RowPlan.of(rows, query_ends(context, 32, 0.125), torch.zeros(5, context, dtype=torch.int64), heads)
    assert [plan.documents.stop - plan.documents.start for plan in plans] == together
    for plan in plans:
        own = np.concatenate([block.rows.numpy() for block in plan.blocks], axis=1)
        np.testing.assert_array_equal(own, rows[plan.documents])
        assert all(heads * block.position.numel() <= row_plan.BLOCK_SCORES for block in plan.blocks)


def hiding(documents: int, heads: int, context: int) -> torch.Tensor:
    """A causal mask that hides a fifth of the earlier keys, others of every document and head."""
    generator = torch.Generator().manual_seed(1)
    shown = torch.rand(documents, heads, 1, context, generator=generator) > 0.2
    return (shown | torch.eye(context, dtype=torch.bool)) & torch.ones(context, context, dtype=torch.bool).tril()


def biased(documents: int, heads: int, context: int) -> torch.Tensor:
    """An added mask that shifts the scores of all documents but the first."""
    shift = torch.randn(documents, heads, context, context, generator=torch.Generator().manual_seed(2))
    shift[0] = 0
    later = torch.ones(context, context, dtype=torch.bool).triu(1)
    return shift.masked_fill(later, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("mask", [None, hiding, biased])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"s_aux": torch.tensor([0.7, 3.0, -1.0, 1.0])}])
@pytest.mark.parametrize("skip_first", [0, 30])
def test_documents_together_have_the_sums_of_one_after_the_other(
    mask: Callable[[int, int, int], torch.Tensor] | None, options: dict[str, Any], skip_first: int
) -> None:
    documents, context, d = 5, 150, 8
    generator = torch.Generator().manual_seed(0)
    q, k = (2 * torch.randn(documents, count, context, d, generator=generator) for count in (4, 2))
    ids = torch.randint(0, 20, (documents, context), generator=generator)
    heads = LayerHeads(AttentionLayer(0, 0, 4, 2, d, 0.0, None), (0, 2, 3), (0, 1))
    scope = Scope(context=context, documents=documents, bucket_size=4, skip_first=skip_first)
    shown = None if mask is None else mask(documents, 4, context)

    def summed(batches: list[list[int]]) -> Any:
        accumulator = Behaviour().accumulator(heads, scope)
        for batch in batches:
            own = options if shown is None else {**options, "attention_mask": shown[batch]}
            call = Call(torch.nn.Identity(), q[batch], k[batch], k[batch], own)
            accumulator.update(
                Observation(heads, q[batch], k[batch], torch.arange(context), ids[batch], batch, call, ids[batch])
            )
        return accumulator.sums()

    # Documents of which some have a query less are not all taken together.
    counts = {int((query_positions(0, one, context, 32, 0.125) >= skip_first).sum()) for one in range(documents)}
    assert (len(counts) > 1) == (skip_first > 0)
    alone = summed([[one] for one in range(documents)])
    for together in ([[0, 1, 2, 3, 4]], [[0, 1], [2, 3, 4]]):
        found = summed(together)
        assert set(found) == set(alone)
        for name, expected in alone.items():
            np.testing.assert_array_equal(found[name], expected, err_msg=name)
    # Of other documents they are others.
    other = summed([[4, 1, 2, 3, 3]])
    assert not np.allclose(other["q.effective"], alone["q.effective"], rtol=1e-4)
