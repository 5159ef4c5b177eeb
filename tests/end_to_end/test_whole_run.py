"""The command line from a study to a report."""

from pathlib import Path
from typing import Any

import yaml

from helpers.command import Run


def test_a_whole_run(run: Run, study_data: dict[str, Any], tmp_path: Path) -> None:
    study_data["corpus"]["documents"] = 6
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study_data))
    code, out, _ = run("run", str(tmp_path / "study.yaml"), "--dry-run")
    assert code == 0
    assert "in all: 960 tokens, 8 shards to compute" in out
    assert not (tmp_path / "results/captures").exists()
    code, out, err = run("run", str(tmp_path / "study.yaml"))
    assert code == 0, err
    for name in ("report.html", "qk.csv", "figures/01_position_signal/figure.png", "figures/07_concordance/README.md"):
        assert (tmp_path / "results" / name).is_file(), name
    assert "report.html" in out
    code, out, _ = run("analyze", str(tmp_path / "results"))
    assert (code, out) == (0, f"{tmp_path / 'results/qk.csv'}: 400 rows, 2 checkpoints\n")
    code, _, err = run("compare", str(tmp_path / "results"))
    assert code == 2
    assert "stage1-step-40000" in err
