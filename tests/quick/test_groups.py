"""Moments without each group of documents: what is computed of their scatters without forming them."""

from typing import Any

import numpy as np
import pytest

from ropewalk.geometry import axes
from ropewalk.geometry.axes import components
from ropewalk.geometry.groups import Grouped, Side
from ropewalk.geometry.jackknife import Followed
from ropewalk.geometry.moments import Floats, Moments, merge_all
from ropewalk.geometry.pca import spread

GROUPS, TOKENS, D, M = 5, 60, 40, 3
T = np.arange(float(TOKENS))
SHARED = np.array([0, 0, 1, 3, 3, 3])
"""Key heads of query heads: one is read by several, one by nobody."""


def parts(heads: int, offset: float = 0.0, seed: int = 0) -> list[Moments]:
    """Moments of some heads in each group, about means that differ from group to group."""
    generator = np.random.default_rng(seed)
    scale = np.exp(-np.arange(D) / 8)
    found = []
    for _ in range(GROUPS):
        level = generator.normal(size=(heads, 1, D))
        x = (generator.normal(size=(heads, TOKENS, D)) + level + 0.02 * T[:, None]) * scale
        found.append(Moments.of(x + offset, T))
    return found


def merged_others(own: list[Moments], group: int) -> Moments:
    """The oracle: all groups but one, merged."""
    return merge_all(own[:group] + own[group + 1 :])


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("index", [None, SHARED], ids=["all heads", "shared heads"])
def test_products_are_those_with_the_other_groups_merged(index: np.ndarray | None, offset: float) -> None:
    own = parts(4, offset)
    side = Side.of(own) if index is None else Side.of(own)[index]
    heads = len(side.whole)
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(heads, D, M))
    directions = generator.normal(size=(GROUPS, heads, D, M))
    images, spreads = side.images(vectors), side.spreads(directions.reshape(-1, D, M)).reshape(GROUPS, heads, M)
    assert side.left is not None
    assert side.rest is not None
    for group in range(GROUPS):
        others = merged_others(own, group)
        expected = others if index is None else others[index]
        which = (np.full(heads, group), np.arange(heads))
        stacked = slice(group * heads, (group + 1) * heads)
        np.testing.assert_allclose(images[group], np.matmul(expected.sxx, vectors), atol=1e-7)
        np.testing.assert_allclose(spreads[group], spread(expected.sxx, directions[group]), rtol=1e-9)
        np.testing.assert_allclose(side.chosen(which), expected.sxx, atol=1e-7)
        traces = np.trace(expected.sxx, axis1=1, axis2=2)
        np.testing.assert_allclose(side.left.trace[stacked], traces, rtol=1e-9)
        for name in Moments.names():
            np.testing.assert_allclose(
                getattr(side.rest, name)[stacked], getattr(expected, name), rtol=1e-9, atol=1e-7, err_msg=name
            )


def test_what_lies_between_groups_counts() -> None:
    """Negative control: without the means' differences the same products are far away."""
    own = parts(4)
    side, vectors = Side.of(own), np.random.default_rng(1).normal(size=(4, D, M))
    plain = np.matmul(side.whole.sxx - own[0].sxx, vectors)
    exact = np.matmul(merged_others(own, 0).sxx, vectors)
    assert np.abs(plain - exact).max() > 0.01 * np.abs(exact).max()


def known_and_exact(moments: Grouped, count: int) -> list[tuple[Floats, Floats]]:
    """Sums of squares of queries and of keys along components without each group: as they come with these, exactly."""
    directions = components(moments, count).directions
    assert directions.rest is not None
    assert directions.spreads is not None
    sides = (moments.queries, moments.keys)
    return [(one, side.spreads(directions.rest)) for one, side in zip(directions.spreads, sides, strict=True)]


@pytest.mark.parametrize("count", [1, 6])
def test_sums_of_squares_along_components_come_with_these(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = Grouped(Side.of(parts(6)), Side.of(parts(4, seed=2))[SHARED])
    for known, exact in known_and_exact(moments, count):
        np.testing.assert_allclose(known, exact, rtol=1e-3)
    # Where corrections are not small, they are computed.
    monkeypatch.setattr("ropewalk.geometry.jackknife.SMALL", 0.0)
    for known, exact in known_and_exact(moments, count):
        np.testing.assert_allclose(known, exact, rtol=1e-9)


def test_a_single_group_has_nothing_left() -> None:
    side = Side.of(parts(4)[:1])
    assert side.left is None
    assert side.rest is None
    assert Grouped(side, side[np.arange(4)]).rest is None


def test_heads_without_variance_have_none_along_components() -> None:
    still = [Moments.of(np.zeros((2, TOKENS, D)), T)] * 3
    for known, exact in known_and_exact(Grouped.of(still, still), 1):
        assert (known == 0).all()
        assert (exact == 0).all()


def test_what_lies_outside_the_leading_span_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with the sign of the small term turned around, the sums of squares come out too small."""
    moments = Grouped.of(parts(6), parts(6, seed=2))
    right = known_and_exact(moments, 6)
    follow = axes.follow

    def turned(*arguments: Any) -> Followed:
        found = follow(*arguments)
        return found._replace(outside=-found.outside)

    monkeypatch.setattr(axes, "follow", turned)
    for (known, exact), (wrong, _) in zip(right, known_and_exact(moments, 6), strict=True):
        assert np.abs(wrong / exact - 1).max() > 3 * np.abs(known / exact - 1).max()
