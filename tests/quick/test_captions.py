"""Captions: their numbers against plain pandas, their directions against errors, and that they follow the data."""

import re

import numpy as np
import pandas as pd
import pytest

from helpers.figures import NAMES
from helpers.tables import heads_of, leave_one_out, synthetic
from ropewalk.figures import Caption, find, to_markdown
from ropewalk.figures.phrases import CORRELATION, SHARE
from ropewalk.figures.style import CATEGORY_COLOURS, Colour
from ropewalk.figures.wording import direction, sign, value
from ropewalk.geometry import taxonomy
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View

CAUSES = re.compile(
    r"\b(because|suggests?|indicates?|due to|causes?|learns?|means that|therefore|thus)\b", re.IGNORECASE
)


def caption_of(name: str, table: pd.DataFrame, replicates: pd.DataFrame | None = None, **options) -> Caption:
    return find(name).caption(View.of(table, replicates), "study/qk.csv", **options)


def text_of(name: str, table: pd.DataFrame, replicates: pd.DataFrame | None = None, **options) -> str:
    return to_markdown(caption_of(name, table, replicates, **options))


def steady(r_q: list[float], r_k: list[float], heads: int = 20) -> pd.DataFrame:
    """Checkpoints c0, c1, ... in two phases, with these means over heads."""
    rng = np.random.default_rng(0)
    spread = rng.normal(0, 0.05, heads)
    spread -= spread.mean()
    parts = [
        pd.DataFrame(
            {
                "checkpoint": f"c{index}",
                "phase": "early" if index < len(r_q) / 2 else "late",
                "layer": np.arange(heads),
                "head": 0,
                "rope": True,
                "pc": 0,
                "explained_variance": 0.2,
                "r_q": q + spread,
                "r_k": k + spread,
            }
        )
        for index, (q, k) in enumerate(zip(r_q, r_k, strict=True))
    ]
    return pd.concat(parts, ignore_index=True)


def test_markdown_has_the_sections():
    caption = Caption("A title", ("One.", "- a", "- b", "Two."), ("first", "second"), "The point.")
    assert to_markdown(caption) == (
        "# A title\n\n## File\n`figure.png`\n\n## What This Figure Shows\n\nOne.\n\n- a\n- b\n\nTwo.\n\n"
        "## How It Was Produced\n\n1. first\n\n2. second\n\n## Key Takeaway\n\nThe point.\n"
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "table",
    [
        synthetic(10, heads=60),
        synthetic(1, phases=1, heads=60),
        synthetic(8, models=True, heads=60),
        synthetic(4, heads=1, phases=2),
        synthetic(5, heads=60).assign(r_q=np.nan, r_k=np.nan),
        synthetic(5, heads=60)[["checkpoint", "layer", "head", "pc", "explained_variance", "r_q", "r_k"]],
    ],
    ids=["ten", "one", "models", "one head", "nan", "required columns"],
)
def test_every_study_has_a_caption(name, table):
    for replicates in (None, leave_one_out(table, shards=3)):
        text = text_of(name, table, replicates)
        for section in ("## File", "## What This Figure Shows", "## How It Was Produced", "## Key Takeaway"):
            assert text.count(section) == 1
        assert "`study/qk.csv`" in text
        code = f'**Code**: `ropewalk.load(RESULTS).figure("{name}")` in Python, `ropewalk figures RESULTS` on the'
        assert code in text
        assert "scripts/" not in text
        assert not CAUSES.search(text)
        assert not re.search(r"\bnan\b", text)


def test_values_are_those_of_the_table():
    table = synthetic()
    heads = heads_of(table)
    labels = table["label"].unique()
    means = heads.groupby("label", sort=False)[["r_q", "r_k"]].mean()
    text = text_of("position_signal", table)
    for column in ("r_q", "r_k"):
        first, last = means[column].iloc[0], means[column].iloc[-1]
        assert f"(from {first:.3f} at {labels[0]} to {last:.3f} at {labels[-1]})" in text
    for phase, part in heads.groupby("phase", sort=False):
        ends = part.groupby("label", sort=False)["r_q"].mean()
        assert f"- **{phase}**: {ends.iloc[0]:.3f} ({ends.index[0]}) to {ends.iloc[-1]:.3f} ({ends.index[-1]})" in text
    steps = means["r_q"].diff()
    largest = steps.idxmax()
    before = labels[list(labels).index(largest) - 1]
    assert f"largest rise {steps.max():.3f} ({before} to {largest})" in text
    assert "10 checkpoints, 300 heads each, 36 layers (" in text


@pytest.mark.parametrize(
    ("name", "column"),
    [("position_signal", "r_q"), ("depth_heatmap_r_q", "r_q"), ("concordance", "r_k"), ("depth_heatmap_r_k", "r_k")],
)
def test_text_follows_the_data(name, column):
    up, down = [0.2, 0.3, 0.5, 0.6], [0.6, 0.5, 0.3, 0.2]
    rising = text_of(name, steady(**{"r_q": [0.4] * 4, "r_k": [0.4] * 4, column: up}))
    falling = text_of(name, steady(**{"r_q": [0.4] * 4, "r_k": [0.4] * 4, column: down}))
    takeaways = [text.split("## Key Takeaway")[1] for text in (rising, falling)]
    assert f"mean {column}" in takeaways[0]
    assert "rises by 0.400, to 0.600" in takeaways[0]
    assert "falls by 0.400, to 0.200" in takeaways[1]
    assert rising != falling


def test_largest_changes_move_with_the_data():
    for jump in (1, 2, 3):
        values = [0.4 if index < jump else 0.6 for index in range(4)]
        assert f"largest rise 0.200 (c{jump - 1} to c{jump})" in text_of("position_signal", steady(values, [0.1] * 4))


def test_directions_need_twice_their_error():
    table = steady([0.50, 0.51], [0.5, 0.5])
    quiet = leave_one_out(table, noise=0.0)
    for shift, expected in ((0.001, "rises by 0.010 ± 0.001"), (0.02, "shows no change beyond its error (0.010 ± ")):
        noisy = quiet.copy()
        way = np.where(noisy["left_out"] % 2 == 0, shift, -shift) / np.sqrt(7)
        noisy["r_q"] += np.where(noisy["checkpoint"] == "c1", way, 0.0)
        assert f"**r_q (query-position correlation)** {expected}" in text_of("position_signal", table, noisy)


def test_shared_errors_cancel_in_changes():
    table = steady([0.50, 0.51], [0.5, 0.5])
    shared = leave_one_out(table, noise=0.0)
    shared["r_q"] += np.where(shared["left_out"] % 2 == 0, 0.05, -0.05)
    text = text_of("position_signal", table, shared)
    assert "rises by 0.010 ± <0.001 (from 0.500 ± 0.132 at c0 to 0.510 ± 0.132 at c1)" in text


def test_wording():
    nan = float("nan")
    assert value(Estimate(0.6712, 0.0041), CORRELATION) == "0.671 ± 0.004"
    assert value(Estimate(0.342, 0.0121), SHARE) == "34.2% ± 1.2"
    assert value(Estimate(-0.0001, nan), CORRELATION) == "0.000"
    assert value(Estimate(nan, nan), SHARE) == "no value"
    assert direction(Estimate(0.1, nan), CORRELATION) == "rises by 0.100"
    assert direction(Estimate(-0.1, 0.04, 16), CORRELATION) == "falls by 0.100 ± 0.040"
    assert direction(Estimate(-0.1, 0.05, 16), CORRELATION) == "shows no change beyond its error (-0.100 ± 0.050)"
    # Student's t: 2.13 errors with 16 groups, 2.36 with 8, 12.7 with 2.
    assert [sign(Estimate(0.1, 0.045, groups), CORRELATION) for groups in (16, 8, 2)] == [1, 0, 0]
    # The largest of many is held against all of them.
    assert [sign(Estimate(0.1, 0.03, 16), CORRELATION, many) for many in (1, 5, 50)] == [1, 1, 0]
    assert direction(Estimate(0.0001, nan), CORRELATION) == "does not change at this precision"
    assert direction(Estimate(0.0, 0.0), CORRELATION) == "does not change"
    assert direction(Estimate(nan, nan), CORRELATION) == "cannot be compared"
    assert [sign(Estimate(change, 0.1, 16), CORRELATION) for change in (0.3, 0.1, -0.3)] == [1, 0, -1]


def test_taxonomy_shares_and_discordance():
    table = synthetic()
    heads = heads_of(table)
    last = heads[heads["label"] == table["label"].iloc[-1]]
    text = text_of("taxonomy_evolution", table)
    takeaway = text.split("## Key Takeaway")[1]
    dominated = last["category"] == "position-dominated"
    assert f"to {100 * dominated.mean():.1f}%; the share that is position-dominated and discordant" in takeaway
    assert f"to {100 * (dominated & (last['r_k'] < 0)).mean():.1f}%" in takeaway


@pytest.mark.parametrize("name", ["taxonomy_evolution", "category_flows"])
def test_rules_are_those_of_the_taxonomy(name, monkeypatch):
    table = synthetic(2, phases=2, heads=60)
    assert (
        "**Classification**: position-dominated r_q > 0.7 and |r_k| > 0.7; Q-positional r_q > 0.7 and |r_k| < 0.3; "
        "K-positional r_q < 0.3 and |r_k| > 0.7; content-focused r_q < 0.3 and |r_k| < 0.3; mixed everything else.\n"
    ) in text_of(name, table)
    moved = [rule._replace(r_q=(0.625, np.inf)) if rule.r_q[0] > 0 else rule for rule in taxonomy.RULES]
    monkeypatch.setattr(taxonomy, "RULES", moved)
    assert "position-dominated r_q > 0.625 and |r_k| > 0.7; Q-positional r_q > 0.625 and" in text_of(name, table)


def test_flows_count_heads():
    table = synthetic(2, phases=2)
    heads = heads_of(table)
    before, after = (
        part.set_index(["layer", "head"])["category"] for _, part in heads.groupby("checkpoint", sort=False)
    )
    moved = before != after
    text = text_of("category_flows", table)
    assert f"{moved.sum()} of 300 shared heads change category" in text
    sizes = (before[moved] + " to " + after[moved]).value_counts()
    for way, size in sizes.head(3).items():
        assert f"{size} from {way}" in text
    gained = (moved & (after == "position-dominated")).sum()
    assert f"position-dominated gains {gained} and loses" in text
    sure = table.assign(certainty=np.where(np.arange(len(table)) % 2, 0.96, 0.94))
    certain = sure[sure["pc"] == 0].set_index(["checkpoint", "layer", "head"])["certainty"] > 0.95
    names = table["checkpoint"].unique()
    both = certain.loc[names[0]].to_numpy() & certain.loc[names[1]].to_numpy()
    said = f"({(moved.to_numpy() & both).sum()} of these changes between categories that are both 95% certain)"
    assert said in text_of("category_flows", sure, leave_one_out(table))


def test_portraits_describe_the_chosen_checkpoints():
    table = synthetic()
    caption = caption_of("phase_portraits", table, checkpoints=["S2-120K", "S5-360K"])
    bullets = [line for line in caption.shows if line.startswith("- ")]
    assert [bullet.split("**")[1] for bullet in bullets] == ["S2-120K", "S5-360K"]
    assert caption.takeaway.startswith("From S2-120K to S5-360K, ")
    assert "**Selection**: S2-120K, S5-360K (chosen by name)." in caption.produced
    assert (
        '`ropewalk.load(RESULTS).figure("phase_portraits", checkpoints=["S2-120K", "S5-360K"])`'
        in (caption.produced[-1])
    )


def test_flows_describe_the_chosen_checkpoints():
    table = synthetic()
    caption = caption_of("category_flows", table, checkpoints=["S2-120K", "S3-200K", "S5-360K"])
    bullets = [line for line in caption.shows if line.startswith("- ")]
    assert [bullet.split("**")[1] for bullet in bullets] == ["S2-120K to S3-200K", "S3-200K to S5-360K"]
    assert "(S2-120K, S3-200K, S5-360K)" in caption.shows[0]
    heads = heads_of(table).set_index(["label", "layer", "head"])["category"]
    changed = (heads["S2-120K"] != heads["S5-360K"]).sum()
    assert caption.takeaway.startswith(f"From S2-120K to S5-360K, {changed} of 300 shared heads change category")
    assert "**Selection**: S2-120K, S3-200K, S5-360K (chosen by name)." in caption.produced
    default = caption_of("category_flows", table)
    assert (
        "**Selection**: S1-0K, S1-40K, S2-120K, S3-200K, S4-280K, S5-360K (the first, ends of phases, the last)."
        in (default.produced)
    )


def test_colours_and_markers_are_those_of_the_drawing(monkeypatch):
    table = synthetic(2, phases=2, heads=60)
    assert "Mean r_q (blue, circles) and mean r_k (red, squares) on PC0" in text_of("position_signal", table)
    assert (
        "stacked bars: blue position-dominated, indigo Q-positional, pink K-positional, green content-focused, "
        "gray mixed."
    ) in text_of("taxonomy_evolution", table)
    monkeypatch.setitem(CATEGORY_COLOURS, "mixed", Colour("#ffdd00", "yellow"))
    assert "green content-focused, yellow mixed." in text_of("taxonomy_evolution", table)
    portraits = text_of("phase_portraits", table)
    assert "Circles are heads of layers with RoPE, triangles of layers without, diamonds of layers not" in portraits
    assert "r_q in [-0.05, 1.05] and r_k in [-1.05, 1.05]." in portraits
    assert "(± 0.3 and ± 0.7)" in portraits
    heatmap = text_of("depth_heatmap_r_k", table)
    assert 'cells in the "Reds" colour map, 0 to 1,' in heatmap
    assert "shallow heads (bins 0.0 to 0.2) minus deep heads (bins 0.7 to 0.9)" in heatmap
    assert "`max(ceil(10 * layer / last) - 1, 0)`" in heatmap


def test_models_have_ranges_and_no_directions():
    table = synthetic(8, models=True, heads=60)
    heads = heads_of(table)
    means = heads.groupby("checkpoint")["r_q"].mean()
    labels = heads.drop_duplicates("checkpoint").set_index("checkpoint")["label"]
    text = text_of("position_signal", table)
    assert (
        f"lies between {means.min():.3f} ({labels[means.idxmin()]}) and {means.max():.3f} ({labels[means.idxmax()]})"
        in text
    )
    assert not re.search(r"\b(rises|falls)\b", text)
    assert "8 models in 4 families (Llama, Qwen, SmolLM, OLMo 2)" in text


def test_missing_correlations_are_counted():
    table = synthetic(2, phases=1)
    table.loc[table.index[:7], "r_k"] = np.nan
    text = text_of("taxonomy_evolution", table)
    assert "7 rows lack a correlation and are left out of means and categories (most at S1-0K: 7)" in text


def test_heads_whose_first_component_mixes_are_counted():
    table = synthetic(2, phases=1, heads=40).assign(overlap=0.99)
    assert "mixes with other components" not in text_of("position_signal", table)
    table.loc[[3, 45, 46], "overlap"] = 0.6
    text = text_of("position_signal", table)
    label = table["label"].unique()[1]
    assert "; in 3 rows PC0 mixes with other components when a shard is left out" in text
    assert f"(most at {label}: 2)" in text


def test_a_first_component_that_tells_queries_from_keys_is_said_to():
    table = synthetic(3, phases=1, heads=40).assign(separation_share=0.2)
    assert "PC0 is mostly" not in text_of("position_signal", table)
    label = table["label"].unique()[2]
    table.loc[table["label"] == label, "separation_share"] = 0.93
    for name in ("position_signal", "taxonomy_evolution", "depth_heatmap_r_q", "concordance"):
        text = text_of(name, table)
        assert f"**PC0 is mostly the axis between queries and keys** at 1 of 3 checkpoints: at {label} 93.0%" in text
    assert f"**PC0 is mostly the axis between queries and keys**: at {label} 93.0%" in text_of(
        "position_signal", table[table["label"] == label]
    )
