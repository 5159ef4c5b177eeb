"""The example of docs/sources.md, run as it is written."""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from helpers.command import Run
from helpers.paths import ROOT

PAGE = (ROOT / "docs/sources.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The one block of a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.S)
    return str(found)


def plain(text: str) -> str:
    """Without sizes, which change with what is stored, and without the columns' widths."""
    return re.sub(" +", " ", re.sub(r"[\d.]+ [KMG]?B", "SIZE", text))


def test_the_example_runs_as_it_is_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for language in ("python", "yaml"):
        name = re.match(r"# (\S+)\n", block(language))
        assert name is not None
        Path(name[1]).write_text(block(language))
    commands = re.findall(r"^    (python|ropewalk) (.+)$", PAGE, flags=re.M)
    assert [program for program, _ in commands] == ["python", "ropewalk", "ropewalk"]
    subprocess.run([sys.executable, *commands[0][1].split()], check=True)
    code, out, err = run(*commands[1][1].split())
    assert code == 0, err
    assert plain(out.replace(str(tmp_path / "vectors"), "vectors")).startswith(plain(block("text")))
    code, _, err = run(*commands[2][1].split())
    assert code == 0, err
    heads = pd.read_csv("results/vectors/heads.csv")
    assert len(heads) == 12
    assert (heads["layers"] == 30).all()
    assert heads.groupby("layer")["rope"].first().tolist() == [True, True, False]
    assert (heads.loc[heads["layer"] == 2, "r_k"].abs() > 0.9).all()
    assert (heads.loc[heads["layer"] < 2, "r_k"].abs() < 0.3).all()


def test_the_page_names_the_columns_that_are_needed() -> None:
    from ropewalk.capture.vector_files import REQUIRED

    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", PAGE, flags=re.M))
    assert {name for name, text in rows.items() if text.endswith("; needed")} == set(REQUIRED)
