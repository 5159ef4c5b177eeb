"""Nulls and sensitivity: what chance alone gives, and what the numbers become when something else is changed."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ropewalk
from helpers.oracles import jackknife
from helpers.tables import leave_one_out, synthetic
from helpers.tiny import make_texts, save_tokenizer, tiny_smollm3
from ropewalk.capture.nulls import with_nulls
from ropewalk.errors import RopewalkError
from ropewalk.geometry.jackknife import critical, jackknife_error
from ropewalk.geometry.moments import Moments
from ropewalk.models.layout import AttentionLayer
from ropewalk.pipeline import run_study
from ropewalk.statistics.base import LayerHeads, Scope
from ropewalk.statistics.position import read_position
from ropewalk.studyfile import parse_study
from ropewalk.summary.measures import MEASURES
from ropewalk.summary.sample import Sample
from ropewalk.summary.sensitivity import sensitivity
from ropewalk.summary.view import View


def sample_of(r_q: np.ndarray, r_k: np.ndarray, error: float, groups: int = 8, seed: int = 0) -> Sample:
    """Heads whose estimates r scatter by `error` about the given ones, oriented by the rule."""
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=(2, groups, len(r_q))) * error * np.sqrt(groups)
    q, k = r_q + noise[0].mean(axis=0), r_k + noise[1].mean(axis=0)
    sign = np.where(np.where(np.abs(q) >= 0.05, q, k) < 0, -1, 1)
    left_q, left_k = (
        sign * (r + (part.mean(axis=0) - part) / (groups - 1)) for r, part in ((q, noise[0]), (k, noise[1]))
    )
    table = pd.DataFrame({"layer": 0, "head": range(len(q)), "rope": pd.array([True] * len(q), dtype="boolean")})
    table = table.assign(bin=0, r_q=q * sign, r_k=k * sign)
    return Sample.of(table, {"r_q": left_q, "r_k": left_k}, tuple(range(groups)))


def test_independent_symmetric_correlations_are_half_discordant_among_the_decided() -> None:
    generator = np.random.default_rng(1)
    r_q, r_k = generator.normal(0, 0.12, (2, 4000))
    sample = sample_of(r_q, r_k, 0.03)
    share = float(MEASURES["discordant"](sample.columns))
    decided = 1 - float(MEASURES["undecided"](sample.columns))
    assert 0.2 < decided < 0.9
    assert share == pytest.approx(0.5, abs=2.5 * 0.5 / np.sqrt(4000 * decided))
    # The sign convention biases a count of r_k < 0 over all heads.
    assert float(MEASURES["share_negative_r_k"](sample.columns)) < 0.42


@pytest.fixture(scope="module")
def without_position() -> Any:
    """What is read of 150 heads whose vectors have nothing to do with position, in 8 groups of one document."""
    heads, d, tokens, groups = 150, 8, 200, 8
    generator = np.random.default_rng(0)
    t = np.arange(float(tokens))
    whole: dict[str, list[Moments]] = {"q": [], "k": []}
    shuffled: dict[str, list[np.ndarray]] = {"q": [], "k": []}
    for _ in range(groups):
        order = generator.permutation(t)
        for kind in ("q", "k"):
            x = generator.normal(size=(heads, tokens, d)) * np.linspace(2, 0.5, d)
            whole[kind].append(Moments.of(x, t))
            shuffled[kind].append((order - t) @ x)
    layer = AttentionLayer(0, 0, heads, heads, d, 1.0, None)
    scope = Scope(context=tokens, documents=groups, bucket_size=1, components=3)
    return read_position(LayerHeads(layer, tuple(range(heads)), tuple(range(heads))), scope, whole, shuffled, {})


def test_without_position_no_more_heads_are_above_the_null_than_chance_gives(without_position: Any) -> None:
    count = len(without_position.values["r_q"])
    table = pd.DataFrame({**without_position.values, "layer": 0, "head": range(count)})
    table = table.assign(rope=pd.array([True] * count, dtype="boolean"), bin=0)
    sample = Sample.of(table, dict(without_position.replicates), tuple(range(8)))
    for kind in ("q", "k"):
        assert float(MEASURES[f"above_permuted_{kind}"](sample.columns)) < 0.08
        for axis in ("", "_centred", "_drift"):
            null, own = (np.abs(without_position.values[f"r_{kind}{axis}{ending}"]) for ending in ("_permuted", ""))
            assert np.mean(null) == pytest.approx(np.mean(own), rel=0.35), (kind, axis)
        reach = critical(8) * jackknife_error(without_position.replicates[f"readout_{kind}"])
        assert np.mean(np.abs(without_position.values[f"readout_{kind}"]) > reach) < 0.08
    # And a drift is seen by all of them.
    moved = without_position.values["r_q"] + 0.5
    table["r_q"] = moved
    replicates = {**without_position.replicates, "r_q": without_position.replicates["r_q"] + 0.5}
    assert float(MEASURES["above_permuted_q"](Sample.of(table, replicates, tuple(range(8))).columns)) > 0.95


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A study of a model at two moments of its training, the second at a longer context."""
    home = tmp_path_factory.mktemp("nulls")
    for name in ("early", "late"):
        torch.manual_seed(len(name))
        tiny_smollm3().save_pretrained(home / name)
    save_tokenizer(home / "tokenizer")
    (home / "texts").mkdir()
    for number, text in enumerate(make_texts(6)):
        (home / "texts" / f"{number}.txt").write_text(text)
    return {
        "name": "nulls",
        "results": str(home / "results"),
        "defaults": {"tokenizer": str(home / "tokenizer"), "device": "cpu"},
        "checkpoints": [
            {"repo": str(home / "early"), "context": 32, "step": 1},
            {"repo": str(home / "late"), "context": 64, "step": 2},
        ],
        "nulls": ["permuted", "untrained"],
        "corpus": {"source": "files", "paths": [str(home / "texts/*.txt")]},
        "capture": {"shards": 3, "statistics": ["moments"]},
    }


@pytest.fixture(scope="module")
def results(study: dict[str, Any]) -> ropewalk.Results:
    return run_study(parse_study(study))


def test_untrained_models_are_captured_once_for_each_architecture_and_context(study: dict[str, Any]) -> None:
    parsed = parse_study(study)
    added = with_nulls(parsed)
    assert [one.name for one in added.checkpoints] == ["early", "late", "untrained early", "untrained late"]
    assert [one.untrained for one in added.checkpoints] == ["untrained early", "untrained late"] * 2
    assert [one.random_weights for one in added.checkpoints] == [False, False, True, True]
    assert with_nulls(added) == added
    alike = [{**one, "context": 32} for one in study["checkpoints"]]
    names = [one.name for one in with_nulls(parse_study({**study, "checkpoints": alike})).checkpoints]
    assert names == ["early", "late", "untrained"]
    named = [{**alike[0], "name": "Untrained"}, alike[1]]
    assert with_nulls(parse_study({**study, "checkpoints": named})).checkpoints[-1].name == "untrained null"
    assert with_nulls(parse_study({**study, "nulls": []})) == parse_study({**study, "nulls": []})


def test_nulls_stand_beside_what_they_are_nulls_of(results: ropewalk.Results, study: dict[str, Any]) -> None:
    view = results.view
    assert view.lineup.names == ("early", "late")
    assert set(view.untrained) == {"early", "late"}
    untrained = results.heads[results.heads["checkpoint"] == "untrained late"]
    track = view.track_untrained("mean_r_q")
    assert track is not None
    assert track.values[1] == pytest.approx(untrained["r_q"].mean())
    above = view.above_untrained("mean_r_q", 1)
    assert above is not None
    assert above.value == pytest.approx(view.track("mean_r_q").values[1] - untrained["r_q"].mean())
    left = results.replicates.groupby(["checkpoint", "left_out"])["r_q"].mean().unstack()
    assert above.se == pytest.approx(jackknife(left.loc["late"] - left.loc["untrained late"]))
    caption = (Path(study["results"]) / "figures" / "01_position_signal" / "README.md").read_text()
    assert "dash-dotted lines are the same model untrained" in caption
    assert "Dotted lines are r_q and r_k with positions shuffled within documents" in caption


def test_nulls_that_are_not_asked_for_are_not_shown(results: ropewalk.Results) -> None:
    view = View.of(results.heads, results.replicates, nulls=())
    assert not view.has_permuted
    assert not view.untrained
    assert np.isnan(view.track("above_permuted_q").values).all()


def test_sensitivity_of_one_checkpoint_is_its_rows_of_all(results: ropewalk.Results) -> None:
    rows, last = results.sensitivity(), results.view.lineup.labels[-1]
    own = rows[rows["label"] == last].reset_index(drop=True)
    assert 0 < len(own) < len(rows)
    pd.testing.assert_frame_equal(results.sensitivity(last), own, check_exact=True)


@pytest.mark.slow
def test_sensitivity_against_other_captures(results: ropewalk.Results, study: dict[str, Any], tmp_path: Path) -> None:
    """Without the first tokens, and at one context: the numbers of captures that are made so."""
    rows = results.sensitivity().set_index(["checkpoint", "change", "quantity"])
    changes = {
        "without the first 4 tokens": {"capture": {**study["capture"], "skip_first": 4}},
        "all cut to 32 tokens, the shortest context": {
            "checkpoints": [study["checkpoints"][0], {**study["checkpoints"][1], "context": 32}]
        },
    }
    for number, (change, other) in enumerate(changes.items()):
        again = run_study(parse_study({**study, **other, "nulls": [], "results": str(tmp_path / str(number))}))
        for index, name in enumerate(("early", "late")):
            for quantity in ("mean_r_q", "mean_abs_r_k", "share_mixed", "share_content-focused"):
                row = rows.loc[(name, change, quantity)]
                assert row["changed"] == pytest.approx(again.track(quantity).values[index], abs=1e-6)
                assert row["difference"] == pytest.approx(row["changed"] - row["value"], abs=1e-9)
                assert row["se"] >= 0
    heads = results.heads[results.heads["checkpoint"] == "late"]
    moved = rows.loc[("late", "thresholds 0.2 and 0.6, not 0.3 and 0.7", "share_content-focused")]
    assert moved["changed"] == pytest.approx(((heads["r_q"] < 0.2) & (heads["r_k"].abs() < 0.2)).mean())
    on_disk = pd.read_csv(Path(study["results"]) / "sensitivity.csv")
    assert len(on_disk) == len(rows)


def test_the_error_of_a_sample_of_heads_is_its_spread_over_samples() -> None:
    table = synthetic(1, phases=1, heads=200)
    view = View.of(table, leave_one_out(table))
    rows = sensitivity(view).set_index(["change", "quantity"])
    row = rows.loc[("100 of 200 heads at random", "mean_r_q")]
    r_q = table.loc[table["pc"] == 0, "r_q"].to_numpy()
    generator = np.random.default_rng(0)
    spread = np.std([generator.choice(r_q, 100, replace=False).mean() for _ in range(4000)])
    assert row["se"] == pytest.approx(spread, rel=0.05)
    sampled = sensitivity(view, {view.lineup.names[0]: 800}).set_index(["change", "quantity"])
    row = sampled.loc[("all 800 heads, not 200 of them", "mean_r_q")]
    assert np.isnan(row["difference"])
    assert row["se"] == pytest.approx(r_q.std(ddof=1) * np.sqrt((1 - 200 / 800) / 200))


def test_figures_and_summaries_are_on_the_axis_that_is_asked_for(results: ropewalk.Results) -> None:
    drift = results.view.on("drift")
    assert drift.track("mean_r_q").values[1] == pytest.approx(
        results.heads.loc[results.heads["checkpoint"] == "late", "r_q_drift"].mean()
    )
    assert drift.on("pooled").track("mean_r_q").values[1] == results.view.track("mean_r_q").values[1]
    assert drift.select([1]).on("pooled").lineup.names == ("late",)
    assert drift.parts[1]["category"].tolist() == [
        category if isinstance(category, str) else None
        for category in results.heads.loc[results.heads["checkpoint"] == "late", "category_drift"]
    ]
    with pytest.raises(RopewalkError, match="no axis is called 'x': choose from pooled, centred, drift"):
        results.view.on("x")
    bare = View.of(results.table)
    with pytest.raises(RopewalkError, match="the table has no column r_q_drift: run `ropewalk analyze`"):
        bare.on("drift")
    assert results.figure("position_signal", axis="drift").axes[0].get_ylabel().endswith("drift axis")
    with pytest.raises(RopewalkError, match="the figure axis_choice has no option 'axis': it takes none"):
        results.figure("axis_choice", axis="drift")


@pytest.mark.slow
def test_a_study_can_choose_the_axis_of_its_figures(study: dict[str, Any], results: ropewalk.Results) -> None:
    again = run_study(parse_study({**study, "figures": {"axis": "centred"}}))
    caption = (Path(study["results"]) / "figures" / "06_phase_portraits" / "README.md").read_text()
    assert "on PC0 of queries and keys centred apart" in caption
    assert 'axis="centred"' in caption
    assert again.page().cards[0].value == f"{results.view.on('centred').track('mean_r_q').values[-1]:.3f}"
