"""Figures of what heads do and why: artists and captions against plain pandas, and what they say where nothing is."""

import itertools
import re

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from helpers.behaviour_tables import behaviour, behaviour_replicates
from helpers.figures import check_layout
from helpers.oracles import jackknife
from helpers.tables import category, synthetic
from ropewalk.errors import RopewalkError
from ropewalk.figures import find, gallery, to_markdown
from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.summary.chance import correlation_by_chance, difference_by_chance
from ropewalk.summary.measures import Correlation, in_layers
from ropewalk.summary.view import View

NAMES = ("category_behaviour", "fixed_share", "attention_by_distance", "sinks")
STUDIES = {
    "ten": lambda: behaviour(10),
    "one": lambda: behaviour(1, phases=1),
    "forty, deep, long": lambda: behaviour(40, layers=36, heads=2, context=8192),
    "models": lambda: behaviour(8, models=True),
    "one head": lambda: behaviour(3, layers=1, heads=1, phases=2),
    "no NoPE layers, learned sinks": lambda: behaviour(6, nope=False, sink=True, phases=2),
    "one axis": lambda: behaviour(2, axes=False, phases=1).drop(columns=["r_q_skip4", "r_k_skip4"]),
    "RoPE not known": lambda: behaviour(2, phases=1).drop(columns="rope"),
    "missing": lambda: with_gaps(behaviour(4, phases=2)),
    "long names": lambda: behaviour(6, phases=3).assign(
        label=lambda table: "a-rather-long-name-for-a-checkpoint-" + table["label"],
        phase=lambda table: "a phase with a rather long name " + table["phase"],
    ),
}
CAUSES = re.compile(r"\b(because|suggests?|indicates?|due to|causes?|learns?|means that|therefore|thus)\b", re.I)


def with_gaps(table: pd.DataFrame) -> pd.DataFrame:
    """The table with heads, layers and a checkpoint without numbers."""
    table = table.copy()
    numbers = ["r_k", "score_r2_distance", "mass_first", "mass_self", "mass_8", "fixed_share_q", "effective_keys"]
    table.loc[table["layer"] == 2, numbers] = np.nan
    table.loc[table["checkpoint"] == table["checkpoint"].iloc[-1], ["score_r2_distance", "fixed_share_k"]] = np.nan
    return table


def deeper(table: pd.DataFrame) -> pd.DataFrame:
    """The first model without its last layers."""
    first = table["checkpoint"] == table["checkpoint"].iloc[0]
    cut = table[~(first & (table["layer"] > 7))].copy()
    cut.loc[cut["checkpoint"] == cut["checkpoint"].iloc[0], "layers"] = 8
    return cut


def view_of(table: pd.DataFrame, noise: float = 0.002) -> View:
    return View.of(table, behaviour_replicates(table, noise=noise))


def text_of(name: str, view: View, **options) -> str:
    return to_markdown(find(name).caption(view, "study/heads.csv", **options))


def last_of(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["checkpoint"] == table["checkpoint"].iloc[-1]]


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("name", NAMES)
def test_every_study_is_drawn_and_described(name, study):
    table = STUDIES[study]()
    for view in (View.of(table), view_of(table)):
        if not find(name).can_show(view):
            pytest.fail(f"{name} is not shown")
        check_layout(find(name).draw(view))
        text = text_of(name, view)
        assert not re.search(r"\bnan\b", text)
        assert not CAUSES.search(text)
        if study == "models":
            assert not re.search(r"\b(rises|falls)\b", text)
        assert f'**Code**: `ropewalk.load(RESULTS).figure("{name}")` in Python' in text


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_needs_its_columns(name):
    bare = View.of(synthetic(2, phases=1))
    assert find(name) not in gallery.shown(bare)
    with pytest.raises(RopewalkError, match=f"^the figure {name} needs the column .* capture with the statistic"):
        find(name).check_needs(bare)
    assert find(name) in gallery.shown(View.of(behaviour(2, phases=1)))


@pytest.mark.parametrize("name", ["fixed_share", "attention_by_distance", "sinks"])
def test_figures_that_are_not_on_an_axis_are_the_same_on_each(name):
    view = view_of(behaviour(2, phases=1))
    assert text_of(name, view.on("drift")) == text_of(name, view)


def test_correlation_is_pearson_with_a_jackknife_error():
    table = behaviour(1, phases=1)
    table.loc[5, "r_k"] = np.nan
    replicates = behaviour_replicates(table, shards=5)
    view = View.of(table, replicates)

    def by_hand(part: pd.DataFrame) -> float:
        rope = part.dropna(subset=["fixed_share_k", "r_k"])
        return float(np.corrcoef(rope["fixed_share_k"], rope["r_k"].abs())[0, 1])

    found = view.track("correlation_fixed_share_k_abs_r_k").at(0)
    assert found.value == pytest.approx(by_hand(table))
    assert found.se == pytest.approx(jackknife(replicates.groupby("left_out")[list(replicates)].apply(by_hand)))
    columns = view.samples[0].columns
    assert np.isnan(Correlation("fixed_share_q", "r_q", among=in_layers(False))(columns))
    assert np.isnan(Correlation("nothing", "r_q")(columns))
    constant = {**columns, "same": np.full(len(table), 0.1)}
    assert np.isnan(Correlation("same", "r_q")(constant))
    two = {name: values[:2] for name, values in columns.items()}
    assert np.isnan(Correlation("score_r2_distance", "r_q")(two))


def test_chance_is_exceeded_in_one_of_twenty_cases():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4000, 20))
    r = [np.corrcoef(a, b)[0, 1] for a, b in zip(x, y, strict=True)]
    assert np.mean(np.abs(r) > correlation_by_chance(20)) == pytest.approx(0.05, abs=0.012)
    assert np.isnan(correlation_by_chance(2))
    beyond = []
    for a, b in zip(x[:, :5], y, strict=True):
        limit = difference_by_chance(a, b)
        beyond.append(abs(a.mean() - b.mean()) > limit)
        assert beyond[-1] == (ttest_ind(a, b).pvalue < 0.05)
    assert np.mean(beyond) == pytest.approx(0.05, abs=0.012)
    assert difference_by_chance(x[0], y[0], candidates=10) > difference_by_chance(x[0], y[0])
    assert np.isnan(difference_by_chance(x[0, :1], y[0, :1]))


def test_dots_are_means_by_category_and_type_of_layer():
    table = behaviour(4, phases=2)
    figure = find("category_behaviour").draw(View.of(table))
    table["own"] = table.apply(category, axis=1)
    rows = ["score_r2_distance", "mass_first", "mass_previous", "mass_induction", "effective_keys"]
    assert [ax.get_title() for ax in figure.axes[:2]] == ["RoPE layers", "NoPE layers"]
    for number, (column, rope) in enumerate(itertools.product(rows, (True, False))):
        drawn = {c.get_label(): c.lines[0].get_ydata() for c in figure.axes[number].containers}
        side = table[table["rope"] == rope]
        expected = side.groupby(["own", "checkpoint"])[column].mean().unstack()[table["checkpoint"].unique()]
        assert set(drawn) == set(expected.index)
        for name, values in drawn.items():
            np.testing.assert_allclose(values, expected.loc[name])
    assert figure.axes[-1].get_yscale() == "log"
    # Members are those of the whole data: an error is of the same heads, whichever group is left out.
    replicates = behaviour_replicates(table.drop(columns="own"), shards=4)
    bars = find("category_behaviour").draw(View.of(table, replicates)).axes[0].containers[0]
    last = last_of(table)
    heads = last[(last["own"] == bars.get_label()) & last["rope"]].set_index(["layer", "head"]).index
    own = replicates[replicates["checkpoint"] == last["checkpoint"].iloc[0]].set_index(["layer", "head"]).loc[heads]
    (low, high) = bars.lines[2][0].get_segments()[-1][:, 1]
    assert high - low == pytest.approx(2 * jackknife(own.groupby("left_out")["score_r2_distance"].mean()))


def test_the_caption_says_whether_categories_do_what_they_are_called():
    table = behaviour(4, phases=2)
    view = view_of(table)
    caption = find("category_behaviour").caption(view, "heads.csv")
    last = last_of(table)
    own = last.apply(category, axis=1)
    means = last.groupby(own)["score_r2_distance"].mean()
    label = last["label"].iloc[0]
    texts = [finding.text for finding in caption.findings]
    (by_distance,) = [text for text in texts if "than content-focused ones" in text]
    assert by_distance.startswith("Position-dominated heads score more by distance than content-focused ones (")
    assert f"({percent(means['position-dominated'])} ± " in by_distance
    assert f" against {percent(means['content-focused'])} ± " in by_distance
    r = max(np.corrcoef(last["score_r2_distance"], last[name].abs())[0, 1] for name in ("r_q", "r_k"))
    (followed,) = [text for text in texts if text.startswith("Heads with a larger ")]
    assert re.search(rf"score more by distance \(correlation over 96 heads {r:.3f} ± \S+, at {label}\)", followed)
    induction = last.groupby("rope")["mass_induction"].mean()
    (nope,) = [text for text in texts if text.startswith("NoPE layers attend more to induction keys than RoPE")]
    assert f"({percent(induction[False])} ± " in nope
    counts = own.value_counts()
    assert {row[0]: row[1] for row in caption.table.rows} == {name: str(count) for name, count in counts.items()}
    assert all(row[2].startswith(percent(means[row[0]])) for row in caption.table.rows)
    turned = find("category_behaviour").caption(view, "heads.csv", axis="drift")
    said = turned.findings[-1].text
    assert said.startswith("Position-dominated heads do not score more by distance than content-focused ones (")


def test_unrelated_heads_are_not_said_to_do_what_they_are_called():
    claims = 0
    for seed in range(12):
        text = text_of("category_behaviour", view_of(behaviour(2, effect=False, phases=1, seed=seed)))
        claims += "heads do not score more by distance than content-focused ones" not in text
        assert "induction keys than" not in text or claims
    assert claims <= 2


def test_fixed_shares_against_correlations():
    table = behaviour(3, phases=1)
    view = view_of(table)
    figure = find("fixed_share").draw(view)
    last = last_of(table)
    for number, (column, r) in enumerate(
        itertools.product(("fixed_share_q", "fixed_share_k"), ("", "_centred", "_drift"))
    ):
        ax, name = figure.axes[number], f"r_{column[-1]}{r}"
        (points,) = [dots for dots in ax.collections if dots.get_gid() == column]
        expected = last[[column, name]].abs()
        drawn = np.ma.getdata(points.get_offsets())
        np.testing.assert_allclose(drawn[expected.notna().all(axis=1)], expected.dropna())
        (text,) = [text.get_text() for text in ax.texts if text.get_gid() == "correlation"]
        assert text.replace("−", "-").startswith(f"{np.corrcoef(*expected.dropna().T.to_numpy())[0, 1]:.3f} ± ")
        np.testing.assert_allclose(np.ma.getdata(points.get_array()), last["layer"] / 11)
    courses = [ax for ax in figure.axes if "correlation\nwith" in ax.get_ylabel()]
    assert [len(ax.containers) for ax in courses] == [3, 3]
    rope = table[table["rope"]]
    by_hand = [
        np.corrcoef(part["fixed_share_q"], part["r_q"])[0, 1] for _, part in rope.groupby("checkpoint", sort=False)
    ]
    np.testing.assert_allclose(courses[0].containers[0].lines[0].get_ydata(), by_hand)
    assert not [ax for ax in find("fixed_share").draw(view.select([0])).axes if "\nwith" in ax.get_ylabel()]


def test_the_caption_says_on_which_axis_fixed_shares_go_with_position():
    table = behaviour(3, phases=1)
    caption = find("fixed_share").caption(view_of(table), "heads.csv")
    last = last_of(table[table["rope"]])
    for kind, noun, name in (("q", "Queries", "r_q"), ("k", "Keys", "|r_k|")):
        r = np.corrcoef(last[f"fixed_share_{kind}"], last[f"r_{kind}"].abs())[0, 1]
        start = f"{noun} with a larger fixed share have a larger {name}, on PC0 and with both centred apart ("
        (said,) = [finding.text for finding in caption.findings if finding.text.startswith(start)]
        assert f"(correlation over 72 heads {r:.3f} ± " in said
    shares = {tuple(row[:2]): row[2] for row in caption.table.rows}
    label = last["label"].iloc[0]
    assert shares[label, "queries"].startswith(f"{percent(last['fixed_share_q'].mean())} ± ")
    null = find("fixed_share").caption(view_of(behaviour(3, effect=False, phases=1)), "heads.csv")
    assert [finding.sentence for finding in null.findings] == [
        "Queries with a larger fixed share have no larger r_q",
        "Keys with a larger fixed share have no larger |r_k|",
    ]
    models = find("fixed_share").caption(view_of(behaviour(4, models=True)), "heads.csv")
    assert any(one.sentence.startswith("In all 4 models, queries with a larger fixed share") for one in models.findings)


def test_cells_are_means_by_layer_and_octave():
    table = behaviour(10)
    figure = find("attention_by_distance").draw(view_of(table))
    columns = ["mass_self", "mass_previous", *(f"mass_{2**power}" for power in range(1, 9))]
    names = table["checkpoint"].unique()[[0, 1, 5, 7, 9]]
    panels = [ax for ax in figure.axes if ax.get_title()]
    scales = set()
    for ax, name in zip(panels, names, strict=True):
        own = table[table["checkpoint"] == name]
        mesh, triangles = ax.collections
        np.testing.assert_allclose(mesh.get_array(), own.groupby("layer")[columns].mean())
        scales.add((mesh.norm.vmin, mesh.norm.vmax))
        assert triangles.get_offsets()[:, 1].tolist() == [3.5, 7.5, 11.5]
    assert len(scales) == 1
    (curves,) = [ax for ax in figure.axes if ax.containers]
    for container, name in zip(curves.containers, names, strict=True):
        own = table[table["checkpoint"] == name]
        np.testing.assert_allclose(container.lines[0].get_ydata(), own[columns].mean())
    labels = table["label"].unique()
    chosen = find("attention_by_distance").draw(View.of(table), checkpoints=[labels[9], labels[2]])
    assert [ax.get_title() for ax in chosen.axes if ax.get_title()] == [labels[9], labels[2]]


def test_octaves_beyond_a_context_are_hatched_and_said():
    long = behaviour(3, phases=1)
    short = behaviour(3, phases=1, context=64)
    first = long["checkpoint"].iloc[0]
    table = pd.concat([short[short["checkpoint"] == first], long[long["checkpoint"] != first]], ignore_index=True)
    figure = find("attention_by_distance").draw(View.of(table))
    masks = [ax.collections[0].get_array().mask for ax in figure.axes if ax.get_title()]
    assert np.asarray(masks[0])[:, -3:].all()
    assert not np.asarray(masks[0])[:, :-3].any()
    assert not np.any(masks[1])
    assert "Contexts differ (64 to 512 tokens)" in text_of("attention_by_distance", View.of(table))
    assert "Contexts differ" not in text_of("attention_by_distance", View.of(long))


def test_the_caption_says_where_attention_goes():
    table = behaviour(10)
    caption = find("attention_by_distance").caption(view_of(table), "heads.csv")
    close = ["mass_self", "mass_previous", "mass_2", "mass_4"]
    near = table[close].sum(axis=1).groupby(table["label"], sort=False).mean()
    texts = [finding.text for finding in caption.findings]
    (falls,) = [text for text in texts if text.startswith("Attention within 8 tokens falls over training (")]
    assert f"({percent(near.iloc[0])} ± " in falls
    assert f", {percent(near.iloc[-1])} ± " in falls
    octaves = table.filter(regex=r"^mass_(self|previous|\d+)$").groupby(table["label"], sort=False).mean()
    change = (octaves.iloc[-1] - octaves.iloc[0]).abs()
    assert change.idxmax() == "mass_self"
    (most,) = [
        text for text in texts if text.startswith("Of all distances, attention on the token itself shrinks most")
    ]
    assert f"({percent(octaves['mass_self'].iloc[0])} ± " in most
    place = caption.table.header.index("within 8 tokens")
    assert all(row[place].startswith(f"{percent(near[row[1]])} ± ") for row in caption.table.rows)
    null = find("attention_by_distance").caption(view_of(behaviour(10, effect=False)), "heads.csv")
    assert null.takeaway == (
        "Nothing can be claimed of attention by distance: no change or difference is beyond its error."
    )


def test_layers_that_look_near_and_far_are_named_beyond_chance():
    table = behaviour(1, phases=1)
    near = table["layer"] == 4
    for name in ("mass_self", "mass_previous", "mass_2", "mass_4"):
        table.loc[near, name] += 0.1
    caption = find("attention_by_distance").caption(view_of(table), "heads.csv")
    by_layer = table[["mass_self", "mass_previous", "mass_2", "mass_4"]].sum(axis=1).groupby(table["layer"]).mean()
    (said,) = [one.text for one in caption.findings if "looks nearest" in one.text]
    assert said.startswith(f"Layer 4 looks nearest and layer {by_layer.idxmin()} farthest ({percent(by_layer[4])} ± ")


def test_sinks_by_layer_and_what_hangs_on_the_first_tokens():
    table = behaviour(4, phases=2, sink=True)
    figure = find("sinks").draw(view_of(table))
    heat, masses, means, shares = figure.axes[:4]
    expected = table.groupby(["layer", "checkpoint"])["mass_first"].mean().unstack()[table["checkpoint"].unique()]
    np.testing.assert_allclose(heat.collections[0].get_array(), expected)
    drawn = {c.get_label(): c.lines[0].get_ydata() for c in masses.containers}
    by = table.groupby("checkpoint", sort=False)
    for label, column in (
        ("first token", "mass_first"),
        ("first four tokens", "mass_first4"),
        ("learned sink", "mass_sink"),
    ):
        np.testing.assert_allclose(drawn[label], by[column].mean())
    drawn = {c.get_label(): c.lines[0].get_ydata() for c in means.containers}
    np.testing.assert_allclose(drawn["mean $r_q$"], by["r_q_skip4"].mean() - by["r_q"].mean())
    np.testing.assert_allclose(drawn["mean $|r_k|$"], 0, atol=1e-12)
    table["own"] = table.apply(category, axis=1)
    cut = table.assign(r_q=table["r_q_skip4"], r_k=table["r_k_skip4"])
    cut["own"] = cut.apply(category, axis=1)
    drawn = {c.get_label(): c.lines[0].get_ydata() for c in shares.containers}
    for name in CATEGORIES:
        both = [(t["own"] == name).groupby(t["checkpoint"], sort=False).mean() for t in (cut, table)]
        np.testing.assert_allclose(drawn[name], both[0] - both[1])
    assert len(find("sinks").draw(View.of(table.drop(columns=["r_q_skip4", "r_k_skip4"]))).axes) == 3


def test_models_of_several_depths_have_rows_of_depth():
    figure = find("sinks").draw(View.of(deeper(behaviour(4, models=True))))
    assert figure.axes[0].get_ylabel() == "depth bin"
    assert len(figure.axes[0].collections[0].get_array()) == 10
    check_layout(figure)
    check_layout(find("attention_by_distance").draw(View.of(deeper(behaviour(4, models=True)))))


def test_the_caption_of_sinks_says_what_moves():
    table = behaviour(4, phases=2)
    caption = find("sinks").caption(view_of(table), "heads.csv")
    means = table.groupby("label", sort=False)[["mass_first", "r_q", "r_q_skip4"]].mean()
    texts = [finding.text for finding in caption.findings]
    (rises,) = [text for text in texts if text.startswith("Attention on the first token rises over training (")]
    assert f"({percent(means['mass_first'].iloc[0])} ± " in rises
    assert f", {percent(means['mass_first'].iloc[-1])} ± " in rises
    layers = last_of(table).groupby("layer")["mass_first"].mean()
    (place,) = [text for text in texts if "attends to the first token most" in text]
    assert place.startswith(f"Layer {layers.idxmax()} attends to the first token most, layer {layers.idxmin()} least (")
    assert f"({percent(layers.max())} ± " in place
    change = means["r_q_skip4"].iloc[-1] - means["r_q"].iloc[-1]
    column = caption.table.header.index("mean r_q, change")
    assert caption.table.rows[-1][column].startswith(f"{change:.3f} ± ")
    moved = behaviour(4, phases=2).assign(mass_first=0.1, mass_first4=0.12)
    said = find("sinks").caption(view_of(moved), "heads.csv").takeaway
    assert re.fullmatch(
        rf"Mean r_q is lower without the first 4 tokens \({change:.3f} ± \S+, at {means.index[-1]}\)\.", said
    )
    assert "learned sink" not in to_markdown(caption)
    assert "learned sink" in text_of("sinks", view_of(behaviour(4, sink=True, phases=2)))
    null = find("sinks").caption(view_of(behaviour(4, effect=False, phases=2)), "heads.csv")
    assert null.takeaway.startswith("Nothing can be claimed of attention on the first token")
