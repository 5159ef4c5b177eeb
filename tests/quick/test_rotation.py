"""The plane of drift and separation, against a plain loop on raw vectors and planted numbers."""

import numpy as np
import pytest
import torch

import ropewalk
from helpers.model_types import tiny_model
from helpers.tiny import tiny_smollm3
from ropewalk.geometry.moments import Moments
from ropewalk.geometry.rotation import METRICS, OF_PAIRS, by_wavelength, pair_energy, rotation

D, TOKENS, CONTEXT = 12, 600, 100


def vectors(seed: int, drift_q: float = 0.02, drift_k: float = 0.01, offset: float = 3.0):
    """Queries and keys [1, tokens, d] that drift along one direction and are apart along another."""
    rng = np.random.default_rng(seed)
    plane = np.linalg.qr(rng.standard_normal((D, 2)))[0]
    t = np.tile(np.arange(CONTEXT), TOKENS // CONTEXT).astype(float)
    mix = rng.standard_normal((D, D)) / np.sqrt(D)
    q = rng.standard_normal((TOKENS, D)) @ mix + offset * plane[:, 1] + drift_q * t[:, None] * plane[:, 0]
    k = rng.standard_normal((TOKENS, D)) @ mix.T + drift_k * t[:, None] * plane[:, 0]
    return q[None], k[None], t, plane


def loop(q: np.ndarray, k: np.ndarray, t: np.ndarray) -> dict[str, float]:
    """Every metric from raw vectors of one head, spelled out (method §5)."""
    pooled, both = np.concatenate([q, k]), np.concatenate([t, t])
    centred, away = pooled - pooled.mean(axis=0), both - both.mean()
    c = sum(centred[i] * away[i] for i in range(len(pooled)))
    a = c / np.sqrt(c @ c)
    offset = q.mean(axis=0) - k.mean(axis=0)
    b = offset - (offset @ a) * a
    b = b / np.sqrt(b @ b)
    found = {}
    for kind, x in (("q", q), ("k", k)):
        found |= {f"mu_{kind}_a": float(a @ x.mean(axis=0)), f"mu_{kind}_b": float(b @ x.mean(axis=0))}
    for kind, x in (("q", q), ("k", k)):
        along = x @ a
        found[f"alpha_{kind}"] = float(np.polyfit(t, along, 1)[0])
        found[f"alpha_{kind}_context"] = found[f"alpha_{kind}"] * CONTEXT
        found[f"r_{kind}_a"] = float(np.corrcoef(along, t)[0, 1])
    found["bias_strength"] = found["mu_q_a"] * found["alpha_k"]
    found["bias_strength_context"] = found["bias_strength"] * CONTEXT
    scatter = centred.T @ centred
    pairs = np.cov(q.T, bias=True) + np.cov(k.T, bias=True) + np.outer(offset, offset)
    found["separation_strength"] = float(b @ pairs @ b / np.trace(pairs))
    found["var_frac_a"], found["var_frac_b"] = (float(x @ scatter @ x / np.trace(scatter)) for x in (a, b))
    found["plane_var_fraction"] = found["var_frac_a"] + found["var_frac_b"]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_every_metric_is_that_of_a_plain_loop(seed: int) -> None:
    q, k, t, _ = vectors(seed)
    found = rotation(Moments.of(q, t), Moments.of(k, t), CONTEXT)
    expected = loop(q[0], k[0], t)
    assert set(found) == set(METRICS) == {*expected, "residual_pos_r"}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name][0], value, rtol=1e-6, atol=1e-9, err_msg=name)


def test_planted_drift_and_offset_come_back() -> None:
    rng = np.random.default_rng(0)
    t = np.tile(np.arange(400), 50).astype(float)
    q, k = (rng.standard_normal((1, len(t), D)) for _ in range(2))
    q[0, :, 0] += 0.03 * t + 2.0
    k[0, :, 0] += 0.01 * t
    q[0, :, 1] += 5.0
    found = rotation(Moments.of(q, t), Moments.of(k, t), 400)
    assert found["alpha_q"][0] == pytest.approx(0.03, rel=0.02)
    assert found["alpha_k"][0] == pytest.approx(0.01, rel=0.03)
    assert found["mu_q_a"][0] == pytest.approx(0.03 * 199.5 + 2, rel=0.02)
    assert found["mu_q_b"][0] - found["mu_k_b"][0] == pytest.approx(5, rel=0.02)
    assert found["bias_strength_context"][0] == pytest.approx(400 * 0.01 * (0.03 * 199.5 + 2), rel=0.03)


def test_what_is_left_outside_the_axis_has_no_covariance_with_position() -> None:
    q, k, t, _ = vectors(3)
    moments = Moments.of(q, t), Moments.of(k, t)
    assert rotation(*moments, CONTEXT)["residual_pos_r"][0] < 1e-13
    pooled, both = np.concatenate([q[0], k[0]]), np.concatenate([t, t])
    covariance = (pooled - pooled.mean(axis=0)).T @ (both - both.mean())
    axis = covariance / np.linalg.norm(covariance)
    left = pooled - np.outer(pooled @ axis, axis)
    outside = (left - left.mean(axis=0)).T @ (both - both.mean())
    assert np.linalg.norm(outside) < 1e-10 * np.linalg.norm(covariance)


def test_shuffled_positions_kill_the_drift() -> None:
    q, k, t, _ = vectors(1, drift_q=0.05, drift_k=0.05)
    shuffled = np.random.default_rng(1).permutation(t)
    drifting, still = (rotation(Moments.of(q, x), Moments.of(k, x), CONTEXT) for x in (t, shuffled))
    assert drifting["r_k_a"][0] > 0.7
    assert abs(still["r_k_a"][0]) < 0.2


def test_what_does_not_drift_has_no_plane() -> None:
    still = np.ones((1, 50, D))
    found = rotation(Moments.of(still, np.arange(50.0)), Moments.of(2 * still, np.arange(50.0)), 50)
    assert all(np.isnan(values).all() for values in found.values())


def test_an_offset_along_the_drift_has_no_separation_axis() -> None:
    t = np.arange(50.0)
    q, k = np.zeros((1, 50, D)), np.zeros((1, 50, D))
    q[0, :, 0], k[0, :, 0] = t + 7, t
    found = rotation(Moments.of(q, t), Moments.of(k, t), 50)
    assert found["alpha_k"][0] == pytest.approx(1)
    assert np.isnan(found["mu_q_b"][0])


def test_energy_by_wavelength() -> None:
    axes = np.array([[0.6, 0.0, 0.0, 0.8], [0.0, 1.0, 0.0, 0.0]])
    energy = pair_energy(axes, (0, 1), (2, 3))
    np.testing.assert_allclose(energy, [[0.36, 0.64], [0.0, 1.0]])
    found = by_wavelength(energy, energy[::-1], [2 * np.pi / 10, 2 * np.pi / 1000], 100)
    assert set(found) == set(OF_PAIRS)
    np.testing.assert_allclose(found["drift_slow"], [0.64, 1.0])
    np.testing.assert_allclose(found["pc0_slow"], [1.0, 0.64])
    np.testing.assert_allclose(found["drift_wavelength"], [10**0.36 * 1000**0.64, 1000])


def tokens(vocabulary: int = 64) -> np.ndarray:
    return np.random.default_rng(0).integers(3, vocabulary, (8, 48))


@pytest.mark.parametrize("model_type", ["llama", "glm", "gpt_neox", "cohere"])
def test_energies_follow_the_pairs_of_every_layout(model_type: str) -> None:
    """Half-split and interleaved, whole and partial: in the pairs that the model turns, however they lie."""
    torch.manual_seed(0)
    results = ropewalk.measure(tiny_model(model_type), tokens(), context=48, shards=2, statistics=["moments"])
    captured = next(iter(results.captures.values()))
    for layer in captured.layout.layers:
        pairs = layer.rotary_pairs
        assert pairs is not None
        for head in range(layer.query_heads):
            detail = results.head(layer.layer, head)
            assert detail.components is not None
            pc0 = detail.components[0]
            expected = {
                round(2 * np.pi / frequency, 4): pc0[a] ** 2 + pc0[b] ** 2
                for a, b, frequency in zip(pairs.first, pairs.second, pairs.frequencies, strict=True)
            }
            assert detail.frame is not None
            for _, row in detail.frame.iterrows():
                assert row["pc0_energy"] == pytest.approx(expected[round(row["wavelength"], 4)], abs=1e-9)
            assert detail.frame["drift_energy"].sum() <= 1 + 1e-9


def test_layers_without_rope_have_a_plane_and_no_wavelengths() -> None:
    results = ropewalk.measure(tiny_smollm3(), tokens(300), context=48, shards=4, statistics=["moments"])
    nope = results.heads[~results.heads["rope"]]
    assert nope["drift_slow"].isna().all()
    assert nope["bias_strength"].notna().all()
    assert set(results.tables.others["spectrum"]["layer"]) == {0, 1, 2, 4}
    excerpts = results.tables.excerpts()
    assert {"bias_strength", "se_bias_strength", "drift_slow"} <= set(excerpts["rotated"])
    assert "plasticity" not in excerpts
