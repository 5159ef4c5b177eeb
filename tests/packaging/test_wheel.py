"""The wheel in an empty environment: installed with its dependencies, it captures the built-in study."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from building import ROOT, build, copy_tree, the_only


def run(folder: Path, *command: Path | str, **variables: str) -> str:
    """Run a command in a folder without what this environment tells Python; return what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_the_installed_wheel_captures_the_built_in_study(tmp_path: Path) -> None:
    wheel = the_only(build(copy_tree(tmp_path / "source"), tmp_path / "dist", "--wheel"), "*.whl")
    run(tmp_path, sys.executable, "-m", "venv", "venv")
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    # Compiling every module of torch takes longer than compiling the few that run.
    install = ("-m", "pip", "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt")
    run(tmp_path, scripts / "python", *install, wheel)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = "import ropewalk, pathlib; print(pathlib.Path(ropewalk.__file__).parent)"
    package = Path(run(elsewhere, scripts / "python", "-c", where).strip())
    assert package.is_relative_to(tmp_path / "venv")

    study = package / "data" / "miniature" / "study.yaml"
    run(elsewhere, scripts / "ropewalk", "capture", study, "--checkpoint", "S1-45", HF_HUB_OFFLINE="1")
    shards = sorted((elsewhere / "results" / "miniature").rglob("shard-*.safetensors"))
    assert [path.name for path in shards] == [f"shard-{number:04d}.safetensors" for number in range(16)]
    assert len({path.parent for path in shards}) == 1
    with safe_open(shards[0], framework="numpy") as shard:
        assert list(shard.keys())
