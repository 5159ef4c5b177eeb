"""Pushing results to a dataset and reading them back, through the hub's own client against the stand-in."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import ropewalk
from helpers.command import Run
from helpers.exporting import CASES, documents
from ropewalk.errors import RopewalkError
from ropewalk.hubfiles import local_results, pushed_names
from ropewalk.publishing.card import card, plain
from ropewalk.publishing.push import push

# The client's own way to send a file to LFS.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

Serve = Callable[..., Any]
REPO = "me/mine"
HOSTILE = "x](http://evil) <script>alert(1)</script> | a\x1b[31m\nb: {c} `d` **e** $f$ \u202eg"


@pytest.fixture(scope="module")
def results() -> ropewalk.Results:
    sums = {"moments": {}, "frame": {"full": True}}
    rows = documents(count=4)
    return ropewalk.measure(CASES["full"].model(), rows, context=48, shards=2, statistics=sums, label=HOSTILE)


@pytest.fixture(scope="module")
def folder(results: ropewalk.Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return results.save(tmp_path_factory.mktemp("saved") / "results")


def test_what_was_pushed_is_read_back(
    folder: Path, results: ropewalk.Results, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = serve({})
    monkeypatch.chdir(tmp_path)
    assert push(folder, REPO) == f"{hub.endpoint}/datasets/{REPO}"
    files = hub.repos[f"datasets/{REPO}"]["main"]
    assert set(files) == {*pushed_names(folder, sums=True), "README.md", ".gitattributes"}
    for name in pushed_names(folder, sums=True):
        assert files[name] == (folder / name).read_bytes()
    assert any(name.startswith("captures/") and name.endswith(".safetensors") for name in files)
    assert "ropewalk.json" not in files
    again = ropewalk.load(REPO)
    pd.testing.assert_frame_equal(again.heads, ropewalk.load(folder).heads)
    assert again.layout == results.layout
    (there,) = again.export(tmp_path / "there.npz", to="npz")
    (here,) = results.export(tmp_path / "here.npz", to="npz")
    with np.load(there) as one, np.load(here) as other:
        assert np.array_equal(one["l00.q.pre.covariance"], other["l00.q.pre.covariance"])
    # Neither pictures nor the report are needed to read numbers.
    assert not [path for path in hub.fetched() if "figures" in path or "report" in path]


def test_a_second_push_takes_away_what_is_not_there_any_more(folder: Path, serve: Serve) -> None:
    hub = serve({})
    push(folder, REPO)
    hub.repos[f"datasets/{REPO}"]["main"]["notes.txt"] = b"mine"
    hub.repos[f"datasets/{REPO}"]["main"]["notes/table.csv"] = b"mine"
    hub.repos[f"datasets/{REPO}"]["main"]["figures/99_old/figure.png"] = b"old"
    push(folder, REPO, sums=False)
    files = hub.repos[f"datasets/{REPO}"]["main"]
    assert files["notes.txt"] == files["notes/table.csv"] == b"mine"
    assert "figures/99_old/figure.png" not in files
    assert not [name for name in files if name.startswith("captures/")]
    tables = ropewalk.load(REPO)
    assert tables.captures == {}
    with pytest.raises(RopewalkError, match=r"the sums of .* are not at hand, only tables"):
        tables.export("x.npz", to="npz")


def test_datasets_of_others_are_not_touched(folder: Path, serve: Serve) -> None:
    hub = serve({f"datasets/{REPO}": {"main": {"data.parquet": b"theirs"}}})
    with pytest.raises(RopewalkError, match=r"the dataset me/mine holds data.parquet and no results: .* nothing was"):
        push(folder, REPO)
    assert hub.repos[f"datasets/{REPO}"]["main"] == {"data.parquet": b"theirs"}


def test_results_of_another_study_are_not_touched(folder: Path, serve: Serve, tmp_path: Path) -> None:
    from ropewalk.record import need_record, store

    hub = serve({})
    push(folder, REPO)
    data = dict(need_record(folder).data)
    data["study"] = {**data["study"], "name": "another"}
    store(tmp_path, data)
    hub.repos[f"datasets/{REPO}"]["main"]["study.yaml"] = (tmp_path / "study.yaml").read_bytes()
    hub.commits[f"datasets/{REPO}", "main"] = "1" * 40
    with pytest.raises(RopewalkError, match=r"holds the results of another study 'another': give the name of a new"):
        push(folder, REPO)


def test_what_cannot_be_pushed_is_said(folder: Path, serve: Serve, tmp_path: Path) -> None:
    import shutil

    hub = serve({"datasets/o/empty": {"main": {"a.txt": b""}}})
    with pytest.raises(RopewalkError, match=r"'mine' is not the name of a dataset: give it as owner/name"):
        push(folder, "mine")
    with pytest.raises(RopewalkError, match=r"is not a results folder: it has no study.yaml"):
        push(tmp_path, REPO)
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    (damaged / "heads.csv").write_text("no")
    with pytest.raises(RopewalkError, match=r"files? of .* not as written \(.*\): make it whole with `ropewalk verify"):
        push(damaged, REPO)
    with pytest.raises(RopewalkError, match=r"the dataset o/empty on the hub holds no results: it has no qk.csv"):
        ropewalk.load("o/empty")
    with pytest.raises(RopewalkError, match=r"no repo o/missing on the hub: check the spelling"):
        ropewalk.load("o/missing")
    hub.fail("/upload/", 400)
    with pytest.raises(RopewalkError, match=r"a file could not be sent to me/new \(.*\): run the same command again"):
        push(folder, "me/new")
    hub.faults.clear()
    hub.read_only = True
    with pytest.raises(RopewalkError, match=r"the hub does not let you write to me/mine: log in with `hf auth login`"):
        push(folder, REPO)
    assert f"datasets/{REPO}" not in hub.repos


def test_a_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    assert local_results("results/typo") == Path("results/typo")
    with pytest.raises(RopewalkError, match="no results at results/typo: give the folder of a run"):
        ropewalk.load("results/typo")


def test_the_card_says_what_there_is_and_nothing_else(folder: Path) -> None:
    results = ropewalk.load(folder)
    text = card(results, REPO, pushed_names(folder, sums=True))
    _, header, body = text.split("---\n", 2)
    data = yaml.safe_load(header)
    assert data["tags"][0] == "ropewalk"
    assert data["configs"] == [
        {"config_name": "heads", "data_files": "heads.csv"},
        {"config_name": "qk", "data_files": "qk.csv"},
    ]
    row = results.summary().query("quantity == 'mean_r_q'").iloc[0]
    assert f"{row['value']:.3f} ± {row['se']:.3f}" in body
    assert "ropewalk.load('me/mine')" in body
    assert "(figures/01_position_signal/figure.png)" in body
    # The label is hostile: no tag, link, cell, formula, line or colour of it is left.
    assert "<script" not in text
    assert "](http" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"\| a\b", body)
    assert "**e**" not in body


def test_texts_from_elsewhere_are_plain() -> None:
    import html

    assert html.unescape(plain("a|b <c> [d](e) `f`")) == "a|b <c> [d](e) `f`"
    assert not set("|<>[]()`*_$#&;".replace("&", "").replace("#", "").replace(";", "")) & set(
        plain("a|b <c> [d](e) `f`")
    )
    assert plain("SmolLM2 135M") == "SmolLM2 135M"


def test_the_command_pushes(folder: Path, serve: Serve, run: Run, tmp_path: Path) -> None:
    hub = serve({})
    code, out, error = run("push", str(folder), REPO, "--tables-only")
    assert (code, out, error) == (0, f"{hub.endpoint}/datasets/{REPO}\n", "")
    code, _, error = run("figures", REPO)
    assert code == 2
    assert "no results at me/mine: give the folder of a run, or a qk.csv" in error
    code, _, error = run("export", REPO, "--to", "npz", str(tmp_path / "x.npz"))
    assert code == 2
    assert "not at hand, only tables" in error
