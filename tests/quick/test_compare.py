"""Measured against published numbers."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.tables import random_table, write_results
from ropewalk import compare
from ropewalk.errors import RopewalkError
from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.results import load
from ropewalk.summary.view import View

FIRST, LAST = "stage1-step-40000", "lc-32k-to-64k-step-20000"
SHARDS = 4


def make_table(names=(FIRST, LAST), labels=("S1-40K", "LC2-20K"), layers=21, heads=2, seed=0):
    facts = [{"checkpoint": name, "label": label} for name, label in zip(names, labels, strict=True)]
    return random_table(facts, layers=layers, heads=heads, shards=SHARDS, noise=0.01, seed=seed)


def row(frame, checkpoint, quantity):
    found = frame[(frame["checkpoint"] == checkpoint) & (frame["quantity"] == quantity)]
    assert len(found) == 1
    return found.iloc[0]


def test_the_package_carries_the_smollm3_numbers():
    assert compare.published_sets() == ["smollm3"]


def test_published_numbers_are_those_of_the_study():
    table, replicates = make_table()
    frame = compare.compare(View.of(table, replicates))
    assert list(frame.columns) == compare.COLUMNS
    assert len(frame) == 2 * (3 + 5 + 20)
    printed = {
        "mean_r_q": 0.87,
        "mean_r_k": 0.47,
        "mean_explained_variance": 0.338,
        "share_position-dominated": 0.707,
        "share_Q-positional": 0.026,
        "share_K-positional": 0.003,
        "share_content-focused": 0.007,
        "share_mixed": 0.257,
        "depth_r_q_0.0": 0.80,
        "depth_r_q_0.9": 0.86,
        "depth_r_k_0.2": 0.88,
        "depth_r_k_0.9": 0.32,
    }
    for quantity, value in printed.items():
        assert row(frame, LAST, quantity)["published"] == value


def test_published_shares_add_up_to_one():
    frame = compare.compare(View.of(*make_table()))
    shares = frame[frame["quantity"].str.startswith("share_")].groupby("checkpoint")["published"].sum()
    assert np.allclose(shares, 1, atol=0.005)


def test_measured_numbers_and_errors_are_plain_pandas():
    table, replicates = make_table()
    frame = compare.compare(View.of(table, replicates))
    heads = table[(table["pc"] == 0) & (table["checkpoint"] == FIRST)]
    samples = replicates[replicates["checkpoint"] == FIRST]

    def error(values):
        return math.sqrt((SHARDS - 1) / SHARDS * ((values - values.mean()) ** 2).sum())

    found = row(frame, FIRST, "mean_r_k")
    assert found["measured"] == pytest.approx(heads["r_k"].mean())
    assert found["difference"] == pytest.approx(heads["r_k"].mean() - 0.46)
    assert found["se"] == pytest.approx(error(samples.groupby("left_out")["r_k"].mean()))

    dominated = (heads["r_q"] > 0.7) & (heads["r_k"].abs() > 0.7)
    assert row(frame, FIRST, f"share_{CATEGORIES[0]}")["measured"] == pytest.approx(dominated.mean())

    # 21 layers: layer / 20 in (0.2, 0.3] is the third bin, layers 5 and 6.
    inside = heads[heads["layer"].isin([5, 6])]
    cell = row(frame, FIRST, "depth_r_q_0.2")
    assert cell["measured"] == pytest.approx(inside["r_q"].mean())
    shifted = samples[samples["layer"].isin([5, 6])].groupby("left_out")["r_q"].mean()
    assert cell["se"] == pytest.approx(error(shifted))


@pytest.mark.parametrize(
    ("r_q", "error", "agrees"),
    [
        # Published: 0.67. Sixteen replicates r_q ± spread have the jackknife error sqrt(15/16 · 16 · spread²).
        (0.696, 0.01, True),  # 0.026 off, at most 2.1314 · 0.01 + 0.005 = 0.0263
        (0.697, 0.01, False),
        (0.644, 0.01, True),
        (0.643, 0.01, False),
        (0.717, 0.02, True),  # 0.047 off, at most 2.1314 · 0.02 + 0.005 = 0.0476
        (0.718, 0.02, False),
    ],
)
def test_agreement_is_the_interval_plus_the_published_precision(r_q, error, agrees):
    table, replicates = constant(r_q, count=16)
    replicates["r_q"] = r_q + np.tile([-1, 1], 8) * error / np.sqrt(15)
    found = row(compare.compare(View.of(table, replicates)), FIRST, "mean_r_q")
    assert found["se"] == pytest.approx(error)
    assert found["difference"] == pytest.approx(r_q - 0.67)
    assert found["agrees"] == agrees


def constant(r_q, count=SHARDS):
    """One head whose r_q is the same in every replicate: its standard error is 0."""
    table = pd.DataFrame(
        [{"checkpoint": FIRST, "layer": 0, "head": 0, "pc": 0, "explained_variance": 0.2, "r_q": r_q, "r_k": 0.5}]
    )
    replicates = pd.concat([table.drop(columns="pc").assign(left_out=shard) for shard in range(count)])
    return table, replicates


@given(st.floats(0.3, 1.0))
@settings(max_examples=10, deadline=None)
def test_without_error_only_the_precision_is_left(r_q):
    found = row(compare.compare(View.of(*constant(r_q))), FIRST, "mean_r_q")
    assert found["se"] == pytest.approx(0, abs=1e-12)
    if abs(abs(r_q - 0.67) - 0.005) > 1e-6:
        assert found["agrees"] == (abs(r_q - 0.67) < 0.005)


@pytest.mark.parametrize(("r_q", "agrees"), [(0.675, True), (0.665, True), (0.6751, False), (0.6649, False)])
def test_the_border_of_the_precision_belongs_to_agreement(r_q, agrees):
    assert row(compare.compare(View.of(*constant(r_q))), FIRST, "mean_r_q")["agrees"] == agrees


def test_without_replicates_agreement_is_unknown():
    table, _ = make_table()
    frame = compare.compare(View.of(table))
    assert frame["measured"].notna().all()
    assert frame["se"].isna().all()
    assert frame["agrees"].isna().all()
    assert "0 of 56 numbers agree" in compare.format_table(frame)
    assert "of 56 it cannot be said" in compare.format_table(frame)


def test_an_empty_depth_bin_is_missing_and_not_a_disagreement():
    frame = compare.compare(View.of(*constant(0.67)))
    empty = row(frame, FIRST, "depth_r_q_0.9")
    assert math.isnan(empty["measured"])
    assert math.isnan(empty["difference"])
    assert pd.isna(empty["agrees"])
    assert "0 of 10 bins agree (9 unknown); largest difference +0.090 (se 0.000) in bin 0.0" in compare.format_table(
        frame
    )


def test_checkpoints_are_matched_by_label_too():
    table, replicates = make_table(names=("folder-a", "folder-b"), labels=("S1-40K", "elsewhere"))
    frame = compare.compare(View.of(table, replicates))
    assert list(frame["checkpoint"].unique()) == ["folder-a"]
    assert row(frame, "folder-a", "mean_r_q")["published"] == 0.67
    assert len(frame.attrs["absent"]) == 9


def test_a_study_of_other_checkpoints_is_refused():
    table, replicates = make_table(names=("a", "b"), labels=("x", "y"))
    message = (
        "none of the table's checkpoints (a, b) is among the published smollm3 ones (stage1-step-40000, "
        "stage1-step-1200000, stage1-step-2400000 and 7 more): "
        "give the study's checkpoints the published names or labels"
    )
    with pytest.raises(RopewalkError) as caught:
        compare.compare(View.of(table, replicates))
    assert str(caught.value) == message


def test_an_unknown_set_is_refused():
    with pytest.raises(RopewalkError, match=r"^no published numbers called 'gpt': there are smollm3$"):
        compare.compare(View.of(*make_table()), published="gpt")


def test_the_terminal_table_says_what_is_compared_and_what_is_not():
    table, replicates = constant(0.67)
    text = compare.format_table(compare.compare(View.of(table.assign(label="S1-40K"), replicates)))
    lines = text.splitlines()
    assert lines[0] == "stage1-step-40000 (S1-40K)"
    assert lines[1].split() == ["published", "measured", "difference", "se", "agrees"]
    assert lines[2].split() == ["mean_r_q", "0.670", "0.670", "+0.000", "0.000", "yes"]
    assert lines[3].split() == ["mean_r_k", "0.460", "0.500", "+0.040", "0.000", "no"]
    assert "Published checkpoints that these results lack: stage1-step-1200000, " in text
    lacking = "bias_strength, abs_alpha_k, abs_r_k_a, ap_overall, ap_first_20, ap_drop"
    assert text.endswith(f"Published, and not compared because these results lack it: {lacking}.")


def test_rotation_and_plasticity_are_compared_in_their_own_precision_and_in_both_units():
    table, replicates = make_table()
    columns = {"bias_strength": 0.0018, "alpha_k": -2.69e-4, "r_k_a": 0.9, "ap_overall": 0.5, "ap_drop": 0.16}
    slopes = {"bias_strength_context": 0.0018 * 65536, "alpha_k_context": 2.69e-4 * 65536, "ap_first_20": 0.6}
    heads = table[table["pc"] == 0].drop(columns="pc").assign(**columns, **slopes)
    frame = compare.compare(View.of(heads, replicates.assign(**columns, **slopes)))
    assert len(frame) == 2 * (3 + 5 + 8 + 20)
    assert row(frame, LAST, "mean_bias_strength")["agrees"]
    assert row(frame, LAST, "mean_abs_alpha_k")["agrees"]
    assert not row(frame, LAST, "mean_abs_r_k_a")["agrees"]  # 0.905 as printed: 0.005 is ten times its precision
    assert row(frame, FIRST, "mean_bias_strength_context")["published"] == pytest.approx(0.0092 * 4096)
    assert row(frame, LAST, "mean_bias_strength_context")["published"] == pytest.approx(0.0018 * 65536)
    text = compare.format_table(frame)
    assert "bias_strength per token, first to last checkpoint here: published from 0.0092 to 0.0018;" in text
    assert "bias_strength per context, first to last checkpoint here: published from 37.683 to 117.965;" in text
    assert "not compared" not in text


def test_the_comparison_is_written_beside_the_table(tmp_path):
    table, replicates = make_table()
    rows = load(write_results(tmp_path, table, replicates)).compare("smollm3")
    path = compare.write_compare(tmp_path, rows, "smollm3")
    assert path == tmp_path / "compare_smollm3.csv"
    written = pd.read_csv(path)
    expected = compare.compare(View.of(table, replicates))
    assert list(written.columns) == compare.COLUMNS
    assert np.allclose(written["difference"], expected["difference"])
    assert list(written["agrees"]) == list(expected["agrees"])
