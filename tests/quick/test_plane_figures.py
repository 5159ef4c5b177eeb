"""Figures of rotation, plasticity and families, by the data in their artists; one head on one page."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ropewalk
from helpers.command import Run
from helpers.figures import check_layout
from helpers.tiny import tiny_smollm3
from ropewalk.errors import RopewalkError
from ropewalk.figures import FIGURES, to_markdown
from ropewalk.figures.gallery import find
from ropewalk.figures.quartiles import middle_halves
from ropewalk.results import Results

NEW = (
    *("rotation_metrics", "bias_decomposition", "drift_wavelengths"),
    *("plasticity_trajectory", "plasticity_profile", "plasticity_map"),
)
STATISTICS = {"moments": {}, "frame": {}, "profile": {}, "behaviour": {}, "sample": {}}


def measured(**facts: Any) -> Results:
    tokens = np.random.default_rng(0).integers(0, 300, (12, 64))
    model = tiny_smollm3(initializer_range=0.2)
    return ropewalk.measure(model, tokens, context=64, shards=4, statistics=STATISTICS, **facts)


@pytest.fixture(scope="module")
def training() -> Results:
    return ropewalk.concat([measured(label=f"step {step}", step=step) for step in (1, 2)])


@pytest.fixture(scope="module")
def models() -> Results:
    """Three models of two families; the numbers of each are moved, so that they differ."""
    parts = [measured(label=name) for name in ("one", "two", "three")]
    for number, part in enumerate(parts):
        for table in (part.tables.qk, part.tables.heads):
            table["family"] = "first family" if number < 2 else "second"
        part.tables.heads["ap_drop"] += 0.1 * number
    return ropewalk.concat(parts)


def drawn(figure: Any, gid: str) -> list[Any]:
    return [artist for ax in figure.axes for artist in ax.get_children() if artist.get_gid() == gid]


@pytest.mark.parametrize("name", NEW)
def test_every_figure_is_drawn_with_a_caption(name: str, training: Results) -> None:
    figure = training.figure(name)
    check_layout(figure)
    text = find(name).caption(training.view, "heads.csv")
    assert 1 <= len(text.findings) <= 3
    assert text.table is not None
    assert not re.search(r"\bnan\b", to_markdown(text))


def test_bars_are_the_middle_half_of_the_heads(training: Results) -> None:
    figure = training.figure("bias_decomposition")
    for column, size in (("bias_strength", False), ("alpha_k_context", True)):
        expected = [
            np.percentile(np.abs(part[column]) if size else part[column], (25, 50, 75)) for part in training.view.parts
        ]
        np.testing.assert_allclose(middle_halves(training.view, column, size=size), expected)
        (medians,) = drawn(figure, f"{column} median")
        np.testing.assert_allclose(medians.get_offsets()[:, 1], [one[1] for one in expected])
        (bars,) = drawn(figure, f"{column} quartiles")
        for segment, one in zip(bars.get_segments(), expected, strict=True):
            np.testing.assert_allclose(segment[:, 1], one[[0, 2]])


def test_the_trajectory_is_of_means_over_heads(training: Results) -> None:
    figure = training.figure("plasticity_trajectory")
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    containers = {one.get_label(): one.lines[0].get_ydata() for one in figure.axes[0].containers}
    for label, column in (("first fifth", "ap_first_20"), ("last fifth", "ap_last_20"), ("all", "ap_overall")):
        expected = [part[column].mean() for part in training.view.parts]
        np.testing.assert_allclose(containers[label], expected)
    assert lines


def test_the_profile_draws_every_head_and_their_mean(training: Results) -> None:
    figure = training.figure("plasticity_profile", checkpoints=["step 2"])
    rows = training.tables.others["plasticity_profile"]
    rows = rows[rows["label"] == "step 2"]
    heads = [line for rope in (True, False) for one in drawn(figure, f"heads {rope}") for line in one.get_segments()]
    assert len(heads) == 20
    (mean,) = drawn(figure, "mean")
    np.testing.assert_allclose(mean.get_ydata(), rows.groupby("start")["empirical"].mean())
    np.testing.assert_allclose(mean.get_xdata(), [(start + 1.5) / 64 for start in sorted(set(rows["start"]))])


def test_the_map_holds_the_means_of_cells(training: Results) -> None:
    figure = training.figure("plasticity_map", checkpoints=["step 1"])
    rows = training.tables.others["plasticity_map"]
    rows = rows[rows["label"] == "step 1"]
    means = rows.groupby(["apart", "away"])["plasticity"].mean()
    cells = figure.axes[0].collections[0].get_array()
    assert cells.count() == len(means)
    np.testing.assert_allclose(cells[2, 3], means[2 / 8, 3 / 8])


def test_wavelengths_are_those_of_layers_with_rope(training: Results) -> None:
    figure = training.figure("drift_wavelengths", checkpoints=["step 2"])
    (line,) = drawn(figure, "drift_energy")
    rows = training.tables.others["spectrum"]
    rows = rows[rows["label"] == "step 2"]
    expected = rows.groupby("wavelength")["drift_energy"].mean()
    np.testing.assert_allclose(np.sort(line.get_xdata()), expected.index / 64, rtol=1e-3)
    np.testing.assert_allclose(sorted(line.get_ydata()), sorted(expected))


def test_families_stand_side_by_side(models: Results) -> None:
    figure = models.figure("families")
    check_layout(figure)
    medians = [artist.get_ydata()[0] for artist in drawn(figure, "ap_drop median")]
    parts = models.view.parts
    expected = [pd.concat(parts[:2])["ap_drop"].median(), parts[2]["ap_drop"].median()]
    np.testing.assert_allclose(medians, expected)
    text = find("families").caption(models.view, "heads.csv")
    assert text.table.header[:2] == ("family", "model")
    assert [row[:2] for row in text.table.rows] == [
        ("first family", "one"),
        ("first family", "two"),
        ("second", "three"),
    ]
    drops = [f"{part['ap_drop'].mean():.3f}" for part in parts]
    assert [row[-1].split(" ±")[0] for row in text.table.rows] == drops


def test_families_need_several(training: Results) -> None:
    assert not find("families").can_show(training.view)
    with pytest.raises(RopewalkError, match=r"^the figure families needs models of several families \(`family` of"):
        training.figure("families")


def test_without_kept_vectors_there_is_no_figure_of_plasticity() -> None:
    tokens = np.random.default_rng(0).integers(0, 300, (4, 32))
    results = ropewalk.measure(tiny_smollm3(), tokens, context=32, shards=2, statistics=["moments"])
    shown = {figure.name for figure in FIGURES if figure.can_show(results.view)}
    assert {"rotation_metrics", "bias_decomposition", "drift_wavelengths"} <= shown
    assert not {"plasticity_trajectory", "plasticity_profile", "plasticity_map", "spectrum"} & shown
    with pytest.raises(RopewalkError, match="capture with the statistic `sample`"):
        results.figure("plasticity_map")


# One head


def test_projections_of_a_head_are_those_of_its_vectors(training: Results) -> None:
    detail = training.head(2, 3, "step 2")
    assert detail.vectors_q is not None
    assert detail.components is not None
    captured = training.captures[detail.checkpoint]
    from ropewalk.statistics.base import layers_of

    layer = layers_of(captured.layout, captured.heads)[2]
    raw = np.concatenate([part["q.vectors"][3] for part in captured.parts("sample", layer)])
    np.testing.assert_allclose(detail.vectors_q["pc0"], raw @ detail.components[0], rtol=1e-5, atol=1e-6)
    # Along a the mean grows with position, and a and b are at right angles: what is in both is not counted twice.
    assert (detail.vectors_q[["a", "b"]] ** 2).sum(axis=1).le((raw**2).sum(axis=1) * (1 + 1e-6)).all()


def test_a_collage_shows_what_there_is(training: Results, tmp_path: Path) -> None:
    figure = training.collage(2, 3, "step 1")
    check_layout(figure)
    rows = training.head(2, 3, "step 1").vectors_k
    assert rows is not None
    (points,) = drawn(figure, "k a b")
    np.testing.assert_allclose(points.get_offsets(), rows[["a", "b"]])
    bare = ropewalk.measure(
        tiny_smollm3(), np.random.default_rng(0).integers(0, 300, (4, 32)), context=32, shards=2, statistics=["moments"]
    )
    texts = [text.get_text() for text in drawn(bare.collage(0, 0), "nothing")]
    assert texts.count("no vectors: capture `sample` too") == 2
    assert "no scores: capture `behaviour` too" in texts


@pytest.mark.slow
def test_the_command_writes_a_head_beside_others(training: Results, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "results"
    training.save(folder)
    for layer in (0, 3):
        code, out, err = run("head", str(folder), "--layer", str(layer), "--head", "1", "--checkpoint", "step 1")
        assert code == 0, err
        assert f"head 1 of layer {layer} at" in out
    assert len(list(folder.glob("heads/*/figure.png"))) == len(list(folder.glob("heads/*/README.md"))) == 2
    picture = next(folder.glob("heads/*_l03h01/figure.png"))
    whole = picture.read_bytes()
    picture.write_bytes(whole[:-100])
    code, out, _ = run("verify", str(folder))
    assert code == 2
    assert out == f"damaged: {picture}\n"
    code, _, err = run("verify", str(folder), "--repair")
    assert code == 0, err
    assert picture.read_bytes() == whole
    code, _, err = run("head", str(folder), "--layer", "0", "--head", "9")
    assert code == 2
    assert "no head 9 of layer 0 was measured" in err
