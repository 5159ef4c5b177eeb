"""Captions: each claim where it is true and where it is not, with its numbers by plain pandas; which are chosen."""

import re

import numpy as np
import pandas as pd
import pytest

from helpers.figures import NAMES
from helpers.oracles import jackknife
from helpers.tables import heads_of, leave_one_out, synthetic
from ropewalk.figures import Caption, find, to_markdown
from ropewalk.figures.caption import Table
from ropewalk.figures.contrasts import DEPTHS, LAYERS, Relation, by_depth, contrast, even, opposed
from ropewalk.figures.courses import course, differing, tightening
from ropewalk.figures.findings import Finding, certain, choose, scale, sign
from ropewalk.figures.phrases import CORRELATION, QUANTITIES, SHARE
from ropewalk.figures.remarks import (
    above_nulls,
    above_shuffled,
    by_layers,
    parted_layers,
    queries_and_keys,
    separating,
    turning_keys,
)
from ropewalk.figures.style import CATEGORY_COLOURS, Colour
from ropewalk.figures.tabulated import shown_rows, tabulated
from ropewalk.figures.wording import listed, value
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


def steady(r_q: list[float], r_k: list[float], heads: int = 20, **columns) -> pd.DataFrame:
    """Checkpoints c0, c1, ... in two phases, with these means over heads; further columns as given."""
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
    return pd.concat(parts, ignore_index=True).assign(**columns)


def view_of(table: pd.DataFrame, noise: float = 0.001, shards: int = 8) -> View:
    """A view with errors of about this size, most of which checkpoints do not share."""
    return View.of(table, leave_one_out(table, shards, noise / np.sqrt(shards)))


def said(caption: Caption) -> str:
    return " ".join(finding.text for finding in caption.findings)


# Findings and which of them are made


def claim(size: float, *topics: str, needed: bool = False) -> Finding:
    return Finding(f"{size}", topics=frozenset(topics), size=size, needed=needed)


def test_the_largest_are_chosen_one_of_a_topic_and_needed_ones_last():
    candidates = [claim(1.0, "a"), None, claim(3.0, "b"), claim(2.0, "b", "c"), claim(0.5, "d"), claim(0.4, "e")]
    assert [one.size for one in choose(candidates, "nothing")] == [3.0, 1.0, 0.5]
    with_needed = [*candidates, claim(0.0, "n", needed=True), claim(0.2, "n", needed=True)]
    assert [one.size for one in choose(with_needed, "nothing")] == [3.0, 1.0, 0.2]
    assert [one.size for one in choose(candidates, "nothing", at_most=1)] == [3.0]
    # What is negligible is left out beside something larger, and made where it is all there is.
    assert [one.size for one in choose([claim(1.0, "a"), claim(0.05, "b")], "nothing")] == [1.0]
    assert [one.size for one in choose([claim(0.05, "b"), None], "nothing")] == [0.05]
    assert choose([None, None], "Nothing can be claimed")[0].text == "Nothing can be claimed."
    # Of one size the first that is named comes first.
    tied = [Finding("one", size=1.0), Finding("two", size=1.0)]
    assert [one.sentence for one in choose(tied, "nothing")] == ["one", "two"]


def test_certain_is_what_the_interval_leaves():
    # Student's t: 2.131 errors with 16 groups, 2.365 with 8, 12.7 with 2; as the largest of 5 of 16, 2.947.
    assert certain(Estimate(0.1, 0.03, 16), CORRELATION) == pytest.approx(0.1 - 2.131 * 0.03, abs=1e-4)
    assert certain(Estimate(-0.1, 0.03, 16), CORRELATION, 5) == pytest.approx(0.1 - 2.947 * 0.03, abs=1e-4)
    assert certain(Estimate(0.1, 0.05, 16), CORRELATION) == 0
    assert [sign(Estimate(0.1, 0.045, groups), CORRELATION) for groups in (16, 8, 2)] == [1, 0, 0]
    assert [sign(Estimate(0.1, 0.03, 16), CORRELATION, many) for many in (1, 5, 50)] == [1, 1, 0]
    nan = float("nan")
    assert [sign(Estimate(change, nan), CORRELATION) for change in (0.1, -0.1, 0.0001, nan)] == [1, -1, 0, 0]
    # What the digits do not show is not claimed, however certain.
    assert sign(Estimate(0.0004, 1e-9, 16), SHARE) == 0
    # An error from one group is none.
    assert sign(Estimate(0.5, 0.01, 1), CORRELATION) == 0


def test_effects_are_in_standard_deviations_over_heads():
    table = steady([0.2, 0.6], [0.4, 0.4])
    view = view_of(table)
    spread = table.groupby("checkpoint")["r_q"].std()
    assert scale("mean_r_q", view.samples[1]) == pytest.approx(spread["c1"])
    assert scale("mean_r_q", *view.samples) == pytest.approx(np.sqrt((spread**2).mean()))
    assert scale("share_mixed", view.samples[0]) == 0.5
    found = course(view, QUANTITIES["mean_r_q"])
    left = view.track("mean_r_q").change(0, 1)
    assert found.size == pytest.approx((0.4 - left.reach()) / scale("mean_r_q", *view.samples))
    constant = view_of(steady([0.2, 0.6], [0.4, 0.4], explained_variance=0.3))
    assert scale("mean_explained_variance", constant.samples[0]) == 0.5


# One quantity


R_Q = QUANTITIES["mean_r_q"]


@pytest.mark.parametrize(
    ("means", "words", "shown"),
    [
        ([0.2, 0.3, 0.5, 0.6], "Mean r_q rises over training", (0, 3)),
        ([0.6, 0.5, 0.3, 0.2], "Mean r_q falls over training", (0, 3)),
        ([0.2, 0.6, 0.62, 0.63], "Mean r_q rises early: most of its rise is over by c1", (0, 1, 3)),
        ([0.6, 0.2, 0.19, 0.18], "Mean r_q falls early: most of its fall is over by c1", (0, 1, 3)),
        ([0.3, 0.5, 0.6, 0.4], "Mean r_q rises until c2, then falls", (0, 2, 3)),
        ([0.6, 0.3, 0.4, 0.5], "Mean r_q falls until c1, then rises", (0, 1, 3)),
        # What is lost again is too little to be called a turn.
        ([0.2, 0.3, 0.62, 0.6], "Mean r_q rises over training", (0, 3)),
    ],
)
def test_a_course_is_told_in_the_most_telling_way(means, words, shown):
    table = steady(means, [0.4] * 4)
    view = view_of(table)
    found = course(view, R_Q)
    assert found.sentence == words
    values = table.groupby("checkpoint")["r_q"].mean()
    left = leave_one_out(table, 8, 0.001 / np.sqrt(8)).groupby(["checkpoint", "left_out"])["r_q"].mean().unstack()
    errors = left.apply(jackknife, axis=1)
    points = [f"{values[f'c{i}']:.3f} ± {errors[f'c{i}']:.3f} at c{i}".replace("± 0.000", "± <0.001") for i in shown]
    assert found.evidence == ", ".join(points)


def test_what_is_not_beyond_its_error_is_not_claimed():
    for means in ([0.50, 0.51, 0.50, 0.51], [0.5] * 4, [0.50, 0.52, 0.50, 0.50]):
        table = steady(means, [0.4] * 4)
        quiet = leave_one_out(table, noise=0.0)
        noisy = quiet.assign(
            r_q=quiet["r_q"]
            + np.random.default_rng(0).normal(0, 0.02, (4, 8))[
                quiet["checkpoint"].str[1:].astype(int), quiet["left_out"]
            ]
        )
        assert course(View.of(table, noisy), R_Q) is None
        assert "Nothing can be claimed of r_q and r_k: no change or difference is beyond its error." in said(
            caption_of("position_signal", table.assign(r_k=table["r_q"]), noisy.assign(r_k=noisy["r_q"]))
        )


def test_shared_errors_cancel_in_changes():
    table = steady([0.50, 0.52], [0.5, 0.5])
    shared = leave_one_out(table, noise=0.0)
    shared["r_q"] += np.where(shared["left_out"] % 2 == 0, 0.05, -0.05)
    found = course(View.of(table, shared), R_Q)
    assert found.text == "Mean r_q rises over training (0.500 ± 0.132 at c0, 0.520 ± 0.132 at c1)."


def test_what_comes_with_longer_contexts_is_said_to():
    late = steady([0.30, 0.31, 0.31, 0.6], [0.4] * 4).assign(
        context=lambda table: np.where(table["checkpoint"] < "c2", 256, 2048)
    )
    found = course(view_of(late), R_Q)
    assert found.sentence == "Mean r_q rises mostly when the context grows from 256 to 2,048 tokens"
    assert found.evidence.count(" at c") == 3
    before = late.assign(context=np.where(late["checkpoint"] < "c3", 256, 2048))
    assert "when the context grows from 256" in course(view_of(before), R_Q).sentence
    same = late.assign(context=256)
    assert course(view_of(same), R_Q).sentence == "Mean r_q rises over training"


def test_a_change_that_is_one_of_range_is_said_to_be():
    table = steady([0.2, 0.3, 0.5, 0.6], [0.4] * 4).assign(
        context=lambda table: np.where(table["checkpoint"] < "c2", 256, 512)
    )
    for end, words in ((0.2, "it does not rise"), (0.1, "it falls"), (0.5, "")):
        cut = table["checkpoint"].map({"c0": 0.2, "c1": 0.3, "c2": 0.3, "c3": end})
        both = table.assign(r_q_common=cut + table["r_q"] - table.groupby("checkpoint")["r_q"].transform("mean"))
        both["r_k_common"] = both["r_k"]
        replicates = leave_one_out(both, 8, 0.0003)
        replicates = replicates.merge(both[["checkpoint", "layer", "head", "r_q_common", "r_k_common"]])
        rng = np.random.default_rng(3).normal(0, 0.0003, 8)
        replicates["r_q_common"] += rng[replicates["left_out"]] * replicates["checkpoint"].str[1:].astype(int)
        found = course(View.of(both, replicates), R_Q)
        if words:
            assert f"; within the first 256 tokens alone {words}" in found.sentence
            assert re.search(rf"; {end - 0.2:.3f} ± \S+ over training, within 256 tokens$", found.evidence)
        else:
            assert "tokens alone" not in found.text


def test_heads_that_tighten_or_spread():
    table = steady([0.5, 0.5], [0.4, 0.4])
    spread = table["r_q"] - 0.5
    for factor, words in ((3.0, "Heads come to differ more in r_q"), (0.2, "Heads come to agree in r_q")):
        moved = table.assign(r_q=np.where(table["checkpoint"] == "c1", 0.5 + factor * spread, table["r_q"]))
        found = tightening(view_of(moved), "r_q")
        assert found.sentence == words
        after = moved.loc[moved["checkpoint"] == "c1", "r_q"].std()
        assert f"{after:.3f} ± " in found.evidence
    assert tightening(view_of(table), "r_q") is None
    assert tightening(view_of(synthetic(4, models=True)), "r_q") is None


def test_models_differ_as_the_farthest_of_all_pairs():
    table = synthetic(8, models=True, heads=60)
    means = heads_of(table).groupby("label", sort=False)["r_q"].mean()
    view = view_of(table)
    found = differing(view, R_Q)
    labels = view.lineup.labels
    values = heads_of(table).groupby("checkpoint", sort=False)["r_q"].mean().to_numpy()
    high, low = int(values.argmax()), int(values.argmin())
    assert found.sentence == f"Mean r_q is higher in {labels[high]} than in {labels[low]}"
    assert found.evidence.startswith(f"{values[high]:.3f} ± ")
    assert f" against {values[low]:.3f} ± " in found.evidence
    assert len(means) <= len(labels)
    assert differing(view_of(table, noise=0.5), R_Q) is None
    text = text_of("position_signal", table)
    assert not re.search(r"\b(rises|falls) (over|early|until)\b", text)


# Groups of heads


def layered(values: dict[str, float], checkpoints: int = 1, layers: int = 20, heads: int = 4) -> pd.DataFrame:
    """Heads whose r_k is that of their layer's type (`rope`, `nope`) or depth (`early`, `late`), else 0.5; noisy."""
    rng = np.random.default_rng(5)
    layer = np.repeat(np.arange(layers), heads)
    rope = layer % 4 != 3
    r_k = np.where(rope, values.get("rope", 0.5), values.get("nope", values.get("rope", 0.5)))
    r_k = r_k + np.where(layer < 6, values.get("early", 0.0), np.where(layer > 14, values.get("late", 0.0), 0.0))
    noise = rng.normal(0, 0.03, len(layer))
    parts = [
        pd.DataFrame(
            {
                "checkpoint": f"c{index}",
                "phase": "one",
                "layer": layer,
                "head": np.tile(np.arange(heads), layers),
                "rope": rope,
                "layers": layers,
                "pc": 0,
                "explained_variance": 0.2,
                "r_q": 0.5 + noise,
                "r_k": r_k + noise,
            }
        )
        for index in range(checkpoints)
    ]
    return pd.concat(parts, ignore_index=True)


def test_layers_with_and_without_rope():
    table = layered({"rope": 0.7, "nope": 0.1})
    found = opposed(view_of(table), "r_k", LAYERS, "have a higher mean r_k", CORRELATION, "layers")
    means = table.groupby("rope")["r_k"].mean()
    assert found.sentence == "RoPE layers have a higher mean r_k than NoPE layers"
    assert found.evidence.startswith(f"{means[True]:.3f} ± ")
    assert f"against {means[False]:.3f} ± " in found.evidence
    turned = opposed(
        view_of(layered({"rope": 0.1, "nope": 0.7})), "r_k", LAYERS, "have a higher mean r_k", CORRELATION, "layers"
    )
    assert turned.sentence == "NoPE layers have a higher mean r_k than RoPE layers"
    assert opposed(view_of(layered({})), "r_k", LAYERS, "have more", CORRELATION, "layers") is None


def test_groups_that_differ_by_less_than_chance_are_not_told_apart():
    # Measured without error, heads of two groups still differ by what dealing them at random makes.
    claims = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        table = layered({}).assign(r_k=rng.normal(0.4, 0.2, 80))
        claims += opposed(view_of(table), "r_k", LAYERS, "have more", CORRELATION, "layers") is not None
    assert claims <= 8


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"early": 0.3}, "Early layers have a higher mean r_k than late layers"),
        ({"late": 0.3}, "Late layers have a higher mean r_k than early layers"),
        ({}, None),
    ],
)
def test_depth(values, words):
    table = layered(values)
    found = by_depth(view_of(table), "r_k")
    assert (found and found.sentence) == words
    flat = even(view_of(table), "r_k")
    assert (flat is not None) == (words is None)
    if words is None:
        assert flat.sentence == "Mean r_k is nearly the same at every depth of c0"
        bins = np.maximum(np.ceil(10 * table["layer"] / 19).astype(int) - 1, 0)
        means = table.groupby(bins)["r_k"].mean()
        assert flat.evidence.startswith(f"{means.min():.3f} ± ")
        assert f" to {means.max():.3f} ± " in flat.evidence
    else:
        bins = np.maximum(np.ceil(10 * table["layer"] / 19).astype(int) - 1, 0)
        sides = [table.loc[bins <= 2, "r_k"].mean(), table.loc[bins >= 7, "r_k"].mean()]
        assert found.evidence.startswith(f"{max(sides):.3f} ± ")
        assert f"against {min(sides):.3f} ± " in found.evidence


def test_depth_that_is_a_matter_of_nope_layers_is_said_to_be():
    table = layered({"rope": 0.7})
    nope = (table["layer"] % 4 == 3) | (table["layer"] > 16)
    late = table.assign(rope=~nope, r_k=np.where(nope & (table["layer"] > 13), -0.3, table["r_k"]))
    found = by_depth(view_of(late), "r_k")
    assert found.sentence == "Early layers have a higher mean r_k than late layers, but not among RoPE layers"
    assert found.evidence.endswith(" there")


def test_a_contrast_is_a_difference_of_means_with_a_paired_error():
    table = layered({"early": 0.2})
    replicates = leave_one_out(table, 6, 0.01)
    found = contrast(View.of(table, replicates).samples[0], "r_k", DEPTHS.first, DEPTHS.second)
    bins = np.maximum(np.ceil(10 * table["layer"] / 19).astype(int) - 1, 0)
    early, late = bins <= 2, bins >= 7
    assert found.counts == (early.sum(), late.sum())
    assert found.difference.value == pytest.approx(table.loc[early, "r_k"].mean() - table.loc[late, "r_k"].mean())
    left = [
        part.set_index(["layer", "head"])["r_k"].loc[table[early].set_index(["layer", "head"]).index].mean()
        - part.set_index(["layer", "head"])["r_k"].loc[table[late].set_index(["layer", "head"]).index].mean()
        for _, part in replicates.groupby("left_out")
    ]
    assert found.difference.se == pytest.approx(jackknife(pd.Series(left)))
    assert found.scale == pytest.approx(table.loc[early | late, "r_k"].std())


def test_relations_over_heads_need_more_than_chance():
    table = layered({})
    view = view_of(table)
    related = Relation.of(view.samples[0], "r_q", "r_k")
    assert related.way == 1
    assert related.estimate.value == pytest.approx(np.corrcoef(table["r_q"], table["r_k"])[0, 1])
    unrelated = view_of(table.assign(r_q=np.random.default_rng(1).normal(0.5, 0.1, len(table))))
    assert Relation.of(unrelated.samples[0], "r_q", "r_k").way == 0


# Several quantities together


def keys_at(first: float, last: float, turned: float = 0.0) -> pd.DataFrame:
    """Two checkpoints with mean r_k of one sign, of which a share of heads has the other one at the last."""
    table = steady([0.6, 0.6], [first, last])
    other = (table["checkpoint"] == "c1") & (table["layer"] < turned * 20)
    return table.assign(r_k=np.where(other, -table["r_k"], table["r_k"]))


def test_keys_that_turn_are_told_from_keys_that_lose_position():
    turned = turning_keys(view_of(keys_at(0.5, 0.5, turned=0.3)))
    assert turned.sentence.startswith("Keys do not lose position, they turn against it")
    assert "discordant 0.0% ± " in turned.evidence
    assert "to 30.0% ± " in turned.evidence
    lost = turning_keys(view_of(keys_at(0.5, 0.3)))
    assert lost.sentence == "Keys lose position: mean r_k falls, and so does its size"
    assert lost.evidence.startswith("from c0 to c1: mean r_k 0.500 ± ")
    assert turning_keys(view_of(keys_at(0.3, 0.5))) is None
    # Both at once is neither.
    assert turning_keys(view_of(keys_at(0.6, 0.4, turned=0.3))) is None


def test_layers_that_part_over_training():
    first, last = layered({"rope": 0.5, "nope": 0.3}), layered({"rope": 0.7, "nope": -0.2}).assign(checkpoint="c1")
    view = view_of(pd.concat([first, last], ignore_index=True))
    found = parted_layers(view, "r_k")
    assert found.sentence == "Mean r_k rises in RoPE layers and falls in NoPE layers"
    means = [part.groupby("rope")["r_k"].mean() for part in (first, last)]
    assert f"RoPE {means[0][True]:.3f} ± " in found.evidence
    assert f" to {means[1][False]:.3f} ± " in found.evidence
    assert by_layers(view, "r_k") == found
    together = pd.concat([first, first.assign(checkpoint="c1", r_k=first["r_k"] + 0.2)], ignore_index=True)
    assert parted_layers(view_of(together), "r_k") is None
    assert by_layers(view_of(together), "r_k").sentence == "RoPE layers have a higher mean r_k than NoPE layers"


def test_queries_against_keys():
    more = queries_and_keys(view_of(steady([0.6], [0.4])))
    assert more.text.startswith("Queries follow position more closely than keys (mean r_q 0.600 ± ")
    assert queries_and_keys(view_of(steady([0.4], [-0.6]))).sentence == "Keys follow position more closely than queries"
    assert queries_and_keys(view_of(steady([0.5], [0.5]))) is None
    models = synthetic(4, models=True)
    assert queries_and_keys(view_of(models)).sentence.startswith("In all 4 models, queries follow")


def with_null(trained: float, untrained: float) -> View:
    table = steady([trained], [0.4]).assign(untrained="null")
    null = steady([untrained], [0.4]).assign(checkpoint="null", untrained="null", phase="", step=pd.NA)
    return view_of(pd.concat([table, null], ignore_index=True))


def test_more_than_untrained_or_no_more():
    (more,) = above_nulls(with_null(0.6, 0.3), "mean_r_q")
    assert more.sentence == "Mean r_q is higher than in the same model untrained"
    assert more.evidence.startswith("0.600 ± ")
    assert " against 0.300 ± " in more.evidence
    assert not more.needed
    (same,) = above_nulls(with_null(0.3, 0.3), "mean_r_q")
    assert same.sentence == "Mean r_q is no higher than in the same model untrained"
    assert same.needed
    assert above_nulls(view_of(steady([0.6], [0.4])), "mean_r_q") == []


def test_more_than_shuffled_positions_or_not():
    for own, words in ((0.6, "Most heads carry more position"), (0.05, "Only few heads carry more position")):
        table = steady([own], [own], r_q_permuted=0.04, r_k_permuted=0.04)
        replicates = leave_one_out(table, 8, 0.02).assign(r_q_permuted=0.04, r_k_permuted=0.04)
        found = above_shuffled(View.of(table, replicates))
        assert found.sentence == f"{words} than with positions shuffled within documents"
        assert found.needed == (own < 0.5)
    assert above_shuffled(view_of(steady([0.6], [0.4]))) is None


def test_a_first_component_that_tells_queries_from_keys_is_said_to():
    table = synthetic(3, phases=1, heads=40).assign(separation_share=0.2)
    assert separating(View.of(table)) is None
    label = table["label"].unique()[2]
    table.loc[table["label"] == label, "separation_share"] = 0.93
    words = (
        f"Mind that PC0 mostly tells queries from keys, and not positions (93.0% of its variance is their offset, at "
        f"{label})."
    )
    assert separating(View.of(table)).text == words
    for name in ("position_signal", "taxonomy_evolution", "depth_heatmap_r_q", "concordance", "phase_portraits"):
        assert text_of(name, table).count(words) == 1
    assert caption_of("position_signal", table).findings[-1].text == words


# Captions


def test_markdown_has_the_sections():
    table = Table(("checkpoint", "mean |r_k|"), (("a|b", "0.1"), ("c\nd", "0.2")), "A note.")
    caption = Caption("A title", (Finding("One", "1 ± 2"), Finding("Two")), table, "Dots.", ("first", "second"))
    assert to_markdown(caption) == (
        "# A title\n\n![figure](figure.png)\n\n## Findings\n\n- One (1 ± 2).\n- Two.\n\n## Numbers\n\n"
        "| checkpoint | mean \\|r_k\\| |\n| --- | --- |\n| a\\|b | 0.1 |\n| c d | 0.2 |\n\nA note.\n\n"
        "## How to read it\n\nDots.\n\n## How it was made\n\n1. first\n2. second\n"
    )
    assert caption.takeaway == "One (1 ± 2)."


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "table",
    [
        synthetic(10, heads=60),
        synthetic(1, phases=1, heads=60),
        synthetic(8, models=True, heads=60),
        synthetic(4, heads=1, phases=2),
        synthetic(150, heads=8),
        synthetic(5, heads=60).assign(r_q=np.nan, r_k=np.nan),
        synthetic(5, heads=60)[["checkpoint", "layer", "head", "pc", "explained_variance", "r_q", "r_k"]],
    ],
    ids=["ten", "one", "models", "one head", "many", "nan", "required columns"],
)
def test_every_study_has_a_caption(name, table):
    for replicates in (None, leave_one_out(table, shards=3)):
        caption = caption_of(name, table, replicates)
        assert 1 <= len(caption.findings) <= 3
        assert all(finding.text.endswith(".") and not finding.text[0].islower() for finding in caption.findings)
        text = to_markdown(caption)
        for section in ("## Findings", "## How to read it", "## How it was made"):
            assert text.count(section) == 1
        if caption.table is not None:
            assert {len(row) for row in caption.table.rows} == {len(caption.table.header)}
            assert len(caption.table.rows) <= 24
        assert "`study/qk.csv`" in text
        code = f'**Code**: `ropewalk.load(RESULTS).figure("{name}")` in Python, `ropewalk figures RESULTS` on the'
        assert code in text
        assert "scripts/" not in text
        assert not CAUSES.search(text)
        assert not re.search(r"\bnan\b", text)


@pytest.mark.parametrize(
    ("name", "column"),
    [("position_signal", "r_q"), ("depth_heatmap_r_q", "r_q"), ("concordance", "r_k"), ("depth_heatmap_r_k", "r_k")],
)
def test_text_follows_the_data(name, column):
    up, down = [0.2, 0.3, 0.5, 0.6], [0.6, 0.5, 0.3, 0.2]
    flat = {"r_q": [0.4] * 4, "r_k": [0.4] * 4}
    rising, falling = (said(caption_of(name, steady(**{**flat, column: way}))) for way in (up, down))
    assert f"Mean {column} rises over training (0.200 at c0, 0.600 at c3)." in rising
    assert re.search(rf"[Mm]ean {column} falls", falling)
    assert "rises" not in falling


def test_the_largest_finding_comes_first():
    small_q = steady([0.50, 0.55], [0.2, 0.8])
    small_k = steady([0.2, 0.8], [0.50, 0.55])
    assert caption_of("position_signal", small_q).takeaway.startswith("Mean r_k rises")
    assert caption_of("position_signal", small_k).takeaway.startswith("Mean r_q rises")


def test_numbers_of_tables_are_those_of_the_data():
    table = synthetic()
    means = heads_of(table).groupby("label", sort=False)[["r_q", "r_k"]].mean()
    rows = caption_of("position_signal", table).table.rows
    assert rows[0][:2] == ("stage 1", "S1-0K")
    assert len(rows) == 10
    for row in rows:
        assert row[2:4] == tuple(f"{number:.3f}" for number in means.loc[row[1]])
    sizes = heads_of(table)["r_k"].abs().groupby(heads_of(table)["label"]).mean()
    assert all(row[4] == f"{sizes[row[1]]:.3f}" for row in rows)


def test_tables_hold_ends_of_phases_or_a_few_of_many():
    ten = View.of(synthetic(12, phases=3))
    ends = [index for group in ten.lineup.groups for index in (group.start, group.stop - 1)]
    assert shown_rows(ten) == ends
    assert tabulated(ten, "mean_r_q").note == "6 of 12 checkpoints, the first and the last of each phase."
    many = View.of(synthetic(150, phases=1, heads=5))
    assert shown_rows(many) == [0, 149]
    phases = View.of(synthetic(40, heads=5).assign(phase=lambda table: table["checkpoint"]))
    assert len(shown_rows(phases)) == 12
    assert (shown_rows(phases)[0], shown_rows(phases)[-1]) == (0, 39)
    assert tabulated(View.of(synthetic(3, heads=5)), "mean_r_q").note == ""
    assert tabulated(View.of(synthetic(3, heads=5)), "mean_kernel_r") is None


def test_wording():
    nan = float("nan")
    assert value(Estimate(0.6712, 0.0041), CORRELATION) == "0.671 ± 0.004"
    assert value(Estimate(0.342, 0.0121), SHARE) == "34.2% ± 1.2"
    assert value(Estimate(-0.0001, nan), CORRELATION) == "0.000"
    assert value(Estimate(nan, nan), SHARE) == "no value"
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"


def test_taxonomy_shares_and_discordance():
    table = synthetic()
    heads = heads_of(table)
    caption = caption_of("taxonomy_evolution", table)
    dominated = heads["category"] == "position-dominated"
    shares = 100 * dominated.groupby(heads["label"], sort=False).mean()
    first, last = (f"{shares.iloc[end]:.1f}% at {shares.index[end]}" for end in (0, -1))
    assert caption.takeaway == f"The share of position-dominated heads rises over training ({first}, {last})."
    turned = 100 * (dominated & (heads["r_k"] < 0)).groupby(heads["label"], sort=False).mean()
    place = caption.table.header.index("of these, discordant")
    assert [row[place] for row in caption.table.rows] == [f"{turned[row[1]]:.1f}%" for row in caption.table.rows]


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
    caption = caption_of("category_flows", table)
    assert f"({moved.sum()} of 300 change, {(~moved).sum()} keep it)" in said(caption)
    gained, lost = (int((moved & (side == "position-dominated")).sum()) for side in (after, before))
    assert caption.table.rows == (("S1-0K to S2-40K", "300", str(moved.sum()), "–", str(gained), str(lost)),)
    sizes = (before[moved] + " to " + after[moved]).value_counts()
    net = {way: size - sizes.get(" to ".join(way.split(" to ")[::-1]), 0) for way, size in sizes.items()}
    way = max(net, key=lambda one: net[one])
    assert f"The largest flow is from {way} ({sizes[way]} heads, " in said(caption)
    sure = table.assign(certainty=np.where(np.arange(len(table)) % 2, 0.96, 0.94))
    certain_heads = sure[sure["pc"] == 0].set_index(["checkpoint", "layer", "head"])["certainty"] > 0.95
    names = table["checkpoint"].unique()
    both = certain_heads.loc[names[0]].to_numpy() & certain_heads.loc[names[1]].to_numpy()
    told = caption_of("category_flows", sure, leave_one_out(table))
    count = int((moved.to_numpy() & both).sum())
    assert told.table.rows[0][3] == str(count)
    kept = int((~moved.to_numpy() & both).sum())
    assert f"{kept} keep it, {300 - count - kept} are uncertain" in said(told)


def test_flows_that_go_both_ways_alike_are_no_flow():
    table = synthetic(2, phases=2)
    first, last = table["checkpoint"].unique()
    rng = np.random.default_rng(0)
    own = table[table["pc"] == 0]
    strong = pd.DataFrame({"r_q": 0.9, "r_k": np.where(rng.uniform(size=len(own)) < 0.5, 0.9, 0.5)}, index=own.index)
    table.loc[own.index, ["r_q", "r_k"]] = strong
    assert "largest flow" not in said(caption_of("category_flows", table))
    same = table.copy()
    values = same.loc[(same["checkpoint"] == first) & (same["pc"] == 0), ["r_q", "r_k"]].to_numpy()
    same.loc[(same["checkpoint"] == last) & (same["pc"] == 0), ["r_q", "r_k"]] = values
    caption = caption_of("category_flows", same)
    assert caption.takeaway == "Most heads keep their category from S1-0K to S2-40K (0 of 300 change, 300 keep it)."


def test_portraits_describe_the_chosen_checkpoints():
    table = synthetic()
    caption = caption_of("phase_portraits", table, checkpoints=["S2-120K", "S5-360K"])
    assert [row[1] for row in caption.table.rows] == ["S2-120K", "S5-360K"]
    assert "S1-0K" not in said(caption)
    assert "**Selection**: S2-120K, S5-360K (chosen by name)." in caption.produced
    assert (
        '`ropewalk.load(RESULTS).figure("phase_portraits", checkpoints=["S2-120K", "S5-360K"])`'
        in (caption.produced[-1])
    )


def test_flows_describe_the_chosen_checkpoints():
    table = synthetic()
    caption = caption_of("category_flows", table, checkpoints=["S2-120K", "S3-200K", "S5-360K"])
    assert [row[0] for row in caption.table.rows] == ["S2-120K to S3-200K", "S3-200K to S5-360K"]
    heads = heads_of(table).set_index(["label", "layer", "head"])["category"]
    changed = (heads["S2-120K"] != heads["S5-360K"]).sum()
    assert f"from S2-120K to S5-360K ({changed} of 300 change, " in said(caption)
    assert "**Selection**: S2-120K, S3-200K, S5-360K (chosen by name)." in caption.produced
    default = caption_of("category_flows", table)
    assert (
        "**Selection**: S1-0K, S1-40K, S2-120K, S3-200K, S4-280K, S5-360K (the first, ends of phases, the last)."
        in (default.produced)
    )


def test_colours_and_markers_are_those_of_the_drawing(monkeypatch):
    table = synthetic(2, phases=2, heads=60)
    assert "Mean r_q (blue, circles) and mean r_k (red, squares):" in text_of("position_signal", table)
    assert (
        "stacked bars: blue position-dominated, indigo Q-positional, pink K-positional, green content-focused, "
        "gray mixed."
    ) in text_of("taxonomy_evolution", table)
    monkeypatch.setitem(CATEGORY_COLOURS, "mixed", Colour("#ffdd00", "yellow"))
    assert "green content-focused, yellow mixed." in text_of("taxonomy_evolution", table)
    portraits = text_of("phase_portraits", table)
    assert "circles in layers with RoPE, triangles in layers without, diamonds where that is not known" in portraits
    assert "r_q in [-0.05, 1.05] and r_k in [-1.05, 1.05]." in portraits
    assert "(± 0.3 and ± 0.7)" in portraits
    heatmap = text_of("depth_heatmap_r_k", table)
    assert 'in the "Reds" colour map, 0 to 1.' in heatmap
    assert "Early layers are bins 0.0 to 0.2, late ones bins 0.7 to 0.9." in heatmap
    assert "`max(ceil(10 * layer / last) - 1, 0)`" in heatmap


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
