"""Summaries: lineups, tracks, transitions and their errors against plain pandas."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from helpers.oracles import jackknife
from helpers.tables import heads_of, leave_one_out, synthetic
from ropewalk.errors import RopewalkError
from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.summary.lineup import Group
from ropewalk.summary.measures import MEASURES
from ropewalk.summary.view import NO_CATEGORY, View, depth_tracks, summarise, transitions


def test_summarise_against_pandas():
    table = synthetic(3, phases=2)
    replicates = leave_one_out(table, shards=4)
    summary = summarise(View.of(table, replicates)).set_index(["checkpoint", "quantity"])
    heads = heads_of(table)
    for name, part in heads.groupby("checkpoint", sort=False):
        rope, nope = part[part["rope"]], part[~part["rope"]]
        dominated = part["category"] == "position-dominated"
        own = replicates[replicates["checkpoint"] == name].pivot(columns="left_out", index=["layer", "head"])
        limits = [student.ppf(0.975, 3) * own[column].apply(jackknife, axis=1).to_numpy() for column in ("r_q", "r_k")]
        decided = part[(part["r_q"].abs() > limits[0]) & (part["r_k"].abs() > limits[1])]
        expected = {
            "mean_r_q": part["r_q"].mean(),
            "mean_r_k": part["r_k"].mean(),
            "mean_abs_r_k": part["r_k"].abs().mean(),
            "discordant": (decided["r_q"] * decided["r_k"] < 0).mean(),
            "undecided": 1 - len(decided) / len(part),
            "undecided_category": 0.0,
            "share_negative_r_k": (part["r_k"] < 0).mean(),
            "mean_explained_variance": part["explained_variance"].mean(),
            **{f"share_{category}": (part["category"] == category).mean() for category in CATEGORIES},
            "concordant_position-dominated": (dominated & (part["r_q"] * part["r_k"] > 0)).mean(),
            "discordant_position-dominated": (dominated & (part["r_q"] * part["r_k"] < 0)).mean(),
            "mean_r_q_rope": rope["r_q"].mean(),
            "mean_r_q_nope": nope["r_q"].mean(),
            "mean_r_k_rope": rope["r_k"].mean(),
            "mean_r_k_nope": nope["r_k"].mean(),
            "mean_abs_r_k_rope": rope["r_k"].abs().mean(),
            "mean_abs_r_k_nope": nope["r_k"].abs().mean(),
            "discordant_rope": (decided["r_q"] * decided["r_k"] < 0)[decided["rope"]].mean(),
            "discordant_nope": (decided["r_q"] * decided["r_k"] < 0)[~decided["rope"]].mean(),
        }
        # What the table has no columns for is missing.
        missing = MEASURES.keys() - expected.keys()
        statistics = ("permuted", "readout", "separation", "fixed_share", "mass", "lift", "score_r2", "effective_keys")
        rotation = ("alpha_", "mu_q_a", "bias_strength", "var_frac", "_slow", "_q_a", "_k_a", "mean_ap_")
        assert all(any(word in name for word in (*statistics, *rotation, "kernel", "bend")) for name in missing)
        assert all(np.isnan(summary.loc[(name, quantity), "value"]) for quantity in missing)
        for quantity, number in expected.items():
            assert summary.loc[(name, quantity), "value"] == pytest.approx(number)
        samples = replicates[replicates["checkpoint"] == name].groupby("left_out")["r_k"]
        assert summary.loc[(name, "mean_r_k"), "se"] == pytest.approx(jackknife(samples.mean()))
        # Sizes are too large by what noise adds without a sign: the mean of a folded normal distribution.
        r, s = part["r_k"].to_numpy(), own["r_k"].apply(jackknife, axis=1).to_numpy()
        folded = s * np.sqrt(2 / np.pi) * np.exp(-(r**2) / (2 * s**2)) + r * (1 - 2 * norm.cdf(-r / s))
        spread = jackknife(samples.apply(lambda r: r.abs().mean()))
        expected_error = np.hypot(spread, (folded - np.abs(r)).mean())
        assert expected_error >= spread
        assert summary.loc[(name, "mean_abs_r_k"), "se"] == pytest.approx(expected_error, rel=2e-3)
    assert summarise(View.of(table))["se"].isna().all()


def test_change_pairs_shards():
    table = synthetic(2, phases=1)
    replicates = leave_one_out(table, shards=5)
    track = View.of(table, replicates).track("mean_r_q")
    means = replicates.groupby(["checkpoint", "left_out"], sort=False)["r_q"].mean().unstack()
    paired = jackknife(means.iloc[1] - means.iloc[0])
    assert track.change(0, 1).se == pytest.approx(paired)
    assert track.change(0, 1).value == pytest.approx(float(np.diff(track.values)[0]))
    first, second = table["checkpoint"].unique()
    fewer = replicates[~((replicates["checkpoint"] == second) & (replicates["left_out"] == 4))]
    track = View.of(table, fewer).track("mean_r_q")
    assert track.change(0, 1).se == pytest.approx(
        math.hypot(jackknife(means.loc[first]), jackknife(means.loc[second][:4]))
    )


def test_one_replicate_is_no_error():
    table = synthetic(2, phases=1)
    view = View.of(table, leave_one_out(table, shards=1))
    assert not view.has_errors
    assert np.isnan(view.track("mean_r_q").errors).all()


def test_lineup_of_training_and_of_models():
    training = View.of(synthetic(10)).lineup
    assert training.training
    assert training.noun == "checkpoint"
    assert training.groups[0] == Group("stage 1", 0, 2)
    assert training.groups[-1] == Group("LC 32K->64K", 8, 10)
    models = View.of(synthetic(8, models=True)).lineup
    assert not models.training
    assert models.noun == "model"
    assert [group.name for group in models.groups] == ["Llama", "Qwen", "SmolLM", "OLMo 2"]
    bare = synthetic(3)[["checkpoint", "layer", "head", "pc", "explained_variance", "r_q", "r_k"]]
    assert View.of(bare).lineup.noun == "checkpoint"
    assert View.of(bare).lineup.groups == (Group("", 0, 3),)


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ([4, 1, 1, 2, 2], [0, 3, 4, 5, 7, 9]),
        ([2, 2, 2, 2, 2], [0, 1, 3, 5, 7, 9]),
        ([10], [0, 2, 4, 5, 7, 9]),
        ([5, 5], [0, 2, 4, 6, 7, 9]),
        ([3], [0, 1, 2]),
        ([1], [0]),
        ([1] * 40, [0, 1, 13, 26, 38, 39]),
    ],
)
def test_representative_checkpoints(phases, expected):
    names = [f"phase {index}" for index, count in enumerate(phases) for _ in range(count)]
    table = pd.concat(
        synthetic(1, heads=2).assign(checkpoint=f"c{index}", phase=name) for index, name in enumerate(names)
    )
    chosen = View.of(table).lineup.representative(6)
    assert chosen == expected
    assert chosen == sorted(set(chosen))


def test_select_keeps_groups():
    view = View.of(synthetic(10)).select([0, 1, 9])
    assert view.lineup.groups == (Group("stage 1", 0, 2), Group("LC 32K->64K", 2, 3))
    assert [len(part) for part in view.parts] == [300] * 3


def test_depth_tracks_against_a_loop():
    table = synthetic(2, phases=1)
    replicates = leave_one_out(table, shards=3)
    tracks = depth_tracks(View.of(table, replicates), "r_k")
    heads = table[table["pc"] == 0]
    name = heads["checkpoint"].iloc[0]
    for bin_ in range(10):
        layers = [layer for layer in range(36) if max(math.ceil(10 * layer / 35) - 1, 0) == bin_]
        inside = heads[(heads["checkpoint"] == name) & heads["layer"].isin(layers)]
        assert tracks[bin_].values[0] == pytest.approx(inside["r_k"].mean())
        samples = replicates[(replicates["checkpoint"] == name) & replicates["layer"].isin(layers)]
        assert tracks[bin_].errors[0] == pytest.approx(jackknife(samples.groupby("left_out")["r_k"].mean()))


def test_transitions_pair_heads():
    table = synthetic(2, phases=1)
    table.loc[table.index[0], "r_k"] = np.nan
    first = table["checkpoint"].iloc[0]
    dropped = table.drop(index=table.index[(table["checkpoint"] == first) & (table["pc"] == 0)][5])
    pairs = transitions(View.of(dropped), 0, 1)
    assert len(pairs) == 299
    assert pairs["certain"].isna().all()
    assert pairs["before"].iloc[0] == NO_CATEGORY
    heads = heads_of(table).set_index(["checkpoint", "layer", "head"])["category"].fillna(NO_CATEGORY)
    second = table["checkpoint"].unique()[1]
    for row in pairs.itertuples():
        assert (row.before, row.after) == (heads[first, row.layer, row.head], heads[second, row.layer, row.head])


def test_transitions_know_what_is_certain():
    table = synthetic(2, phases=1)
    table["certainty"] = 0.99
    assert transitions(View.of(table), 0, 1)["certain"].all()
    row = table.index[7]
    table.loc[row, "certainty"] = 0.94
    pairs = transitions(View.of(table), 0, 1)
    assert pairs.loc[~pairs["certain"], ["layer", "head"]].to_numpy().tolist() == [
        table.loc[row, ["layer", "head"]].tolist()
    ]


def test_models_of_another_depth_share_no_heads():
    table = synthetic(2, models=True).assign(family="one")
    assert len(transitions(View.of(table), 0, 1)) == 300
    deeper = table["checkpoint"] == table["checkpoint"].unique()[1]
    assert transitions(View.of(table.assign(layers=np.where(deeper, 40, 36))), 0, 1).empty


def test_mistakes_are_named():
    table = synthetic(1, phases=1)
    with pytest.raises(RopewalkError, match="the table has no row with pc 0: PC0 is what figures"):
        View.of(table[table["pc"] == 1])
    replicates = leave_one_out(table).drop(columns="left_out")
    with pytest.raises(RopewalkError, match="the replicates have no column 'left_out': they need checkpoint, layer"):
        View.of(table, replicates)
    with pytest.raises(RopewalkError, match="no checkpoint 'x' in the table: choose from stage1-step-0"):
        View.of(table).lineup.find(["x"])
