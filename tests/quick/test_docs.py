"""Pages that are generated are current, and what pages name exists."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from helpers.paths import ROOT
from ropewalk.analysis import EXCERPTS
from ropewalk.cli import cli
from ropewalk.figures import FIGURES
from ropewalk.statistics.registry import BUILT_IN, find
from ropewalk.tables import HEADS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_current() -> None:
    """`make docs` writes it again."""
    assert script("generate_reference").document() == (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert Path(name).name in known, name
        if "/" in name:
            assert any((base / name).is_file() for base in (ROOT, ROOT / "src/ropewalk")), name
    for folder in re.findall(r"`([a-z_]+)/`", text):
        assert (ROOT / "src/ropewalk" / folder).is_dir(), folder


def test_commands_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"ropewalk ([a-z]+)(?= |`|$)", text, flags=re.M)) - {"is", "takes"}
    assert set(cli.commands) <= named
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([a-z0-9-]+)", text):
        assert f"\n{target}:" in makefile, target


def test_no_module_is_long_without_a_reason() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 300 or "300 lines" in "\n".join(lines[:12]), f"{path.name} has {len(lines)} lines"


@pytest.mark.parametrize("page", ["heads", "method"])
def test_columns_tables_and_figures_that_pages_name_exist(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    statistics = [find(name) for name in BUILT_IN]
    columns = {*HEADS, *(column for one in statistics for column in one.columns)}
    figures = {one.name for one in FIGURES}
    tables = {"heads", "qk", "sensitivity", *EXCERPTS, *(table for one in statistics for table in one.tables)}
    assert set(re.findall(r"`(\w+)\.csv`", text)) <= tables
    if page == "heads":
        for listed, known in (("Columns of `heads.csv`", columns), ("Figures", figures)):
            lists = re.findall(rf"{listed}:\s([^.]+)\.", text)
            assert lists
            assert {name for one in lists for name in re.findall(r"`(\w+)`", one)} <= known
    # In tables of definitions the first cell holds columns.
    for cell in re.findall(r"^\| (`[^|]+`[^|]*) \|", text, flags=re.M):
        assert set(re.findall(r"`(\w+)`", cell)) <= columns, cell


def test_the_page_of_heads_shows_the_images_that_its_script_draws() -> None:
    text = (ROOT / "docs" / "heads.md").read_text(encoding="utf-8")
    drawn = {
        f"heads_{model}_{name}.png" for model, names in script("generate_heads_doc").FIGURES.items() for name in names
    }
    assert set(re.findall(r"images/(\w+\.png)", text)) == drawn
