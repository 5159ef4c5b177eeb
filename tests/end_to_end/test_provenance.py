"""How results were made can be read from them: versions of each shard, commits, and records that are what they seem."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors import safe_open
from safetensors.numpy import load_file, save

from helpers.hub import HubStandIn, commit_of
from helpers.logs import heard
from helpers.tiny import make_texts, tiny_smollm3
from ropewalk import versions
from ropewalk.capture.corpus import prepare
from ropewalk.capture.run import capture_study
from ropewalk.capture.shards import SHARDS, shard_path
from ropewalk.corpora import Corpus
from ropewalk.errors import RopewalkError
from ropewalk.measurement import measure
from ropewalk.models import hub as hub_module
from ropewalk.record import FORMAT
from ropewalk.report.parts import Grid
from ropewalk.report.settings import entries
from ropewalk.results import analyze, load
from ropewalk.seals import BLANK, seal
from ropewalk.study import Study
from ropewalk.studyfile import parse_study

Data = dict[str, Any]


def record_of(study: Study | Path) -> Data:
    folder = study if isinstance(study, Path) else study.folder
    record = yaml.safe_load((folder / "study.yaml").read_text())
    del record["seal"]
    return record


def marks_of(path: Path) -> Data:
    with safe_open(path, framework="numpy") as file:
        return json.loads(file.metadata()["ropewalk"])


def with_torch(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, another torch is installed."""
    real = versions._version
    monkeypatch.setattr(versions, "_version", lambda name: version if name == "torch" else real(name))


@pytest.fixture
def two_torches(study_data: Data, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study whose first two shards were made with torch 1.0 and the others with 2.0."""
    study = parse_study(study_data)
    with_torch("1.0", monkeypatch)
    capture_study(study, shards=[0, 1])
    with_torch("2.0", monkeypatch)
    capture_study(study)
    return study


# Versions


def test_a_shard_says_what_it_was_made_with(two_torches: Study) -> None:
    folder = two_torches.folder / "captures/first"
    made = [marks_of(shard_path(folder, number))["versions"] for number in range(4)]
    assert [one["torch"] for one in made] == ["1.0", "1.0", "2.0", "2.0"]
    assert list(made[0]) == ["ropewalk", "python", "numpy", "torch", "transformers", "tokenizers", "safetensors"]
    assert all(made[0].values())


def test_a_resumed_run_keeps_the_record_of_its_beginning(two_torches: Study) -> None:
    record = record_of(two_torches)
    assert record["versions"]["torch"] == "1.0"
    assert {"python", "numpy", "transformers", "tokenizers", "safetensors", "pandas", "pyarrow"} < set(
        record["versions"]
    )
    made = {one["shards"]: one["torch"] for one in record["shard_versions"]}
    assert made == {"first 0-1; second 0-1": "1.0", "first 2-3; second 2-3": "2.0"}


def test_shards_of_one_version_need_no_list(study_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    study = parse_study(study_data)
    capture_study(study)
    before = record_of(study)
    assert "shard_versions" not in before
    with_torch("9.9", monkeypatch)
    capture_study(study)
    analyze(study.folder)
    assert record_of(study) == before


def test_what_is_captured_from_the_start_is_a_new_run(study_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all shards taken away nothing is left of the earlier run that its record could speak for."""
    study = parse_study(study_data)
    with_torch("1.0", monkeypatch)
    capture_study(study)
    with_torch("2.0", monkeypatch)
    for shard in study.folder.glob(f"captures/*/{SHARDS}"):
        shard.unlink()
    capture_study(study)
    record = record_of(study)
    assert record["versions"]["torch"] == "2.0"
    assert "shard_versions" not in record


def test_the_report_says_which_shards_were_made_with_which_versions(two_torches: Study) -> None:
    analyze(two_torches.folder)
    made = {entry.name: entry.value for entry in load(two_torches.folder).page().made}
    grid = made["shard_versions"]
    assert isinstance(grid, Grid)
    columns = [column.title for column in grid.columns]
    shown = [{name: cell.text for name, cell in zip(columns, row, strict=True)} for row in grid.rows]
    assert [(row["shards"], row["torch"]) for row in shown] == [
        ("first 0-1; second 0-1", "1.0"),
        ("first 2-3; second 2-3", "2.0"),
    ]
    origins = made["origins"]
    assert isinstance(origins, Grid)
    assert [column.title for column in origins.columns] == ["checkpoint", "model", "tokenizer"]
    assert all("local folder, sha256 " in cell.text for row in origins.rows for cell in row[1:])


def test_shards_from_another_machine_are_told_apart_by_the_tables(
    study_data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each machine has its own folder; shards are copied together, and `analyze` is all that runs then."""
    here, there = (parse_study({**study_data, "results": str(tmp_path / name)}) for name in ("here", "there"))
    capture_study(here, shards=[0, 2, 3])
    with_torch("2.0", monkeypatch)
    capture_study(there, shards=[1])
    for name in ("first", "second"):
        shutil.copy(shard_path(there.folder / "captures" / name, 1), here.folder / "captures" / name)
    assert "shard_versions" not in record_of(here)
    analyzed = analyze(here.folder)
    made = {one["shards"]: one["torch"] for one in record_of(here)["shard_versions"]}
    assert made["first 1; second 1"] == "2.0"
    assert len(made) == 2
    assert analyzed.record is not None
    assert analyzed.record.data == record_of(here)


def test_a_shard_that_does_not_say_its_versions_is_said_to_be_unknown(study_data: Data) -> None:
    study = parse_study(study_data)
    capture_study(study)
    path = shard_path(study.folder / "captures/first", 3)
    marks = {name: value for name, value in marks_of(path).items() if name != "versions"} | {"seal": BLANK}
    path.write_bytes(seal(save(load_file(path), metadata={"ropewalk": json.dumps(marks)})))
    analyze(study.folder)
    unknown = record_of(study)["shard_versions"][1]
    assert unknown["shards"] == "first 3"
    assert unknown["torch"] is None


def test_saving_keeps_what_was_made_earlier(
    two_torches: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = analyze(two_torches.folder)
    with_torch("3.0", monkeypatch)
    results.save(tmp_path / "saved")
    kept = record_of(tmp_path / "saved")
    assert kept == record_of(two_torches)
    for path in two_torches.folder.glob(f"captures/*/{SHARDS}"):
        assert (tmp_path / "saved" / path.relative_to(two_torches.folder)).read_bytes() == path.read_bytes()


def test_what_was_measured_in_python_keeps_its_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch("1.0", monkeypatch)
    tokens = np.random.default_rng(0).integers(3, 300, size=(4, 64))
    results = measure(tiny_smollm3(), tokens, context=64, shards=2)
    with_torch("2.0", monkeypatch)
    results.save(tmp_path / "saved")
    assert marks_of(shard_path(tmp_path / "saved/captures/model", 1))["versions"]["torch"] == "1.0"
    (made,) = record_of(tmp_path / "saved")["shard_versions"]
    assert (made["shards"], made["torch"]) == ("model 0-1", "1.0")


# Commits


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_commits_of_model_and_tokenizer_stand_in_the_record(
    study_data: Data, model_folder: Path, tokenizer_folder: Path, serve: Callable[..., HubStandIn]
) -> None:
    serve({"org/m": {"step1": files_of(model_folder)}, "org/t": {"main": files_of(tokenizer_folder)}})
    study_data["checkpoints"] = [
        {"name": "remote", "repo": "org/m", "revision": "step1", "tokenizer": "org/t"},
        {"name": "mixed", "repo": "org/m", "revision": "step1"},
        {"name": "null", "repo": "org/m", "revision": "step1", "random_weights": True},
        {"name": "local"},
    ]
    study = parse_study(study_data)
    capture_study(study, shards=[0])
    origins = {one["checkpoint"]: one for one in record_of(study)["origins"]}
    commit = commit_of("org/m", "step1")
    assert origins["remote"] == {
        "checkpoint": "remote",
        "model": f"org/m@{commit}",
        "tokenizer": f"org/t@{commit_of('org/t', 'main')}",
    }
    assert origins["mixed"]["model"] == f"org/m@{commit}"
    assert origins["mixed"]["tokenizer"] == origins["local"]["tokenizer"]
    assert origins["null"]["model"] == f"org/m@{commit}, untrained"
    assert origins["local"]["model"].startswith("local folder, sha256 ")


@pytest.fixture
def texts_on_the_hub(monkeypatch: pytest.MonkeyPatch, serve: Callable[..., HubStandIn]) -> HubStandIn:
    """A dataset org/texts whose documents are other ones at every commit."""
    hub = serve({"datasets/org/texts": {"main": {}}})

    def load_dataset(repo: str, config: str | None, *, split: str, revision: str, streaming: bool) -> Any:
        assert (repo, len(revision)) == ("org/texts", 40)
        return [{"text": text} for text in make_texts(8, seed=int(revision[:8], 16))]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return hub


def move(hub: HubStandIn, commit: str) -> None:
    """Move the branch, as seen by a new process."""
    hub.commits["datasets/org/texts", "main"] = commit
    hub_module._dataset_commit.cache_clear()


def test_the_commit_of_a_dataset_stands_in_the_record_and_a_moved_branch_is_other_documents(
    study_data: Data, texts_on_the_hub: HubStandIn
) -> None:
    study_data["corpus"] = {"source": "dataset", "repo": "org/texts"}
    study = parse_study(study_data)
    capture_study(study)
    commit = commit_of("datasets/org/texts", "main")
    (documents,) = record_of(study)["documents"]
    assert (documents["documents"], documents["dataset"]) == (8, f"org/texts@{commit}")
    shown = {entry.name: entry.value for entry in entries(record_of(study))}
    assert isinstance(shown["documents"], Grid)
    assert f"org/texts@{commit}" in [cell.text for row in shown["documents"].rows for cell in row]
    move(texts_on_the_hub, "d" * 40)
    with pytest.raises(RopewalkError, match="was made from other documents than the study names now"):
        capture_study(study)
    # The record says what to pin.
    study_data["corpus"]["revision"] = documents["dataset"].split("@")[1]
    capture_study(parse_study(study_data))
    assert record_of(study)["documents"] == [documents]


def test_tokens_of_a_dataset_that_are_there_need_no_hub(
    tokenizer: Any, tmp_path: Path, texts_on_the_hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus(source="dataset", repo="org/texts")
    first = prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    stamp = Path(first.path).stat().st_mtime_ns
    hub_module._dataset_commit.cache_clear()
    monkeypatch.setattr(hub_module.constants, "HF_HUB_OFFLINE", True)
    lines: list[str] = []
    with heard(lines.append):
        assert prepare(corpus, tokenizer, 50, tmp_path / "tokens") == first
    assert Path(first.path).stat().st_mtime_ns == stamp
    commit = commit_of("datasets/org/texts", "main")
    assert lines == [f"the hub cannot be reached: org/texts@main is taken as it was, at commit {commit}"]
    other = corpus.model_copy(update={"revision": "later"})
    with pytest.raises(RopewalkError, match="HF_HUB_OFFLINE is set, and org/texts is on the hub"):
        prepare(other, tokenizer, 50, tmp_path / "tokens")


def test_a_dataset_in_a_folder_is_read_again_when_it_changed(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_dataset(repo: str, *_: Any, **__: Any) -> Any:
        return [{"text": path.read_text()} for path in sorted(Path(repo).glob("*.txt"))]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/0.txt").write_text(make_texts(1)[0])
    corpus = Corpus(source="dataset", repo=str(tmp_path / "texts"))
    first = prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    assert first.dataset is None
    before = first.tokens().copy()
    (tmp_path / "texts/0.txt").write_text(make_texts(1, seed=3)[0])
    assert not np.array_equal(prepare(corpus, tokenizer, 50, tmp_path / "tokens").tokens(), before)


# Records


def write_record(folder: Path, record: Data) -> None:
    (folder / "study.yaml").write_text(yaml.safe_dump(record))


def test_a_record_that_was_changed_or_is_of_another_format_is_refused(study_data: Data) -> None:
    study = parse_study(study_data)
    capture_study(study)
    analyze(study.folder)
    record = record_of(study)
    for made in ({"version": "0.2.0"}, {}, None, "0.2.0"):
        write_record(study.folder, {**record, "ropewalk": made})
        with pytest.raises(
            RopewalkError, match=r"study.yaml is not as it was written .*: run `ropewalk capture STUDY`"
        ):
            load(study.folder)
    write_record(study.folder, {**record, "ropewalk": {"version": "0.2.0", "format": 3}})
    for use in (load, analyze):
        with pytest.raises(RopewalkError, match=rf"study.yaml has format 3 and this .* format {FORMAT}: run"):
            use(study.folder)
    with pytest.raises(RopewalkError, match=rf"study.yaml has format 3 and this .* format {FORMAT}: run"):
        capture_study(study)
    # Written anew by a run, it is as it was.
    write_record(study.folder, {**record, "created": "yesterday"})
    capture_study(study)
    assert record_of(study)["study"] == record["study"]
    load(study.folder)


def test_a_study_beside_tables_is_called_one(study_data: Data, tmp_path: Path) -> None:
    study = parse_study(study_data)
    capture_study(study)
    analyze(study.folder)
    write_record(study.folder, study_data)
    message = (
        r"study.yaml is a study and not the record of a run: keep it outside of .* and run it \(`ropewalk run STUDY`\)"
    )
    with pytest.raises(RopewalkError, match=message):
        load(study.folder)
    # A run mends it: the shards are there, and say what they are of.
    capture_study(study)
    assert record_of(study)["ropewalk"]["format"] == FORMAT
    load(study.folder)


# Vectors that a capture keeps


def kept(study: Study) -> dict[str, bytes]:
    folder = study.folder / "captures/first/vectors"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sampled(study_data: Data, seed: int, **options: Any) -> Study:
    capture = {"shards": 4, "heads": 3, "seed": seed, "statistics": ["moments", "sample"]}
    return parse_study({**study_data, "checkpoints": [{"name": "first"}], "capture": capture, **options})


def test_vectors_of_an_earlier_capture_are_written_anew(study_data: Data, tmp_path: Path) -> None:
    """Shards are deleted, the seed is changed, and the study is captured again."""
    study = sampled(study_data, 0)
    capture_study(study)
    before = kept(study)
    for shard in study.folder.glob(f"captures/first/{SHARDS}"):
        shard.unlink()
    capture_study(sampled(study_data, 1))
    fresh = sampled(study_data, 1, results=str(tmp_path / "fresh"))
    capture_study(fresh)
    assert kept(study) == kept(fresh)
    # There were heads that the other seed does not choose: they are gone.
    assert set(before) - set(kept(study))


def test_vectors_that_were_half_written_are_not_taken_for_whole(
    study_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = sampled(study_data, 0)
    capture_study(study)
    before = kept(study)
    for shard in study.folder.glob(f"captures/first/{SHARDS}"):
        shard.unlink()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropewalk.statistics.sample._with_vectors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        capture_study(sampled(study_data, 1))
    monkeypatch.undo()
    assert "made_from.txt" not in kept(study)
    for shard in study.folder.glob(f"captures/first/{SHARDS}"):
        shard.unlink()
    capture_study(study)
    assert kept(study) == before


def test_vectors_of_an_earlier_capture_are_not_read(study_data: Data, tmp_path: Path) -> None:
    """While the new capture is under way the old vectors are still there: they are not its own."""
    study = sampled(study_data, 0)
    capture_study(study)
    vectors = study.folder / "captures/first/vectors"

    def reader(results: str) -> Study:
        checkpoint = {"source": str(vectors), "name": "read", "context": 64}
        capture = {"shards": 2}
        return parse_study(
            {"name": "r", "results": str(tmp_path / results), "checkpoints": [checkpoint], "capture": capture}
        )

    capture_study(reader("a"))
    for shard in study.folder.glob(f"captures/first/{SHARDS}"):
        shard.unlink()
    capture_study(sampled(study_data, 1), shards=[0])
    with pytest.raises(RopewalkError, match=r"vectors was kept by an earlier capture than the one in .*first: run"):
        capture_study(reader("b"))
    moved = shutil.copytree(vectors, tmp_path / "elsewhere")
    vectors = moved
    capture_study(reader("c"))
    vectors = study.folder / "captures/first/vectors"
    capture_study(sampled(study_data, 1))
    capture_study(reader("d"))
