"""The built-in study: what travels with the package, and that its numbers are the numbers."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.paths import DATA, ROOT
from ropewalk.capture.run import capture_study
from ropewalk.demo import demo_study
from ropewalk.geometry.jackknife import jackknife_error
from ropewalk.results import analyze
from ropewalk.study import Study

MINIATURE = ROOT / "src" / "ropewalk" / "data" / "miniature"
EXPECTED = DATA / "miniature_pc0.csv"


@pytest.fixture(scope="module")
def study() -> Study:
    return demo_study()


def only(study: Study, names: list[str], folder: Path, documents: int | None = None) -> Study:
    chosen = tuple(checkpoint for checkpoint in study.checkpoints if checkpoint.name in names)
    corpus = study.corpus.model_copy(update={"documents": documents})
    return study.model_copy(update={"checkpoints": chosen, "results": str(folder), "corpus": corpus})


def test_ten_checkpoints_through_five_phases(study: Study) -> None:
    phases = list(dict.fromkeys(checkpoint.phase for checkpoint in study.checkpoints))
    assert [sum(c.phase == phase for c in study.checkpoints) for phase in phases] == [4, 1, 1, 2, 2]
    assert [c.context for c in study.checkpoints] == [256] * 6 + [1024] * 2 + [2048] * 2
    thetas = [
        json.loads((Path(str(c.repo)) / "config.json").read_text())["rope_parameters"]["rope_theta"]
        for c in study.checkpoints
    ]
    assert thetas == sorted(thetas)
    assert len(set(thetas)) == 3
    assert study.capture.heads == "all"


def test_what_travels_is_small_and_keeps_its_licence() -> None:
    assert sum(path.stat().st_size for path in MINIATURE.rglob("*") if path.is_file()) < 32e6
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in (MINIATURE / "LICENSE-python.txt").read_text()
    rows = [json.loads(line) for line in (MINIATURE / "heldout.jsonl").read_text().splitlines()]
    assert len(rows) == 64
    assert len({row["path"] for row in rows}) == 64


def test_the_model_card_states_the_losses_and_they_fall_within_each_phase() -> None:
    card = (MINIATURE / "README.md").read_text()
    checkpoints = json.loads((MINIATURE / "losses.json").read_text())["checkpoints"]
    assert len(checkpoints) == 10
    for row in checkpoints:
        assert f"| `{row['name']}` |" in card
        assert f"{row['heldout_loss']:.3f}" in card
    for before, after in pairwise(checkpoints):
        if before["phase"] == after["phase"]:
            assert after["heldout_loss"] < before["heldout_loss"]


def test_the_numbers_are_the_same_on_every_machine(study: Study, tmp_path: Path) -> None:
    """Two checkpoints of the demo, computed here, against the table as it was first computed."""
    names = [study.checkpoints[0].name, study.checkpoints[5].name]
    part = only(study, names, tmp_path)
    capture_study(part)
    table = analyze(part.folder).table
    table = table[table["pc"] == 0]
    expected = pd.read_csv(EXPECTED)
    both = table.merge(expected, on=["checkpoint", "layer", "head"], suffixes=("", "_expected"))
    assert len(both) == 2 * 96
    for column in ("explained_variance", "r_q", "r_k"):
        np.testing.assert_allclose(both[column], both[f"{column}_expected"], atol=1e-4)


def test_trained_is_different_from_untrained(study: Study, tmp_path: Path) -> None:
    """More than three standard errors between the last checkpoint and its architecture with random weights."""
    last = study.checkpoints[-1]
    null = last.model_copy(update={"random_weights": True, "name": "untrained", "label": "untrained"})
    pair = only(study, [last.name], tmp_path, documents=24).model_copy(update={"checkpoints": (last, null)})
    capture_study(pair)
    view = analyze(pair.folder).view
    for measure in ("mean_r_q", "mean_abs_r_k"):
        change = view.track(measure).change(1, 0)
        assert abs(change.value) > 3 * change.se > 0, measure
    # The same difference between halves of one model's own replicates is nothing: the measure can say no.
    replicates = np.asarray(view.track("mean_r_q").readings[0].left_out)
    assert abs(replicates[::2].mean() - replicates[1::2].mean()) < 3 * jackknife_error(replicates)
