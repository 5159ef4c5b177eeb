"""Figures of tables with several rows per head: the numbers in their artists and captions against plain pandas."""

import re

import matplotlib
import numpy as np
import pandas as pd
import pytest

from helpers.figures import check_layout
from helpers.long_tables import KINDS, LongStudy, kernel, long_study
from helpers.tables import synthetic
from ropewalk.errors import RopewalkError
from ropewalk.figures import Caption, find, gallery, to_markdown
from ropewalk.figures.kernels import BOTH, FAR, FLAT, NEAR, Kernels, kernels
from ropewalk.figures.spectrum import beyond, profile
from ropewalk.geometry.jackknife import critical
from ropewalk.summary.view import View

NAMES = ["distance_kernels", "kernel_map", "spectrum", "mean_paths"]
CAUSES = re.compile(r"\b(because|suggests?|indicates?|due to|causes?|learns?|means that|therefore|thus)\b", re.I)
STUDY = long_study()


def caption_of(name: str, view: View, **options) -> Caption:
    return find(name).caption(view, "study/heads.csv", **options)


def last_rows(table: str, study: LongStudy = STUDY) -> pd.DataFrame:
    whole = study.tables[table]
    return whole[whole["checkpoint"] == whole["checkpoint"].iloc[-1]]


def last_heads(study: LongStudy = STUDY) -> pd.DataFrame:
    return study.heads[study.heads["checkpoint"] == study.heads["checkpoint"].iloc[-1]]


def gappy(study: LongStudy) -> LongStudy:
    """The study with holes: heads, bins and a whole checkpoint without numbers."""
    heads, tables = study.heads.copy(), {name: table.copy() for name, table in study.tables.items()}
    first = heads["checkpoint"].iloc[0]
    columns = [name for name in heads if name.startswith(("kernel", "bend", "eta2", "dominant"))]
    heads.loc[(heads["layer"] < 2) | (heads["checkpoint"] == first), columns] = np.nan
    heads.loc[heads["layer"] == 4, ["r_q", "r_k"]] = np.nan
    for table in tables.values():
        values = [name for name in ("kernel", "score", "q", "energy_q", "kernel_share") if name in table]
        table.loc[(table["layer"] < 2) | (table["checkpoint"] == first), values] = np.nan
    tables["distance"].loc[tables["distance"]["distance"] == 3, ["kernel", "score"]] = np.nan
    return LongStudy(heads, study.replicates, tables)


def renamed(study: LongStudy) -> LongStudy:
    return study._replace(heads=study.heads.assign(label=lambda t: "a-long-name-WITH-CAPITALS-" + t["label"]))


CASES = {
    "ten": long_study(10, phases=5, heads=3, layers=4, longer=2).view(),
    "one": long_study(1, phases=1).view(),
    "one head": long_study(2, layers=1, heads=1).view(),
    "forty": long_study(40, layers=2, heads=1, phases=5, shards=3).view(),
    "models": long_study(6, models=True, shards=3).view(),
    "deep": long_study(2, layers=36, heads=2, context=512, longer=16, shards=3).view(),
    "no NoPE layers": long_study(3, nope=False).view(),
    "no errors": long_study(3).view(errors=False),
    "gaps": gappy(STUDY).view(),
    "long names": renamed(STUDY).view(),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_every_study_is_drawn_and_described(name, case):
    before = dict(matplotlib.rcParams)
    figure = find(name).draw(CASES[case])
    check_layout(figure)
    assert figure.get_figwidth() <= 7.0
    text = to_markdown(caption_of(name, CASES[case]))
    assert dict(matplotlib.rcParams) == before
    assert f'**Code**: `ropewalk.load(RESULTS).figure("{name}")` in Python' in text
    assert not CAUSES.search(text)
    assert not re.search(r"\bnan\b", text)
    assert (" ± " in text) == (case != "no errors")


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_without_numbers_says_so(name):
    view = gappy(STUDY).view().select([0])
    caption = caption_of(name, view)
    assert re.search(r"\bno (head|kernel|path)", caption.takeaway)
    check_layout(find(name).draw(view))


@pytest.mark.parametrize("name", NAMES)
def test_without_their_tables_they_are_left_out(name):
    view = View.of(synthetic(2, heads=20))
    assert name not in [figure.name for figure in gallery.shown(view)]
    assert name in [figure.name for figure in gallery.shown(STUDY.view())]
    statistic = find(name).statistic
    with pytest.raises(RopewalkError, match=rf"the figure {name} needs .* capture with the statistic `{statistic}`"):
        find(name).check_needs(view)


@pytest.mark.parametrize("name", ["distance_kernels", "mean_paths"])
def test_heads_and_checkpoint_can_be_named(name):
    view = STUDY.view()
    figure = find(name).draw(view, heads=((5, 2), (3, 0)), checkpoint="P1-0")
    assert [ax.get_title() for ax in figure.axes] == ["layer 5, head 2", "layer 3, head 0"]
    text = to_markdown(caption_of(name, view, heads=((5, 2), (3, 0)), checkpoint="P1-0"))
    assert "**Selection**: layer 5, head 2; layer 3, head 0, at P1-0 (chosen by name)." in text
    assert f"figure(\"{name}\", heads=((5, 2), (3, 0)), checkpoint='P1-0')`" in text
    for heads, message in (
        (((5, 9),), "no head 9 of layer 5 at P2-300: there are heads 0, 1, 2, 3 of that layer"),
        (((12, 0),), "no head 0 of layer 12 at P2-300: there are heads of the layers 0, 1, 2, 3, 4, 5, 6, 7"),
        ((3,), "heads are pairs of a layer and a head, such as ((0, 1), (2, 0)): 3 is not one"),
    ):
        with pytest.raises(RopewalkError, match=f"^{re.escape(message)}$"):
            find(name).draw(view, heads=heads)
    with pytest.raises(RopewalkError, match="no checkpoint 'P9' in the table"):
        find(name).draw(view, checkpoint="P9")


@pytest.mark.parametrize("name", NAMES)
def test_the_axis_of_r_does_not_matter(name):
    heads = STUDY.heads.assign(r_q_drift=0.9, r_k_drift=-0.9)
    view = View.of(heads, STUDY.replicates, tables=STUDY.tables)
    assert caption_of(name, view.on("drift")) == caption_of(name, view)
    assert "axis=" not in to_markdown(caption_of(name, view.on("drift")))


def test_kernels_and_scores_are_centred_over_the_bins():
    figure = find("distance_kernels").draw(STUDY.view(), heads=((2, 1), (3, 1)))
    for ax, (layer, head) in zip(figure.axes, ((2, 1), (3, 1)), strict=True):
        rows = last_rows("distance")
        curve = rows[(rows["layer"] == layer) & (rows["head"] == head)]
        lines = {line.get_gid(): line for line in ax.lines if line.get_gid() == "kernel"}
        assert bool(lines) == (layer == 2)
        if lines:
            np.testing.assert_allclose(lines["kernel"].get_ydata(), curve["kernel"] - curve["kernel"].mean())
        (dots,) = ax.containers
        np.testing.assert_allclose(dots.lines[0].get_ydata().astype(float), curve["score"] - curve["score"].mean())
        lengths = [segment[1, 1] - segment[0, 1] for segment in dots.lines[2][0].get_segments()]
        np.testing.assert_allclose(lengths, 2 * curve["se_score"])
        x = dots.lines[0].get_xdata()
        assert ((curve["distance"] - 1e-9 <= x) & (x < curve["distance_stop"])).all()
    row = last_heads().query("layer == 2 and head == 1").iloc[0]
    facts = [text.get_text() for ax in figure.axes for text in ax.texts if text.get_gid() == "facts"]
    assert facts[0] == f"$r_q$ {row['r_q']:.2f}, misfit {row['kernel_misfit']:.2f}"
    assert facts[1].endswith("NoPE: no $K$")


def test_heads_are_chosen_by_the_rule_in_the_caption():
    heads = last_heads()
    strong = heads[heads["kernel_range"] >= heads["kernel_range"].median()].sort_values("kernel_misfit")
    picked = strong.iloc[[round(place) for place in np.linspace(0, len(strong) - 1, 5)]]
    titles = [ax.get_title() for ax in find("distance_kernels").draw(STUDY.view()).axes]
    assert titles[:5] == [f"layer {row.layer}, head {row.head}" for row in picked.itertuples()]
    ranges = last_rows("distance").groupby(["layer", "head"])["score"].agg(np.ptp)
    without = ranges[[layer % 4 == 3 for layer, _ in ranges.index]].sort_values()
    layer, head = without.index[(len(without) - 1) // 2]
    assert titles[5] == f"layer {layer}, head {head}"
    bends = heads.assign(bend=heads["bend_q"] + heads["bend_k"]).sort_values(["bend", "layer", "head"])
    titles = [ax.get_title() for ax in find("mean_paths").draw(STUDY.view()).axes]
    picked = bends.iloc[[round(place) for place in np.linspace(0, len(bends) - 1, 6)]]
    assert titles == [f"layer {row.layer}, head {row.head}" for row in picked.itertuples()]


def test_how_well_kernels_predict_is_what_pandas_says():
    heads = last_heads().dropna(subset=["kernel_r"])
    caption = caption_of("distance_kernels", STUDY.view())
    near = (heads["kernel_misfit"] < 0.5).sum()
    assert caption.takeaway.startswith(
        f"K predicts most of how scores depend on distance at P2-300 (it misses less than half in {near} of "
        f"{len(heads)} RoPE heads; mean correlation {heads['kernel_r'].mean():.3f} ± "
    )
    strong = heads["kernel_range"] >= heads["kernel_range"].median()
    means = heads.groupby(strong)["kernel_r"].mean()
    (said,) = [one.text for one in caption.findings if one.text.startswith("K predicts better in heads where it is")]
    assert f"(correlation {means[True]:.3f} ± " in said
    assert f", {means[False]:.3f} ± " in said
    medians = heads[["kernel_range", "kernel_misfit", "kernel_r"]].median()
    ranges = last_rows("distance").groupby(["layer", "head"])["score"].agg(np.ptp)
    rope = ranges[[layer % 4 != 3 for layer, _ in ranges.index]].median()
    assert caption.table.rows[0] == (
        "RoPE heads",
        "24",
        f"{rope:.2f}",
        f"{medians['kernel_range']:.2f}",
        f"{medians['kernel_misfit']:.2f}",
        f"{medians['kernel_r']:.3f}",
    )
    assert caption.table.rows[1][3:] == ("–", "–", "–")


def test_a_kernel_that_predicts_nothing_is_not_said_to():
    heads = STUDY.heads.copy()
    # In turns, up along the range of kernels: weak and strong ones alike.
    order = heads.groupby("checkpoint")["kernel_range"].rank(method="first")
    heads["kernel_r"] = np.where(order.isna(), np.nan, np.where(order % 2, 0.4, -0.4))
    heads["kernel_misfit"] = heads["kernel_misfit"].where(heads["kernel_misfit"].isna(), 1.2)
    replicates = STUDY.replicates.drop(columns="kernel_r").merge(heads[["checkpoint", "layer", "head", "kernel_r"]])
    rng = np.random.default_rng(0)
    replicates["kernel_r"] += rng.normal(0, 0.05, 8)[replicates["left_out"]] + rng.normal(0, 0.05, len(replicates))
    caption = caption_of("distance_kernels", View.of(heads, replicates, tables=STUDY.tables))
    assert [one.text for one in caption.findings] == [
        "K and the measured score by distance do not go together beyond the error."
    ]


def test_cells_of_the_map_are_kernels_less_their_means():
    figure = find("kernel_map").draw(STUDY.view(), checkpoints=["P2-300"])
    mesh = next(c for c in figure.axes[0].collections if hasattr(c, "get_coordinates"))
    wide = last_rows("distance").pivot(index=["layer", "head"], columns="distance", values="kernel")
    expected = wide.sub(wide.mean(axis=1), axis=0).to_numpy()
    cells = mesh.get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(cells), np.isnan(expected))
    np.testing.assert_allclose(cells.compressed(), expected[np.isfinite(expected)])
    assert mesh.norm.vmin == -mesh.norm.vmax
    assert mesh.norm.vmax == pytest.approx(np.percentile(np.abs(expected[np.isfinite(expected)]), 99))
    rules = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_gid() == "layer line"]
    assert rules == [4, 8, 12, 16, 20, 24, 28]
    (counts,) = [text.get_text() for text in figure.axes[0].texts if text.get_gid() == "counts"]
    assert counts == "6 near, 6 far,\n6 both ways, 6 flat"


def matrix(values: np.ndarray, errors: float = float("nan"), limit: float = 2.0) -> Kernels:
    values = np.atleast_2d(values)
    heads = np.stack([np.arange(len(values)), np.zeros(len(values), int)], axis=1)
    edges = np.arange(values.shape[1] + 1.0)
    return Kernels(heads, edges, values, np.full(values.shape, errors), np.full(len(values), errors), limit)


def test_planted_kernels_go_their_ways():
    ways = {"decaying": NEAR, "rising": FAR, "oscillating": BOTH, "flat": FLAT}
    for kind in KINDS:
        tally = matrix(kernel(kind, np.arange(40), 40)).tally()
        assert tally.ways[ways[kind]] == tally.total == 1, kind
        assert tally.undecided == 0
    assert matrix(np.full((3, 5), np.nan)).tally().total == 0
    assert kernels(STUDY.view(), 3).tally().ways == {NEAR: 6, FAR: 6, BOTH: 6, FLAT: 6}


def test_ways_that_hang_on_less_than_an_error_are_undecided():
    # Nine bins: the means of the outer thirds differ by 0.35 of the range, just beyond a third of it.
    values = np.array([0.4, 0.4, 0.4, 1.0, 0.5, 0.0, 0.05, 0.05, 0.05])
    slope = values[:3].mean() - values[-3:].mean()
    edge = (slope - 1 / 3) / (2.0 * np.sqrt(2 / 3))
    assert matrix(values, 0.99 * edge).tally() == ({NEAR: 1, FAR: 0, BOTH: 0, FLAT: 0}, 0)
    assert matrix(values, 1.01 * edge).tally() == ({NEAR: 1, FAR: 0, BOTH: 0, FLAT: 0}, 1)
    assert matrix(np.array([0.2, 0.0]), 0.11).tally().ways[FLAT] == 1


def test_changes_of_ways_are_counted_and_need_more_than_the_undecided():
    caption = caption_of("kernel_map", STUDY.view())
    assert "kernels" not in " ".join(one.text for one in caption.findings)
    assert caption.table.rows[-1][:7] == ("P2-300", "24", "6", "6", "6", "6", "0")
    still = long_study(growth=0.0).view()
    assert caption_of("kernel_map", still).takeaway == "No one way of the kernels has a majority."
    tables = dict(STUDY.tables)
    rows = tables["distance"].copy()
    late = (rows["checkpoint"] != rows["checkpoint"].iloc[0]) & (rows["head"] < 3)
    rows.loc[late & rows["kernel"].notna(), "kernel"] = -rows["distance"].astype(float)
    tables["distance"] = rows
    turned = caption_of("kernel_map", View.of(STUDY.heads, STUDY.replicates, tables=tables))
    texts = [one.text for one in turned.findings]
    assert "More kernels prefer near keys as training goes on (6 of 24 heads at P1-0, 18 at P2-300)." in texts
    alone = caption_of("kernel_map", View.of(STUDY.heads, STUDY.replicates, tables=tables), checkpoints=["P2-300"])
    assert "Most kernels prefer near keys (18 of 24 heads, 0 undecided, at P2-300)." in [
        one.text for one in alone.findings
    ]


def test_the_range_of_kernels_follows_the_data():
    study = long_study(2, growth=3.0)
    means = study.heads.groupby("label", sort=False)["kernel_range"].mean()
    texts = [one.text for one in caption_of("kernel_map", study.view()).findings]
    (said,) = [text for text in texts if text.startswith("The mean range of K rises over training (")]
    assert f"({means.iloc[0]:.2f} ± " in said
    assert f", {means.iloc[-1]:.2f} ± " in said
    still = to_markdown(caption_of("kernel_map", long_study(2, growth=0.0).view()))
    assert "The mean range of K" not in still


def test_spectrum_curves_are_means_over_heads():
    figure = find("spectrum").draw(STUDY.view(), checkpoints=["P2-300"])
    rows = last_rows("spectrum")
    for ax, column in zip(figure.axes, ("energy_q", "energy_k", "fixed_q", "fixed_k", "kernel_share"), strict=False):
        (line,) = [line for line in ax.lines if line.get_gid() == "mean"]
        np.testing.assert_allclose(line.get_ydata(), rows.groupby("pair")[column].mean())
        np.testing.assert_allclose(line.get_xdata(), rows.groupby("pair")["wavelength"].first() / 256)
        (band,) = [band for band in ax.collections if band.get_gid() == "spread"]
        assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(
            rows.groupby("pair")[column].quantile(0.75).max()
        )


def test_layers_of_other_frequencies_are_binned():
    rows = last_rows("spectrum").copy()
    rows.loc[rows["layer"] < 2, "wavelength"] *= 3
    curve = profile(rows, "energy_q")
    octave = np.floor(2 * np.log2(rows["wavelength"] / 256))
    heads = rows.groupby([octave, rows["layer"], rows["head"]])["energy_q"].mean()
    np.testing.assert_allclose(curve["mean"], heads.groupby(level=0).mean())
    assert curve["x"].is_monotonic_increasing


def test_shares_beyond_the_context_have_the_largest_error():
    rows = last_rows("spectrum")
    long = rows[rows["wavelength"] > 256]
    estimate = beyond(STUDY.view(), 3, "kernel_share")
    assert estimate.value == pytest.approx(long.groupby(["layer", "head"])["kernel_share"].sum().mean())
    assert estimate.se == pytest.approx(long.groupby(["layer", "head"])["se_kernel_share"].sum().mean())
    caption = caption_of("spectrum", STUDY.view())
    texts = [one.text for one in caption.findings]
    (longer,) = [text for text in texts if text.startswith("The kernel sits at longer wavelengths than the energy (")]
    assert f"lie {100 * estimate.value:.1f}% ± {100 * estimate.se:.1f} of the kernel" in longer
    logs = np.log2(STUDY.heads["kernel_wavelength"]).groupby(STUDY.heads["label"], sort=False).mean()
    ends = [f"{2 ** logs.iloc[end]:,.0f}" for end in (0, -1)]
    change = logs.iloc[-1] - logs.iloc[0]
    said = f"The kernel's wavelength rises over training ({ends[0]} to {ends[1]} tokens, +{change:.2f} ± "
    assert caption.takeaway.startswith(said)
    assert caption.table.rows[-1][2] == ends[1]
    assert caption.table.rows[-1][-1] == f"{100 * estimate.value:.1f}% ± {100 * estimate.se:.1f}"


def test_a_kernel_where_the_energy_is_is_said_to_be_there():
    tables = dict(STUDY.tables)
    spectrum = tables["spectrum"].copy()
    spectrum["kernel_share"] = (spectrum["energy_q"] + spectrum["energy_k"]) / 2
    tables["spectrum"] = spectrum
    heads = STUDY.heads.assign(kernel_wavelength=100.0)
    replicates = STUDY.replicates.assign(kernel_wavelength=100.0 + STUDY.replicates["left_out"])
    caption = caption_of("spectrum", View.of(heads, replicates, tables=tables))
    assert "longer wavelengths" not in to_markdown(caption)
    assert "wavelength rises" not in to_markdown(caption)


def test_paths_and_their_lines_are_centred_on_the_mean_over_tokens():
    figure = find("mean_paths").draw(STUDY.view(), heads=((7, 2),))
    path = last_rows("profiles").query("layer == 7 and head == 2")
    (ax,) = figure.axes
    for kind, points in zip(("q", "k"), ax.containers, strict=True):
        middle = (path[kind] * path["tokens"]).sum() / path["tokens"].sum()
        np.testing.assert_allclose(points.lines[0].get_ydata().astype(float), path[kind] - middle)
        (line,) = [line for line in ax.lines if line.get_gid() == f"line {kind}"]
        np.testing.assert_allclose(line.get_ydata(), path[f"line_{kind}"] - middle)
    row = last_heads().query("layer == 7 and head == 2").iloc[0]
    (facts,) = [text.get_text() for text in ax.texts if text.get_gid() == "facts"]
    assert facts.splitlines()[0] == f"queries: $r^2$ {row['r_q'] ** 2:.2f}, $\\eta^2$ {row['eta2_pc0_q']:.2f}"


def test_what_a_line_misses_is_what_pandas_says():
    heads, caption = last_heads(), caption_of("mean_paths", STUDY.view())
    for place, (kind, name) in enumerate((("q", "queries"), ("k", "keys"))):
        bend, signal = heads[f"bend_{kind}"].mean(), heads[f"eta2_pc0_{kind}"].mean()
        start = f"A straight line misses a part of what position does to {name} ({100 * bend / signal:.1f}% ± "
        (said,) = [one.text for one in caption.findings if one.text.startswith(start)]
        assert f"which is {100 * bend:.1f}% ± " in said
        beyond_error = (heads[f"bend_{kind}"] > critical(8) * heads[f"se_bend_{kind}"]).sum()
        assert said.endswith(f"beyond its error in {beyond_error} of 32 heads).")
        row = caption.table.rows[place]
        assert [text.split("%")[0] for text in row[1:]] == [
            f"{100 * number:.1f}" for number in (signal, bend, bend / signal)
        ]


def test_straight_paths_are_called_straight():
    caption = caption_of("mean_paths", long_study(bend=0.0).view())
    assert [one.text for one in caption.findings] == [
        "A straight line misses nothing of the position signal beyond its error at P2-300."
    ]
