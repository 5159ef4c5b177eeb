"""Separation share, choices of axis, readout and shuffled positions against plain NumPy on the vectors themselves."""

import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.linear_model import LinearRegression

from ropewalk.geometry.axes import AXES, components, drift, signal
from ropewalk.geometry.groups import Grouped
from ropewalk.geometry.jackknife import critical, jackknife_error
from ropewalk.geometry.moments import Floats, Moments, merge_all, without_each
from ropewalk.geometry.readout import Readout, readouts

GROUPS, TOKENS, D = 6, 250, 12
T = np.arange(float(TOKENS))


def head(separation: float = 0.0, drifting: float = 0.0, seed: int = 0, d: int = D) -> Floats:
    """Queries and keys [2, groups, tokens, d] of one head: noise, an offset between them, a drift with position."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(2, GROUPS, TOKENS, d)) * np.linspace(1.5, 0.5, d)
    x[0, ..., 1] += separation
    x[1, ..., 1] -= separation
    return x + drifting * ((T - T.mean()) / TOKENS)[:, None] * np.eye(d)[2]


def moments(x: Floats) -> tuple[list[Moments], list[Moments]]:
    q, k = ([Moments.of(group[None], T) for group in side] for side in x)
    return q, k


def readout(q: list[Moments], labels: list[Floats] | None = None) -> Readout:
    others = without_each(merge_all(q), q) if len(q) > 1 else None
    return readouts(q, others, [labels or [np.zeros(1)] * len(q)])[0]


def oriented(r_q: float, r_k: float) -> tuple[float, float]:
    sign = -1 if (r_q if abs(r_q) >= 0.05 else r_k) < 0 else 1
    return r_q * sign, r_k * sign


def correlations(x: Floats, axis: Floats) -> tuple[float, float]:
    t = np.tile(T, GROUPS)
    r_q, r_k = (float(pearsonr(side.reshape(-1, x.shape[-1]) @ axis, t).statistic) for side in x)
    return oriented(r_q, r_k)


@pytest.mark.parametrize(("separation", "drifting"), [(0.0, 0.0), (2.0, 0.0), (0.0, 6.0), (1.0, 3.0)])
def test_separation_share_and_axes_are_those_of_the_vectors(separation: float, drifting: float) -> None:
    x = head(separation, drifting)
    q, k = x.reshape(2, -1, D)
    grouped = Grouped.of(*moments(x))
    both = np.concatenate([q, k])
    values, vectors = np.linalg.eigh(np.cov(both.T, bias=True) * len(both))
    found = components(grouped, 4)
    for component in range(4):
        axis = vectors[:, -1 - component]
        offset = (q.mean(axis=0) - k.mean(axis=0)) @ axis
        share = len(q) * len(k) / len(both) * offset**2 / values[-1 - component]
        assert found.separation_share[0, component] == pytest.approx(share, abs=1e-9)
    pooled = signal(grouped, found.directions)
    assert (pooled.r_q[0, 0], pooled.r_k[0, 0]) == pytest.approx(correlations(x, vectors[:, -1]), abs=1e-9)
    apart = np.cov((q - q.mean(axis=0)).T) + np.cov((k - k.mean(axis=0)).T)
    centred = signal(grouped, components(grouped, 1, centred=True).directions)
    expected = correlations(x, np.linalg.eigh(apart)[1][:, -1])
    assert (centred.r_q[0, 0], centred.r_k[0, 0]) == pytest.approx(expected, abs=1e-9)
    t = np.tile(T, 2 * GROUPS)
    c = (both - both.mean(axis=0)).T @ (t - t.mean())
    along = signal(grouped, drift(grouped))
    assert (along.r_q[0, 0], along.r_k[0, 0]) == pytest.approx(correlations(x, c / np.linalg.norm(c)), abs=1e-9)


def test_planted_separation_without_position_and_position_without_separation() -> None:
    apart = Grouped.of(*moments(head(separation=3.0)))
    pooled = components(apart, 1)
    assert pooled.separation_share[0, 0] > 0.8
    assert np.abs(signal(apart, pooled.directions).r_q[0, 0]) < 0.1
    moving = Grouped.of(*moments(head(drifting=20.0)))
    pooled = components(moving, 1)
    assert pooled.separation_share[0, 0] < 0.01
    assert signal(moving, pooled.directions).r_q[0, 0] > 0.9
    # Both: PC0 is the axis between the two and hardly sees the drift, which the other axes and the readout do.
    q, k = moments(head(separation=6.0, drifting=15.0))
    both = Grouped.of(q, k)
    pooled = components(both, 1)
    assert pooled.separation_share[0, 0] > 0.5
    assert signal(both, components(both, 1, centred=True).directions).r_q[0, 0] > 0.9
    assert signal(both, drift(both)).r_k[0, 0] > 0.9
    assert readout(q).r[0] > 0.9
    assert signal(both, pooled.directions).r_q[0, 0] < 0.9


@pytest.mark.parametrize("drifting", [0.0, 0.5, 4.0])
def test_the_readout_is_a_regression_fitted_on_the_other_groups(drifting: float) -> None:
    x = head(0.5, drifting)[0]
    q = [Moments.of(group[None], T) for group in x]
    found = readout(q)
    parts = []
    for group in range(GROUPS):
        others = np.delete(x, group, axis=0).reshape(-1, D)
        model = LinearRegression().fit(others, np.tile(T, GROUPS - 1))
        guess = model.predict(x[group])
        parts.append([guess - guess.mean(), T - T.mean()])
    guess, t = np.array(parts).transpose(1, 0, 2)

    def together(chosen: list[int]) -> float:
        a, b = guess[chosen].ravel(), t[chosen].ravel()
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))

    assert found.r[0] == pytest.approx(together(list(range(GROUPS))), abs=1e-6)


def test_a_replicate_of_the_readout_leaves_its_group_out_of_the_fits_too() -> None:
    for drifting in (0.3, 4.0):
        x = head(0.5, drifting)[0]
        q = [Moments.of(group[None], T) for group in x]
        exact = [readout(q[:group] + q[group + 1 :]).r[0] for group in range(GROUPS)]
        assert jackknife_error(readout(q).replicates)[0] == pytest.approx(float(jackknife_error(exact)), rel=0.35)


def test_the_readout_of_shuffled_positions_is_within_its_error_of_zero() -> None:
    """And the plain maximum over directions is not: it counts what it was fitted to."""
    heads, beyond, plain = 60, 0, []
    for seed in range(heads):
        x = head(1.0, 5.0, seed, d=32)[0]
        generator = np.random.default_rng(seed)
        q = [Moments.of(group[None], T) for group in x]
        shuffled = [
            Moments.of(group[None], generator.permutation(T)).sxt - part.sxt for group, part in zip(x, q, strict=True)
        ]
        found = readout(q, shuffled)
        beyond += abs(found.r[0]) > critical(GROUPS) * jackknife_error(found.replicates)[0]
        null = merge_all(q)
        sxt = null.sxt[0] + sum(one[0] for one in shuffled)
        plain.append(float(np.sqrt(sxt @ np.linalg.solve(null.sxx[0], sxt) / null.stt[0])))
    assert beyond <= 9
    assert min(plain) > 0.05


def test_vectors_in_fewer_dimensions_than_they_have_are_read_too() -> None:
    x = head(0.0, 5.0)[0]
    flat = x @ np.diag([1.0] * 8 + [0.0] * 4)
    q = [Moments.of(group[None], T) for group in flat]
    full = [Moments.of(group[None, :, :8], T) for group in flat]
    assert readout(q).r == pytest.approx(readout(full).r, abs=1e-6)
    still = [Moments.of(np.zeros((1, TOKENS, 3)), T)] * 3
    assert np.isnan(readout(still).r).all()
    assert np.isnan(readout(q[:1]).r).all()


def test_relabelled_moments_are_those_of_the_other_labels() -> None:
    x = head(0.5, 5.0)
    generator = np.random.default_rng(1)
    orders = [generator.permutation(T) for _ in range(GROUPS)]
    q, k = moments(x)
    other_q, other_k = ([Moments.of(group[None], t) for group, t in zip(side, orders, strict=True)] for side in x)
    more = [[b.sxt - a.sxt for a, b in zip(one, other, strict=True)] for one, other in ((q, other_q), (k, other_k))]
    null = Grouped.of(q, k).relabelled(*more)
    expected = Grouped.of(other_q, other_k)
    assert null.left is not None
    assert expected.left is not None
    for one, other in zip((null.q, null.k, *null.left), (expected.q, expected.k, *expected.left), strict=True):
        np.testing.assert_allclose(one.sxt, other.sxt, atol=1e-6)
    assert np.abs(null.q.sxt - Grouped.of(q, k).q.sxt).max() > 100


def test_a_head_that_does_not_move_has_no_drift_axis() -> None:
    still = [Moments.of(np.zeros((1, TOKENS, 4)), T)] * 2
    along = signal(Grouped.of(still, still), drift(Grouped.of(still, still)))
    assert np.isnan(along.r_q).all()


def test_the_command_line_and_the_study_know_the_axes() -> None:
    from ropewalk.cli import results
    from ropewalk.study import Figures

    assert tuple(AXES) == results.AXES == Figures.model_fields["axis"].annotation.__args__  # type: ignore[union-attr]
