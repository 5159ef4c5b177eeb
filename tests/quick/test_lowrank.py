"""Bases of lower rank: the score-optimal pair is the best there is, and what errors say holds on other vectors."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.exporting import CASES, CONTEXT, documents, tapped, vectors
from helpers.oracles import jackknife
from ropewalk.export import rank_figure
from ropewalk.geometry.jackknife import critical
from ropewalk.geometry.lowrank import (
    TITLES,
    all_bases,
    covariance,
    gram,
    leading_direction,
    projection,
    score_errors,
    score_optimal,
    turned_gram,
)
from ropewalk.geometry.moments import Moments

RANKS = (1, 2, 3, 4, 6, 8, 11)
D = 12


def drawn(seed: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys [1, tokens, d] that spread along other directions, each with a mean of its own."""
    shape = np.random.default_rng(0)
    mix_q, mix_k = shape.normal(size=(D, D)) * 0.7 ** np.arange(D), shape.normal(size=(D, D)) * 0.8 ** np.arange(D)
    mean_q, mean_k = shape.normal(size=(2, D))
    noise = np.random.default_rng(seed)
    q, k = noise.normal(size=(2, tokens, D))
    return (q @ mix_q.T + mean_q)[None], (k @ mix_k.T + mean_k)[None]


def grams(q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """G_q, G_k and the pooled scatter."""
    both = np.concatenate([q, k], axis=1)
    positions = np.arange(q.shape[1], dtype=float)
    scatter = np.cov(both[0], rowvar=False)[None]
    return gram(Moments.of(q, positions)), gram(Moments.of(k, positions)), scatter


@pytest.mark.parametrize("rank", RANKS)
def test_the_optimal_pair_is_better_than_any_other_basis(rank: int) -> None:
    q, k = drawn(1, 300)
    query, key, scatter = grams(q, k)
    errors = {name: score_errors(one, query, key)[0, rank] for name, one in all_bases(query, key, scatter).items()}
    assert set(errors) == set(TITLES)
    for name in ("pooled", "joint", "key", "query"):
        assert errors["optimal"] < errors[name]
    # What lies beyond the rank in the spectrum of all scores is the least that any matrix of that rank can lose.
    values = np.linalg.svd(q[0] @ k[0].T, compute_uv=False)[:D] ** 2
    assert errors["optimal"] == pytest.approx(values[rank:].sum() / values.sum(), rel=1e-6)
    generator = np.random.default_rng(rank)
    best = score_optimal(query, key)
    for size in (1e-3, 1e-2, 1.0):
        for _ in range(20):
            a = best.query[0, :, :rank] + size * generator.normal(size=(D, rank))
            b = best.key[0, :, :rank] + size * generator.normal(size=(D, rank))
            left = np.eye(D) - a @ b.T
            error = np.trace(left.T @ query[0] @ left @ key[0]) / np.trace(query[0] @ key[0])
            assert error >= errors["optimal"] - 1e-12


@pytest.mark.parametrize("name", TITLES)
def test_expected_errors_hold_on_held_out_vectors(name: str) -> None:
    """Every query of other documents against every key of them, with a standard error over documents."""
    query, key, scatter = grams(*drawn(1, 40_000))
    bases = all_bases(query, key, scatter)[name]
    expected = score_errors(bases, query, key)[0]
    parts = [drawn(200 + seed, 100) for seed in range(30)]
    other = all_bases(*grams(*(np.flip(part, axis=2) for part in drawn(1, 4000))))[name]
    for rank in RANKS:
        a, b = bases.query[0, :, :rank], bases.key[0, :, :rank]
        off = np.array([((q[0] @ k[0].T - (q[0] @ a) @ (k[0] @ b).T) ** 2).sum() for q, k in parts])
        own = np.array([((q[0] @ k[0].T) ** 2).sum() for q, k in parts])
        spread = jackknife(((off.sum() - off) / (own.sum() - own)).tolist())
        limit = critical(len(parts), len(RANKS) * len(TITLES)) * spread
        assert abs(off.sum() / own.sum() - expected[rank]) < limit
        if rank == 4:
            # The control: bases of other vectors are off by more than that.
            assert score_errors(other, query, key)[0, rank] > expected[rank] + limit


def test_errors_hold_on_held_out_documents_of_a_model() -> None:
    model = CASES["full"].model()
    rows = documents(7, 48)
    calls = tapped(model, rows)
    for layer in (0, 2):
        q, k = vectors(calls[layer], "q")[1:2], vectors(calls[layer], "k")[0:1]
        half = [(x[:, :24].reshape(1, -1, 8), x[:, 24:]) for x in (q, k)]
        query, key, scatter = grams(half[0][0], half[1][0])
        bases = all_bases(query, key, scatter)
        expected = {name: score_errors(one, query, key)[0] for name, one in bases.items()}
        for rank in range(1, 8):
            assert expected["optimal"][rank] < min(expected[name][rank] for name in ("pooled", "joint", "key", "query"))
        for name, one in bases.items():
            a, b = one.query[0, :, :3], one.key[0, :, :3]
            off, own = [], []
            for document in range(24):
                # Keys of another document, so that they are drawn apart from the queries.
                mine, other = half[0][1][0, document], half[1][1][0, (document + 1) % 24]
                scores = mine @ other.T
                off.append(((scores - (mine @ a) @ (other @ b).T) ** 2).mean())
                own.append((scores**2).mean())
            total = sum(off) / sum(own)
            parts = [(sum(off) - x) / (sum(own) - y) for x, y in zip(off, own, strict=True)]
            # Both halves are samples, so the difference has the error of two.
            assert abs(total - expected[name][3]) < critical(24, 8) * np.sqrt(2) * jackknife(parts)
    assert len(rows[0]) == CONTEXT


def test_errors_are_a_plain_loop() -> None:
    q, k = drawn(3, 50)
    query, key, scatter = grams(q, k)
    for one in all_bases(query, key, scatter).values():
        errors = score_errors(one, query, key)[0]
        for rank in range(D + 1):
            off = total = 0.0
            for x in q[0]:
                for y in k[0]:
                    score = sum(float(x @ one.query[0, :, i]) * float(y @ one.key[0, :, i]) for i in range(rank))
                    off += float(x @ y - score) ** 2
                    total += float(x @ y) ** 2
            assert errors[rank] == pytest.approx(off / total, abs=1e-9)
        assert errors[0] == 1
        assert errors[D] == pytest.approx(0, abs=1e-12)


def test_where_nothing_is_to_be_gained_nothing_is() -> None:
    """The control: with the same round spread in queries and keys, every basis of a rank loses the same."""
    query = key = np.eye(D)[None]
    for one in all_bases(query, key, key).values():
        np.testing.assert_allclose(score_errors(one, query, key)[0], 1 - np.arange(D + 1) / D, atol=1e-12)


def test_directions_without_scores_are_left_out() -> None:
    query, key = np.zeros((1, 3, 3)), np.zeros((1, 3, 3))
    query[0, 0, 0] = query[0, 1, 1] = key[0, 1, 1] = key[0, 2, 2] = 1.0
    found = score_optimal(query, key)
    assert found.rank_for(1.0).tolist() == [1]
    np.testing.assert_allclose(np.abs(found.query[0]), np.diag([0, 1, 0])[:, [1, 0, 0]], atol=1e-12)
    assert np.isnan(score_errors(projection(query), query, np.zeros((1, 3, 3)))).all()


def test_grams_and_covariances_are_numpys() -> None:
    x = np.random.default_rng(0).normal(3, 1, size=(2, 30, 4))
    moments = Moments.of(x, np.arange(30.0))
    np.testing.assert_allclose(gram(moments), [one.T @ one / 30 for one in x])
    np.testing.assert_allclose(covariance(moments, ddof=1), [np.cov(one, rowvar=False) for one in x])


def test_the_leading_direction_points_to_where_vectors_do() -> None:
    x = np.random.default_rng(0).normal(size=(2, 500, 4))
    x[0] += [5, 0, 0, 0]
    x[1] -= [0, 5, 0, 0]
    direction, share = leading_direction(Moments.of(x, np.arange(500.0)))
    assert direction[0, 0] > 0.99
    assert direction[1, 1] < -0.99
    np.testing.assert_allclose(
        share, [(one @ u @ (one @ u)) / (one**2).sum() for one, u in zip(x, direction, strict=True)]
    )


def test_grams_seen_by_turned_keys_are_means_over_positions() -> None:
    generator = np.random.default_rng(0)
    first, second, frequencies = [0, 3], [2, 1], np.array([1.0, 0.3])
    root = generator.normal(size=(1, 5, 5))
    matrix = root @ root.transpose(0, 2, 1)
    angles = np.zeros((9, 5))
    angles[:, first] = angles[:, second] = np.outer(np.arange(3, 12), frequencies)
    expected = np.zeros((5, 5))
    for t in range(3, 12):
        turn = np.eye(5)
        for a, b, frequency in zip(first, second, frequencies, strict=True):
            c, s = np.cos(frequency * t), np.sin(frequency * t)
            turn[[a, a, b, b], [a, b, a, b]] = [c, -s, s, c]
        expected += turn.T @ matrix[0] @ turn / 9
    np.testing.assert_allclose(turned_gram(matrix, first, second, np.cos(angles), np.sin(angles))[0], expected)


def test_the_figure_shows_the_table(tmp_path: Path) -> None:
    rows = []
    for head in range(3):
        for basis, size in zip(TITLES, (5, 4, 3, 2, 1), strict=True):
            rows += [
                {"layer": 0, "head": head, "basis": basis, "rank": rank, "error": (head + size) / rank, "held_out": 0.5}
                for rank in (1, 2, 4)
            ]
    table = pd.DataFrame([*rows, {"layer": 0, "head": 0, "basis": "key", "rank": 3, "error": 9.0, "held_out": 1.0}])
    figure = rank_figure.draw(table)
    (ax,) = figure.axes
    curves = {line.get_gid(): line for line in ax.lines}
    assert set(curves) == set(TITLES)
    for basis, size in zip(TITLES, (5, 4, 3, 2, 1), strict=True):
        # A rank that only some heads have is not a median over heads.
        assert curves[basis].get_xdata().tolist() == [1, 2, 4]
        np.testing.assert_allclose(curves[basis].get_ydata(), [(1 + size) / rank for rank in (1, 2, 4)])
    text = rank_figure.caption(table, "three heads")
    assert "At rank 4: 1.500 (combined PCA), 1.250 (leading directions of both together), 1.000" in text
    assert "0.500 (optimal)" in text
