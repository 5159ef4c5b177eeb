"""Categories and depth bins, against the rules written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.geometry.taxonomy import CATEGORIES, bin_label, classify, depth_bin, rule_conditions


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
