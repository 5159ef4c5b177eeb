"""Figures of every shape of study: labels that never overlap."""

import pytest

from helpers.figures import NAMES, check_layout, draw
from helpers.tables import synthetic

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


CASES = [(study, name) for study in STUDIES for name in NAMES if study not in CROWDED] + [
    (study, name) for study in CROWDED for name in ("position_signal", "depth_heatmap_r_q", "category_flows")
]


@pytest.mark.parametrize(("study", "name"), CASES)
def test_nothing_overlaps(study, name):
    check_layout(draw(name, STUDIES[study]))
