"""A table is enough to draw from: figures and report need none of the libraries that run models."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

HEAVY = ("torch", "transformers", "tokenizers", "datasets", "accelerate")
BLOCKED = f"""
import sys
for name in {HEAVY!r}:
    sys.modules[name] = None  # from here on, importing it fails as if it were not installed
from ropewalk.cli import main
main(sys.argv[1:])
"""


def redraw(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the command line where the heavy libraries cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, command, str(folder)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def table_only(tmp_path: Path) -> Path:
    """A folder with a qk.csv of three checkpoints, eight layers (3 and 7 without RoPE) of four heads; nothing else."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "checkpoint": f"step-{step}",
            "phase": "stage 1",
            "step": step,
            "layer": layer,
            "head": head,
            "k_head": head // 2,
            "rope": layer % 4 != 3,
            "pc": 0,
            "explained_variance": rng.uniform(0.1, 0.4),
            "r_q": rng.uniform(0.2, 0.9),
            "r_k": rng.uniform(-0.9, 0.9),
        }
        for step, layer, head in itertools.product((100, 200, 300), range(8), range(4))
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "qk.csv", index=False)
    return tmp_path


def test_the_block_blocks(tmp_path: Path) -> None:
    """Negative control: a command that runs a model cannot."""
    failed = redraw("inspect", tmp_path)
    assert failed.returncode == 1
    assert "ModuleNotFoundError: import of torch halted; None in sys.modules" in failed.stderr


def test_figures_are_drawn_from_a_table_alone(table_only: Path) -> None:
    done = redraw("figures", table_only)
    assert (done.returncode, done.stderr) == (0, "")
    folders = [Path(line) for line in done.stdout.splitlines()]
    assert len(folders) >= 8
    for folder in folders:
        assert {path.name for path in folder.iterdir()} == {"figure.png", "figure.pdf", "README.md"}


def test_the_report_is_written_from_a_table_alone(table_only: Path) -> None:
    done = redraw("report", table_only)
    assert (done.returncode, done.stderr) == (0, "")
    page = (table_only / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/") >= 8
    assert "step-300" in page
