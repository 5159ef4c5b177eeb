"""Figures on disk and in a notebook: the same picture, pixel for pixel."""

import io
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from helpers.tables import leave_one_out, synthetic
from ropewalk.errors import RopewalkError
from ropewalk.figures import FIGURES, find, write_figures
from ropewalk.figures.gallery import shown
from ropewalk.results import load


@pytest.fixture
def results(tmp_path) -> Path:
    folder = tmp_path / "small_study"
    folder.mkdir()
    table = synthetic(3, heads=40, phases=2)
    table.to_csv(folder / "qk.csv", index=False)
    leave_one_out(table).to_parquet(folder / "replicates.parquet")
    return folder


def test_write_figures(results):
    options = {"phase_portraits": {"checkpoints": ["S1-0K", "S2-80K"]}}
    said = []
    folders = write_figures(load(results).view, results / "drawn", "small_study/qk.csv", options, done=said.append)
    assert [folder.parent for folder in folders] == [results / "drawn"] * len(shown(load(results).view))
    assert said == list(folders)
    for folder in folders:
        assert sorted(file.name for file in folder.iterdir()) == ["README.md", "figure.pdf", "figure.png"]
        pdf = (folder / "figure.pdf").read_bytes()
        assert b"/FontFile2" in pdf
        assert b"CreationDate" not in pdf
        with (folder / "figure.png").open("rb") as file:
            assert b"pHYs\x00\x00\x2e\x23\x00\x00\x2e\x23" in file.read(), "300 dpi are 11811 pixels per metre"
        assert "`small_study/qk.csv`" in (folder / "README.md").read_text()
    readme = (results / "drawn/06_phase_portraits/README.md").read_text()
    assert "**Selection**: S1-0K, S2-80K (chosen by name)." in readme


def test_an_unknown_figure_or_option_is_named_with_the_right_one(results):
    known = ", ".join(figure.name for figure in FIGURES)
    for wrong, right in (("phase_portrait", "phase_portraits"), ("07_concordance", "concordance")):
        with pytest.raises(RopewalkError) as caught:
            find(wrong)
        assert str(caught.value) == f"no figure is called {wrong!r}: did you mean {right!r}? There are {known}"
    with pytest.raises(RopewalkError) as caught:
        find("xyz")
    assert str(caught.value) == f"no figure is called 'xyz': there are {known}"
    view = load(results).view
    with pytest.raises(RopewalkError, match="no figure is called 'category_flow': did you mean 'category_flows'"):
        write_figures(view, results / "figures", "qk.csv", {"category_flow": {}})
    with pytest.raises(RopewalkError, match=r"^the figure concordance has no option 'heads': it takes axis$"):
        write_figures(view, results / "figures", "qk.csv", {"concordance": {"heads": 1}})
    with pytest.raises(
        RopewalkError, match=r"^the figure phase_portraits has no option 'x': it takes checkpoints, axis$"
    ):
        write_figures(view, results / "figures", "qk.csv", {"phase_portraits": {"x": 1}})
    assert not (results / "figures").exists()


def test_a_notebook_shows_what_is_saved(results):
    view = load(results).view
    (folder, *_) = [path for path in write_figures(view, results / "figures", "qk.csv") if "taxonomy" in path.name]
    saved = (folder / "figure.png").read_bytes()
    with matplotlib.rc_context({"hatch.linewidth": 9.0, "font.size": 30.0, "savefig.dpi": 50.0}):
        figure = find("taxonomy_evolution").draw(view)
        before = dict(matplotlib.rcParams)
        assert figure._repr_png_() == saved
        assert dict(matplotlib.rcParams) == before
        # As notebooks do that print figures by themselves, with the canvas.
        figure.canvas.print_figure(results / "canvas.png", dpi=300, metadata={"Software": None})
        figure.savefig(results / "plain.png", metadata={"Software": None})
    pixels = np.asarray(Image.open(io.BytesIO(saved)))
    for name in ("canvas.png", "plain.png"):
        np.testing.assert_array_equal(np.asarray(Image.open(results / name).convert("RGB")), pixels)


def test_same_table_same_bytes_from_the_command(results):
    folders = write_figures(load(results).view, results / "figures", "small_study/qk.csv")
    first = {path: path.read_bytes() for path in sorted((results / "figures").rglob("*/*.*"))}
    assert len(first) == 3 * len(folders)
    command = [sys.executable, "-c", "from ropewalk.cli import main; main()", "figures", str(results)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(folder) for folder in folders]
    assert {path: path.read_bytes() for path in first} == first
