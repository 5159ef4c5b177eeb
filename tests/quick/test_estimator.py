"""CombinedPCA: scikit-learn's own checks, scikit-learn and SciPy as oracles, exact splits, positions, errors."""

import doctest
import importlib
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr
from sklearn import config_context, decomposition
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from ropewalk.errors import RopewalkError
from ropewalk.geometry import estimator
from ropewalk.geometry.estimator import CombinedPCA

D = 12
FITTED = [
    "components_",
    "explained_variance_",
    "explained_variance_ratio_",
    "r_q_",
    "r_k_",
    "mean_q_",
    "mean_k_",
    "n_samples_q_",
    "n_samples_k_",
    "eigengap_",
]


def head(n_q: int = 300, n_k: int = 200, d: int = D, seed: int = 0, offset: float = 0.0) -> tuple[np.ndarray, ...]:
    """Queries and keys with a steep spectrum, apart from each other, drifting with their positions: q, k, t_q, t_k."""
    generator = np.random.default_rng(seed)
    scale = np.exp(-np.arange(d) / 4)
    turn = np.linalg.qr(generator.normal(size=(d, d)))[0]
    t_q, t_k = generator.permutation(500)[:n_q], generator.permutation(500)[:n_k]
    q = generator.normal(size=(n_q, d)) * scale + 0.004 * t_q[:, None] * scale
    k = generator.normal(size=(n_k, d)) * scale - 0.004 * t_k[:, None] * scale[::-1] + 0.5
    return q @ turn + offset, k @ turn + offset, t_q, t_k


def assert_same_fit(a: CombinedPCA, b: CombinedPCA, atol: float = 1e-10) -> None:
    for name in FITTED:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=atol, rtol=1e-10, err_msg=name)


# No check is expected to fail; check_array_api_input is skipped by scikit-learn unless SCIPY_ARRAY_API is set.
CHECKS = [
    pytest.param(estimator, check, id=f"{size}-{check.func.__name__}-{number}")
    for size in (10, 2, None)
    for number, (estimator, check) in enumerate(estimator_checks_generator(CombinedPCA(n_components=size)))
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_scikit_learn_checks(estimator: CombinedPCA, check: Callable[[Any], None]) -> None:
    try:
        check(estimator)
    except SkipTest as reason:
        pytest.skip(str(reason))


def test_docstring_example_runs() -> None:
    failed, attempted = doctest.testmod(estimator)
    assert attempted >= 10
    assert failed == 0


def test_import_without_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "ropewalk.geometry.estimator")
    message = "CombinedPCA needs scikit-learn: pip install 'ropewalk[sklearn]' (in a clone: "
    with pytest.raises(RopewalkError, match=f"^{re.escape(message)}"):
        importlib.import_module("ropewalk.geometry.estimator")


# Numbers


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_components_and_variances_are_those_of_a_pca_of_the_pooled_vectors(offset: float) -> None:
    q, k, t_q, t_k = head(offset=offset)
    fitted = CombinedPCA(5).fit(q, k, (t_q, t_k))
    oracle = decomposition.PCA(5, svd_solver="full").fit(np.concatenate([q, k]))
    signs = np.sign((fitted.components_ * oracle.components_).sum(axis=1))
    np.testing.assert_allclose(fitted.components_, oracle.components_ * signs[:, None], atol=1e-9)
    np.testing.assert_allclose(fitted.explained_variance_, oracle.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(fitted.explained_variance_ratio_, oracle.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(fitted.mean_q_, q.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(fitted.mean_k_, k.mean(axis=0), rtol=1e-12)
    variance = oracle.explained_variance_
    assert fitted.eigengap_ == pytest.approx((variance[0] - variance[1]) / variance[0], abs=1e-9)
    assert (fitted.n_samples_q_, fitted.n_samples_k_, fitted.n_features_in_) == (300, 200, D)


def test_correlations_are_those_of_the_projections_with_position() -> None:
    q, k, t_q, t_k = head()
    fitted = CombinedPCA(None).fit(q, k, (t_q, t_k))
    for j in range(D):
        assert fitted.r_q_[j] == pytest.approx(pearsonr(fitted.transform(q)[:, j], t_q).statistic, abs=1e-10)
        assert fitted.r_k_[j] == pytest.approx(pearsonr(fitted.transform(k)[:, j], t_k).statistic, abs=1e-10)


def test_signs_follow_the_rule() -> None:
    decided_by_keys = 0
    for seed in range(20):
        q, k, t_q, t_k = head(seed=seed)
        fitted = CombinedPCA(None).fit(q, k, (t_q, t_k))
        decided = np.abs(fitted.r_q_) >= 0.05
        assert (fitted.r_q_[decided] > 0).all()
        assert (fitted.r_k_[~decided] >= 0).all()
        decided_by_keys += int((~decided).sum())
    assert decided_by_keys > 0


def test_queries_alone_are_a_plain_pca() -> None:
    q, _, t_q, _ = head()
    fitted = CombinedPCA(4).fit(q, positions=t_q)
    oracle = decomposition.PCA(4, svd_solver="full").fit(q)
    np.testing.assert_allclose(np.abs(fitted.components_), np.abs(oracle.components_), atol=1e-9)
    np.testing.assert_allclose(fitted.explained_variance_, oracle.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(fitted.explained_variance_ratio_, oracle.explained_variance_ratio_, rtol=1e-9)
    assert np.isfinite(fitted.r_q_).all()
    assert np.isnan(fitted.r_k_).all()
    assert np.isnan(fitted.mean_k_).all()
    assert fitted.n_samples_k_ == 0


def test_components_without_a_correlation_to_orient_them_have_a_positive_largest_entry() -> None:
    q, _, _, _ = head()
    components = CombinedPCA(None).fit(q, positions=np.zeros(len(q))).components_
    assert (components[np.arange(D), np.abs(components).argmax(axis=1)] > 0).all()


def test_all_components_preserve_scores() -> None:
    q, k, t_q, t_k = head(offset=3.0)
    fitted = CombinedPCA(None).fit(q, k, (t_q, t_k))
    np.testing.assert_allclose(fitted.transform(q) @ fitted.transform(k).T, q @ k.T, rtol=1e-10)


def test_centring_would_change_scores() -> None:
    q, k, _, _ = head(offset=3.0)
    centred = decomposition.PCA().fit(np.concatenate([q, k]))
    assert np.abs(centred.transform(q) @ centred.transform(k).T - q @ k.T).max() > 1


def test_transform_is_the_projection_and_inverse_transform_undoes_it() -> None:
    q, k, t_q, t_k = head(offset=3.0)
    whole, few = CombinedPCA(None).fit(q, k, (t_q, t_k)), CombinedPCA(3).fit(q, k, (t_q, t_k))
    np.testing.assert_allclose(few.transform(k), k @ few.components_.T)
    np.testing.assert_allclose(whole.inverse_transform(whole.transform(k)), k, atol=1e-10)
    nearest = few.inverse_transform(few.transform(k))
    np.testing.assert_allclose(few.transform(k - nearest), 0, atol=1e-10)
    np.testing.assert_allclose(few.fit_transform(q, k, (t_q, t_k)), few.transform(q))


def test_number_of_components() -> None:
    q, k, _, _ = head()
    assert CombinedPCA().fit(q, k).components_.shape == (10, D)
    assert CombinedPCA().fit(q[:, :4], k[:, :4]).n_components_ == 4
    assert CombinedPCA(None).fit(q, k).n_components_ == D
    one, two = CombinedPCA(1).fit(q, k), CombinedPCA(2).fit(q, k)
    assert one.r_q_.shape == one.r_k_.shape == one.explained_variance_.shape == (1,)
    assert one.eigengap_ == two.eigengap_
    assert np.isnan(CombinedPCA().fit(q[:, :1], k[:, :1]).eigengap_)


# Missing


@pytest.mark.parametrize("value", [0, 7, 0.1, 1e9 / 3])
def test_constant_positions_have_no_correlation(value: float) -> None:
    q, k, _, t_k = head()
    fitted = CombinedPCA().fit(q, k, (np.full(len(q), value), t_k))
    assert np.isnan(fitted.r_q_).all()
    assert (fitted.r_k_ >= 0).all()
    fitted.partial_fit(q[:7], k, (np.full(7, value), t_k))
    assert np.isnan(fitted.r_q_).all()


def test_constant_vectors_have_no_correlation_and_no_variance() -> None:
    fitted = CombinedPCA().fit(np.full((30, 4), 0.1))
    np.testing.assert_array_equal(fitted.explained_variance_, 0)
    for name in ("r_q_", "r_k_", "explained_variance_ratio_", "eigengap_"):
        assert np.isnan(getattr(fitted, name)).all(), name


def test_constant_projection_has_no_correlation() -> None:
    _, k, t_q, t_k = head()
    fitted = CombinedPCA(None).fit(np.full((len(t_q), D), 0.1), k, (t_q, t_k))
    assert np.isnan(fitted.r_q_).all()
    assert (fitted.r_k_ >= 0).all()
    wide = CombinedPCA(None).fit(np.c_[k, np.full(len(k), 0.1)], positions=t_k)
    assert np.isnan(wide.r_q_).tolist() == [False] * D + [True]


def test_more_components_than_rank_are_orthonormal_and_missing() -> None:
    q = np.random.default_rng(0).normal(size=(3, 8))
    fitted = CombinedPCA(None).fit(q)
    np.testing.assert_allclose(fitted.components_ @ fitted.components_.T, np.eye(8), atol=1e-12)
    assert np.isnan(fitted.r_q_).tolist() == [False] * 2 + [True] * 6
    np.testing.assert_allclose(fitted.explained_variance_[2:], 0, atol=1e-12)


# Parts


@settings(max_examples=40, deadline=None)
@given(
    cuts_q=st.lists(st.integers(1, 299), max_size=6, unique=True),
    cuts_k=st.lists(st.integers(1, 199), max_size=6, unique=True),
    n_components=st.sampled_from([1, 5, None]),
)
def test_any_split_gives_the_same_fit(cuts_q: list[int], cuts_k: list[int], n_components: int | None) -> None:
    q, k, t_q, t_k = head(offset=10.0)
    whole = CombinedPCA(n_components).fit(q, k, (t_q, t_k))
    parts_q = np.split(np.arange(300), sorted(cuts_q))
    parts_k: list[Any] = np.split(np.arange(200), sorted(cuts_k))[: len(parts_q)]
    parts_k[-1] = np.arange(parts_k[-1][0], 200)
    parts_k += [None] * (len(parts_q) - len(parts_k))
    split = CombinedPCA(n_components)
    for of_q, of_k in zip(parts_q, parts_k, strict=True):
        if of_k is None:
            split.partial_fit(q[of_q], None, t_q[of_q])
        else:
            split.partial_fit(q[of_q], k[of_k], (t_q[of_q], t_k[of_k]))
    assert_same_fit(split, whole)


def test_row_by_row_is_the_same_fit_and_queries_alone_too() -> None:
    q, k, t_q, t_k = head(60, 60)
    both, alone = CombinedPCA(4), CombinedPCA(4)
    for row in range(60):
        part = slice(row, row + 1)
        both.partial_fit(q[part], k[part], (t_q[part], t_k[part]))
        alone.partial_fit(q[part], positions=t_q[part])
    assert_same_fit(both, CombinedPCA(4).fit(q, k, (t_q, t_k)))
    assert_same_fit(alone, CombinedPCA(4).fit(q, positions=t_q))


def test_one_query_alone_has_no_variance() -> None:
    fitted = CombinedPCA().partial_fit(np.ones((1, 4)))
    assert np.isnan(fitted.explained_variance_).all()
    assert np.isnan(fitted.r_q_).all()


def test_positions_start_again_with_every_part() -> None:
    q, k, _, _ = head(200, 200)
    split = CombinedPCA().partial_fit(q[:120], k[:120]).partial_fit(q[120:], k[120:])
    positions = np.r_[np.arange(120), np.arange(80)]
    assert_same_fit(split, CombinedPCA().fit(q, k, positions))


def test_fit_forgets_and_partial_fit_goes_on() -> None:
    q, k, t_q, t_k = head()
    fitted = CombinedPCA().fit(k).fit(q, k, (t_q, t_k))
    assert_same_fit(fitted, CombinedPCA().partial_fit(q, k, (t_q, t_k)))
    fitted.partial_fit(k, q, (t_k, t_q))
    assert fitted.n_samples_q_ == fitted.n_samples_k_ == 500


def test_a_refused_part_changes_nothing() -> None:
    q, k, t_q, t_k = head()
    fitted = CombinedPCA().fit(q, k, (t_q, t_k))
    before = clone(fitted).fit(q, k, (t_q, t_k))
    with pytest.raises(ValueError, match="positions has 300 values for 200 keys"):
        fitted.partial_fit(q, k, t_q)
    assert_same_fit(fitted, before, atol=0)
    assert_same_fit(fitted.partial_fit(q, k, (t_q, t_k)), before.partial_fit(q, k, (t_q, t_k)), atol=0)


# Positions


def planted(seed: int, tokens: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noise with a drift along one axis, on which the keys run against the queries: q, k, axis."""
    generator = np.random.default_rng(seed)
    axis = np.linalg.qr(generator.normal(size=(32, 1)))[0][:, 0]
    drift = np.linspace(-5, 5, tokens)[:, None] * axis
    return generator.normal(size=(tokens, 32)) + drift, generator.normal(size=(tokens, 32)) - drift, axis


def test_a_planted_position_axis_is_found() -> None:
    q, k, axis = planted(0)
    fitted = CombinedPCA().fit(q, k, np.arange(2000))
    assert fitted.components_[0] @ axis > 0.99
    assert fitted.r_q_[0] > 0.9
    assert fitted.r_k_[0] < -0.9
    assert np.abs(fitted.r_q_[1:]).max() < 0.2


def test_shuffled_positions_kill_the_correlation() -> None:
    q, k, axis = planted(0)
    shuffled = np.random.default_rng(1).permutation(2000)
    fitted = CombinedPCA().fit(q, k, shuffled)
    assert abs(fitted.components_[0] @ axis) > 0.99
    bound = 4 / np.sqrt(2000)
    assert np.abs(fitted.r_q_).max() < bound
    assert np.abs(fitted.r_k_).max() < bound


@pytest.mark.parametrize(
    "positions",
    [None, (None, None), np.arange(200), list(range(200)), pd.Series(range(200)), torch.arange(200)],
    ids=["none", "pair of none", "array", "list", "series", "tensor"],
)
def test_ways_to_say_row_numbers(positions: Any) -> None:
    q, k, _, _ = head(200, 200)
    rows = np.arange(200.0)
    assert_same_fit(CombinedPCA().fit(q, k, positions), CombinedPCA().fit(q, k, (rows, rows)), atol=0)


@pytest.mark.parametrize("pair", [tuple, list, np.stack, lambda both: torch.tensor(np.stack(both))])
def test_pairs_of_positions(pair: Callable[[Any], Any]) -> None:
    q, k, t_q, t_k = head(200, 200)
    assert_same_fit(CombinedPCA().fit(q, k, pair([t_q, t_k])), CombinedPCA().fit(q, k, (t_q, t_k)), atol=0)


def test_two_numbers_are_the_positions_of_two_tokens() -> None:
    q = np.array([[0.0, 1.0], [3.0, 2.0]])
    assert CombinedPCA().fit(q, q, [5, 9]).r_k_[0] == pytest.approx(1)


def test_an_offset_and_a_unit_of_positions_change_nothing() -> None:
    q, k, t_q, t_k = head()
    plain = CombinedPCA().fit(q, k, (t_q, t_k))
    assert_same_fit(CombinedPCA().fit(q, k, (t_q * 3.0 + 1e6, t_k * 0.5 - 1e6)), plain, atol=1e-9)


# As scikit-learn's users expect


def test_a_one_dimensional_y_is_a_target_and_ignored() -> None:
    q, _, t_q, _ = head()
    target = t_q > 250
    assert_same_fit(CombinedPCA().fit(q, target, t_q), CombinedPCA().fit(q, None, t_q), atol=0)
    model = make_pipeline(StandardScaler(), CombinedPCA(4), LogisticRegression())
    assert model.fit(q, target).score(q, target) > 0.6


def test_pipeline_takes_keys_and_positions() -> None:
    q, k, t_q, t_k = head()
    direct = CombinedPCA(3).fit(q, k, (t_q, t_k))
    pipeline = make_pipeline(CombinedPCA(3)).fit(q, k, combinedpca__positions=(t_q, t_k))
    assert_same_fit(pipeline[-1], direct, atol=0)
    np.testing.assert_array_equal(pipeline.transform(k), direct.transform(k))
    with config_context(enable_metadata_routing=True):
        routed = make_pipeline(CombinedPCA(3).set_fit_request(positions=True)).fit(q, k, positions=(t_q, t_k))
    assert_same_fit(routed[-1], direct, atol=0)


def test_clone_is_unfitted_with_the_same_parameters() -> None:
    q, k, _, _ = head()
    copy = clone(CombinedPCA(3).fit(q, k))
    assert copy.get_params() == {"n_components": 3}
    with pytest.raises(NotFittedError):
        copy.transform(q)
    with pytest.raises(NotFittedError):
        copy.inverse_transform(q[:, :3])


def test_pickled_it_transforms_the_same_and_goes_on() -> None:
    q, k, t_q, t_k = head()
    fitted = CombinedPCA(3).fit(q, k, (t_q, t_k))
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.transform(q), fitted.transform(q))
    assert_same_fit(copy.partial_fit(k, q, (t_k, t_q)), fitted.partial_fit(k, q, (t_k, t_q)), atol=0)


def test_names_and_tables() -> None:
    q, k, _, _ = head()
    names = [f"dimension {i}" for i in range(D)]
    table_q, table_k = pd.DataFrame(q, columns=names), pd.DataFrame(k, columns=names, index=range(5, 205))
    fitted = CombinedPCA(3).set_output(transform="pandas").fit(table_q, table_k)
    assert fitted.feature_names_in_.tolist() == names
    columns = ["combinedpca0", "combinedpca1", "combinedpca2"]
    assert fitted.get_feature_names_out().tolist() == columns
    transformed = fitted.transform(table_k)
    assert transformed.columns.tolist() == columns
    assert transformed.index.tolist() == table_k.index.tolist()
    np.testing.assert_allclose(transformed, CombinedPCA(3).fit(q, k).transform(k), atol=1e-12)
    pd.testing.assert_frame_equal(fitted.fit_transform(table_q, table_k), fitted.transform(table_q))
    with pytest.raises(ValueError, match=r"^The columns of y \(keys\) should have the names and the order"):
        fitted.fit(table_q, table_k[names[::-1]])
    assert not hasattr(CombinedPCA().fit(q, table_k), "feature_names_in_")


def test_float32_and_tensors() -> None:
    q, k, t_q, t_k = head()
    single = CombinedPCA(3).fit(q.astype(np.float32), k.astype(np.float32), (t_q, t_k))
    assert single.components_.dtype == np.float64
    assert single.transform(q.astype(np.float32)).dtype == np.float32
    assert single.inverse_transform(single.transform(q.astype(np.float32))).dtype == np.float32
    assert single.transform(q).dtype == np.float64
    tensors = CombinedPCA(3).fit(torch.tensor(q), torch.tensor(k), (torch.tensor(t_q), torch.tensor(t_k)))
    assert_same_fit(tensors, CombinedPCA(3).fit(q, k, (t_q, t_k)), atol=0)
    np.testing.assert_array_equal(tensors.transform(torch.tensor(q)), tensors.transform(q))


# Errors

Q, K = np.zeros((5, 4)), np.zeros((6, 4))
BROKEN = np.array([[np.nan] * 4] * 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Q, K[:, :3]), "y (keys) has 3 features, but X (queries) has 4"),
        ((Q, K[:, 0]), "6 values for 5 rows of X: it is neither keys [n_k, 4] nor a target [5]"),
        ((Q, K[None]), "Found array with dim 3"),
        ((Q, BROKEN), "Input y contains NaN"),
        ((BROKEN, K), "Input X contains NaN"),
        ((Q[:1], K), "minimum of 2 is required by CombinedPCA"),
        ((Q, K[:1]), "minimum of 2 is required by CombinedPCA"),
        ((Q, K[:0]), "Found array with 0 sample(s)"),
        ((Q, K, np.arange(5)), "positions has 5 values for 6 keys; a pair (of queries, of keys) gives each its own"),
        ((Q, K, np.arange(6)), "positions has 6 values for 5 queries"),
        ((Q, K, (np.arange(5), np.arange(5))), "positions has 5 values for 6 keys"),
        ((Q, None, (np.arange(5), np.arange(5))), "positions has positions of keys, but there are no keys"),
        ((Q, None, np.full(5, np.nan)), "Input positions contains NaN"),
        ((Q, None, np.zeros((5, 1))), "positions should be one array [n], a pair of arrays ([n_q], [n_k]), or None"),
        ((Q, None, 3), "positions should be one array [n], a pair of arrays ([n_q], [n_k]), or None"),
        ((Q, None, np.array(3)), "positions should be one array [n], a pair of arrays ([n_q], [n_k]), or None"),
    ],
)
def test_input_that_cannot_be_fitted(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        CombinedPCA().fit(*arguments)


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (2.5, TypeError), ("mle", TypeError)])
def test_number_of_components_that_cannot_be(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="n_components"):
        CombinedPCA(value).fit(Q, K)


def test_widths_that_differ_from_those_fitted() -> None:
    fitted = CombinedPCA(2).fit(Q, K)
    with pytest.raises(ValueError, match="X has 3 features, but CombinedPCA is expecting 4 features"):
        fitted.transform(Q[:, :3])
    with pytest.raises(ValueError, match="X has 3 features, but CombinedPCA is expecting 4 features"):
        fitted.partial_fit(Q[:, :3], K[:, :3])
    with pytest.raises(ValueError, match="X has 4 columns, but CombinedPCA has 2 components"):
        fitted.inverse_transform(Q)
