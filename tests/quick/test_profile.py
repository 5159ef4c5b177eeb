"""Profiles: how much of the variance lies between positions, whatever its shape."""

from typing import Any

import numpy as np
import pytest
import torch

import ropewalk
from helpers.tiny import tiny_smollm3
from ropewalk.geometry.jackknife import jackknife_error
from ropewalk.geometry.profile import between, between_along
from ropewalk.models.tap import Call, tap
from ropewalk.statistics.profile import bucket_edges

CONTEXT = 128
EDGES = bucket_edges(CONTEXT)
WIDTHS = np.diff(EDGES)


def bucketed(x: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of vectors [documents, tokens, d] as the statistic has them, in groups of documents, for one head."""
    parts = np.array_split(x, groups)
    sums = np.stack([np.add.reduceat(part.sum(axis=0), EDGES[:-1], axis=0)[None] for part in parts])
    squares = np.stack([np.add.reduceat((part**2).sum(axis=(0, 2)), EDGES[:-1])[None] for part in parts])
    return np.stack([WIDTHS * float(len(part)) for part in parts]), sums, squares


def eta2(x: np.ndarray, groups: int) -> np.ndarray:
    """[1 + groups] the share of all documents, and without each group."""
    inside, spread = between(*bucketed(x, groups))
    return (inside / spread)[:, 0]


def drawn(rng: np.random.Generator, documents: int, share: float, d: int = 8) -> np.ndarray:
    """Vectors whose mean moves with the bucket of their position (not in a line), with this share of the variance.

    Tokens of a document share an offset, so that they are not independent.
    """
    path = rng.normal(size=(len(WIDTHS), d))
    mean = path.T @ WIDTHS / CONTEXT
    path -= mean
    path *= np.sqrt(CONTEXT * d / (WIDTHS @ (path**2)).sum())
    noise = np.sqrt(0.8) * rng.normal(size=(documents, CONTEXT, d)) + np.sqrt(0.2) * rng.normal(size=(documents, 1, d))
    return 3.0 + np.sqrt(share) * np.repeat(path, WIDTHS, axis=0) + np.sqrt(1 - share) * noise


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("documents", [3, 8])
def test_the_share_is_unbiased_at_few_documents(share: float, documents: int) -> None:
    rng = np.random.default_rng(int(1000 * share) + documents)
    found = np.array([eta2(drawn(rng, documents, share), documents)[0] for _ in range(400)])
    assert found.mean() == pytest.approx(share, abs=4 * found.std() / np.sqrt(len(found)) + 0.02 * share)
    # Negative control: without products across groups noise counts, the more the fewer documents there are.
    n, sums, squares = bucketed(drawn(rng, documents, 0.0), documents)
    means = sums.sum(axis=0)[0] / n.sum(axis=0)[:, None]
    mean = sums.sum(axis=(0, 2))[0] / n.sum()
    plain = (n.sum(axis=0) * ((means - mean) ** 2).sum(axis=1)).sum() / (squares.sum() - n.sum() * mean @ mean)
    assert plain > 0.2 / documents


def test_the_error_covers() -> None:
    rng = np.random.default_rng(5)
    inside = []
    for _ in range(300):
        found = eta2(drawn(rng, 8, 0.1), 8)
        inside.append(abs(found[0] - 0.1) < 2.36 * jackknife_error(found[1:]))
    assert np.mean(inside) > 0.9


def test_permuted_positions_leave_nothing() -> None:
    rng = np.random.default_rng(6)
    found = []
    for _ in range(200):
        x = drawn(rng, 8, 0.5)
        shuffled = np.stack([document[rng.permutation(CONTEXT)] for document in x])
        one = eta2(shuffled, 8)
        found.append(one[0] / jackknife_error(one[1:]))
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(len(found))
    assert (np.abs(found) < 2.36).mean() > 0.9


def test_one_group_has_no_products_across() -> None:
    assert np.isnan(eta2(drawn(np.random.default_rng(0), 3, 0.2), 1)).all()


def test_along_a_direction_it_is_the_share_of_the_projection() -> None:
    rng = np.random.default_rng(7)
    x = drawn(rng, 6, 0.2)
    v = rng.normal(size=8)
    v /= np.linalg.norm(v)
    n, sums, _ = bucketed(x, 6)
    found = between_along(n, sums, np.tile(v, (7, 1, 1)))
    projected = (x @ v)[..., None]
    inside, spread = between(*bucketed(projected, 6))
    np.testing.assert_allclose(found, inside, rtol=1e-9)
    assert (found / spread)[0, 0] == pytest.approx(0.2, abs=0.15)


@pytest.fixture(scope="module")
def results() -> tuple[ropewalk.Results, list[Call]]:
    model: Any = tiny_smollm3(attention_bias=True)
    torch.manual_seed(2)
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.bias.data = torch.randn(projection.bias.shape)
    tokens = np.random.default_rng(0).integers(3, 40, (8, CONTEXT))
    calls: list[Call] = []
    with torch.inference_mode(), tap(model, calls.append):
        model(input_ids=torch.from_numpy(tokens), use_cache=False)
    return ropewalk.measure(model, tokens.tolist(), context=CONTEXT, shards=4, statistics=["profile"]), calls


def test_shares_and_paths_of_a_model_are_those_of_its_vectors(results: tuple[ropewalk.Results, list[Call]]) -> None:
    found, calls = results
    for row in found.heads.itertuples():
        pc0 = found.head(row.layer, row.head).components
        assert pc0 is not None
        own = found.tables.others["profiles"].query(f"layer == {row.layer} and head == {row.head}")
        assert own["start"].tolist() == EDGES[:-1].tolist()
        for kind, head in (("q", row.head), ("k", row.k_head)):
            call = calls[row.layer]
            x = (call.query if kind == "q" else call.key)[:, head].double().numpy()
            assert getattr(row, f"eta2_{kind}") == pytest.approx(eta2(x, 4)[0], rel=1e-4, abs=1e-6)
            projected = x @ pc0[0]
            on_pc0 = between(*bucketed(projected[..., None], 4))[0][0, 0] / (projected.size * projected.var())
            assert getattr(row, f"eta2_pc0_{kind}") == pytest.approx(on_pc0, rel=1e-3, abs=1e-5)
            assert getattr(row, f"bend_{kind}") == pytest.approx(on_pc0 - getattr(row, f"r_{kind}") ** 2, abs=1e-4)
            path = np.add.reduceat(projected.mean(axis=0), EDGES[:-1]) / WIDTHS
            np.testing.assert_allclose(own[kind], path, rtol=1e-4, atol=1e-4)
            slope, level = np.polyfit(np.tile(np.arange(CONTEXT), 8), projected.ravel(), 1)
            middle = (EDGES[:-1] + EDGES[1:] - 1) / 2
            np.testing.assert_allclose(own[f"line_{kind}"], level + slope * middle, rtol=1e-3, atol=1e-4)
    assert found.heads["se_eta2_q"].notna().all()
