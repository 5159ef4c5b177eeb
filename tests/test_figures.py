"""Figures: the numbers in their artists against plain pandas, and labels that never overlap."""

import importlib.util
import itertools
import math
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from ropewalk import figures
from ropewalk.errors import RopewalkError
from ropewalk.figures.style import CATEGORY_COLOURS, contrasting, shortened
from ropewalk.geometry.taxonomy import CATEGORIES

SCRIPT = Path(__file__).parents[1] / "scripts" / "generate_report_figures.py"
DRAW = {spec.draw.__name__: spec.draw for spec in figures.FIGURES}


def synthetic(
    checkpoints: int = 10, *, layers: int = 36, heads: int = 300, phases: int = 5, models: bool = False, seed: int = 0
) -> pd.DataFrame:
    """A qk table of the published shape: heads of NoPE layers (3, 7, ...) turn discordant as training goes on."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(layers * 16)[:heads]
    layer, head = np.sort(cells) // 16, np.sort(cells) % 16
    rope = layer % 4 != 3
    base_q, base_k = rng.normal(0.1, 0.12, heads), rng.normal(0.0, 0.22, heads)
    tables = []
    for index in range(checkpoints):
        age = index / max(checkpoints - 1, 1)
        phase = index * phases // checkpoints
        r_q = np.clip(0.55 + 0.22 * age**0.5 + base_q + rng.normal(0, 0.06, heads), -0.04, 0.99)
        r_k = np.where(rope, 0.55 + 0.25 * age, 0.2 - 0.8 * age) + base_k + rng.normal(0, 0.07, heads)
        family = ("Llama", "Qwen", "SmolLM", "OLMo 2")[index * 4 // checkpoints]
        tables.append(
            pd.DataFrame(
                {
                    "checkpoint": f"{family}-{index}" if models else f"stage{phase + 1}-step-{index * 40000}",
                    "phase": ""
                    if models
                    else f"stage {phase + 1}"
                    if phase < 3
                    else f"LC {4 * 8 ** (phase - 3)}K->{32 * 2 ** (phase - 3)}K",
                    "step": pd.NA if models else index * 40000,
                    "layer": layer,
                    "head": head,
                    "k_head": head // 4,
                    "rope": rope,
                    "pc": 0,
                    "explained_variance": np.clip(rng.normal(0.2 + 0.12 * age, 0.06, heads), 0.02, 0.9),
                    "r_q": r_q,
                    "r_k": np.clip(r_k, -0.97, 0.97),
                    "label": f"{family}-{2 ** (index % 3)}B" if models else f"S{phase + 1}-{index * 40}K",
                    "family": family if models else "",
                    "layers": layers,
                }
            )
        )
    table = pd.concat(tables, ignore_index=True)
    return pd.concat([table, table.assign(pc=1, r_q=0.1, r_k=-0.1, explained_variance=0.05)], ignore_index=True)


def leave_one_out(table: pd.DataFrame, shards: int = 8, noise: float = 0.01, seed: int = 1) -> pd.DataFrame:
    """Replicates scattered about the PC0 rows of a table."""
    rng = np.random.default_rng(seed)
    heads = table[table["pc"] == 0][["checkpoint", "layer", "head", "explained_variance", "r_q", "r_k"]]
    parts = []
    for shard in range(shards):
        part = heads.assign(left_out=shard)
        for column in ("explained_variance", "r_q", "r_k"):
            part[column] = part[column] + rng.normal(0, noise) + rng.normal(0, noise, len(part))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def category(row: pd.Series) -> str | None:
    """The taxonomy, spelled out once more."""
    r_q, size = row["r_q"], abs(row["r_k"])
    if math.isnan(r_q) or math.isnan(size):
        return None
    if r_q > 0.7 and size > 0.7:
        return "position-dominated"
    if r_q > 0.7 and size < 0.3:
        return "Q-positional"
    if r_q < 0.3 and size > 0.7:
        return "K-positional"
    if r_q < 0.3 and size < 0.3:
        return "content-focused"
    return "mixed"


def heads_of(table: pd.DataFrame) -> pd.DataFrame:
    heads = table[table["pc"] == 0].copy()
    heads["category"] = heads.apply(category, axis=1)
    return heads


def by_checkpoint(table: pd.DataFrame, value: str, how: str = "mean") -> np.ndarray:
    return table[table["pc"] == 0].groupby("checkpoint", sort=False)[value].agg(how).to_numpy()


def line(figure, label: str, panel: int = 0) -> np.ndarray:
    """The y data of the curve with this label in the legend."""
    containers = {container.get_label(): container for container in figure.axes[panel].containers}
    return np.asarray(containers[label].lines[0].get_ydata())


def corners(figure, text) -> np.ndarray:
    """The rectangle of a text, turned with it: [4, 2] in pixels."""
    angle = text.get_rotation()
    centre = text.get_window_extent(figure.canvas.get_renderer())
    middle = np.array([(centre.x0 + centre.x1) / 2, (centre.y0 + centre.y1) / 2])
    text.set_rotation(0)
    flat = text.get_window_extent(figure.canvas.get_renderer())
    text.set_rotation(angle)
    turn = math.radians(angle)
    along, across = np.array([math.cos(turn), math.sin(turn)]), np.array([-math.sin(turn), math.cos(turn)])
    return np.array(
        [middle + a * along * flat.width / 2 + b * across * flat.height / 2 for a in (-1, 1) for b in (-1, 1)]
    )


def apart(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two rectangles are disjoint (separating axis theorem)."""
    for shape in (first, second):
        for direction in (shape[1] - shape[0], shape[2] - shape[0]):
            a, b = first @ direction, second @ direction
            if a.max() <= b.min() + 1e-6 or b.max() <= a.min() + 1e-6:
                return True
    return False


def visible_texts(figure) -> list:
    figure.draw_without_rendering()
    texts = [text for ax in figure.axes if ax.get_visible() for text in ax.texts]
    for ax in figure.axes:
        if ax.get_visible():
            for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
                ticks = [t for t in axis.get_major_ticks() if min(limits) - 1e-9 <= t.get_loc() <= max(limits) + 1e-9]
                texts += [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]
            texts += [ax.xaxis.label, ax.yaxis.label, ax.title]
            legend = ax.get_legend()
            texts += legend.get_texts() if legend else []
    for legend in figure.legends:
        texts += legend.get_texts()
    return [text for text in texts if text.get_text().strip()]


def check_layout(figure) -> None:
    """No text overlaps another one, and none leaves the page."""
    texts = visible_texts(figure)
    shapes = [corners(figure, text) for text in texts]
    width, height = figure.bbox.width, figure.bbox.height
    for text, shape in zip(texts, shapes, strict=True):
        assert shape.min() >= -1, f"{text.get_text()!r} leaves the page"
        assert shape[:, 0].max() <= width + 1, f"{text.get_text()!r} leaves the page"
        assert shape[:, 1].max() <= height + 1, f"{text.get_text()!r} leaves the page"
    lows, highs = np.array([shape.min(axis=0) for shape in shapes]), np.array([shape.max(axis=0) for shape in shapes])
    near = ((lows[:, None] < highs[None]) & (lows[None] < highs[:, None])).all(axis=2)
    for i, j in np.argwhere(np.triu(near, 1)):
        a, first, b, second = texts[i], shapes[i], texts[j], shapes[j]
        assert apart(first, second), f"{a.get_text()!r} lies on {b.get_text()!r}"


STUDIES = {
    "1 checkpoint": synthetic(1, phases=1),
    "2 checkpoints": synthetic(2, phases=2),
    "10 checkpoints": synthetic(10),
    "40 checkpoints, no phases": synthetic(40, heads=60).assign(phase=""),
    "150 checkpoints": synthetic(150, heads=30),
    "150 phases": synthetic(150, heads=30).assign(phase=lambda table: "phase of " + table["checkpoint"]),
    "12 models": synthetic(12, models=True),
    "40 models": synthetic(40, models=True, heads=30).assign(label=lambda table: "organisation/" + table["checkpoint"]),
    "150 models": synthetic(150, models=True, heads=30),
    "one head": synthetic(4, heads=1, phases=2),
    "long names": synthetic(6, phases=3).assign(
        label=lambda table: "a-rather-long-name-for-a-checkpoint-" + table["label"],
        phase=lambda table: "a phase with a rather long name " + table["phase"],
    ),
    "required columns": synthetic(5)[["checkpoint", "layer", "head", "pc", "explained_variance", "r_q", "r_k"]],
}


CROWDED = ("150 phases", "40 models", "150 models")
CASES = [(study, name) for study in STUDIES for name in DRAW if study not in CROWDED] + [
    (study, name) for study in CROWDED for name in ("position_signal", "depth_heatmap_r_q", "category_flows")
]


@pytest.mark.parametrize(("study", "name"), CASES)
def test_nothing_overlaps(study, name):
    check_layout(DRAW[name](STUDIES[study]))


@pytest.mark.parametrize("name", DRAW)
def test_neither_shows_nor_keeps_state(name):
    before = dict(matplotlib.rcParams)
    with_pyplot = "matplotlib.pyplot" in sys.modules
    table = synthetic(3, phases=2)
    copy = table.copy()
    figure = DRAW[name](table, leave_one_out(table))
    assert isinstance(figure, matplotlib.figure.Figure)
    assert dict(matplotlib.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == with_pyplot
    pd.testing.assert_frame_equal(table, copy)


@pytest.mark.parametrize("name", DRAW)
def test_works_on_a_plain_csv(name, tmp_path):
    table = synthetic(3, phases=1).assign(checkpoint=lambda t: t["step"], label=None, phase=None)
    table.to_csv(tmp_path / "qk.csv", index=False)
    read = pd.read_csv(tmp_path / "qk.csv")
    assert pd.api.types.is_integer_dtype(read["checkpoint"])
    check_layout(DRAW[name](read, leave_one_out(read)))


@pytest.mark.parametrize("name", DRAW)
def test_missing_correlations(name):
    table = synthetic(3, phases=3)
    table.loc[table.index[:150], "r_k"] = np.nan
    table.loc[table["layer"] < 9, ["r_q", "r_k"]] = np.nan
    table.loc[table["checkpoint"] == table["checkpoint"].iloc[300], ["r_q", "r_k", "explained_variance"]] = np.nan
    check_layout(DRAW[name](table, leave_one_out(table)))
    table[["r_q", "r_k", "explained_variance"]] = np.nan
    check_layout(DRAW[name](table))


@pytest.mark.parametrize("name", DRAW)
def test_mistakes_are_named(name):
    table = synthetic(2)
    with pytest.raises(RopewalkError, match=r"the table has no column 'r_k': it needs checkpoint, layer, head, pc"):
        DRAW[name](table.drop(columns="r_k"))
    with pytest.raises(RopewalkError, match="the table has no rows"):
        DRAW[name](table.iloc[:0])
    with pytest.raises(RopewalkError, match="the table has no row with pc 0"):
        DRAW[name](table[table["pc"] == 1])


def test_position_signal_numbers():
    table = synthetic()
    figure = figures.position_signal(table)
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
    figure = figures.position_signal(synthetic())
    ax = figure.axes[0]
    rules = [rule for rule in ax.lines if rule.get_gid() == "group line"]
    assert [rule.get_xdata()[0] for rule in rules] == [1.5, 3.5, 5.5, 7.5]
    names = [text.get_text() for text in ax.texts if text.get_gid() == "group name"]
    assert names == ["stage 1", "stage 2", "stage 3", "LC 4K→32K", "LC 32K→64K"]
    assert not [rule for rule in figures.position_signal(synthetic(10, phases=1)).axes[0].lines if rule.get_gid()]


def test_error_bars_are_jackknife_errors():
    table = synthetic(3, phases=1)
    replicates = leave_one_out(table)
    figure = figures.position_signal(table, replicates)
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
    figure = figures.position_signal(mixed)
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
    figure = figures.taxonomy_evolution(table)
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
    figure = figures.explained_variance(table)
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
    figure = DRAW[f"depth_heatmap_{column}"](table)
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
    figure = figures.depth_heatmap_r_k(table)
    texts = {text.get_gid(): text.get_text() for text in figure.axes[0].texts}
    assert texts["cell 0 9"] == "−0.40"
    figure.draw_without_rendering()
    mesh = figure.axes[0].collections[0]
    colours = mesh.get_facecolor().reshape(2, 10, 4)
    assert tuple(colours[0, 9]) != tuple(mesh.get_cmap()(0.0))
    assert "below 0" in figure.axes[1].get_xlabel()


def test_phase_portraits_points_and_limits():
    table = synthetic()
    figure = figures.phase_portraits(table)
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
    figure = figures.phase_portraits(table, checkpoints=labels)
    assert [ax.get_title() for ax in figure.axes] == labels
    names = list(table["checkpoint"].unique()[[9, 0]])
    figure = figures.phase_portraits(table, checkpoints=names)
    assert [ax.get_title() for ax in figure.axes] == labels
    with pytest.raises(
        RopewalkError, match="no checkpoint 'S9' in the table: choose from stage1-step-0, stage1-step-40000"
    ):
        figures.phase_portraits(table, checkpoints=["S9"])


def test_points_outside_the_limits_are_counted():
    table = synthetic(1, phases=1)
    table.loc[table.index[:3], "r_q"] = -0.6
    (ax,) = figures.phase_portraits(table).axes
    assert [text.get_text() for text in ax.texts if text.get_gid() == "outside"] == ["3 outside"]


def test_concordance_numbers():
    table = synthetic()
    figure = figures.concordance(table)
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
    figure = figures.concordance(synthetic(3, phases=1).drop(columns="rope"))
    texts = [text.get_text() for text in figure.axes[2].texts]
    assert "the table does not say which layers have RoPE" in texts
    assert len(figure.axes[1].containers) == 1


def test_flow_counts():
    table = synthetic()
    figure = figures.category_flows(table)
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
        {p.get_gid(): p.get_path().vertices.tolist() for p in figures.category_flows(t).axes[0].patches}
        for t in (table, shuffled)
    ]
    assert flows[0] == flows[1]


def test_flows_need_something_to_compare():
    assert figures.category_flows(synthetic(1, phases=1)).axes[0].get_xlabel() == "one checkpoint: no changes to show"
    table = synthetic(4, models=True)
    ax = figures.category_flows(table).axes[0]
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


@pytest.mark.parametrize("vision", VISION)
def test_categories_can_be_told_apart(vision):
    seen = [simulated(CATEGORY_COLOURS[name], np.array(VISION[vision])) for name in CATEGORIES]
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    assert min(distances) > 20


def test_small_things():
    assert contrasting("white") == "black"
    assert contrasting("#36167d") == "white"
    assert shortened("organisation/a-model-with-a-long-name", 20) == "organisation…ng-name"
    assert len(shortened("x" * 99, 20)) == 20


@pytest.fixture
def results(tmp_path) -> Path:
    folder = tmp_path / "small_study"
    folder.mkdir()
    table = synthetic(3, heads=40, phases=2)
    table.to_csv(folder / "qk.csv", index=False)
    leave_one_out(table).to_parquet(folder / "qk_replicates.parquet")
    return folder


def test_write_figures(results):
    lines: list[str] = []
    folders = figures.write_figures(results, portraits=["S1-0K", "S2-80K"], log=lines.append)
    assert [folder.name for folder in folders] == [spec.folder for spec in figures.FIGURES]
    assert lines == [str(folder) for folder in folders]
    for folder in folders:
        assert sorted(file.name for file in folder.iterdir()) == ["README.md", "figure.pdf", "figure.png"]
        pdf = (folder / "figure.pdf").read_bytes()
        assert b"/FontFile2" in pdf
        assert b"CreationDate" not in pdf
        with (folder / "figure.png").open("rb") as file:
            assert b"pHYs\x00\x00\x2e\x23\x00\x00\x2e\x23" in file.read(), "300 dpi are 11811 pixels per metre"
        assert "`small_study/qk.csv`" in (folder / "README.md").read_text()
    readme = (results / "figures/07_phase_portraits/README.md").read_text()
    assert "**Selection**: S1-0K, S2-80K (named in the study)." in readme


def test_same_table_same_bytes_from_the_script(results):
    folders = figures.write_figures(results)
    first = {path: path.read_bytes() for path in sorted((results / "figures").rglob("*.*"))}
    assert len(first) == 3 * len(folders)
    done = subprocess.run([sys.executable, SCRIPT, results], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(folder) for folder in folders]
    assert {path: path.read_bytes() for path in first} == first


def script():
    spec = importlib.util.spec_from_file_location("generate_report_figures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_script_functions_draw_from_a_csv(results):
    expected = {
        "smollm_fig01_position_signal_over_training": figures.position_signal,
        "smollm_fig03_taxonomy_evolution": figures.taxonomy_evolution,
        "smollm_fig04_explained_variance_evolution": figures.explained_variance,
        "smollm_fig05_layer_heatmap_rq": figures.depth_heatmap_r_q,
        "smollm_fig06_layer_heatmap_rk": figures.depth_heatmap_r_k,
        "smollm_fig07_rq_rk_scatter_grid": figures.phase_portraits,
    }
    module, table = script(), pd.read_csv(results / "qk.csv")
    for name, draw in expected.items():
        texts = [text.get_text() for text in visible_texts(draw(table))]
        for source in (str(results / "qk.csv"), table):
            assert [text.get_text() for text in visible_texts(getattr(module, name)(source))] == texts


def test_script_names_a_missing_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert script().main([]) == 2
    expected = (
        "error: no results folder results/smollm3_training_progress: run the study first, or give the folder of a"
    )
    assert capsys.readouterr().err.startswith(expected)
    (tmp_path / "empty").mkdir()
    assert script().main(["empty"]) == 2
    assert "no table at empty/qk.csv" in capsys.readouterr().err
