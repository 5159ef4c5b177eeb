"""Attention plasticity, against loops over triples, planted winners and simulated Gaussians."""

import itertools
from math import erf, sqrt

import numpy as np
import pytest

import ropewalk
from helpers.tiny import tiny_smollm3
from ropewalk.geometry.gaussian_plasticity import Buckets, of_gaussians
from ropewalk.geometry.jackknife import jackknife_error
from ropewalk.geometry.plasticity import Kept, cells, over_context, pairwise, trials
from ropewalk.models.layout import AttentionLayer
from ropewalk.statistics.base import LayerHeads, Scope
from ropewalk.statistics.plasticity import buckets_of, read_kept, visible


def alone(count: int) -> np.ndarray:
    return np.zeros(count, dtype=np.int64)


def test_both_forms_are_those_of_a_triple_loop() -> None:
    rng = np.random.default_rng(0)
    q, keys = rng.standard_normal((5, 3)) + 0.4, rng.standard_normal((4, 3))
    pairs = list(itertools.combinations(range(4), 2))
    delta = np.array([keys[i] - keys[j] for i, j in pairs])
    found = pairwise(q[None], delta[None], alone(5), alone(len(pairs)), 1)
    for number, (i, j) in enumerate(pairs):
        wins = 0
        for query in q:
            wins += sum(query[d] * keys[i][d] for d in range(3)) > sum(query[d] * keys[j][d] for d in range(3))
        p = wins / 5
        assert found.empirical[0, 0, number] == pytest.approx(4 * p * (1 - p) * 5 / 4)
        scores = [float(query @ (keys[i] - keys[j])) for query in q]
        z = np.mean(scores) / np.std(scores, ddof=1)
        plain = 4 * 0.25 * (1 + erf(z / sqrt(2))) * (1 - erf(z / sqrt(2)))
        # What is taken off for noise is of the order of 1/n.
        assert abs(found.gaussian[0, 0, number] - plain) < 1.3 / 5


def test_a_query_that_decides_gives_one_and_a_fixed_winner_nothing() -> None:
    rng = np.random.default_rng(1)
    q = np.concatenate([rng.standard_normal((400, 2)), np.full((400, 1), 50.0)], axis=1)
    delta = np.array([[1.0, 0.5, 0.0], [0.1, 0.0, 3.0]])
    found = pairwise(q[None], delta[None], alone(400), alone(2), 1)
    for form in (found.empirical, found.gaussian):
        np.testing.assert_allclose(form[0, 0], [1.0, 0.0], atol=0.02)


def test_constant_scores_are_decided_by_their_sign_alone() -> None:
    q = np.ones((1, 6, 1))
    found = pairwise(q, np.array([[[1.0], [-2.0], [0.0]]]), alone(6), alone(3), 1)
    np.testing.assert_allclose(found.gaussian[0, 0, :2], 0)
    np.testing.assert_allclose(found.empirical[0, 0, :2], 0)


def test_without_a_group_is_what_the_others_give_alone() -> None:
    rng = np.random.default_rng(3)
    q, delta = rng.standard_normal((2, 9, 4)) + 0.5, rng.standard_normal((2, 7, 4))
    q[1, 4:] = q[1, 4]  # scores of these alone have no spread
    delta[:, 5] = 0
    query_group, pair_group = np.repeat([0, 1, 2], [4, 3, 2]), np.array([0, 0, 1, 1, 2, 2, 2])
    cell = np.array([0, 1, 1, 0, 2, 1, 1])
    found = pairwise(q, delta, query_group, pair_group, 3)
    totals, counts = found.by_cell(np.eye(3)[cell])
    for row, group in enumerate([None, 0, 1, 2]):
        queries, pairs = np.flatnonzero(query_group != group), np.flatnonzero(pair_group != group)
        alone_there = pairwise(q[:, queries], delta[:, pairs], alone(len(queries)), alone(len(pairs)), 1)
        np.testing.assert_array_equal(np.flatnonzero(found.counted[row]), pairs)
        for mean, expected in zip(found.means(), (alone_there.empirical, alone_there.gaussian), strict=True):
            np.testing.assert_allclose(mean[row], expected[:, 0].mean(axis=1), rtol=1e-12)
        for number in range(3):
            inside = cell[pairs] == number
            assert counts[row, number] == inside.sum()
            np.testing.assert_allclose(totals[row, :, number], alone_there.empirical[:, 0, inside].sum(axis=1))


def test_without_a_group_that_has_all_queries_but_one_nothing_is_known() -> None:
    rng = np.random.default_rng(4)
    q, delta = rng.standard_normal((1, 5, 3)), rng.standard_normal((1, 4, 3))
    found = pairwise(q, delta, np.array([0, 0, 0, 0, 1]), np.array([0, 0, 1, 1]), 2)
    for mean in found.means():
        np.testing.assert_array_equal(np.isnan(mean[:, 0]), [False, True, False])
    assert found.by_cell(np.ones((4, 1)))[1].tolist() == [[4], [0], [2]]


@pytest.mark.filterwarnings("error")
def test_scores_without_a_spread_are_certain_whatever_their_size() -> None:
    q = np.ones((1, 6, 1))
    found = pairwise(q, np.array([[[1e150], [-1e-140], [3e4], [0.0]]]), alone(6), alone(4), 1)
    np.testing.assert_array_equal(found.gaussian[0, 0, :3], 0)
    assert found.gaussian[0, 0, 3] == pairwise(q, np.zeros((1, 1, 1)), alone(6), alone(1), 1).gaussian[0, 0, 0] > 1


@pytest.mark.parametrize("d", [8, 32])
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.5])
def test_all_forms_agree_on_gaussians(d: int, scale: float) -> None:
    """And are not biased by few queries: 40 of them, over and over."""
    rng = np.random.default_rng(d)
    half_q, half_k = (rng.standard_normal((d, d)) / np.sqrt(d) for _ in range(2))
    mu = scale * rng.standard_normal(d)
    many = (rng.standard_normal((40_000, d)) - rng.standard_normal((40_000, d))) @ half_k.T
    z = many @ mu / np.linalg.norm(many @ half_q, axis=1)
    phi = np.array([0.5 * (1 + erf(value / sqrt(2))) for value in z])
    each = 4 * phi * (1 - phi)
    delta = many[:600]
    forms = []
    for _ in range(200):
        q = mu + rng.standard_normal((40, d)) @ half_q.T
        found = pairwise(q[None], delta[None], alone(40), alone(600), 1)
        forms.append((found.empirical.mean(), found.gaussian.mean()))
    np.testing.assert_allclose(np.mean(forms, axis=0), each[:600].mean(), atol=0.012)
    buckets = Buckets(np.stack([mu, mu])[None], np.stack([half_q @ half_q.T] * 2)[None])
    keys = Buckets(np.zeros((1, 2, d)), np.stack([half_k @ half_k.T] * 2)[None])
    closed = of_gaussians(buckets, keys, np.array([[0.0, 0.0], [500.0, 0.0]]))
    assert np.isnan(closed[0, 0])
    assert closed[0, 1] == pytest.approx(each.mean(), abs=0.01)


def test_drifting_keys_from_sums_as_from_samples() -> None:
    """Means that move from bucket to bucket: what the closed form must not take for noise."""
    rng = np.random.default_rng(5)
    d, buckets = 16, 4
    mean_k = np.arange(buckets)[:, None] * rng.standard_normal(d) * 0.4
    mu = rng.standard_normal(d) * 0.5
    q = Buckets(np.tile(mu, (1, buckets, 1)), np.tile(np.eye(d), (1, buckets, 1, 1)))
    k = Buckets(mean_k[None], np.tile(0.5 * np.eye(d), (1, buckets, 1, 1)))
    counts = np.tril(np.full((buckets, buckets), 50.0), -1)
    found = of_gaussians(q, k, counts)[0]
    for bucket in (1, 3):
        where = rng.integers(0, bucket * 50, (2, 40_000))
        where = where[:, where[0] != where[1]] // 50
        keys = [mean_k[one] + np.sqrt(0.5) * rng.standard_normal((len(one), d)) for one in where]
        delta = keys[0] - keys[1]
        z = delta @ mu / np.linalg.norm(delta, axis=1)
        phi = np.array([0.5 * (1 + erf(value / sqrt(2))) for value in z])
        assert found[bucket] == pytest.approx(np.mean(4 * phi * (1 - phi)), abs=0.01)


def test_pairs_are_of_one_document_before_the_bucket_and_within_the_window() -> None:
    document = np.repeat(np.arange(6), 20)
    keys = Kept(document, np.tile(np.arange(20) * 3, 6), document // 2)
    queries = Kept(document, np.tile(np.arange(20) * 3 + 1, 6), document // 2)
    for window in (None, 25):
        found = trials(queries, keys, range(32, 40), window, (0, 1, 2), most=100)
        assert len(found.first) == (100 if window is None else 6 * 15)
        assert (keys.document[found.first] == keys.document[found.second]).all()
        assert (found.first != found.second).all()
        for one in (found.first, found.second):
            assert (keys.position[one] < 32).all()
            assert window is None or (39 - keys.position[one] < window).all()
        assert len(set(zip(found.first.tolist(), found.second.tolist(), strict=True))) == len(found.first)
        assert set(queries.position[found.queries]) == {34, 37}
        np.testing.assert_allclose(found.away, 35.5 - (keys.position[found.first] + keys.position[found.second]) / 2)
    again = trials(queries, keys, range(32, 40), None, (0, 1, 2), most=100)
    np.testing.assert_array_equal(again.first, trials(queries, keys, range(32, 40), None, (0, 1, 2), most=100).first)
    assert not np.array_equal(again.first, trials(queries, keys, range(32, 40), None, (1, 1, 2), most=100).first)


def test_pairs_are_drawn_evenly() -> None:
    keys = Kept(np.repeat([0, 1], [30, 10]), np.concatenate([np.arange(30), np.arange(10)]), alone(40))
    none = Kept(alone(0), alone(0), alone(0))
    counts = np.zeros((40, 40))
    for seed in range(400):
        found = trials(none, keys, range(30, 31), None, (seed,), most=40)
        np.add.at(counts, (found.first, found.second), 1)
    drawn = counts[counts > 0]
    assert len(drawn) > 0.99 * (30 * 29 + 10 * 9) / 2
    assert drawn.mean() == pytest.approx(400 * 40 / ((30 * 29 + 10 * 9) / 2), rel=0.05)


def test_what_a_query_sees_by_bucket() -> None:
    scope = Scope(context=50, documents=1, bucket_size=20)
    assert buckets_of(scope) == [range(20), range(20, 40), range(40, 50)]
    np.testing.assert_array_equal(visible(buckets_of(scope), None), [[0, 0, 0], [20, 0, 0], [20, 20, 0]])
    np.testing.assert_array_equal(visible(buckets_of(scope), 25), [[0, 0, 0], [5, 0, 0], [0, 15, 0]])
    np.testing.assert_array_equal(visible(buckets_of(scope), None, skip_first=8), [[0, 0, 0], [12, 0, 0], [12, 20, 0]])


def test_parts_of_the_context_are_weighted_by_their_positions() -> None:
    buckets = [range(start, start + 10) for start in range(0, 100, 10)]
    profile = np.array([np.nan, *np.arange(1.0, 10.0)])
    found = over_context(profile, buckets, 100)
    assert found["overall"] == pytest.approx(5.0)
    assert found["first_20"] == pytest.approx(1.0)
    assert found["last_20"] == pytest.approx(8.5)
    assert found["drop"] == pytest.approx(-7.5)
    sixteen = over_context(np.arange(16.0), [range(start, start + 4) for start in range(0, 64, 4)], 64)
    assert sixteen["first_20"] == pytest.approx((0 * 4 + 1 * 4 + 2 * 4 + 3 * 0.8) / 12.8)


def test_cells_of_the_map() -> None:
    np.testing.assert_array_equal(cells(np.array([0.0, 99.0, 50.0]), np.array([1.0, 99.0, 13.0]), 100), [0, 63, 33])


def sums(seed: int, documents: int = 24, groups: int = 6, drift: float = 0.0):
    """Kept vectors of one head of a layer, in groups; queries with a mean that grows with position."""
    rng = np.random.default_rng(seed)
    context, d = 64, 8
    per_group = documents // groups
    parts = []
    for group in range(groups):
        part = {}
        for kind in "qk":
            position = np.concatenate([np.sort(rng.choice(context, 32, replace=False)) for _ in range(per_group)])
            vectors = rng.standard_normal((1, len(position), d)).astype(np.float32)
            if kind == "q":
                vectors[..., 0] += drift * position / context
            part |= {
                f"{kind}.vectors": vectors,
                f"position.{kind}": position,
                f"document.{kind}": np.repeat(np.arange(per_group) + group * per_group, 32),
            }
        parts.append(part)
    layer = AttentionLayer(0, 0, 1, 1, d, 1.0, None)
    return parts, LayerHeads(layer, (0,), (0,)), Scope(context=context, documents=documents, bucket_size=4)


def test_plasticity_falls_where_the_query_mean_grows() -> None:
    found = read_kept(*sums(0, drift=6.0))
    flat = read_kept(*sums(0))
    assert found.values["ap_drop"][0] > 0.2
    assert abs(flat.values["ap_drop"][0]) < 0.05
    assert flat.values["ap_overall"][0] == pytest.approx(1.0, abs=0.02)
    profile = found.tables["plasticity_profile"]
    assert profile["empirical"].iloc[0] > profile["empirical"].iloc[-1] + 0.2
    assert (profile["start"] >= 4).all()


def test_errors_are_the_spread_of_repeated_experiments() -> None:
    repeated = [read_kept(*sums(seed, drift=3.0)) for seed in range(60)]
    values = np.array([one.values["ap_overall"][0] for one in repeated])
    errors = np.array([jackknife_error(one.replicates["ap_overall"])[0] for one in repeated])
    assert 0.7 < errors.mean() / values.std(ddof=1) < 1.5


def test_the_map_holds_every_pair_once() -> None:
    found = read_kept(*sums(2, drift=3.0))
    rows, profile = found.tables["plasticity_map"], found.tables["plasticity_profile"]
    assert rows["pairs"].sum() == profile["pairs"].sum()
    mean = (rows["plasticity"] * rows["pairs"]).sum() / rows["pairs"].sum()
    assert mean == pytest.approx((profile["empirical"] * profile["pairs"]).sum() / profile["pairs"].sum())


def test_a_model_gives_all_forms_alike() -> None:
    tokens = np.random.default_rng(0).integers(0, 300, (16, 128))
    statistics = {"moments": {}, "sample": {"rate": 1.0}, "buckets": {}}
    results = ropewalk.measure(tiny_smollm3(), tokens, context=128, shards=4, statistics=statistics)
    heads = results.heads
    assert (heads["ap_overall_gaussian"] - heads["ap_overall"]).abs().max() < 0.02
    np.testing.assert_allclose(heads["ap_gap"], heads["ap_overall_gaussian"] - heads["ap_overall"])
    assert (heads["ap_overall_sums"] - heads["ap_overall"]).abs().max() < 0.06
    assert set(results.tables.excerpts()["plasticity"]) >= {"ap_drop", "se_ap_drop", "ap_overall_sums"}
    assert {"empirical", "gaussian", "sums", "se_sums"} <= set(results.tables.others["plasticity_profile"])


def test_sums_by_bucket_merge_and_leave_out() -> None:
    from ropewalk.statistics.buckets import BucketMoments

    tokens = np.random.default_rng(1).integers(0, 300, (8, 64))
    options = {"context": 64, "statistics": ["buckets"], "skip_first": 5}
    several, whole = (ropewalk.measure(tiny_smollm3(), tokens, shards=shards, **options) for shards in (4, 1))
    captured, one = (next(iter(each.captures.values())) for each in (several, whole))
    layer = LayerHeads(captured.layout.layers[0], (0, 1, 2, 3), (0, 1))
    parts, (expected,) = captured.parts("buckets", layer), one.parts("buckets", layer)
    statistic = BucketMoments()
    merged = statistic.merge(parts)
    for name, array in expected.items():
        np.testing.assert_allclose(merged[name], array, rtol=2e-5, atol=2e-5, err_msg=name)
    rest, left = statistic.without(merged, parts[2]), statistic.merge([parts[0], parts[1], parts[3]])
    for name, array in left.items():
        np.testing.assert_allclose(rest[name], array, rtol=1e-4, atol=1e-4, err_msg=name)
    assert merged["n"][0] == 0
    assert merged["n"].sum() == 8 * 59
