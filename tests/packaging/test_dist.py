"""What `make dist` builds: the wheel holds the package as it stands in the tree, and nothing else."""

import os
from pathlib import Path

import pytest

from building import ROOT, build, copy_tree, sdist_names, the_only, wheel_files

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make dist` names in DIST, or the same built here."""
    if named := os.environ.get("DIST"):
        return ROOT / named
    folder = tmp_path_factory.mktemp("dist")
    return build(copy_tree(folder / "source"), folder / "built")


def package_files() -> dict[str, bytes]:
    """The package in the tree, less what Python and setuptools leave there."""
    package = ROOT / "src" / "ropewalk"
    return {
        f"ropewalk/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    packed = wheel_files(the_only(dist, "*.whl"))
    assert {name: data for name, data in packed.items() if ".dist-info/" not in name} == package_files()
    assert {name.split("/", 1)[1] for name in packed if ".dist-info/" in name} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "top_level.txt",
    }


def test_the_wheel_holds_what_is_not_code(dist: Path) -> None:
    packed = wheel_files(the_only(dist, "*.whl"))
    assert sum(name.endswith("/model.safetensors") for name in packed) == 10
    assert {
        "ropewalk/py.typed",
        "ropewalk/data/miniature/study.yaml",
        "ropewalk/data/miniature/heldout.jsonl",
        "ropewalk/data/miniature/tokenizer/tokenizer.json",
        "ropewalk/data/miniature/LICENSE-python.txt",
        "ropewalk/data/published/smollm3/taxonomy.csv",
        "ropewalk/data/recipes/miniature.yaml",
        "ropewalk/report/template.html.j2",
        "ropewalk/report/report.css",
        "ropewalk/report/explorer.css",
        "ropewalk/report/explorer.js",
    } <= set(packed)


def test_tree_and_source_archive_build_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    direct = build(copy_tree(tmp_path / "source"), tmp_path / "built", "--wheel")
    assert wheel_files(the_only(direct, "*.whl")) == wheel_files(the_only(dist, "*.whl"))


def test_the_source_archive_holds_no_tests_and_no_caches(dist: Path) -> None:
    names = sdist_names(the_only(dist, "*.tar.gz"))
    source = {f"src/{name}" for name in package_files()}
    about = {"pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"}
    # Written by setuptools into every source archive.
    written = {name for name in names if name.startswith("src/ropewalk.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert set(names) == source | about | written
