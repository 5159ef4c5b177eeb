"""Captures on disk: resuming after any kill, refusing what does not belong."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from helpers.logs import heard
from helpers.tiny import make_texts, tiny_smollm3
from ropewalk.capture.jobs import prepare_jobs
from ropewalk.capture.manifest import read_manifest, write_manifest
from ropewalk.capture.plan import costs, describe
from ropewalk.capture.run import capture_study
from ropewalk.capture.shards import shard_path
from ropewalk.capture.stored import StoredCapture
from ropewalk.errors import RopewalkError
from ropewalk.files import atomic_path
from ropewalk.record import FORMAT
from ropewalk.results import analyze
from ropewalk.seals import sealed_json
from ropewalk.studyfile import parse_study


def test_a_study_from_file_to_table(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    results = analyze(study.folder)
    table = results.table
    assert ",".join(table.columns[:11]) == "checkpoint,phase,step,layer,head,k_head,rope,pc,explained_variance,r_q,r_k"
    assert len(table) == 2 * 5 * 4 * 10
    first = table[table["pc"] == 0]
    assert first["category"].notna().all()
    assert table["n_q"].unique().tolist() == [12 * 64, 12 * 96]
    assert table["shards"].unique().tolist() == [4]
    written = pd.read_csv(study.folder / "qk.csv")
    np.testing.assert_allclose(written["r_q"], table["r_q"], rtol=1e-8)
    heads = pd.read_csv(study.folder / "heads.csv")
    assert len(heads) == 2 * 20
    np.testing.assert_array_equal(heads["r_k"], written.loc[written["pc"] == 0, "r_k"])
    np.testing.assert_array_equal(heads["se_r_q"], written.loc[written["pc"] == 0, "se_r_q"])
    replicates = pd.read_parquet(study.folder / "replicates.parquet")
    assert len(replicates) == 2 * 20 * 4
    errors = replicates.groupby(["checkpoint", "layer", "head"], sort=False)["r_k"].std(ddof=0) * np.sqrt(4 - 1)
    np.testing.assert_allclose(errors, heads["se_r_k"], rtol=1e-7)
    record = yaml.safe_load((study.folder / "study.yaml").read_text())
    assert record["study"]["checkpoints"][1]["overrides"] == {"rope_theta": 500000.0}
    assert record["versions"]["torch"] == torch.__version__
    assert not (study.folder / "captures/first/vectors").exists()


def test_kept_vectors_are_laid_out_as_parquet(study_data: dict[str, Any]) -> None:
    study_data["capture"] = {**study_data["capture"], "statistics": ["moments", "sample"]}  # type: ignore[dict-item]
    study = parse_study(study_data)
    capture_study(study)
    vectors = pd.read_parquet(study.folder / "captures/first/vectors/l03h01k/data.parquet")
    assert list(vectors.columns) == ["bucket", "example_id", "position", "vector", "sliding_window"]
    assert (vectors["bucket"] == vectors["position"] // 4).all()
    assert sorted(vectors["example_id"].unique()) == list(range(12))


def test_the_override_of_rope_theta_changes_the_rotated_layers_only(study_data: dict[str, Any], tmp_path: Path) -> None:
    """Layer 0 has no rotation and nothing rotated before it: it stays; layer 1 rotates, and moves."""
    tiny_smollm3(no_rope_layers=[0, 1, 1, 1, 1]).save_pretrained(tmp_path / "model")
    study_data["defaults"] = {**study_data["defaults"], "repo": str(tmp_path / "model")}  # type: ignore[dict-item]
    study_data["checkpoints"] = [{"name": "a"}, {"name": "b", "overrides": {"rope_theta": 100.0}}]
    study_data["capture"] = {**study_data["capture"], "layers": [0, 1]}  # type: ignore[dict-item]
    study = parse_study(study_data)
    capture_study(study)
    table = analyze(study.folder).table
    a, b = (table[table["checkpoint"] == name].reset_index() for name in ("a", "b"))
    assert a.groupby("layer")["rope"].first().tolist() == [False, True]
    moved = np.abs(a["r_q"] - b["r_q"]) > 1e-6
    assert not moved[a["layer"] == 0].any()
    assert moved[a["layer"] == 1].any()


DYING = """
import os, signal, sys
from pathlib import Path
from ropewalk.capture.account import Account
from ropewalk.cli import main
moment, after = sys.argv[1], int(sys.argv[2])
count = 0
def die(real):
    def dying(*arguments, **options):
        global count
        count += 1
        if moment == "before" and count == after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if moment == "after" and count == after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return dying
if moment == "rename":
    moment = "before"
    Path.replace = die(Path.replace)
else:
    Account.done = die(Account.done)
main(["capture", sys.argv[3]])
"""


@pytest.mark.parametrize(
    ("moment", "count"), [("after", 1), ("before", 5), ("after", 24), ("rename", 1), ("rename", 9)]
)
def test_a_killed_run_goes_on_and_ends_in_the_same_bytes(
    study_data: dict[str, Any], tmp_path: Path, moment: str, count: int
) -> None:
    """Killed before or after writing the n-th shard, or between writing a file and putting it in its place."""
    study_data["capture"] = {"shards": 12, "batch_tokens": 130, "statistics": ["moments", "profile", "sample"]}
    whole = parse_study({**study_data, "results": str(tmp_path / "whole")})
    capture_study(whole)
    analyze(whole.folder)
    killed = tmp_path / "killed"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study_data, "results": str(killed)}))
    process = subprocess.run(
        [sys.executable, "-c", DYING, moment, str(count), str(tmp_path / "study.yaml")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
    done = {path: path.stat().st_mtime_ns for path in killed.glob("captures/*/shard-*.safetensors")}
    if moment != "rename":
        assert len(done) == (count if moment == "after" else count - 1)
    study = parse_study({**study_data, "results": str(killed)})
    if len(done) < 24:
        with pytest.raises(RopewalkError, match=r"of its 12 shards|holds no finished capture|is not a results folder"):
            analyze(killed)
    capture_study(study)
    analyze(killed)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    for name in ("qk.csv", "heads.csv", "replicates.parquet", "captures/second/vectors/l00h00q/data.parquet"):
        assert (killed / name).read_bytes() == (whole.folder / name).read_bytes(), name


def test_shards_computed_apart_are_the_same(study_data: dict[str, Any], tmp_path: Path) -> None:
    whole = parse_study(study_data)
    capture_study(whole)
    apart = parse_study({**study_data, "results": str(tmp_path / "apart")})
    for shard in (3, 1, 0, 2):
        capture_study(apart, shards=[shard])
    for path in whole.folder.glob("captures/*/shard-*.safetensors"):
        assert (apart.folder / path.relative_to(whole.folder)).read_bytes() == path.read_bytes()
    with pytest.raises(RopewalkError, match="there is no shard 9: the study has shards 0 to 3"):
        capture_study(apart, shards=[9])
    with pytest.raises(RopewalkError, match="no checkpoint 'C' in the study: choose among A, B"):
        capture_study(apart, only=["C"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capture": {"shards": 4, "batch_tokens": 130, "skip_first": 1}}, "other capture settings"),
        ({"capture": {"shards": 4, "batch_tokens": 130, "statistics": ["moments"]}}, "other capture settings"),
        ({"corpus": {"source": "python-stdlib", "documents": 12}}, "other documents"),
        ({"defaults": {"dtype": "bfloat16"}}, "another model or `dtype`"),
    ],
)
def test_a_shard_of_other_inputs_is_refused(study_data: dict[str, Any], change: dict[str, Any], message: str) -> None:
    capture_study(parse_study(study_data))
    changed = {**study_data, **change}
    if "defaults" in change:
        changed["defaults"] = {**study_data["defaults"], **change["defaults"]}  # type: ignore[dict-item]
    with pytest.raises(RopewalkError, match=f"was made from {message} than the study names now: give the study"):
        capture_study(parse_study(changed))


def test_other_weights_in_the_same_folder_are_refused(
    study_data: dict[str, Any], model_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(model_folder, tmp_path / "model")
    study_data["defaults"] = {**study_data["defaults"], "repo": str(tmp_path / "model")}  # type: ignore[dict-item]
    capture_study(parse_study(study_data))
    torch.manual_seed(1)
    tiny_smollm3(initializer_range=0.05).save_pretrained(tmp_path / "model")
    with pytest.raises(RopewalkError, match="another model"):
        capture_study(parse_study(study_data))


def test_a_damaged_or_missing_shard_is_said(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    shard = shard_path(study.folder / "captures/first", 2)
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(RopewalkError, match=r"shard-0002.safetensors is damaged: run `ropewalk capture STUDY` again"):
        analyze(study.folder)
    shard.unlink()
    said: list[str] = []
    with heard(said.append):
        assert analyze(study.folder).missing == ["A"]
    assert said == ["the tables lack A: not all shards are there"]
    with pytest.raises(RopewalkError, match="'A' has 3 of its 4 shards"):
        StoredCapture(shard.parent, "A").shard(2)


def test_a_foreign_format_is_refused(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    manifest = study.folder / "captures/first/manifest.json"
    other = {**read_manifest(manifest.parent), "format": 99}
    manifest.write_bytes(sealed_json(other))
    with pytest.raises(
        RopewalkError,
        match=rf"has format 99 and this is ropewalk .* with format {FORMAT}: run the study again",
    ):
        analyze(study.folder)
    manifest.write_text("{")
    with pytest.raises(RopewalkError, match="is damaged"):
        analyze(study.folder)


def test_no_space_left_is_one_sentence_and_leaves_nothing_half_written(
    study_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = parse_study(study_data)
    real = Path.open

    def full_disk(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = real(path, mode, *arguments, **options)
        if ".shard-0001" in path.name and "w" in mode:
            with file:
                file.write(b"as much as there was room for")
            raise OSError(28, "No space left on device")
        return file

    monkeypatch.setattr(Path, "open", full_disk)
    with pytest.raises(
        RopewalkError,
        match=r"no space left for .*shard-0001.safetensors: free some space and run the same command again",
    ):
        capture_study(study)
    monkeypatch.undo()
    assert [path.name for path in (study.folder / "captures/first").glob("*shard*")] == ["shard-0000.safetensors"]
    capture_study(study)
    assert len(analyze(study.folder).table) == 400


def test_atomic_writing_keeps_the_old_file_on_failure(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def fail_half_way() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RopewalkError, match=r"cannot write .*: choose another folder"),
        atomic_path(tmp_path / "file" / "x"),
    ):
        pass


def test_the_plan_counts_what_a_run_will_do(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    jobs = prepare_jobs(study)
    first = costs(study, jobs)[0]
    parameters = sum(p.numel() for p in tiny_smollm3().parameters())
    assert (first.tokens, first.shards, first.done, first.heads, first.weights) == (12 * 64, 4, 0, 20, parameters * 4)
    assert "in all: 1,920 tokens, 8 shards to compute" in describe(study, jobs)
    head, names, *rows, _ = describe(study, jobs).splitlines()
    assert head == f"study {study.name}: 2 checkpoints, results in {study.folder}"
    assert names.split("  ")[1] == "checkpoint"
    assert len(rows) == 2
    # The last column is aligned to the right, as are all numbers.
    assert {len(row) for row in rows} == {len(names)}
    capture_study(study, only=["A"])
    assert costs(study, jobs)[0].done == 4
    stored = sum(path.stat().st_size for path in (study.folder / "captures/first").rglob("*") if path.is_file())
    assert first.disk == pytest.approx(stored, rel=0.5)


def test_a_tokenizer_of_another_model_is_refused(study_data: dict[str, Any], tmp_path: Path) -> None:
    tiny_smollm3(vocab_size=100).save_pretrained(tmp_path / "small")
    study_data["defaults"] = {**study_data["defaults"], "repo": str(tmp_path / "small")}  # type: ignore[dict-item]
    with pytest.raises(RopewalkError, match=r"gives token \d+ and the model knows 100: they do not belong together"):
        prepare_jobs(parse_study(study_data))


def test_a_refused_study_leaves_the_record_as_it_was(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    before = (study.folder / "study.yaml").read_bytes()
    study_data["capture"] = {**study_data["capture"], "skip_first": 3}  # type: ignore[dict-item]
    with pytest.raises(RopewalkError, match="other capture settings"):
        capture_study(parse_study(study_data))
    assert (study.folder / "study.yaml").read_bytes() == before


def test_a_lost_manifest_is_written_again(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    analyze(study.folder)
    table = (study.folder / "qk.csv").read_bytes()
    manifest = study.folder / "captures/first/manifest.json"
    content = manifest.read_bytes()
    for damage in (manifest.unlink, lambda: manifest.write_text("{")):
        damage()
        capture_study(study)
        assert manifest.read_bytes() == content
    analyze(study.folder)
    assert (study.folder / "qk.csv").read_bytes() == table


def test_shards_of_other_documents_are_not_merged(study_data: dict[str, Any], tmp_path: Path) -> None:
    """Two machines with different corpora: their shards do not make one table."""
    study = parse_study(study_data)
    capture_study(study)
    (tmp_path / "other").mkdir()
    for number, text in enumerate(make_texts(12, seed=5)):
        (tmp_path / "other" / f"{number:02d}.txt").write_text(text)
    corpus = {"source": "files", "paths": [str(tmp_path / "other/*.txt")]}
    other = parse_study({**study_data, "corpus": corpus, "results": str(tmp_path / "there")})
    capture_study(other, shards=[1])
    shutil.copy(shard_path(other.folder / "captures/first", 1), shard_path(study.folder / "captures/first", 1))
    with pytest.raises(RopewalkError, match="another model, documents or settings than manifest"):
        analyze(study.folder)
    odd = r"shard-0001.safetensors was made from other documents .*: it is not one of this capture: move it out"
    with pytest.raises(RopewalkError, match=odd):
        capture_study(study)
    shard_path(study.folder / "captures/first", 1).rename(tmp_path / "moved")
    capture_study(study)
    analyze(study.folder)


def test_weights_are_looked_for_before_documents_are_read(
    study_data: dict[str, Any], model_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(model_folder, tmp_path / "model")
    (tmp_path / "model/model.safetensors").rename(tmp_path / "model/pytorch_model.bin")
    study_data["defaults"] = {**study_data["defaults"], "repo": str(tmp_path / "model")}  # type: ignore[dict-item]
    with pytest.raises(RopewalkError, match=r"has its weights as \.bin files"):
        prepare_jobs(parse_study(study_data))


def test_a_damaged_record_is_said(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    for content in ("study: {", f"ropewalk: {{format: {FORMAT}}}\nstudy: {{name: x}}", "[]", "other: 1"):
        (study.folder / "study.yaml").write_text(content)
        with pytest.raises(RopewalkError, match=r"study.yaml is not as it was written"):
            analyze(study.folder)


def test_a_manifest_that_names_other_heads_is_refused(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    folder = study.folder / "captures/first"
    content = read_manifest(folder)
    write_manifest(folder, {**content, "heads": content["heads"][1:]})
    with pytest.raises(RopewalkError, match="its heads of layer 0 are others"):
        analyze(study.folder)
