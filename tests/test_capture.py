"""Capture: the numbers against vectors taken by hand, resuming after any kill, refusing what does not belong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from scipy.stats import pearsonr
from sklearn import decomposition

from conftest import make_texts, tiny_smollm3
from ropewalk.analysis import analyze
from ropewalk.capture.collector import Settings, collect, kept_positions
from ropewalk.capture.measure import measure
from ropewalk.capture.plan import costs, describe
from ropewalk.capture.run import capture_study, prepare_jobs
from ropewalk.capture.shards import shard_path
from ropewalk.errors import RopewalkError
from ropewalk.files import atomic_path
from ropewalk.geometry.moments import merge_all
from ropewalk.models.layout import Layout
from ropewalk.models.probe import read_layout
from ropewalk.models.tap import Call, tap
from ropewalk.study import parse_study


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_smollm3()


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(3, 300, size=(6, 64)).astype(np.int32)


@pytest.fixture(scope="module")
def by_hand(model: Any, tokens: np.ndarray) -> list[Call]:
    """All queries and keys of the model on the tokens, one full forward pass."""
    calls: list[Call] = []
    with torch.inference_mode(), tap(model, calls.append):
        model(input_ids=torch.from_numpy(tokens.astype(np.int64)), use_cache=False)
    return calls


def test_moments_are_those_of_every_token(model: Any, tokens: np.ndarray, by_hand: list[Call]) -> None:
    layout = read_layout(model)
    result = collect(model, layout, Settings(layout.heads(), 4, skip_first=2), tokens, batch=4)
    for layer, call in enumerate(by_hand):
        for kind, x in (("q", call.query), ("k", call.key)):
            moments = result[layer, kind].moments
            for head in range(x.shape[1]):
                flat = x[:, head, 2:].reshape(-1, x.shape[3]).double().numpy()
                np.testing.assert_allclose(
                    moments.sxx[head], np.cov(flat.T, bias=True) * len(flat), rtol=1e-4, atol=1e-4
                )
                np.testing.assert_allclose(moments.mean[head], flat.mean(axis=0), atol=1e-5)
                assert moments.n[head] == 6 * 62


@pytest.mark.parametrize("batch", [1, 2, 6])
@pytest.mark.parametrize("shards", [1, 3])
def test_any_split_gives_the_same_table(model: Any, tokens: np.ndarray, batch: int, shards: int) -> None:
    whole = measure(model, tokens, context=64, shards=6, batch_tokens=64)
    table = measure(model, tokens, context=64, shards=shards, batch_tokens=64 * batch)
    first = table["pc"] == 0
    for column in ("explained_variance", "r_q", "r_k"):
        np.testing.assert_allclose(table[column][first], whole[column][first], atol=1e-7)


def test_the_table_against_scikit_learn_and_scipy(model: Any, tokens: np.ndarray, by_hand: list[Call]) -> None:
    table = measure(model, tokens, context=64)
    positions = np.tile(np.arange(64), 6)
    for row in table[table["pc"] < 3].itertuples():
        q, k = (
            x[:, head].reshape(-1, x.shape[3]).double().numpy()
            for x, head in ((by_hand[row.layer].query, row.head), (by_hand[row.layer].key, row.head // 2))
        )
        oracle = decomposition.PCA(3, svd_solver="full").fit(np.concatenate([q, k]))
        assert row.explained_variance == pytest.approx(oracle.explained_variance_ratio_[row.pc], abs=1e-5)
        assert abs(row.r_q) == pytest.approx(
            abs(pearsonr(q @ oracle.components_[row.pc], positions).statistic), abs=1e-4
        )
        assert abs(row.r_k) == pytest.approx(
            abs(pearsonr(k @ oracle.components_[row.pc], positions).statistic), abs=1e-4
        )
        assert row.k_head == row.head // 2
        assert row.rope == (row.layer != 3)


def test_three_lines_of_python(model: Any, tokenizer_folder: Path) -> None:
    import ropewalk

    tokenizer = __import__("transformers").AutoTokenizer.from_pretrained(tokenizer_folder)
    table = ropewalk.measure(model, make_texts(4), tokenizer, context=64, shards=2)
    assert len(table) == 5 * 4 * 10
    assert table["se_r_q"].notna().all()
    with pytest.raises(RopewalkError, match="none of the 1 documents has 64 tokens"):
        ropewalk.measure(model, ["short"], tokenizer, context=64)
    with pytest.raises(RopewalkError, match="a tokenizer is needed"):
        ropewalk.measure(model, ["short"], context=64)


def test_only_the_chosen_heads_and_their_keys(model: Any, tokens: np.ndarray) -> None:
    table = measure(model, tokens, context=64, pairs=((1, 3), (4, 0)))
    assert sorted(set(zip(table["layer"], table["head"], table["k_head"], strict=True))) == [(1, 3, 1), (4, 0, 0)]
    whole = measure(model, tokens, context=64)
    merged = table.merge(whole, on=["layer", "head", "pc"], suffixes=("", "_whole"))
    np.testing.assert_allclose(merged["r_q"], merged["r_q_whole"], atol=1e-9)
    with pytest.raises(RopewalkError, match="head 9 is not in layer 1, which has heads 0 to 3"):
        measure(model, tokens, context=64, pairs=((1, 9),))
    with pytest.raises(RopewalkError, match="layer 7 has no attention"):
        measure(model, tokens, context=64, layers=(7,))


def test_the_forward_pass_stops_after_the_last_needed_layer(model: Any, tokens: np.ndarray) -> None:
    layout = read_layout(model)
    ran = []
    handles = [
        layer.mlp.register_forward_hook(lambda *_, i=i: ran.append(i)) for i, layer in enumerate(model.model.layers)
    ]
    handles.append(model.lm_head.register_forward_hook(lambda *_: ran.append("vocabulary")))
    try:
        collect(model, layout, Settings(layout.heads(layers=[2]), 4), tokens[:1])
    finally:
        for handle in handles:
            handle.remove()
    assert ran == [0, 1]


def test_nan_weights_are_named(tokens: np.ndarray) -> None:
    broken = tiny_smollm3()
    with torch.no_grad():
        broken.model.layers[2].self_attn.q_proj.weight[0, 0] = float("nan")
    layout = read_layout(broken)
    with pytest.raises(RopewalkError, match="layer 2 head 0 has NaN or infinite queries"):
        collect(broken, layout, Settings(layout.heads(), 4), tokens)


def test_kept_vectors_are_a_deterministic_sample(model: Any, tokens: np.ndarray, by_hand: list[Call]) -> None:
    layout = read_layout(model)
    settings = Settings(layout.heads(), bucket_size=4, keep=1.0, seed=3, skip_first=2)
    whole = collect(model, layout, settings, tokens, batch=3)
    sample = whole[1, "k"].sample
    for index, (document, position) in enumerate(zip(sample.document, sample.position, strict=True)):
        np.testing.assert_allclose(sample.vectors[:, index], by_hand[1].key[document, :, position], atol=1e-5)
    part = collect(model, layout, settings, tokens[4:], first_document=4)
    np.testing.assert_array_equal(part[1, "k"].sample.position, sample.position[sample.document >= 4])
    assert sample.position.min() >= 2
    assert not np.array_equal(kept_positions(0, 0, 0, "q", 64, 0.25), kept_positions(0, 0, 0, "k", 64, 0.25))
    assert len(kept_positions(0, 1, 2, "q", 100_000, 0.25)) == pytest.approx(25_000, rel=0.05)


def test_a_study_from_file_to_table(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    table = analyze(study.folder)
    assert ",".join(table.columns[:11]) == "checkpoint,phase,step,layer,head,k_head,rope,pc,explained_variance,r_q,r_k"
    assert len(table) == 2 * 5 * 4 * 10
    first = table[table["pc"] == 0]
    assert first["category"].notna().all()
    assert table["n_q"].unique().tolist() == [12 * 64, 12 * 96]
    assert table["shards"].unique().tolist() == [4]
    written = pd.read_csv(study.folder / "qk.csv")
    np.testing.assert_allclose(written["r_q"], table["r_q"], rtol=1e-8)
    pd.testing.assert_frame_equal(pd.read_parquet(study.folder / "qk.parquet"), table, check_dtype=False)
    replicates = pd.read_parquet(study.folder / "qk_replicates.parquet")
    assert len(replicates) == 2 * 20 * 4
    record = yaml.safe_load((study.folder / "study.yaml").read_text())
    assert record["study"]["checkpoints"][1]["overrides"] == {"rope_theta": 500000.0}
    assert record["versions"]["torch"] == torch.__version__
    vectors = pd.read_parquet(study.folder / "captures/first/vectors/l03h01k/data.parquet")
    assert list(vectors.columns) == ["bucket", "example_id", "position", "vector", "sliding_window"]
    assert (vectors["bucket"] == vectors["position"] // 4).all()


def test_the_override_of_rope_theta_changes_the_rotated_layers_only(study_data: dict[str, Any]) -> None:
    study_data["checkpoints"] = [{"name": "a"}, {"name": "b", "overrides": {"rope_theta": 100.0}}]
    study_data["capture"] = {**study_data["capture"], "layers": [0, 3], "keep": 0}  # type: ignore[dict-item]
    study = parse_study(study_data)
    capture_study(study)
    table = analyze(study.folder)
    a, b = (table[table["checkpoint"] == name].reset_index() for name in ("a", "b"))
    moved = np.abs(a["r_q"] - b["r_q"]) > 1e-6
    assert moved[a["layer"] == 0].any()
    assert not (study.folder / "captures/a/vectors").exists()


def run_cli(study: Path, **extra: str) -> subprocess.Popen[bytes]:
    code = "from ropewalk.cli import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **extra}
    return subprocess.Popen(
        [sys.executable, "-c", code, "capture", str(study)], env=environment, stderr=subprocess.DEVNULL
    )


def test_a_killed_run_goes_on_and_ends_in_the_same_bytes(study_data: dict[str, Any], tmp_path: Path) -> None:
    study_data["capture"] = {**study_data["capture"], "shards": 12}  # type: ignore[dict-item]
    whole = parse_study({**study_data, "results": str(tmp_path / "whole")})
    capture_study(whole)
    analyze(whole.folder)
    killed = tmp_path / "killed"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study_data, "results": str(killed)}))
    process = run_cli(tmp_path / "study.yaml")
    deadline = time.monotonic() + 120
    while not list(killed.glob("captures/first/shard-*")) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in killed.glob("captures/*/shard-*.safetensors")}
    assert 0 < len(done) < 24
    study = parse_study({**study_data, "results": str(killed)})
    with pytest.raises(RopewalkError, match=r"of its 12 shards|holds no finished capture"):
        analyze(killed)
    capture_study(study)
    analyze(killed)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    for name in ("qk.csv", "qk.parquet", "qk_replicates.parquet"):
        assert (killed / name).read_bytes() == (whole.folder / name).read_bytes()
    first, again = (folder / "captures/second/vectors/l00h00q/data.parquet" for folder in (killed, whole.folder))
    assert first.read_bytes() == again.read_bytes()


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
        ({"capture": {"shards": 3, "batch_tokens": 130}}, "other documents"),
        ({"defaults": {"dtype": "bfloat16"}}, "another model"),
    ],
)
def test_a_shard_of_other_inputs_is_refused(study_data: dict[str, Any], change: dict[str, Any], message: str) -> None:
    capture_study(parse_study(study_data))
    changed = {**study_data, **change}
    if "defaults" in change:
        changed["defaults"] = {**study_data["defaults"], **change["defaults"]}  # type: ignore[dict-item]
    with pytest.raises(RopewalkError, match=f"was made from {message} than the study names now: remove"):
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
    with pytest.raises(
        RopewalkError, match=r"shard-0002.safetensors is damaged .*: delete it and run `ropewalk capture` again"
    ):
        analyze(study.folder)
    shard.unlink()
    with pytest.raises(RopewalkError, match="'A' has 3 of its 4 shards"):
        analyze(study.folder)


def test_a_foreign_format_is_refused(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    manifest = study.folder / "captures/first/manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    with pytest.raises(RopewalkError, match="has format 99, not 1"):
        analyze(study.folder)
    manifest.write_text("{")
    with pytest.raises(RopewalkError, match="is damaged"):
        analyze(study.folder)


def test_no_space_left_is_one_sentence_and_leaves_nothing_half_written(
    study_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = parse_study(study_data)
    written = []
    real = Path.write_bytes

    def full_disk(path: Path, data: bytes) -> int:
        if ".shard-0001" in path.name:
            real(path, data[:100])
            raise OSError(28, "No space left on device")
        written.append(path)
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(
        RopewalkError,
        match=r"no space left for .*shard-0001.safetensors: free some space and run the same command again",
    ):
        capture_study(study)
    monkeypatch.undo()
    assert [path.name for path in (study.folder / "captures/first").glob("*shard*")] == ["shard-0000.safetensors"]
    capture_study(study)
    assert len(analyze(study.folder)) == 400


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
    capture_study(study, only=["A"])
    assert costs(study, jobs)[0].done == 4
    stored = sum(path.stat().st_size for path in (study.folder / "captures/first").rglob("*") if path.is_file())
    assert first.disk == pytest.approx(stored, rel=0.5)


def test_merged_shards_equal_one_shard(model: Any, tokens: np.ndarray) -> None:
    layout = read_layout(model)
    settings = Settings(layout.heads(), 4)
    whole = collect(model, layout, settings, tokens)
    parts = [collect(model, layout, settings, tokens[i : i + 2]) for i in (0, 2, 4)]
    for key in whole:
        merged = merge_all([part[key].moments for part in parts])
        np.testing.assert_allclose(merged.sxx, whole[key].moments.sxx, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(merged.sxt, whole[key].moments.sxt, rtol=1e-7, atol=1e-7)


def test_another_way_through_the_layers_is_noticed(model: Any, tokens: np.ndarray) -> None:
    layout = read_layout(model)
    wrong = Layout.from_dict({**layout.to_dict(), "layers": [{**asdict(x), "head_dim": 8} for x in layout.layers]})
    with pytest.raises(
        RopewalkError, match="attention call 0 has 4 query heads, 2 key heads and head_dim 16, not those"
    ):
        collect(model, wrong, Settings(wrong.heads(), 4), tokens)


def test_pre_rope_is_refused_where_it_cannot_be_had(
    model: Any, tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the modelling file's rotation to listen to, a layer that rotates has nothing to give."""
    monkeypatch.setattr("ropewalk.capture.collector.rotary_inputs", lambda _: nullcontext([]))
    layout = read_layout(model)
    with pytest.raises(RopewalkError, match="pre_rope is not available for SmolLM3Attention"):
        collect(model, layout, Settings(layout.heads(), 4, pre_rope=True), tokens)
    only_nope = Settings(layout.heads(layers=[3]), 4, pre_rope=True)
    np.testing.assert_array_equal(
        collect(model, layout, only_nope, tokens)[3, "q"].moments.sxx,
        collect(model, layout, Settings(layout.heads(layers=[3]), 4), tokens)[3, "q"].moments.sxx,
    )


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
    with pytest.raises(RopewalkError, match="another model, documents or settings than the rest"):
        analyze(study.folder)


def test_weights_are_looked_for_before_documents_are_read(
    study_data: dict[str, Any], model_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(model_folder, tmp_path / "model")
    (tmp_path / "model/model.safetensors").rename(tmp_path / "model/pytorch_model.bin")
    study_data["defaults"] = {**study_data["defaults"], "repo": str(tmp_path / "model")}  # type: ignore[dict-item]
    with pytest.raises(RopewalkError, match=r"has its weights as \.bin files"):
        prepare_jobs(parse_study(study_data))


def test_a_corpus_file_that_cannot_be_read_is_not_called_unwritable(
    study_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.read_text

    def denied(path: Path, **options: Any) -> str:
        if path.suffix == ".txt":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(RopewalkError, match=r"cannot read .*\.txt \(Permission denied\)"):
        prepare_jobs(parse_study(study_data))


def test_a_damaged_record_is_said(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    for content in ("study: {", "study: {name: x}", "[]", "other: 1"):
        (study.folder / "study.yaml").write_text(content)
        with pytest.raises(RopewalkError, match=r"study.yaml is damaged"):
            analyze(study.folder)


def test_a_manifest_that_names_other_heads_is_refused(study_data: dict[str, Any]) -> None:
    study = parse_study(study_data)
    capture_study(study)
    manifest = study.folder / "captures/first/manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "heads": content["heads"][1:]}))
    with pytest.raises(RopewalkError, match="a shard holds other heads of layer 0 than its manifest names"):
        analyze(study.folder)


def test_skipping_the_whole_context_is_refused(model: Any, tokens: np.ndarray) -> None:
    with pytest.raises(RopewalkError, match="skip_first 63 leaves nothing of the context 64"):
        measure(model, tokens, context=64, skip_first=63)


def test_a_model_that_stops_attending_is_noticed(model: Any, tokens: np.ndarray) -> None:
    layout = read_layout(model)
    more = replace(layout, layers=(*layout.layers, replace(layout.layers[-1], call=5, layer=5)))
    with pytest.raises(RopewalkError, match="the model made 5 attention calls where 6 were expected"):
        collect(model, more, Settings(more.heads(), 4), tokens)
