"""Combined PCA against scikit-learn and SciPy, its signs, its missing values, its errors."""

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from sklearn import decomposition

from ropewalk.geometry.jackknife import jackknife_covariance, jackknife_error
from ropewalk.geometry.moments import Moments
from ropewalk.geometry.pca import combined_pca
from ropewalk.statistics.stream import MomentStream


def synthetic(heads: int, tokens: int, d: int, seed: int = 0, offset: float = 0.0, drift: float = 0.02) -> np.ndarray:
    """Vectors with a decaying spectrum and a drift with position, around a common offset, rounded to float32."""
    generator = np.random.default_rng(seed)
    scale = np.exp(-np.arange(d) / (d / 6))
    noise = generator.normal(size=(heads, tokens, d)) * scale
    axis = generator.normal(size=(heads, 1, d)) / np.sqrt(d)
    x = noise + drift * np.arange(tokens)[None, :, None] * axis + offset
    return x.astype(np.float32).astype(np.float64)


def accumulated(x: np.ndarray, documents: int) -> Moments:
    """Moments as a capture gathers them: float32 tensors, document by document."""
    heads, tokens, d = x.shape
    tensors = torch.from_numpy(x).float().reshape(heads, documents, tokens // documents, d).transpose(0, 1)
    accumulator = MomentStream()
    for document in tensors:
        accumulator.update(document[None], torch.arange(tokens // documents))
    return accumulator.result()


@pytest.mark.parametrize("d", [16, 32, 64, 128])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_against_scikit_learn_and_scipy(d: int, offset: float) -> None:
    tokens, documents, heads = 600, 3, 2
    q, k = synthetic(heads, tokens, d, 1, offset), synthetic(heads, tokens, d, 2, offset)
    t = np.tile(np.arange(tokens // documents), documents)
    result = combined_pca(accumulated(q, documents), accumulated(k, documents))
    for head in range(heads):
        oracle = decomposition.PCA(10, svd_solver="full").fit(np.concatenate([q[head], k[head]]))
        np.testing.assert_allclose(result.explained_variance[head], oracle.explained_variance_ratio_, atol=1e-6)
        for j in range(10):
            r_q, r_k = (pearsonr(x[head] @ oracle.components_[j], t).statistic for x in (q, k))
            assert abs(result.r_q[head, j]) == pytest.approx(abs(r_q), abs=1e-6)
            assert abs(result.r_k[head, j]) == pytest.approx(abs(r_k), abs=1e-6)
            assert np.sign(result.r_q[head, j] * result.r_k[head, j]) == np.sign(r_q * r_k)


def test_signs_follow_the_rule() -> None:
    result = combined_pca(
        Moments.of(synthetic(40, 200, 16, 3), np.arange(200)), Moments.of(synthetic(40, 200, 16, 4), np.arange(200))
    )
    decided = np.abs(result.r_q) >= 0.05
    assert (result.r_q[decided] > 0).all()
    assert (result.r_k[~decided] >= 0).all()
    assert (~decided).any()


def test_concordant_and_discordant_heads_are_told_apart() -> None:
    t = np.arange(300.0)
    axis = np.eye(8)[0]
    noise = np.random.default_rng(0).normal(size=(2, 300, 8)) * 0.1
    q = Moments.of((noise[:1] + t[:, None] * axis), t)
    same, opposed = Moments.of(noise[1:] + t[:, None] * axis, t), Moments.of(noise[1:] - t[:, None] * axis, t)
    assert combined_pca(q, same).r_k[0, 0] > 0.99
    assert combined_pca(q, opposed).r_k[0, 0] < -0.99
    assert combined_pca(q, opposed).r_q[0, 0] > 0.99


def test_shuffled_positions_kill_the_correlation() -> None:
    """Negative control: the effect is there, and it vanishes with the order, the more so the more tokens there are."""
    levels = []
    for tokens in (500, 20000):
        q, k = (synthetic(4, tokens, 16, seed, drift=20 / tokens) for seed in (5, 6))
        t = np.arange(tokens, dtype=float)
        assert np.abs(combined_pca(Moments.of(q, t), Moments.of(k, t)).r_q[:, 0]).min() > 0.3
        shuffled = np.random.default_rng(0).permutation(t)
        result = combined_pca(Moments.of(q, shuffled), Moments.of(k, shuffled))
        levels.append(max(np.abs(result.r_q).max(), np.abs(result.r_k).max()))
    assert levels[1] < 0.05
    assert levels[1] < levels[0] / 2


def test_constant_projections_and_positions_are_missing_not_zero() -> None:
    t = np.arange(50.0)
    moving, still = Moments.of(synthetic(1, 50, 8), t), Moments.of(np.ones((1, 50, 8)), t)
    result = combined_pca(still, moving)
    assert np.isnan(result.r_q).all()
    assert np.isfinite(result.r_k[0, 0])
    assert np.isnan(combined_pca(still, still).explained_variance).all()
    assert np.isnan(combined_pca(still, still).eigengap).all()
    fixed = Moments.of(synthetic(1, 50, 8), np.full(50, 3.0))
    assert np.isnan(combined_pca(fixed, moving).r_q).all()


def test_fewer_dimensions_than_components() -> None:
    moments = Moments.of(synthetic(2, 50, 4), np.arange(50))
    result = combined_pca(moments, moments)
    assert result.r_q.shape == (2, 4)
    np.testing.assert_allclose(result.explained_variance.sum(axis=1), 1)


def test_eigengap() -> None:
    x = np.zeros((1, 4, 2))
    x[0, :, 0], x[0, :, 1] = [1, -1, 1, -1], [0.5, 0.5, -0.5, -0.5]
    moments = Moments.of(x, np.arange(4.0))
    assert combined_pca(moments, moments).eigengap[0] == pytest.approx((4 - 1) / 4)


def test_jackknife_covariance_against_numpy() -> None:
    values = np.random.default_rng(0).normal(size=(9, 4, 2))
    found = jackknife_covariance(values)
    for head in range(4):
        np.testing.assert_allclose(found[head], np.cov(values[:, head].T, bias=True) * 8)
    np.testing.assert_allclose(np.sqrt(found[:, 0, 0]), jackknife_error(values)[:, 0])
    assert np.isnan(jackknife_covariance(values[:1])).all()
    assert jackknife_covariance(values[:1]).shape == (4, 2, 2)


def test_jackknife_of_a_mean_is_its_standard_error() -> None:
    """For a mean, the delete-one jackknife is s/√n exactly."""
    values = np.random.default_rng(0).normal(size=12)
    replicates = np.array([np.delete(values, i).mean() for i in range(12)])
    assert jackknife_error(replicates) == pytest.approx(values.std(ddof=1) / np.sqrt(12))
