"""Wheels and source archives built from a clean copy of the tree, and what they hold."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.py[co]")


def copy_tree(folder: Path) -> Path:
    """Copy what a build reads, and nothing that earlier builds left; return the folder."""
    folder.mkdir(parents=True)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    # Tests and scripts come along to see that they are not packed.
    for name in ("src", "tests", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=LEFT_BEHIND)
    return folder


def build(source: Path, output: Path, *kinds: str) -> Path:
    """Build as `make dist` does: the source archive, and the wheel from it, unless `--wheel` is asked for."""
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(output), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return output


def the_only(folder: Path, pattern: str) -> Path:
    """The one file of the folder that matches."""
    (found,) = folder.glob(pattern)
    return found


def wheel_files(wheel: Path) -> dict[str, bytes]:
    """Contents of a wheel by path, without folders."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def sdist_names(sdist: Path) -> list[str]:
    """Paths in a source archive, below its one top folder."""
    with tarfile.open(sdist) as archive:
        files = [PurePosixPath(member.name) for member in archive.getmembers() if member.isfile()]
    assert len({path.parts[0] for path in files}) == 1
    return ["/".join(path.parts[1:]) for path in files]
