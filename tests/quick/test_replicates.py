"""Components with a group of documents left out: right for every spectrum, of the same thing, oriented alike."""

import numpy as np
import pytest

from ropewalk.geometry.axes import Components, Signal, components, signal
from ropewalk.geometry.groups import Grouped
from ropewalk.geometry.jackknife import MIXED, critical, jackknife_error
from ropewalk.geometry.moments import Floats, Moments, merge_all
from ropewalk.geometry.pca import PCA, combined_pca, eigenbasis, pooled_scatter

SPECTRA = {
    "flat": lambda j: np.ones_like(j),
    "two above the rest": lambda j: np.where(j < 3, 1.5, 1.0),
    "j^-0.25": lambda j: j**-0.25,
    "j^-0.5": lambda j: j**-0.5,
    "j^-1": lambda j: 1 / j,
    "j^-2": lambda j: j**-2.0,
    "exponential": lambda j: np.exp(-j / 4) + 1e-6,
}
COUNT = 10


def documents(d: int, groups: int, spectrum: str, heads: int = 3, tokens: int = 300, seed: int = 0) -> list[Floats]:
    """Queries and keys [2, heads, tokens, d] of each group: correlated within a document, drifting, and apart."""
    generator = np.random.default_rng(seed)
    scale = np.sqrt(SPECTRA[spectrum](np.arange(1.0, d + 1)))
    apart, drift = generator.normal(size=(2, heads, 1, d)), generator.normal(size=(2, heads, 1, d))
    t = np.linspace(-0.5, 0.5, tokens)[:, None]
    found = []
    for _ in range(groups):
        noise = generator.normal(size=(2, heads, tokens, d))
        noise = noise + np.roll(noise, 3, axis=2) + 0.3 * generator.normal(size=(2, heads, 1, d))
        found.append((noise + 0.5 * apart + 0.5 * t * drift) * scale)
    return found


def grouped(x: list[Floats]) -> tuple[list[Moments], list[Moments]]:
    t = np.arange(x[0].shape[2], dtype=float)
    return [Moments.of(one[0], t) for one in x], [Moments.of(one[1], t) for one in x]


def by_full_decompositions(q: list[Moments], k: list[Moments], whole: Floats) -> tuple[Floats, Floats, Floats]:
    """Standard errors of r_q and r_k [heads, m] and smallest overlaps, every replicate decomposed in full."""
    r_q, r_k, overlaps = [], [], []
    for group in range(len(q)):
        rest_q, rest_k = (merge_all(side[:group] + side[group + 1 :]) for side in (q, k))
        basis = eigenbasis(pooled_scatter(rest_q, rest_k))[1]
        cosines = np.einsum("hdi,hdj->hij", whole, basis)
        best = np.abs(cosines).argmax(axis=2)
        vectors = np.take_along_axis(basis, best[:, None, :], axis=2)
        cosine = np.take_along_axis(cosines, best[:, :, None], axis=2)[:, :, 0]
        vectors = vectors * np.sign(cosine)[:, None, :]
        overlaps.append(np.abs(cosine))
        for found, rest in ((r_q, rest_q), (r_k, rest_k)):
            covariance = np.einsum("hd,hdm->hm", rest.sxt, vectors)
            variance = np.einsum("hdm,hde,hem->hm", vectors, rest.sxx, vectors)
            found.append(covariance / np.sqrt(variance * rest.stt[:, None]))
    return jackknife_error(r_q), jackknife_error(r_k), np.min(overlaps, axis=0)


def followed(q: list[Moments], k: list[Moments], count: int = COUNT) -> tuple[Components, Signal]:
    moments = Grouped.of(q, k)
    found = components(moments, count)
    return found, signal(moments, found.directions)


@pytest.mark.parametrize("d", [16, 64, 128])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_errors_are_those_of_full_decompositions_for_every_spectrum(d: int, spectrum: str) -> None:
    q, k = grouped(documents(d, 8, spectrum))
    found, along = followed(q, k)
    error_q, error_k, overlap = by_full_decompositions(q, k, found.directions.whole)
    steady = overlap > MIXED
    np.testing.assert_allclose(jackknife_error(along.r_q_rest)[steady], error_q[steady], rtol=0.05)
    np.testing.assert_allclose(jackknife_error(along.r_k_rest)[steady], error_k[steady], rtol=0.05)
    np.testing.assert_allclose(found.overlap[steady], overlap[steady], atol=0.02)
    # What mixes is said to: where the full decompositions find no match, neither is one found here.
    assert (found.overlap[overlap < MIXED - 0.1] < MIXED).all()


def test_the_whole_is_the_combined_pca() -> None:
    q, k = grouped(documents(32, 5, "j^-1"))
    found, along = followed(q, k)
    expected = combined_pca(merge_all(q), merge_all(k))
    np.testing.assert_allclose(along.r_q, expected.r_q, atol=1e-12)
    np.testing.assert_allclose(along.r_k, expected.r_k, atol=1e-12)
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance, atol=1e-12)
    np.testing.assert_allclose(found.separation_share, expected.separation_share, atol=1e-12)
    np.testing.assert_allclose(found.eigengap, expected.eigengap, atol=1e-12)
    for group in range(5):
        exact = combined_pca(merge_all(q[:group] + q[group + 1 :]), merge_all(k[:group] + k[group + 1 :]))
        np.testing.assert_allclose(
            found.explained_variance_rest[group, :, 0], exact.explained_variance[:, 0], rtol=1e-5
        )
        np.testing.assert_allclose(found.eigengap_rest[group], exact.eigengap, rtol=1e-4)
        np.testing.assert_allclose(found.separation_share_rest[group, :, 0], exact.separation_share[:, 0], rtol=1e-3)


def test_without_corrections_the_errors_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the comparison above can tell good replicates from those within the leading span alone."""
    q, k = grouped(documents(64, 8, "j^-0.5"))
    monkeypatch.setattr("ropewalk.geometry.jackknife.GUARD", 4)
    monkeypatch.setattr("ropewalk.geometry.jackknife._Replicates.lacking", lambda _, residual, values: 0 * residual)
    found, along = followed(q, k)
    error_q, _, overlap = by_full_decompositions(q, k, found.directions.whole)
    assert np.abs(jackknife_error(along.r_q_rest) / error_q - 1)[overlap > MIXED].max() > 0.2


@pytest.mark.parametrize("count", [1, COUNT])
@pytest.mark.parametrize("spectrum", ["j^-1", "j^-2", "exponential"])
def test_small_corrections_do_as_well_as_a_wider_span(
    spectrum: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = grouped(documents(64, 16, spectrum))
    found = jackknife_error(followed(q, k, count)[1].r_q_rest)
    monkeypatch.setattr("ropewalk.geometry.jackknife.SMALL", 0.0)
    wider = jackknife_error(followed(q, k, count)[1].r_q_rest)
    np.testing.assert_allclose(found, wider, rtol=0.01)
    # They are two ways.
    assert (found != wider).any()


def test_large_corrections_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the limit on corrections, flat spectra come out wrong."""
    q, k = grouped(documents(128, 4, "flat"))
    monkeypatch.setattr("ropewalk.geometry.jackknife.SMALL", np.inf)
    found, along = followed(q, k)
    error_q, _, overlap = by_full_decompositions(q, k, found.directions.whole)
    assert np.abs(jackknife_error(along.r_q_rest) / error_q - 1)[overlap > MIXED].max() > 0.05


def weak_head(level: float, groups: int = 12) -> tuple[list[Moments], list[Moments]]:
    """One head with one strong axis, on which queries barely drift and keys drift the other way."""
    t, q, k = np.arange(400.0), [], []
    for group in range(groups):
        generator = np.random.default_rng(group)
        common = generator.normal(size=(2, 1, 400, 8))
        common[..., 0] *= 6
        slope = np.zeros((2, 1, 1, 8))
        slope[0, ..., 0], slope[1, ..., 0] = level, -0.3
        x = common + slope * 6 * np.sqrt(12) * ((t - t.mean()) / 400)[:, None]
        q.append(Moments.of(x[0], t))
        k.append(Moments.of(x[1], t))
    return q, k


def by_rule(q: list[Moments], k: list[Moments], group: int) -> PCA:
    """A replicate on its own: components by index, oriented by the rule."""
    return combined_pca(merge_all(q[:group] + q[group + 1 :]), merge_all(k[:group] + k[group + 1 :]))


def test_a_head_near_the_threshold_of_orientation_does_not_flip_between_replicates() -> None:
    flipped = 0
    for level in np.linspace(0.02, 0.08, 25):
        q, k = weak_head(level)
        _, along = followed(q, k, 1)
        error = jackknife_error(along.r_k_rest)[0, 0]
        alone = [by_rule(q, k, group).r_k[:, 0] for group in range(len(q))]
        assert abs(along.r_k[0, 0]) == pytest.approx(0.29, abs=0.05)
        assert 0.003 < error < 0.05
        if np.ptp(np.sign(alone)) > 0:
            flipped += 1
            assert jackknife_error(alone)[0] > 10 * error
    # The case is the one meant: oriented each on its own, some of these heads flip.
    assert flipped


def test_components_that_change_places_are_matched_by_vector() -> None:
    """Two axes, one with position and one without, the larger in some groups and not in others: leaving one out can
    change their order, and nothing else.
    """
    t, q = np.arange(300.0), []
    with_position = (t - t.mean()) / t.std()
    for group in range(6):
        generator = np.random.default_rng(group)
        x = generator.normal(size=(1, 300, 6))
        without = generator.normal(size=300)
        without -= without.mean() + with_position * (without @ with_position) / 300
        x[0, :, 0] = 5 * with_position
        x[0, :, 1] = without / without.std() * (5.0 + 0.4 * (group % 2 * 2 - 1))
        # Nothing else is along these two: they cannot mix.
        x[0, :, 2:] -= x[0, :, :2] @ np.linalg.lstsq(x[0, :, :2], x[0, :, 2:], rcond=None)[0]
        q.append(Moments.of(x, t))
    found, along = followed(q, q, 2)
    assert np.ptp([by_rule(q, q, group).r_q[:, 0] for group in range(6)]) > 0.9
    assert jackknife_error(along.r_q_rest).max() < 1e-6
    assert found.overlap.min() > 0.999


def test_one_group_has_no_replicates() -> None:
    q, k = grouped(documents(16, 1, "j^-1"))
    found, along = followed(q, k)
    assert along.r_q_rest.shape == (0, 3, COUNT)
    assert np.isnan(found.overlap).all()
    assert np.isnan(jackknife_error(along.r_q_rest)).all()


def test_heads_that_share_keys_read_the_right_ones() -> None:
    q, k = grouped(documents(16, 3, "j^-1", heads=4))
    shared = np.array([0, 0, 1, 1])
    _, along = followed(q, [part[shared] for part in k])
    np.testing.assert_allclose(along.r_k, combined_pca(merge_all(q), merge_all(k)[shared]).r_k, atol=1e-12)


def test_a_centred_component_is_followed_too() -> None:
    q, k = grouped(documents(64, 6, "j^-1"))
    moments = Grouped.of(q, k)
    found = components(moments, 1, centred=True)
    rest = merge_all(q[1:]), merge_all(k[1:])
    exact = eigenbasis(rest[0].sxx + rest[1].sxx)[1][:, :, 0]
    assert found.directions.rest is not None
    cosines = np.abs(np.einsum("hd,hd->h", found.directions.rest[:3, :, 0], exact))
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


def test_the_error_of_r_is_its_spread_over_repeated_experiments() -> None:
    t = np.arange(60.0)

    def experiment(seed: int) -> tuple[float, float]:
        generator, groups = np.random.default_rng(seed), []
        for _ in range(10):
            level = generator.normal(size=(1, 1, 8)) * 0.5
            groups.append(Moments.of(generator.normal(size=(1, 60, 8)) + level + 0.1 * t[:, None] * np.eye(8)[0], t))
        _, along = followed(groups, groups, 1)
        return along.r_q[0, 0], float(jackknife_error(along.r_q_rest)[0, 0])

    values, errors = np.array([experiment(seed) for seed in range(200)]).T
    assert np.sqrt((errors**2).mean()) == pytest.approx(values.std(), rel=0.25)


def test_how_many_errors_make_an_interval() -> None:
    assert critical(8) == pytest.approx(2.3646, abs=1e-4)
    assert critical(16) == pytest.approx(2.1314, abs=1e-4)
    assert critical(8, candidates=10) == pytest.approx(4.0293, abs=1e-3)
    assert np.isnan(critical(1))
