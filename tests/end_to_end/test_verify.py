"""`ropewalk verify`: the right file is named, the remedy works when obeyed, and what can be is made again."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.command import Run
from helpers.tiny import furnish
from ropewalk.capture.run import capture_study
from ropewalk.errors import RopewalkError
from ropewalk.figures import gallery
from ropewalk.fingerprint import file_fingerprint
from ropewalk.pipeline import run_study
from ropewalk.results import analyze, load
from ropewalk.seals import BLANK, read_sealed_json, seal, sealed_json
from ropewalk.studyfile import load_study
from ropewalk.verify import repair, verify

KINDS = {
    "shard": "captures/first/shard-0001.safetensors",
    "manifest": "captures/second/manifest.json",
    "kept vectors": "captures/first/vectors/l01h02q/data.parquet",
    "ledger of kept vectors": "captures/first/vectors/seals.json",
    "tokens": "tokens/*.bin",
    "record of tokens": "tokens/*.json",
    "record": "study.yaml",
    "table": "heads.csv",
    "replicates": "replicates.parquet",
    "ledger of tables": "seals.json",
    "picture": "figures/*/figure.png",
    "caption": "figures_drift/*/README.md",
    "ledger of pictures": "figures/seals.json",
    "page of a head": "heads/*/figure.pdf",
    "digests": "digests.json",
    "report": "report.html",
}
DAMAGES: dict[str, Callable[[Path], object]] = {
    "damaged": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 4])),
    "missing": lambda path: path.unlink(),
}


@pytest.fixture(scope="module", autouse=True)
def _one_figure() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "FIGURES", tuple(one for one in gallery.FIGURES if one.name == "explained_variance"))
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with a model, and its results with everything in them."""
    home = tmp_path_factory.mktemp("verified")
    furnish(home, texts=6, words=100)
    study = {
        "name": "small",
        "results": "results",
        "defaults": {"repo": "./model", "tokenizer": "./tokenizer", "device": "cpu"},
        "checkpoints": [{"name": "first", "context": 32}, {"name": "second", "context": 48}],
        "corpus": {"source": "files", "paths": ["texts/*.txt"]},
        "capture": {"shards": 3, "statistics": ["moments", "sample"]},
    }
    (home / "study.yaml").write_text(yaml.safe_dump(study))
    results = run_study(load_study(home / "study.yaml", home / "results"))
    results.write_figures(home / "results/figures_drift", "drift")
    results.write_collage(home / "results/heads", 1, 0, "first")
    shutil.copytree(home / "results", home / "whole")
    return home


@pytest.fixture
def results(home: Path) -> Path:
    """The results as they were made, and where: the record says that."""
    shutil.rmtree(home / "results")
    shutil.copytree(home / "whole", home / "results")
    return home / "results"


def contents(folder: Path) -> dict[str, str]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_fingerprint(path) for path in found}


def wrong(folder: Path) -> dict[Path, str]:
    return {check.path: check.state for check in verify(folder) if check.state is not None}


def test_whole_results_are_whole(results: Path, run: Run) -> None:
    before = contents(results)
    code, out, err = run("verify", str(results))
    assert (code, err) == (0, "")
    # Every file of the folder is one that was checked.
    assert out == f"{results}: {len(before)} files, all as they were written\n"
    repair(results, verify(results))
    assert contents(results) == before


@pytest.mark.parametrize("state", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_named_and_made_again(kind: str, state: str, results: Path, run: Run) -> None:
    before = contents(results)
    path = next(results.glob(KINDS[kind]))
    DAMAGES[state](path)
    if kind == "digests" and state == "missing":
        # What is only remembered is not missed.
        assert wrong(results) == {}
        return
    code, out, err = run("verify", str(results))
    assert code == 2
    assert out.splitlines()[0] == f"{state}: {path}" or f"{state}: {path}" in out.splitlines()
    assert {other for other, how in wrong(results).items() if how != "out of date"} == {path}
    assert f"`ropewalk verify {results} --repair` makes" in err
    code, out, err = run("verify", str(results), "--repair")
    assert code == 0, err
    after = contents(results)
    if kind == "record":
        # It says when it was written.
        assert before.pop("study.yaml") != after.pop("study.yaml")
        assert before.pop("report.html") != after.pop("report.html")
    assert after == before


def test_a_page_that_was_never_made_is_not_missed(home: Path, tmp_path: Path, run: Run) -> None:
    capture_study(load_study(home / "study.yaml", tmp_path / "results"))
    analyze(tmp_path / "results")
    assert wrong(tmp_path / "results") == {}
    repair(tmp_path / "results", verify(tmp_path / "results"))
    page = load(tmp_path / "results").report(tmp_path / "results")
    page.unlink()
    # The study was edited since: the folder is marked anew, and the page is missed all the same.
    study = load_study(home / "study.yaml", tmp_path / "results")
    capture_study(study.owned_by(replace(study.owner, content="edited")))
    assert wrong(tmp_path / "results") == {page: "missing"}


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


def record(change: Callable[[str], str]) -> Callable[[Path], None]:
    """An edit of a record by somebody who can write a seal."""

    def edit(results: Path) -> None:
        rest = (results / "study.yaml").read_text().split("\n", 1)[1]
        (results / "study.yaml").write_bytes(seal(change(f"seal: '{BLANK}'\n{rest}").encode()))

    return edit


def rewritten(name: str, **changes: Any) -> Callable[[Path], None]:
    """The same of a file of JSON; None takes a key away."""

    def edit(results: Path) -> None:
        data = (read_sealed_json(results / name) or {}) | changes
        (results / name).write_bytes(sealed_json({key: value for key, value in data.items() if value is not None}))

    return edit


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (record(lambda text: text + BOMB), "study.yaml"),
        (record(lambda text: text + "x: " + "[" * 5000 + "]" * 5000), "study.yaml"),
        (record(lambda text: text + "x: !!python/name:os.system"), "study.yaml"),
        (record(lambda text: text + "origins: 3"), "study.yaml"),
        (record(lambda text: text.replace("  format: 4", "  format: x")), "study.yaml"),
        (record(lambda text: text.replace("study:", "studio:")), "study.yaml"),
        (rewritten("ropewalk.json", owner=3), "ropewalk.json"),
        (rewritten("ropewalk.json", owner={"kind": "study"}), "ropewalk.json"),
        (rewritten("seals.json", files=3), "seals.json"),
        (rewritten("seals.json", files={"../x": "y"}), "seals.json"),
        (rewritten("seals.json", files={"a\0b": "y"}), "seals.json"),
        (rewritten("seals.json", made_from=None), "seals.json"),
        *(
            (rewritten("captures/first/manifest.json", **{key: value}), "captures/first/manifest.json")
            for key, value in {
                "heads": [[0, 99, 0]],
                "layout": {"layers": [], "depth": 1},
                "scope": {"context": "x"},
                "statistics": {},
                "tokens_of_shards": 3,
                "shards": "x",
                "model": None,
                "proof": {"outcome": "could not be proven", "checks": [3]},
            }.items()
        ),
        (rewritten("captures/first/manifest.json", proof={"difference": "x"}), "captures/first/manifest.json"),
        (rewritten("digests.json", files={"a": {"state": "x", "sha256": "y"}}), "digests.json"),
        (rewritten("fetched.json", commits=[3]), "fetched.json"),
    ],
    ids=range(23),
)
def test_a_seal_is_no_reason_to_believe(edit: Callable[[Path], None], name: str, results: Path, run: Run) -> None:
    """Who can write a folder can write a seal, and results come from strangers too."""
    edit(results)
    assert wrong(results)[results / name] == "damaged"
    for command in ("report", "analyze"):
        code, _, err = run(command, str(results))
        assert code in (0, 2)
        assert code == 0 or err.startswith("ropewalk: ")


def test_a_mark_is_written_again_without_the_model(home: Path, results: Path, run: Run) -> None:
    before = contents(results)
    (results / "ropewalk.json").write_text("{}")
    assert wrong(results) == {results / "ropewalk.json": "damaged"}
    kept = results / "captures/first/vectors/l00h00k/data.parquet"
    kept.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ropewalk.capture.run.capture_study", None)
        repair(results, verify(results))
    assert wrong(results) == {}
    # Where the study stands, the study says when it runs again.
    run_study(load_study(home / "study.yaml", results))
    after = contents(results)
    del before["report.html"], after["report.html"]
    assert after == before


def test_what_cannot_be_known_any_more_is_said(results: Path, run: Run) -> None:
    for name in ("ropewalk.json", "study.yaml"):
        (results / name).write_text("{}")
    assert set(wrong(results)) == {results / "ropewalk.json", results / "study.yaml"}
    code, _, err = run("verify", str(results), "--repair")
    assert code == 2
    assert "tells the study any more: run it again with `ropewalk run STUDY --results" in err


def test_a_shard_of_other_documents_is_kept_aside(results: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = contents(results)
    first, second = (results / f"captures/first/shard-000{number}.safetensors" for number in (0, 1))
    shutil.copy(second, first)
    assert wrong(results) == {first: "of another capture"}
    repair(results, verify(results))
    aside = first.with_name(f"{first.name}.other-1")
    assert file_fingerprint(aside) == before["captures/first/shard-0001.safetensors"]
    assert "is of another capture: it is kept as shard-0000.safetensors.other-1" in caplog.text
    aside.unlink()
    assert contents(results) == before


def test_results_without_their_record_are_not_believed(results: Path) -> None:
    (results / "study.yaml").unlink()
    with pytest.raises(RopewalkError, match=r"it has no study\.yaml; run `ropewalk capture` on a study first"):
        load(results)


def test_what_may_not_be_read_is_neither_damaged_nor_passed_over(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = os.scandir

    def refuse(path: Any = ".") -> Any:
        # The tests may run as a user who may read everything.
        if Path(path).name == "tokens":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(RopewalkError, match=r"tokens cannot be read \(Permission denied\): check who may read it"):
            verify(results)
    original = Path.read_text

    def closed(path: Path, *arguments: Any, **options: Any) -> str:
        if path.name == "study.yaml":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", closed)
    with pytest.raises(RopewalkError, match=r"study.yaml cannot be read \(Permission denied\): check who may read it"):
        verify(results)


def test_folders_of_checkpoints_that_changed_places(results: Path) -> None:
    captures = results / "captures"
    for old, new in (("first", "x"), ("second", "first"), ("x", "second")):
        (captures / old).rename(captures / new)
    with pytest.raises(RopewalkError, match=r"first/manifest\.json is of the checkpoint 'second' and stands in the"):
        analyze(results)
    damaged = {path for path, state in wrong(results).items() if state == "damaged"}
    assert damaged == {captures / name / "manifest.json" for name in ("first", "second")}


def test_what_is_no_file_is_made_again(results: Path) -> None:
    before = contents(results)
    paths = [next(results.glob(KINDS[kind])) for kind in ("shard", "tokens", "record of tokens", "table", "picture")]
    for path in paths:
        path.unlink()
        os.mkfifo(path)
    assert set(paths) >= {path for path, state in wrong(results).items() if state == "damaged"} != set()
    repair(results, verify(results))
    assert contents(results) == before


def test_tables_of_other_settings_are_out_of_date(home: Path, results: Path) -> None:
    data = yaml.safe_load((home / "study.yaml").read_text())
    changed = home / "changed.yaml"
    changed.write_text(yaml.safe_dump({**data, "nulls": []}))
    capture_study(load_study(changed, results), adopt=True)
    states = wrong(results)
    assert set(states.values()) == {"out of date"}
    assert {results / "qk.csv", results / "replicates.parquet"} <= set(states)
    repair(results, verify(results))
    assert wrong(results) == {}
    loaded = load(results)
    assert loaded.study is not None
    assert loaded.study.nulls == ()


def test_pictures_pages_and_report_of_other_tables_are_out_of_date(results: Path) -> None:
    from ropewalk.seals import Ledger

    ledger = Ledger.read(results)
    assert ledger is not None
    table = results / "heads.csv"
    # As after an analysis whose figures were not drawn.
    table.write_text(table.read_text().replace("0.1", "0.2", 1))
    Ledger.of(results, list(ledger.files), ledger.made_from).write(results)
    stale = {path.relative_to(results).parts[0] for path, state in wrong(results).items() if state == "out of date"}
    assert stale == {"figures", "figures_drift", "heads", "report.html"}
    repair(results, verify(results))
    assert wrong(results) == {}


def test_what_was_never_made_is_not_made(home: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    capture_study(load_study(home / "study.yaml", results))
    assert wrong(results) == {}
    next(results.glob(KINDS["shard"])).unlink()
    repair(results, verify(results))
    assert {path.name for path in results.iterdir()} == {
        "ropewalk.json",
        "study.yaml",
        "tokens",
        "captures",
        "digests.json",
    }


def test_folders_of_somebody_else_are_not_judged(results: Path) -> None:
    (results / "figures_for_the_paper").mkdir()
    (results / "notes.csv").write_text("a,b\n")
    assert wrong(results) == {}


def test_what_holds_no_results(results: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RopewalkError, match=r"no results at .*nowhere: give the folder of a run"):
        verify(tmp_path / "nowhere")
    with pytest.raises(RopewalkError, match=r"empty is not a results folder: it has no study\.yaml"):
        verify(tmp_path / "empty")
    record = results / "study.yaml"
    lines = record.read_text().splitlines(keepends=True)[1:]
    record.write_text("".join(lines).replace("format: 4", "format: 2"))
    with pytest.raises(RopewalkError, match="has format 2 and this is ropewalk"):
        verify(results)


def test_without_its_model_a_shard_cannot_be_made_again(home: Path, results: Path, run: Run) -> None:
    shard = next(results.glob(KINDS["shard"]))
    whole: dict[str, Any] = contents(results)
    shard.write_bytes(b"")
    (home / "model").rename(home / "elsewhere")
    try:
        code, _, err = run("verify", str(results), "--repair")
    finally:
        (home / "elsewhere").rename(home / "model")
    assert code == 2
    assert f"there is no folder {home / 'model'}: put it back, or name another in the study" in err
    assert run("verify", str(results), "--repair")[0] == 0
    assert contents(results) == whole
