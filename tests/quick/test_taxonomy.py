"""Categories and depth bins, against the rules written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, multivariate_t

from ropewalk.geometry.taxonomy import (
    CATEGORIES,
    bin_label,
    classify,
    concordance,
    depth_bin,
    probabilities,
    rule_conditions,
)


def by_hand(r_q: float, r_k: float) -> str:
    if r_q > 0.7 and abs(r_k) > 0.7:
        return "position-dominated"
    if r_q > 0.7 and abs(r_k) < 0.3:
        return "Q-positional"
    if r_q < 0.3 and abs(r_k) > 0.7:
        return "K-positional"
    if r_q < 0.3 and abs(r_k) < 0.3:
        return "content-focused"
    return "mixed"


EDGES = st.sampled_from([0.0, 0.3, 0.7, -0.3, -0.7, 1.0, -1.0])


@given(r_q=st.floats(-1, 1) | EDGES, r_k=st.floats(-1, 1) | EDGES)
def test_categories(r_q: float, r_k: float) -> None:
    assert classify([r_q], [r_k])[0] == by_hand(r_q, r_k)


def test_a_missing_correlation_has_no_category() -> None:
    assert classify([np.nan, 0.9], [0.1, np.nan]).tolist() == [None, None]


def test_all_categories_can_occur() -> None:
    assert classify([0.9, 0.9, 0.1, 0.1, 0.5], [-0.9, 0.1, -0.9, 0.1, 0.5]).tolist() == list(CATEGORIES)


@pytest.mark.parametrize("max_layer", [1, 11, 29, 35, 100])
def test_depth_bins_are_right_closed(max_layer: int) -> None:
    for layer in range(max_layer + 1):
        expected = next(b for b in range(10) if layer * 10 <= (b + 1) * max_layer)
        assert depth_bin(layer, max_layer) == expected


def test_a_model_of_one_layer_is_all_in_the_first_bin() -> None:
    assert depth_bin(0, 0) == 0


def test_bins_are_called_by_where_they_begin() -> None:
    assert [bin_label(depth) for depth in range(10)] == [
        "0.0",
        "0.1",
        "0.2",
        "0.3",
        "0.4",
        "0.5",
        "0.6",
        "0.7",
        "0.8",
        "0.9",
    ]


def test_rules_in_words() -> None:
    assert list(rule_conditions()) == [
        ("position-dominated", ("r_q > 0.7", "|r_k| > 0.7")),
        ("Q-positional", ("r_q > 0.7", "|r_k| < 0.3")),
        ("K-positional", ("r_q < 0.3", "|r_k| > 0.7")),
        ("content-focused", ("r_q < 0.3", "|r_k| < 0.3")),
        ("mixed", ()),
    ]


CLOSE = [
    (0.69, 0.72, 0.03, 0.02, 0.6),
    (0.31, -0.28, 0.05, 0.06, -0.4),
    (0.5, 0.5, 0.2, 0.3, 0.0),
    (0.71, 0.05, 0.02, 0.2, 0.9),
]


@pytest.mark.parametrize(("r_q", "r_k", "s_q", "s_k", "correlation"), CLOSE)
def test_probabilities_are_the_mass_in_each_region(
    r_q: float, r_k: float, s_q: float, s_k: float, correlation: float
) -> None:
    """Against SciPy's bivariate normal over the rectangles of the rules, for heads near the thresholds."""
    cross = correlation * s_q * s_k
    covariance = np.array([[s_q**2, cross], [cross, s_k**2]])
    normal = multivariate_normal([r_q, r_k], covariance)
    high, low, far = 0.7, 0.3, 50.0

    def mass(q: tuple[float, float], k: tuple[float, float]) -> float:
        return float(normal.cdf([q[1], k[1]], lower_limit=[q[0], k[0]]))

    positional, weak = ((high, far), (-far, -high)), ((-low, low),)
    expected = [
        sum(mass((high, far), k) for k in positional),
        sum(mass((high, far), k) for k in weak),
        sum(mass((-far, low), k) for k in positional),
        sum(mass((-far, low), k) for k in weak),
    ]
    found = probabilities([r_q], [r_k], [covariance], groups=10**6)[0]
    np.testing.assert_allclose(found, [*expected, 1 - sum(expected)], atol=2e-4)
    assert found.max() < 0.999


def test_probabilities_without_an_error_are_certain_and_missing_ones_are_missing() -> None:
    nothing = np.zeros((2, 2))
    r_q, r_k = [0.9, 0.1, 0.5], [-0.8, 0.2, 0.5]
    found = probabilities(r_q, r_k, [nothing] * 3, groups=8)
    assert [CATEGORIES[column] for column in found.argmax(axis=1)] == list(classify(r_q, r_k))
    np.testing.assert_allclose(found.max(axis=1), 1)
    assert np.isnan(probabilities([np.nan, 0.5], [0.5, 0.5], [nothing, np.full((2, 2), np.nan)], groups=8)).all()


def test_probabilities_are_how_often_the_category_comes_out() -> None:
    """Coverage: over repeated estimates of one head, its category comes out as often as the probabilities say."""
    generator = np.random.default_rng(0)
    truth, covariance = np.array([0.66, 0.74]), np.array([[0.002, 0.001], [0.001, 0.002]])
    draws = generator.multivariate_normal(truth, covariance, 100_000)
    seen = [np.mean(classify(draws[:, 0], draws[:, 1]) == category) for category in CATEGORIES]
    np.testing.assert_allclose(probabilities([truth[0]], [truth[1]], [covariance], groups=10**6)[0], seen, atol=0.006)


@pytest.mark.parametrize("groups", [2, 3, 8, 16])
@pytest.mark.parametrize(("r_q", "r_k", "s_q", "s_k", "correlation"), CLOSE)
def test_few_groups_make_a_category_less_certain(
    groups: int, r_q: float, r_k: float, s_q: float, s_k: float, correlation: float
) -> None:
    """Against draws of SciPy's multivariate t, and less certain than the normal distribution says."""
    cross = correlation * s_q * s_k
    covariance = np.array([[s_q**2, cross], [cross, s_k**2]])
    draws = multivariate_t([r_q, r_k], covariance, df=groups - 1, seed=0).rvs(200_000)
    seen = [np.mean(classify(draws[:, 0], draws[:, 1]) == category) for category in CATEGORIES]
    np.testing.assert_allclose(probabilities([r_q], [r_k], [covariance], groups)[0], seen, atol=0.008)


def test_thresholds_can_be_moved() -> None:
    assert classify([0.65], [0.65], low=0.2, high=0.6).tolist() == ["position-dominated"]
    assert classify([0.65], [0.65]).tolist() == ["mixed"]
    assert classify([0.25], [0.25], low=0.2, high=0.6).tolist() == ["mixed"]


def test_concordance_is_the_sign_of_the_product() -> None:
    words = concordance([0.5, 0.5, -0.04, 0.5, np.nan], [0.5, -0.5, 0.5, -0.1, 0.5], [True, True, True, False, True])
    assert words.tolist() == ["concordant", "discordant", "discordant", "undecided", None]
