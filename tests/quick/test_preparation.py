"""What a run does before it computes: a plan reads no corpus, a part prepares only itself, weights are hashed once."""

import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.command import Run
from helpers.tiny import save_tokenizer
from ropewalk import digests as digests_module
from ropewalk.capture import corpus, jobs, tokenizers
from ropewalk.capture.run import capture_study, plan_study
from ropewalk.digests import DIGESTS, TICK, Digests
from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import file_fingerprint
from ropewalk.record import need_record
from ropewalk.studyfile import parse_study

Data = dict[str, Any]


@pytest.fixture
def data(study_data: Data) -> Data:
    return study_data | {"capture": {"shards": 4, "batch_tokens": 130, "statistics": ["moments"]}}


def shards(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.glob("captures/*/shard-*.safetensors")
    }


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """What a function of a module is called with from now on."""
    calls: list[Any] = []
    function: Callable[..., Any] = getattr(module, name)

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments[0])
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, call)
    return calls


# The plan


def test_a_plan_tokenizes_nothing(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = counted(monkeypatch, corpus, "encode")
    lines = plan_study(parse_study(deepcopy(data))).splitlines()
    assert lines[2].split()[:5] == ["A", "64", "all", "–", "4"]
    assert (
        lines[-2] == "the corpus is tokenized when the study runs: all documents that are long enough are counted then"
    )
    assert lines[-1].startswith("in all: tokens not counted yet, 8 shards to compute")
    assert "at least" in lines[-1]
    data["corpus"]["documents"] = 3
    lines = plan_study(parse_study(data)).splitlines()
    assert lines[2].split()[:5] == ["A", "64", "3", "192", "3"]
    assert lines[-2] == "the corpus is tokenized when the study runs: the documents asked for are counted then"
    assert lines[-1].startswith("in all: 480 tokens, 6 shards to compute")
    assert encoded == []
    assert not (tmp_path / "results").exists()


def test_a_plan_uses_tokens_that_are_there(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    capture_study(parse_study(deepcopy(data)), only=["A"])
    encoded = counted(monkeypatch, corpus, "encode")
    lines = plan_study(parse_study(deepcopy(data))).splitlines()
    assert [line.split()[:6] for line in lines[2:4]] == [
        ["A", "64", "12", "768", "4", "(4)"],
        ["B", "96", "12", "1,152", "4", "(0)"],
    ]
    assert lines[-1].startswith("in all: 1,920 tokens, 4 shards to compute")
    assert encoded == []


def test_a_plan_without_tokens_still_knows_shards_of_another_model(data: Data) -> None:
    study = parse_study(deepcopy(data))
    capture_study(study, only=["A"])
    shutil.rmtree(study.folder / "tokens")
    assert "4 shards to compute" in plan_study(study)
    data["checkpoints"][0]["overrides"] = {"rope_theta": 123.0}
    with pytest.raises(RopewalkError, match="was made from another model or `dtype` than the study names now"):
        plan_study(parse_study(data))


def test_a_plan_reads_the_first_text(data: Data, tmp_path: Path) -> None:
    (tmp_path / "texts.parquet").mkdir()
    (tmp_path / "lines.jsonl").write_text('{"body": "no text"}\n')
    data["corpus"] = {"source": "jsonl", "paths": [str(tmp_path / "lines.jsonl")]}
    with pytest.raises(RopewalkError, match="has no column 'text'"):
        plan_study(parse_study(data))


# A part of a study


def test_one_checkpoint_prepares_only_itself(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other model is not even there; its context and the location of its tokenizer say enough."""
    data["checkpoints"][1]["repo"] = "org/not-there"
    configs = counted(monkeypatch, jobs, "load_config")
    opened = counted(monkeypatch, tokenizers, "load_tokenizer")
    study = parse_study(data)
    capture_study(study, only=["A"])
    assert [one.name for one in configs] == [one.name for one in opened] == ["first"]
    assert len(shards(study.folder)) == 4
    assert [one.name for one in need_record(study.folder).study.checkpoints] == ["first", "second"]


def test_a_plan_of_one_checkpoint(data: Data, tmp_path: Path, run: Run) -> None:
    data["checkpoints"][1]["repo"] = "org/not-there"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(data | {"results": ""}))
    code, out, err = run("capture", str(tmp_path / "study.yaml"), "--checkpoint", "A", "--dry-run")
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[2:3]] == ["A"]
    assert "in all: tokens not counted yet, 4 shards to compute" in out


def one_place(data: Data, home: Path) -> Data:
    return data


def tokenizers_apart(data: Data, home: Path) -> Data:
    """As on branches of the hub: the same tokenizer beside each."""
    for number, checkpoint in enumerate(data["checkpoints"]):
        save_tokenizer(home / str(number))
        checkpoint["tokenizer"] = str(home / str(number))
    return data


def other_tokenizers(data: Data, home: Path) -> Data:
    """A tokenizer that adds a token in front makes other documents, of its own length."""
    from tokenizers import processors
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data["defaults"]["tokenizer"])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", tokenizer.eos_token_id)]
    )
    tokenizer.save_pretrained(home / "other")
    data["checkpoints"][1]["tokenizer"] = str(home / "other")
    return data


@pytest.mark.parametrize("change", [one_place, tokenizers_apart, other_tokenizers])
def test_parts_are_the_same_bytes_as_the_whole(
    change: Callable[[Data, Path], Data], data: Data, texts_folder: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """One text is long enough for the shorter context only: whether it counts hangs on the other checkpoint."""
    shutil.copytree(texts_folder, tmp_path / "texts")
    words = (texts_folder / "00.txt").read_text().split()
    texts = (" ".join(words[:number]) for number in range(len(words)))
    (tmp_path / "texts" / "000.txt").write_text(next(one for one in texts if len(tokenizer(one)["input_ids"]) >= 70))
    data["corpus"]["paths"] = [str(tmp_path / "texts" / "*.txt")]
    data = change(data, tmp_path)
    whole = parse_study(deepcopy(data))
    capture_study(whole)
    counts = [one["documents"] for one in need_record(whole.folder).data["documents"]]
    assert counts == ([13, 12] if change is other_tokenizers else [12])
    apart = parse_study(data | {"results": str(tmp_path / "apart")})
    capture_study(apart, only=["A"])
    capture_study(apart, only=["B"])
    assert shards(apart.folder) == shards(whole.folder)
    records = [need_record(one.folder).data for one in (apart, whole)]
    for part in ("origins", "documents", "versions"):
        assert records[0][part] == records[1][part], part
    assert records[0]["study"] | {"results": ""} == records[1]["study"] | {"results": ""}


def test_of_longer_contexts_the_longest_tokenizer_is_asked_first(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a series with one tokenizer beside each checkpoint, one other is opened."""
    data["checkpoints"] = [{"name": f"c{context}", "context": context} for context in (16, 64, 96, 32, 48)]
    data = tokenizers_apart(data, tmp_path)
    opened = counted(monkeypatch, tokenizers, "load_tokenizer")
    capture_study(parse_study(data), only=["c32"])
    assert [one.name for one in opened] == ["c32", "c96"]
    opened.clear()
    capture_study(parse_study(data), only=["c96"])
    assert [one.name for one in opened] == ["c96"]


# Digests


def test_local_weights_are_read_whole_once(data: Data, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted(monkeypatch, digests_module, "file_fingerprint")
    study = parse_study(data)
    capture_study(study)
    assert read == [model_folder / "model.safetensors"]
    capture_study(study)
    plan_study(study)
    assert len(read) == 1
    assert (study.folder / DIGESTS).is_file()


def test_weights_changed_within_the_same_size_and_time_are_another_model(
    data: Data, model_folder: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(model_folder, tmp_path / "model"))
    data["defaults"]["repo"] = str(model)
    study = parse_study(data)
    capture_study(study)
    weights = model / "model.safetensors"
    before, content = weights.stat(), bytearray(weights.read_bytes())
    content[-1] ^= 1
    with weights.open("r+b") as file:
        file.write(content)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = weights.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    with pytest.raises(RopewalkError, match="was made from another model"):
        capture_study(study)


def test_digests_that_are_damaged_are_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    digests = Digests(tmp_path)
    assert digests(file) == file_fingerprint(file)
    digests.write()
    record = tmp_path / DIGESTS
    text = record.read_text()
    assert text.count(file_fingerprint(file)) == 1
    record.write_text(text.replace(file_fingerprint(file), "0" * 64))
    assert Digests(tmp_path)(file) == file_fingerprint(file)


def test_a_file_that_was_just_written_is_read_after_a_tick_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It might be changed again within the same tick."""
    file, slept = tmp_path / "weights", list[float]()
    file.write_bytes(b"weights")
    monkeypatch.setattr(digests_module.time, "sleep", slept.append)
    monkeypatch.setattr(digests_module.time, "time", lambda: file.stat().st_ctime_ns / 1e9)
    Digests(tmp_path)(file)
    assert slept == [pytest.approx(TICK, abs=1e-3)]
    monkeypatch.setattr(digests_module.time, "time", lambda: file.stat().st_ctime_ns / 1e9 + 1)
    Digests(tmp_path)(file)
    assert slept[1] == 0


def test_times_in_whole_seconds_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").write_bytes(b"weights")
    monkeypatch.setattr(digests_module, "SECOND", 1)
    digests = Digests(tmp_path)
    assert digests(tmp_path / "weights") == file_fingerprint(tmp_path / "weights")
    digests.write()
    assert not (tmp_path / DIGESTS).exists()


def test_digests_of_earlier_runs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        digests = Digests(tmp_path)
        digests(tmp_path / name)
        digests.write()
    read = counted(monkeypatch, digests_module, "file_fingerprint")
    assert [Digests(tmp_path)(tmp_path / name) for name in ("a", "b")] == [
        file_fingerprint(tmp_path / name) for name in ("a", "b")
    ]
    assert read == []
