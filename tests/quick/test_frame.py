"""The RoPE frame: what is constant before the rotation, and the kernel that follows from it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk
from helpers.tiny import tiny_smollm3
from ropewalk.geometry.distance import distance_edges, octaves
from ropewalk.geometry.rank import components_for, ranks
from ropewalk.models.layout import AttentionLayer, Rotary
from ropewalk.models.rotary import _measured
from ropewalk.models.tap import Call, tap
from ropewalk.statistics.base import layers_of, left_out
from ropewalk.statistics.frame import Frame, angles, turned_back
from ropewalk.statistics.packing import unpack

CONTEXT, DOCUMENTS, SHARDS = 64, 8, 4
DISTANCES = np.array([1, 2, 4, 8, 16, 32, 1, 2, 4, 8])


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny model whose queries and keys have a constant part, unlike those of random weights alone."""
    model = tiny_smollm3(attention_bias=True)
    generator = torch.Generator().manual_seed(1)
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.bias.data = torch.randn(projection.bias.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def documents() -> list[list[int]]:
    return np.random.default_rng(0).integers(3, 40, (DOCUMENTS, CONTEXT)).tolist()


@pytest.fixture(scope="module")
def results(model: Any, documents: list[list[int]]) -> ropewalk.Results:
    return ropewalk.measure(model, documents, context=CONTEXT, shards=SHARDS, statistics=["frame", "behaviour"])


@pytest.fixture(scope="module")
def calls(model: Any, documents: list[list[int]]) -> list[Call]:
    found: list[Call] = []
    with torch.inference_mode(), tap(model, found.append):
        model(input_ids=torch.tensor(documents), use_cache=False)
    return found


def vectors(call: Call, kind: str, head: int) -> np.ndarray:
    """[documents, tokens, d] in float64."""
    return (call.query if kind == "q" else call.key)[:, head].double().numpy()


def turned(x: np.ndarray) -> np.ndarray:
    """Complex pairs (i, i + 8) of vectors [documents, tokens, 16] turned back by hand, token by token."""
    frequencies = 2_000_000.0 ** (-np.arange(8) / 8)
    z = x[..., :8] + 1j * x[..., 8:]
    return np.stack([z[:, t] * np.exp(-1j * frequencies * t) for t in range(x.shape[1])], axis=1)


def test_shares_are_those_of_vectors_turned_back_by_hand(results: ropewalk.Results, calls: list[Call]) -> None:
    for row in results.heads[results.heads["rope"]].itertuples():
        for kind, head in (("q", row.head), ("k", row.k_head)):
            x = vectors(calls[row.layer], kind, head)
            u = turned(x).reshape(-1, 8)
            energy = (x**2).sum(axis=2).mean()
            fixed = np.abs(u.mean(axis=0)) ** 2 / energy
            concentration = np.abs(u.mean(axis=0)) / np.abs(u).mean(axis=0)
            weights = (np.abs(u) ** 2).mean(axis=0)
            assert getattr(row, f"fixed_share_{kind}") == pytest.approx(fixed.sum(), rel=1e-5)
            expected = (weights * concentration).sum() / weights.sum()
            assert getattr(row, f"concentration_{kind}") == pytest.approx(expected, rel=1e-5)
            own = results.tables.others["spectrum"].query(f"layer == {row.layer} and head == {row.head}")
            np.testing.assert_allclose(own[f"fixed_{kind}"], fixed, rtol=1e-4)
            np.testing.assert_allclose(own[f"concentration_{kind}"], concentration, rtol=1e-4)
            np.testing.assert_allclose(own[f"energy_{kind}"], weights / energy, rtol=1e-4)
            assert (own["wavelength"] == 2 * np.pi / own["frequency"]).all()


def test_the_kernel_is_a_double_loop_over_distances_and_pairs(results: ropewalk.Results, calls: list[Call]) -> None:
    frequencies = 2_000_000.0 ** (-np.arange(8) / 8)
    for row in results.heads[results.heads["rope"]].itertuples():
        means = [
            turned(vectors(calls[row.layer], kind, head)).mean(axis=(0, 1))
            for kind, head in (("q", row.head), ("k", row.k_head))
        ]
        kernel = np.zeros(CONTEXT)
        for distance in range(CONTEXT):
            for pair in range(8):
                turn = np.exp(-1j * frequencies[pair] * distance)
                kernel[distance] += 0.25 * (means[0][pair].conjugate() * means[1][pair] * turn).real
        own = results.tables.others["distance"].query(f"layer == {row.layer} and head == {row.head}")
        curve = [
            np.average(kernel[start:stop], weights=CONTEXT - np.arange(start, stop))
            for start, stop in zip(own["distance"], own["distance_stop"], strict=True)
        ]
        np.testing.assert_allclose(own["kernel"], curve, rtol=1e-5, atol=1e-6)
        assert row.kernel_range == pytest.approx(max(curve) - min(curve), rel=1e-5)
        # From the parts in spectrum.csv anyone can put K together again.
        parts = results.tables.others["spectrum"].query(f"layer == {row.layer} and head == {row.head}")
        again = [
            ((parts["kernel_re"] + 1j * parts["kernel_im"]) * np.exp(-1j * parts["frequency"] * distance)).sum().real
            for distance in range(CONTEXT)
        ]
        np.testing.assert_allclose(again, kernel, rtol=1e-5, atol=1e-6)


def test_the_kernel_is_what_the_scores_of_mean_vectors_are(results: ropewalk.Results) -> None:
    """Queries and keys with a constant part have the mean scores that K says; the same with none have not."""
    rope = results.heads[results.heads["rope"]]
    assert rope["fixed_share_q"].min() > 0.3
    assert rope["kernel_r"].min() > 0.98
    assert rope["kernel_misfit"].max() < 0.05
    documents = np.random.default_rng(0).integers(3, 40, (DOCUMENTS, CONTEXT)).tolist()
    bare = ropewalk.measure(tiny_smollm3(), documents, context=CONTEXT, statistics=["frame", "behaviour"]).heads
    bare = bare[bare["layer"] == 0]
    assert bare["fixed_share_q"].max() < 0.1
    assert bare["kernel_r"].max() < 0.9


def test_kernel_shares_are_variances_over_the_bins(results: ropewalk.Results) -> None:
    parts = results.tables.others["spectrum"].query("layer == 0 and head == 1")
    bins = results.tables.others["distance"].query("layer == 0 and head == 1")
    own = []
    for pair in parts.itertuples():
        strength = complex(pair.kernel_re, pair.kernel_im)
        curve = []
        for start, stop in zip(bins["distance"], bins["distance_stop"], strict=True):
            distances = np.arange(start, stop)
            values = (strength * np.exp(-1j * pair.frequency * distances)).real
            curve.append(np.average(values, weights=CONTEXT - distances))
        own.append(np.var(curve))
    np.testing.assert_allclose(parts["kernel_share"], np.array(own) / sum(own), rtol=1e-4, atol=1e-9)
    row = results.heads.query("layer == 0 and head == 1").iloc[0]
    assert row["dominant_wavelength"] == pytest.approx(parts["wavelength"].iloc[int(np.argmax(own))], rel=1e-6)
    mean = np.exp((np.array(own) / sum(own)) @ np.log(parts["wavelength"]))
    assert row["kernel_wavelength"] == pytest.approx(mean, rel=1e-5)


def test_layers_without_rope_have_no_frame(results: ropewalk.Results) -> None:
    nope = results.heads[~results.heads["rope"]]
    assert list(nope["layer"].unique()) == [3]
    for column in ("fixed_share_q", "concentration_k", "kernel_range", "kernel_misfit", "dominant_wavelength"):
        assert nope[column].isna().all()
    assert 3 not in set(results.tables.others["spectrum"]["layer"])
    distance = results.tables.others["distance"]
    assert distance.loc[distance["layer"] == 3, "kernel"].isna().all()
    assert distance.loc[distance["layer"] == 3, "score"].notna().all()


@pytest.mark.parametrize("full", [False, True])
def test_sums_merge_and_leave_out_exactly(model: Any, documents: list[list[int]], full: bool) -> None:
    chosen = {"frame": {"full": full}}
    captured = ropewalk.measure(model, documents, context=CONTEXT, shards=4, statistics=chosen).captures["model"]
    whole = ropewalk.measure(model, documents, context=CONTEXT, shards=1, statistics=chosen).captures["model"]
    frame = Frame(full=full)
    for heads in layers_of(captured.layout, captured.heads):
        parts, expected = captured.parts("frame", heads), whole.parts("frame", heads)[0]
        merged = frame.merge(parts)
        assert set(merged) == set(expected)
        for name, array in merged.items():
            scale = np.abs(expected[name]).max(initial=0)
            np.testing.assert_allclose(array, expected[name], atol=1e-6 * scale, rtol=1e-6, err_msg=name)
        if parts[0]:
            plain = [{name: part[name] for name in part if ".pre." not in name} for part in parts]
            stacked, rest = left_out(plain), frame.merge(parts[:2] + parts[3:])
            for name, array in stacked.items():
                np.testing.assert_allclose(array[3], rest[name], rtol=1e-9, atol=1e-9)


def test_full_has_the_second_moments_before_the_rotation(model: Any, documents: list[list[int]]) -> None:
    full = ropewalk.measure(model, documents, context=CONTEXT, shards=2, statistics={"frame": "full"})
    before = ropewalk.measure(model, documents, context=CONTEXT, shards=2, statistics=["moments"], pre_rope=True)
    for heads in layers_of(full.layout, full.captures["model"].heads):
        if not heads.layer.rope:
            continue
        parts = zip(
            *(r.captures["model"].parts(n, heads) for r, n in ((full, "frame"), (before, "moments"))), strict=True
        )
        for one, other in parts:
            for kind in ("q", "k"):
                turned_back, given = unpack(one, f"{kind}.pre"), unpack(other, kind)
                for name in ("n", "mean", "sxx", "sxt"):
                    scale = np.abs(getattr(given, name)).max()
                    np.testing.assert_allclose(getattr(turned_back, name), getattr(given, name), atol=2e-6 * scale)
    rope = full.heads["rope"]
    np.testing.assert_allclose(full.heads.loc[rope, "rank_q_pre"], before.heads.loc[rope, "rank_q"], rtol=1e-5)
    np.testing.assert_allclose(full.heads.loc[rope, "se_rank_k_pre"], before.heads.loc[rope, "se_rank_k"], rtol=1e-3)
    np.testing.assert_allclose(full.heads.loc[rope, "rank90_q_pre"], before.heads.loc[rope, "rank90_q"], rtol=1e-5)
    assert full.heads.loc[~rope, "rank_q_pre"].isna().all()


def test_a_capture_before_the_rotation_has_the_same_frame(
    results: ropewalk.Results, model: Any, documents: list[list[int]]
) -> None:
    before = ropewalk.measure(
        model, documents, context=CONTEXT, shards=SHARDS, statistics=["frame", "behaviour"], pre_rope=True
    )
    for column in ("fixed_share_q", "concentration_k", "kernel_range", "mass_first", "score_r2_distance"):
        np.testing.assert_allclose(before.heads[column], results.heads[column], rtol=1e-4, atol=1e-6)


def test_first_tokens_can_be_left_out(model: Any, documents: list[list[int]], calls: list[Call]) -> None:
    found = ropewalk.measure(model, documents, context=CONTEXT, skip_first=5, statistics=["frame"]).heads.iloc[2]
    x = vectors(calls[0], "q", 2)
    u = turned(x)[:, 5:].reshape(-1, 8)
    expected = (np.abs(u.mean(axis=0)) ** 2).sum() / (x[:, 5:] ** 2).sum(axis=2).mean()
    assert found["fixed_share_q"] == pytest.approx(expected, rel=1e-5)


def planted(first: list[int], second: list[int], frequencies: list[float], d: int) -> tuple[AttentionLayer, Call, Call]:
    """Random vectors at one position, and the same after turning these pairs by these frequencies at `DISTANCES`."""
    rng = np.random.default_rng(0)
    before = rng.normal(size=(3, len(DISTANCES) + 1, d))
    after = before.copy()
    for one, other, frequency in zip(first, second, frequencies, strict=True):
        z = (before[..., one] + 1j * before[..., other]) * np.exp(1j * frequency * np.append(DISTANCES, 63))
        after[..., one], after[..., other] = z.real, z.imag
    layer = AttentionLayer(0, 0, 3, 3, d, len(first) * 2 / d, None)
    one, two = (torch.from_numpy(x)[None] for x in (before, after))
    return layer, Call(torch.nn.Identity(), one, one, one, {}), Call(torch.nn.Identity(), two, two, two, {})


@pytest.mark.parametrize(
    ("first", "second"),
    [([0, 1, 2, 3], [4, 5, 6, 7]), ([0, 2, 4, 6], [1, 3, 5, 7]), ([0, 1], [2, 3]), ([0, 3, 1], [5, 2, 7])],
    ids=["halves", "neighbours", "some", "any"],
)
def test_planted_pairs_and_frequencies_are_found(first: list[int], second: list[int]) -> None:
    frequencies = [1.3, 0.21, 0.034, 0.0007][: len(first)]
    layer, before, after = planted(first, second, frequencies, 8)
    found = _measured(layer, before, after, DISTANCES, 1e-3)
    assert found is not None
    rows = sorted(zip(found.first, found.second, found.frequencies, strict=True))
    for row, expected in zip(rows, sorted(zip(first, second, frequencies, strict=True)), strict=True):
        assert {*row[:2]} == {*expected[:2]}
        assert row[2] == pytest.approx(expected[2], rel=1e-6)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_large_constants_do_not_hide_the_pairs(kind: torch.dtype) -> None:
    """As in trained models: slow pairs with vectors of 60, whose rounding is more than the others turn."""
    rng = np.random.default_rng(1)
    before = rng.normal(size=(4, len(DISTANCES) + 1, 8)) + np.array([0, 0, 60, -40, 0, 0, 25, 50])
    frequencies = [1.0, 0.1, 0.001, 0.0001]
    after = before.copy()
    for pair, frequency in enumerate(frequencies):
        z = (before[..., pair] + 1j * before[..., pair + 4]) * np.exp(1j * frequency * np.append(DISTANCES, 63))
        after[..., pair], after[..., pair + 4] = z.real, z.imag
    one, two = (torch.from_numpy(x)[None].to(kind) for x in (before, after))
    calls = [Call(torch.nn.Identity(), x, x, x, {}) for x in (one, two)]
    layer = AttentionLayer(0, 0, 4, 4, 8, 1.0, None)
    found = _measured(layer, *calls, DISTANCES, 6e-2 if kind.itemsize == 2 else 1e-3)
    assert found is not None
    assert (found.first, found.second) == ((0, 1, 2, 3), (4, 5, 6, 7))
    np.testing.assert_allclose(found.frequencies, frequencies, atol=1e-4)


def test_what_is_no_turning_of_pairs_is_found_to_be_none() -> None:
    layer, before, after = planted([0, 1], [2, 3], [1.0, 0.1], 4)
    stretched = after.key * torch.linspace(0.5, 2, 4)
    assert _measured(layer, before, after._replace(key=stretched), DISTANCES, 1e-3) is None


def test_other_pairs_do_not_turn_vectors_back() -> None:
    """Negative control: with the right pairs the vectors come back, with permuted ones they do not."""
    _, before, after = planted([0, 1], [2, 3], [1.0, 0.1], 4)
    right = Rotary((0, 1), (2, 3), (1.0, 0.1))
    positions = torch.from_numpy(np.append(DISTANCES, 63))
    for rotary, back in (
        (right, True),
        (replace(right, second=(3, 2)), False),
        (replace(right, frequencies=(0.1, 1.0)), False),
        (replace(right, first=(2, 3), second=(0, 1)), False),
    ):
        turned = turned_back(after.key, rotary, *angles(rotary, positions, 4))
        assert torch.allclose(turned, before.key, atol=1e-5) is back


def test_bins_of_distances() -> None:
    edges = distance_edges(64)
    assert edges.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]
    starts, octave = octaves(64)
    assert starts.tolist() == [0, 1, 2, 4, 8, 16, 32]
    for start, number in zip(edges[:-1], octave, strict=True):
        assert starts[number] == (0 if start == 0 else 2 ** int(np.log2(start)))
    for context in (1, 2, 3, 7, 8, 9, 100, 4096):
        assert distance_edges(context)[[0, -1]].tolist() == [0, context]


def test_effective_ranks_of_known_spectra() -> None:
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    spectra = np.array([[1.0] * 6, [4.0, 3.0, 2.0, 1.0, 0.0, 0.0]])
    scatter = np.stack([(turn * values) @ turn.T for values in spectra])
    found = ranks(scatter, None)
    np.testing.assert_allclose(found["rank"], [[6.0, 100 / 30]])
    np.testing.assert_allclose(found["rank90"], [[5.4, 3.0]])
    assert components_for(np.array([1.0, 0.0]), 0.9) == pytest.approx(0.9)
    assert np.isnan(components_for(np.zeros(3), 0.9))


def test_errors_of_ranks_are_near_those_of_full_decompositions() -> None:
    rng = np.random.default_rng(1)
    parts = [np.cov((rng.normal(size=(400, 12)) * np.linspace(3, 0.3, 12)).T)[None] for _ in range(6)]
    whole = sum(parts)
    left = np.concatenate([whole - part for part in parts])
    found = ranks(whole, left)
    exact = np.array([components_for(np.linalg.eigvalsh(one)[::-1], 0.9) for one in left])
    np.testing.assert_allclose(found["rank90"][1:, 0], exact, rtol=5e-3)
    assert found["rank90"][1:].std() == pytest.approx(exact.std(), rel=0.15)
