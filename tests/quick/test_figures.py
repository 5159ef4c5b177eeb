"""Figures: the numbers in their artists against plain pandas, and labels that never overlap."""

import inspect
import io
import itertools
import math
import re
import sys
import zlib

import matplotlib
import numpy as np
import pandas as pd
import pytest
from fontTools import subset
from fontTools.ttLib import TTFont
from matplotlib.colors import to_rgb

from helpers.figures import NAMES, check_layout, draw
from helpers.tables import by_checkpoint, heads_of, leave_one_out, synthetic
from ropewalk.errors import RopewalkError
from ropewalk.figures import FIGURES, gallery
from ropewalk.figures.embedding import UNUSED
from ropewalk.figures.style import CATEGORY_COLOURS, CATEGORY_LINES, contrasting, png, png_and_pdf, shortened
from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.summary.view import View


def line(figure, label: str, panel: int = 0) -> np.ndarray:
    """The y data of the curve with this label in the legend."""
    containers = {container.get_label(): container for container in figure.axes[panel].containers}
    return np.asarray(containers[label].lines[0].get_ydata())


@pytest.mark.parametrize("name", NAMES)
def test_neither_shows_nor_keeps_state(name):
    before = dict(matplotlib.rcParams)
    with_pyplot = "matplotlib.pyplot" in sys.modules
    table = synthetic(3, phases=2)
    copy = table.copy()
    figure = draw(name, table, leave_one_out(table))
    assert isinstance(figure, matplotlib.figure.Figure)
    assert dict(matplotlib.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == with_pyplot
    pd.testing.assert_frame_equal(table, copy)


@pytest.mark.parametrize("name", NAMES)
def test_works_on_a_plain_csv(name, tmp_path):
    table = synthetic(3, phases=1).assign(checkpoint=lambda t: t["step"], label=None, phase=None)
    table.to_csv(tmp_path / "qk.csv", index=False)
    read = pd.read_csv(tmp_path / "qk.csv")
    assert pd.api.types.is_integer_dtype(read["checkpoint"])
    check_layout(draw(name, read, leave_one_out(read)))


@pytest.mark.parametrize("name", NAMES)
def test_missing_correlations(name):
    table = synthetic(3, phases=3)
    table.loc[table.index[:150], "r_k"] = np.nan
    table.loc[table["layer"] < 9, ["r_q", "r_k"]] = np.nan
    table.loc[table["checkpoint"] == table["checkpoint"].iloc[300], ["r_q", "r_k", "explained_variance"]] = np.nan
    check_layout(draw(name, table, leave_one_out(table)))
    table[["r_q", "r_k", "explained_variance"]] = np.nan
    check_layout(draw(name, table))


def test_mistakes_are_named():
    table = synthetic(2)
    with pytest.raises(RopewalkError, match=r"the table has no column 'r_k': it needs checkpoint, layer, head, pc"):
        View.of(table.drop(columns="r_k"))
    with pytest.raises(RopewalkError, match="the table has no rows"):
        View.of(table.iloc[:0])
    with pytest.raises(RopewalkError, match="the table has no row with pc 0"):
        View.of(table[table["pc"] == 1])


def test_position_signal_numbers():
    table = synthetic()
    figure = draw("position_signal", table)
    np.testing.assert_allclose(line(figure, "mean $r_q$ (queries)"), by_checkpoint(table, "r_q"))
    np.testing.assert_allclose(line(figure, "mean $r_k$ (keys)"), by_checkpoint(table, "r_k"))
    sizes = by_checkpoint(table.assign(r_k=table["r_k"].abs()), "r_k")
    np.testing.assert_allclose(line(figure, "mean $|r_k|$"), sizes)
    bands = [band for band in figure.axes[0].collections if band.get_gid() == "spread"]
    for band, column in zip(bands, ("r_q", "r_k"), strict=True):
        low, high = (by_checkpoint(table, column) + sign * by_checkpoint(table, column, "std") for sign in (-1, 1))
        vertices = band.get_paths()[0].vertices
        for x in range(10):
            at = vertices[vertices[:, 0] == x, 1]
            np.testing.assert_allclose([at.min(), at.max()], [low[x], high[x]])
    markers = {c.get_label(): c.lines[0].get_marker() for c in figure.axes[0].containers}
    assert (markers["mean $r_q$ (queries)"], markers["mean $r_k$ (keys)"]) == ("o", "s")


def test_phases_are_separated_and_named():
    figure = draw("position_signal", synthetic())
    ax = figure.axes[0]
    rules = [rule for rule in ax.lines if rule.get_gid() == "group line"]
    assert [rule.get_xdata()[0] for rule in rules] == [1.5, 3.5, 5.5, 7.5]
    names = [text.get_text() for text in ax.texts if text.get_gid() == "group name"]
    assert names == ["stage 1", "stage 2", "stage 3", "LC 4K→32K", "LC 32K→64K"]
    assert not [rule for rule in draw("position_signal", synthetic(10, phases=1)).axes[0].lines if rule.get_gid()]


def test_error_bars_are_jackknife_errors():
    table = synthetic(3, phases=1)
    replicates = leave_one_out(table)
    figure = draw("position_signal", table, replicates)
    container = next(c for c in figure.axes[0].containers if c.get_label() == "mean $r_q$ (queries)")
    segments = container.lines[2][0].get_segments()
    for name, segment in zip(table["checkpoint"].unique(), segments, strict=True):
        means = replicates[replicates["checkpoint"] == name].groupby("left_out")["r_q"].mean()
        error = math.sqrt(7 / 8 * ((means - means.mean()) ** 2).sum())
        assert segment[1, 1] - segment[0, 1] == pytest.approx(2 * error)


def test_models_are_grouped_by_family_and_not_joined():
    table = synthetic(12, models=True)
    order = table["checkpoint"].unique()
    mixed = pd.concat([table[table["checkpoint"] == name] for name in [*order[::2], *order[1::2]]])
    figure = draw("position_signal", mixed)
    ax = figure.axes[0]
    names = [text.get_text() for text in ax.texts if text.get_gid() == "group name"]
    assert names == ["Llama", "Qwen", "SmolLM", "OLMo 2"]
    assert ax.get_xlabel() == "model"
    container = next(c for c in ax.containers if c.get_label() == "mean $r_q$ (queries)")
    assert container.lines[0].get_linestyle() == "None"
    families = mixed.drop_duplicates("checkpoint")
    expected = [
        name
        for family in families["family"].unique()
        for name in families.loc[families["family"] == family, "checkpoint"]
    ]
    means = mixed[mixed["pc"] == 0].groupby("checkpoint")["r_q"].mean()
    np.testing.assert_allclose(container.lines[0].get_ydata(), means[expected])


def test_taxonomy_bar_heights():
    table = synthetic()
    table.loc[table.index[:40], "r_k"] = np.nan
    figure = draw("taxonomy_evolution", table)
    heads = heads_of(table)
    known = heads.dropna(subset=["category"])
    counts = known.groupby(["checkpoint", "category"], sort=False).size().unstack(fill_value=0)
    shares = counts.div(counts.sum(axis=1), axis=0).reindex(columns=CATEGORIES, fill_value=0.0)
    bars = {container.get_label(): container for container in figure.axes[0].containers}
    for name in CATEGORIES:
        np.testing.assert_allclose([bar.get_height() for bar in bars[name]], shares[name], atol=1e-12)
        assert {to_rgb(bar.get_facecolor()) for bar in bars[name]} == {to_rgb(CATEGORY_COLOURS[name])}
    tops = [bar.get_y() + bar.get_height() for bar in bars["mixed"]]
    np.testing.assert_allclose(tops, 1.0)
    turned = known[(known["category"] == "position-dominated") & (known["r_q"] * known["r_k"] < 0)]
    expected = turned.groupby("checkpoint").size().reindex(shares.index, fill_value=0) / counts.sum(axis=1)
    np.testing.assert_allclose([bar.get_height() for bar in bars["of these, discordant"]], expected, atol=1e-12)
    printed = [text.get_text() for text in figure.axes[0].texts if text.get_gid() == "share"]
    assert f"{shares.iloc[-1]['position-dominated']:.0%}" in printed


def test_explained_variance_line_and_band():
    table = synthetic()
    figure = draw("explained_variance", table)
    means = by_checkpoint(table, "explained_variance")
    np.testing.assert_allclose(figure.axes[0].containers[0].lines[0].get_ydata(), means)
    (band,) = [band for band in figure.axes[0].collections if band.get_gid() == "spread"]
    top = band.get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx((means + by_checkpoint(table, "explained_variance", "std")).max())


@pytest.mark.parametrize("column", ["r_q", "r_k"])
def test_heatmap_cells(column):
    table = synthetic()
    table.loc[(table["layer"] == 35) & (table["pc"] == 0), "r_k"] = -0.5
    table = table[~table["layer"].between(11, 14)]
    figure = draw(f"depth_heatmap_{column}", table)
    heads = table[table["pc"] == 0]
    bins = heads["layer"].map(lambda layer: max(math.ceil(10 * layer / 35) - 1, 0))
    means = heads.groupby([pd.factorize(heads["checkpoint"])[0], bins])[column].mean()
    texts = {text.get_gid(): text for text in figure.axes[0].texts if str(text.get_gid()).startswith("cell")}
    assert len(texts) == len(means) == 90
    for (row, bin_), mean in means.items():
        assert float(texts[f"cell {row} {bin_}"].get_text().replace("−", "-")) == pytest.approx(mean, abs=0.00501)
    mesh = figure.axes[0].collections[0]
    assert (mesh.norm.vmin, mesh.norm.vmax) == (0, 1)
    assert mesh.get_array().mask.sum() == 10
    assert mesh.get_cmap().name == {"r_q": "Blues", "r_k": "Reds"}[column]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(table["label"].unique())


def test_negative_cells_are_seen_and_numbered():
    table = synthetic(2, phases=1)
    table.loc[table["layer"] > 31, "r_k"] = -0.4
    figure = draw("depth_heatmap_r_k", table)
    texts = {text.get_gid(): text.get_text() for text in figure.axes[0].texts}
    assert texts["cell 0 9"] == "−0.40"
    figure.draw_without_rendering()
    mesh = figure.axes[0].collections[0]
    colours = mesh.get_facecolor().reshape(2, 10, 4)
    assert tuple(colours[0, 9]) != tuple(mesh.get_cmap()(0.0))
    assert "below 0" in figure.axes[1].get_xlabel()


def test_phase_portraits_points_and_limits():
    table = synthetic()
    figure = draw("phase_portraits", table)
    names = table["checkpoint"].unique()
    chosen = [names[index] for index in (0, 1, 3, 5, 7, 9)]
    assert len(figure.axes) == 6
    for ax, name in zip(figure.axes, chosen, strict=True):
        heads = heads_of(table[table["checkpoint"] == name])
        points = {collection.get_gid(): collection.get_offsets() for collection in ax.collections}
        for gid, rope in (("RoPE layers", True), ("NoPE layers", False)):
            expected = heads.loc[heads["rope"] == rope, ["r_q", "r_k"]].to_numpy()
            np.testing.assert_allclose(np.asarray(points[gid]), expected)
        assert ax.get_xlim() == (-0.05, 1.05)
        assert ax.get_ylim() == (-1.05, 1.05)
        dashes = sorted({float(rule.get_xdata()[0]) for rule in ax.lines if rule.get_xdata()[0] == rule.get_xdata()[1]})
        assert dashes == [0.3, 0.7]
        dashes = sorted({float(rule.get_ydata()[0]) for rule in ax.lines if rule.get_ydata()[0] == rule.get_ydata()[1]})
        assert dashes == [-0.7, -0.3, 0.3, 0.7]
        dominated = heads[heads["category"] == "position-dominated"]
        turned = int((dominated["r_k"] < 0).sum())
        (counts,) = [text.get_text() for text in ax.texts if text.get_gid() == "counts"]
        assert counts == f"{len(dominated)} of 300 position-dominated\n({turned} discordant)"
        assert ax.get_title() == heads["label"].iloc[0]


def test_phase_portraits_of_named_checkpoints():
    table = synthetic()
    labels = ["S5-360K", "S1-0K"]
    figure = draw("phase_portraits", table, checkpoints=labels)
    assert [ax.get_title() for ax in figure.axes] == labels
    names = list(table["checkpoint"].unique()[[9, 0]])
    figure = draw("phase_portraits", table, checkpoints=names)
    assert [ax.get_title() for ax in figure.axes] == labels
    with pytest.raises(
        RopewalkError, match="no checkpoint 'S9' in the table: choose from stage1-step-0, stage1-step-40000"
    ):
        draw("phase_portraits", table, checkpoints=["S9"])


def test_points_outside_the_limits_are_counted():
    table = synthetic(1, phases=1)
    table.loc[table.index[:3], "r_q"] = -0.6
    (ax,) = draw("phase_portraits", table).axes
    assert [text.get_text() for text in ax.texts if text.get_gid() == "outside"] == ["3 outside"]


def test_concordance_numbers():
    table = synthetic()
    figure = draw("concordance", table)
    heads = table[table["pc"] == 0]
    np.testing.assert_allclose(line(figure, "mean $r_k$"), by_checkpoint(table, "r_k"))
    np.testing.assert_allclose(line(figure, "mean $|r_k|$"), by_checkpoint(table.assign(r_k=table["r_k"].abs()), "r_k"))
    below = heads.assign(below=heads["r_k"] < 0)
    np.testing.assert_allclose(line(figure, "all heads", 1), by_checkpoint(below, "below"))
    for label, rope in (("RoPE layers", True), ("NoPE layers", False)):
        side = below[below["rope"] == rope]
        np.testing.assert_allclose(line(figure, label, 1), by_checkpoint(side, "below"))
        np.testing.assert_allclose(line(figure, label, 2), by_checkpoint(side, "r_k"))


def test_concordance_says_when_rope_is_unknown():
    figure = draw("concordance", synthetic(3, phases=1).drop(columns="rope"))
    texts = [text.get_text() for text in figure.axes[2].texts]
    assert "the table does not say which layers have RoPE" in texts
    assert len(figure.axes[1].containers) == 1


def test_flow_counts():
    table = synthetic()
    figure = draw("category_flows", table)
    heads = heads_of(table)
    names = table["checkpoint"].unique()
    chosen = [names[index] for index in (0, 1, 3, 5, 7, 9)]
    patches = {patch.get_gid(): patch for patch in figure.axes[0].patches}
    texts = {text.get_gid(): text.get_text() for text in figure.axes[0].texts}
    seen = 0
    for column, (first, last) in enumerate(itertools.pairwise(chosen)):
        before, after = (
            heads[heads["checkpoint"] == name].set_index(["layer", "head"])["category"] for name in (first, last)
        )
        pairs = pd.crosstab(before, after.reindex(before.index))
        for (start, end), size in pairs.stack().items():
            gid = f"flow {column} {start} > {end}"
            assert (gid in patches) == (size > 0)
            if size:
                vertices = patches[gid].get_path().vertices
                at_start = vertices[vertices[:, 0] == vertices[:, 0].min(), 1]
                assert at_start.max() - at_start.min() == pytest.approx(size)
                label = texts.get(gid.replace("flow", "flow count"))
                assert label in (None, str(size))
                assert label is not None or size < 15
                seen += size
        for name, count in before.value_counts().items():
            assert patches[f"node {column} {name}"].get_height() == count
    assert seen == 5 * 300


def test_flows_pair_heads_and_not_rows():
    table = synthetic(2, phases=2)
    shuffled = table.sample(frac=1, random_state=0).sort_values("step", kind="stable")
    flows = [
        {p.get_gid(): p.get_path().vertices.tolist() for p in draw("category_flows", t).axes[0].patches}
        for t in (table, shuffled)
    ]
    assert flows[0] == flows[1]


def test_flows_need_something_to_compare():
    assert draw("category_flows", synthetic(1, phases=1)).axes[0].get_xlabel() == "one checkpoint: no changes to show"
    table = synthetic(4, models=True)
    ax = draw("category_flows", table).axes[0]
    assert "no flows between models of another family or depth" in ax.get_xlabel()
    assert not [patch for patch in ax.patches if patch.get_gid().startswith("flow")]


def simulated(colour: str, matrix: np.ndarray) -> np.ndarray:
    """A colour as dichromats see it, in CIELAB."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(matrix @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    f = np.cbrt(xyz / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Machado, Oliveira and Fernandes 2009, severity 1.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


@pytest.mark.parametrize("colours", [CATEGORY_COLOURS, CATEGORY_LINES], ids=["areas", "lines"])
@pytest.mark.parametrize("vision", VISION)
def test_categories_can_be_told_apart(vision, colours):
    seen = [simulated(colours[name], np.array(VISION[vision])) for name in CATEGORIES]
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    assert min(distances) > 20


def test_small_things():
    assert contrasting("white") == "black"
    assert contrasting("#36167d") == "white"
    assert shortened("organisation/a-model-with-a-long-name", 20) == "organisation…ng-name"
    assert len(shortened("x" * 99, 20)) == 20


def test_folders_are_numbered_without_a_gap():
    assert [gallery.folder_name(figure) for figure in FIGURES] == [
        "01_position_signal",
        "02_taxonomy_evolution",
        "03_explained_variance",
        "04_depth_heatmap_r_q",
        "05_depth_heatmap_r_k",
        "06_phase_portraits",
        "07_concordance",
        "08_category_flows",
        "09_axis_choice",
        "10_category_behaviour",
        "11_fixed_share",
        "12_distance_kernels",
        "13_kernel_map",
        "14_attention_by_distance",
        "15_spectrum",
        "16_mean_paths",
        "17_sinks",
        "18_rotation_metrics",
        "19_bias_decomposition",
        "20_drift_wavelengths",
        "21_plasticity_trajectory",
        "22_plasticity_profile",
        "23_plasticity_map",
        "24_families",
    ]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_is_a_module_of_its_name_with_the_options_it_says(figure):
    assert figure.drawing.__module__ == figure.wording.__module__ == f"ropewalk.figures.{figure.name}"
    for function, needed in ((figure.drawing, ["view"]), (figure.wording, ["view", "source"])):
        parameters = inspect.signature(function).parameters.values()
        assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == needed
        assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == list(figure.own_options)


def test_heads_whose_category_is_undecided_are_hollow():
    table = synthetic(1, phases=1, heads=60)
    table["certainty"] = np.where(np.arange(len(table)) % 3, 0.99, 0.9)
    ax = gallery.find("phase_portraits").draw(View.of(table)).axes[0]
    points = {dots.get_gid(): len(dots.get_offsets()) for dots in ax.collections if dots.get_gid()}
    heads = table[table["pc"] == 0]
    for rope, label in ((True, "RoPE layers"), (False, "NoPE layers")):
        unsure = (heads["rope"] == rope) & (heads["certainty"] < 0.95)
        assert points[f"{label}, hollow"] == unsure.sum() > 0
        assert points[label] == ((heads["rope"] == rope) & ~unsure).sum() > 0


def test_nulls_are_lines_of_reference():
    table = synthetic(4, phases=2, heads=40)
    own = table.assign(untrained="null", r_q_permuted=0.01, r_k_permuted=0.02)
    null = synthetic(1, phases=1, heads=40, seed=3).assign(checkpoint="null", untrained="null", label="null")
    ax = (
        gallery.find("position_signal").draw(View.of(pd.concat([own, null.assign(r_q=0.1)], ignore_index=True))).axes[0]
    )
    lines = {
        line.get_gid(): line.get_ydata() for line in ax.lines if line.get_gid() in ("positions shuffled", "untrained")
    }
    assert set(lines) == {"positions shuffled", "untrained"}
    assert {tuple(np.round(line.get_ydata(), 6)) for line in ax.lines if line.get_gid() == "positions shuffled"} == {
        (0.01,) * 4,
        (0.02,) * 4,
    }
    assert (0.1,) * 4 in {tuple(np.round(line.get_ydata(), 6)) for line in ax.lines if line.get_gid() == "untrained"}
    bare = gallery.find("position_signal").draw(View.of(table)).axes[0]
    assert not [line for line in bare.lines if line.get_gid() in ("positions shuffled", "untrained")]


def test_the_choice_of_axis_draws_each_axis_that_is_there():
    table = synthetic(3, phases=1, heads=40).assign(separation_share=0.4)
    heads = table[table["pc"] == 0].drop(columns="pc")
    full = heads.assign(r_q_drift=0.8, r_k_drift=0.9, r_q_centred=0.5, r_k_centred=-0.6)
    axes = gallery.find("axis_choice").draw(View.of(full)).axes
    curves = [[tuple(np.round(c.lines[0].get_ydata(), 6)) for c in ax.containers] for ax in axes]
    assert [len(panel) for panel in curves] == [3, 3, 3, 1]
    assert (0.8,) * 3 in curves[0]
    assert (0.6,) * 3 in curves[1]
    assert (1.0,) * 3 in curves[2]
    assert curves[3] == [(0.4,) * 3]
    caption = gallery.find("axis_choice").caption(View.of(full), "heads.csv")
    shares = "100.0% along the drift axis"
    assert any(
        one.sentence.endswith("hangs on the axis that is chosen") and shares in one.evidence for one in caption.findings
    )
    alone = gallery.find("axis_choice").draw(View.of(table)).axes
    assert [len(ax.containers) for ax in alone] == [1, 1, 1, 1]


def test_a_figure_is_as_before_after_it_was_printed():
    figure = draw("concordance", synthetic(3))
    before = figure.canvas, figure.dpi, figure.get_layout_engine()
    picture, paper = png_and_pdf(figure)
    assert (figure.canvas, figure.dpi, figure.get_layout_engine()) == before
    assert png_and_pdf(figure) == (picture, paper)
    assert png(figure) == picture


def test_picture_and_paper_have_everything_in_the_same_places():
    figure = draw("position_signal", synthetic(3))
    places = []
    for ax in figure.axes:
        plain_draw = ax.draw
        ax.draw = lambda renderer, ax=ax, plain_draw=plain_draw: (
            places.append(ax.get_position().bounds),
            plain_draw(renderer),
        )
    png_and_pdf(figure)
    assert len(places) == 2 * len(figure.axes)
    assert places[: len(figure.axes)] == places[len(figure.axes) :]


def test_fonts_of_a_paper_are_truetype_without_tables_for_setting_text():
    options = subset.Options
    _, paper = png_and_pdf(draw("phase_portraits", synthetic(3)))
    streams = re.findall(rb"/Length1 \d+.*?stream\r?\n(.*?)\r?\nendstream", paper, re.DOTALL)
    fonts = [TTFont(io.BytesIO(zlib.decompress(stream))) for stream in streams]
    assert len(fonts) == paper.count(b"/FontFile2") > 1
    for font in fonts:
        assert {"glyf", "hmtx", "loca"} <= set(font.keys())
        assert not set(UNUSED) & set(font.keys())
        font.close()
    assert subset.Options is options
