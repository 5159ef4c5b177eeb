"""Bounds in pyproject.toml, pins in the constraints, and what is installed: one story."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from building import ROOT, copy_tree
from ropewalk.text import install_extra

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
RUN = [
    Requirement(text)
    for text in (
        *PROJECT["dependencies"],
        *(one for name in ("datasets", "gguf", "sklearn", "slurm") for one in EXTRAS[name]),
    )
]
WORK = [
    Requirement(text) for text in [*EXTRAS["test"], *EXTRAS["dev"], *EXTRAS["ray"]] if not text.startswith("ropewalk[")
]


def pins(name: str) -> dict[str, Version]:
    """Versions of a constraints file by canonical name."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(match[1]): Version(match[2]) for match in found if match}


def lower_bound(requirement: Requirement) -> Version:
    """The version after `>=`, of which there is one."""
    (bound,) = [part.version for part in requirement.specifier if part.operator == ">="]
    return Version(bound)


def needed(name: str, extras: tuple[str, ...] = ()) -> set[str]:
    """All that a distribution needs here, through and through, by canonical name."""
    found: set[str] = set()
    waiting = [(name, extras)]
    seen = set()
    while waiting:
        wanted = waiting.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        for text in distribution(wanted[0]).requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *wanted[1])
            ):
                found.add(canonicalize_name(requirement.name))
                waiting.append((canonicalize_name(requirement.name), tuple(sorted(requirement.extras))))
    return found - {"ropewalk"}


@pytest.mark.parametrize("requirement", RUN + WORK, ids=lambda requirement: requirement.name)
def test_the_pinned_version_is_allowed(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins("constraints.txt")[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("requirement", RUN, ids=lambda requirement: requirement.name)
def test_the_lowest_allowed_version_is_the_one_tested_as_lowest(requirement: Requirement) -> None:
    assert pins("constraints-lowest.txt")[canonicalize_name(requirement.name)] == lower_bound(requirement)


@pytest.mark.parametrize("kind", ["", "-lowest", "-kvpress", "-bench"])
def test_constraints_are_pins_in_the_order_of_the_alphabet(kind: str) -> None:
    name = f"constraints{kind}.txt"
    lines = [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert len(pins(name)) == len(lines)
    assert lines == sorted(lines, key=lambda line: line.split("==")[0].lower())


def test_everything_that_is_installed_is_pinned() -> None:
    assert sorted(needed("ropewalk", ("dev",)) - set(pins("constraints.txt"))) == []


@pytest.mark.parametrize("extra", ["datasets", "gguf", "sklearn", "slurm"])
def test_the_command_that_messages_name_installs_an_extra_from_a_clone(extra: str, tmp_path: Path) -> None:
    """As it is printed, where all it needs is installed; not with another torch than the constraints name."""
    clone = copy_tree(tmp_path / "clone")
    shutil.copy(ROOT / "constraints.txt", clone)
    (printed,) = re.findall(r"\(in a clone: pip (.+)\)$", install_extra(extra))
    words = shlex.split(printed)

    def install() -> subprocess.CompletedProcess[str]:
        offline = ["--dry-run", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", *words, *offline]
        return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)

    done = install()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Would install ropewalk-" in done.stdout
    text = (clone / "constraints.txt").read_text(encoding="utf-8")
    (clone / "constraints.txt").write_text(re.sub("(?m)^torch==.*", "torch==0.1", text), encoding="utf-8")
    assert install().returncode != 0


def test_messages_word_extras_in_one_place() -> None:
    """`ropewalk[extra]` alone does not install where the package is not on an index."""
    worded = {path.name for path in (ROOT / "src").rglob("*.py") if "'ropewalk[" in path.read_text(encoding="utf-8")}
    assert worded == {"text.py"}


def test_extras_that_name_the_package_itself_come_from_the_clone(tmp_path: Path) -> None:
    """With no index to ask, `.[dev]` resolves where all it needs is installed: no published `ropewalk` is sought."""
    clone = copy_tree(tmp_path / "clone")
    command = "-m pip --disable-pip-version-check install --dry-run --no-index --no-build-isolation --editable"
    done = subprocess.run(
        [sys.executable, *command.split(), f"{clone}[dev]"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Would install ropewalk-" in done.stdout
