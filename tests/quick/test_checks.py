"""A study is checked whole before anything is computed or written: all its checkpoints, and the same for a dry run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from helpers.command import Run
from helpers.hub import HubStandIn
from helpers.llama import checkpoint, save_llama
from ropewalk.capture.checks import check_choice, is_computed
from ropewalk.capture.run import capture_study, plan_study
from ropewalk.errors import RopewalkError
from ropewalk.models import blueprint
from ropewalk.models.loading import load_config
from ropewalk.study import Capture
from ropewalk.studyfile import parse_study

STUDY = dict[str, Any]


def written(folder: Path, data: STUDY) -> str:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


def everything(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"device": "cuda:7"}, "device 'cuda:7' is not available here: use `auto` or `cpu`"),
        ({"device": "meta"}, "device 'meta' is not available here, as nothing is computed there"),
        ({"device": "cpuu"}, "device 'cpuu' is not available here"),
        ({"device_map": {"": "cuda:7"}}, "device 'cuda:7' is not available here"),
        ({"device_map": {"": "auto"}}, "device_map of 'B' names no device: `auto` stands for a whole map"),
        ({"device_map": {"": "sequential"}}, "device 'sequential' is not available here"),
        ({"device_map": "disk"}, "device 'disk' is not available here"),
        ({"device_map": {"model": "cpu", "lmhead": "cpu"}}, "device_map of 'B' names no device for lm_head.weight"),
        ({"attention": "spda"}, "attention 'spda' of 'B' is not known to transformers: did you mean 'sdpa'?"),
        ({"attention": "flash_attention_2"}, "attention 'flash_attention_2' of 'B' cannot be used here"),
        ({"attention": "org/kernel"}, "attention 'org/kernel' of 'B' is code on the hub, which is not run"),
        ({"overrides": {"num_attention_heads": 0}}, "num_attention_heads of `overrides` is 0"),
        ({"overrides": {"num_attention_heads": "4"}}, "overrides.num_attention_heads is '4'"),
        (
            {"overrides": {"num_attention_heads": 3}},
            "overrides.num_attention_heads leaves 3 query heads and 2",
        ),
        ({"overrides": {"hidden_size": 63}}, "overrides.hidden_size leaves a hidden_size of 63 and 4 heads"),
        ({"overrides": {"hidden_size": -64}}, "hidden_size of `overrides` is -64"),
        ({"overrides": {"intermediate_size": -1}}, "overrides.intermediate_size is -1: it must be a positive whole"),
        ({"overrides": {"hidden_size": 128}}, "of 'B' has another shape than the configuration asks for"),
        ({"overrides": {"num_hidden_layers": 6}}, "overrides.num_hidden_layers of 'B' is 6: no model can be built"),
        ({"overrides": {"num_hidden_layers": 4}}, "the files of 'B' hold the tensor model.layers.4."),
        ({"overrides": {"num_hidden_layers": 10**9}}, "num_hidden_layers of `overrides` is 1000000000, and no model"),
        ({"overrides": {"rope_theta": float("nan")}}, "overrides.rope_theta is nan: it must be a finite number"),
        ({"overrides": {"rope_theta": float("inf")}}, "overrides.rope_theta is inf: it must be a finite number"),
        ({"overrides": {"rope_theta": -1}}, "overrides.rope_theta is -1: it must be a positive number"),
        ({"overrides": {"rope_theta": "x" * 10**5}}, "overrides.rope_theta is 'xxx"),
        ({"overrides": {"rope_scaling": {"rope_type": "yarn", "factor": "x"}}}, "overrides.rope_scaling.factor is 'x'"),
        ({"overrides": {"rope_scaling": {"rope_type": "yarn", "factor": -2}}}, "overrides.rope_scaling.factor is -2"),
        ({"overrides": {"hidden_act": "zzz"}}, "overrides.hidden_act of 'B' is 'zzz': no model can be built with it"),
        ({"overrides": {"rms_norm_eps": 1e-6, "hidden_act": "zzz"}}, "overrides.hidden_act of 'B' is 'zzz'"),
        ({"overrides": {"transformers_weights": "x.bin"}}, "overrides.transformers_weights is not for `overrides`"),
        ({"overrides": {"hiden_size": 64}}, "did you mean `hidden_size`?"),
        ({"weights_seed": 2**70, "random_weights": True}, "weights_seed"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_the_second_checkpoint_is_checked_before_the_first_is_computed(
    second: STUDY, message: str, study_data: STUDY, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study_data["checkpoints"][1] |= second
    path = written(tmp_path, study_data)
    before = everything(tmp_path)
    for command in (("run", path), ("run", path, "--dry-run"), ("capture", path)):
        code, out, err = run(*command)
        assert (code, out) == (2, ""), err
        assert message in err
        assert len(err) < 700
        assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("capture", "message"),
    [
        ({"layers": [5]}, "layer 5 is not in 'A', which has layers 0 to 4: correct `layers` or `pairs` of `capture`"),
        ({"layers": [0, -1]}, "capture.layers.1 is -1"),
        ({"pairs": [[9, 0]]}, "layer 9 is not in 'A'"),
        ({"pairs": [[0, 4]]}, "head 4 is not in layer 0 of 'A', which has heads 0 to 3"),
        ({"pairs": [[0, -1]]}, "capture.pairs.0.1 is -1"),
    ],
)
def test_layers_and_heads_are_checked_first(
    capture: STUDY, message: str, study_data: STUDY, tmp_path: Path, run: Run
) -> None:
    study_data["capture"] |= capture
    path = written(tmp_path, study_data)
    for command in (("run", path), ("run", path, "--dry-run")):
        code, _, err = run(*command)
        assert code == 2
        assert message in err
    assert not (tmp_path / "results").exists()


def test_a_config_that_does_not_tell_its_heads_is_left_to_the_model() -> None:
    class Config:
        def get_text_config(self, decoder: bool) -> "Config":
            return self

    check_choice(Capture(layers=(99,)), "m", Config())
    check_choice(Capture(pairs=((99, 99),)), "m", Config())


def test_a_dry_run_writes_nothing(study_data: STUDY, tmp_path: Path, run: Run) -> None:
    path = written(tmp_path, study_data)
    before = everything(tmp_path)
    code, out, _ = run("run", path, "--dry-run")
    assert code == 0
    assert "in all: " in out
    assert everything(tmp_path) == before


def test_a_dry_run_of_what_is_there_reads_the_tokens_where_they_are(study_data: STUDY, tmp_path: Path) -> None:
    study_data["checkpoints"] = study_data["checkpoints"][:1]
    study = parse_study(study_data)
    capture_study(study)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert "0 shards to compute" in plan_study(study)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_what_is_computed_needs_no_device(study_data: STUDY, tmp_path: Path) -> None:
    study_data["checkpoints"] = study_data["checkpoints"][:1]
    capture_study(parse_study(study_data))
    study_data["checkpoints"][0]["device"] = "cuda:7"
    study = parse_study(study_data)
    assert is_computed(study, study.checkpoints[0])
    capture_study(study)
    next((tmp_path / "results").rglob("*.npz"), next((tmp_path / "results").rglob("shard*"))).unlink()
    assert not is_computed(study, study.checkpoints[0])
    with pytest.raises(RopewalkError, match="device 'cuda:7' is not available here"):
        capture_study(study)


# Weights


def spoil_weights(folder: Path, kind: str) -> None:
    path = folder / "model.safetensors"
    if kind == "short":
        path.write_bytes(path.read_bytes()[:-5])
    elif kind == "gone":
        path.unlink()
    else:
        state = load_file(path)
        state["model.norm.weight"] = torch.ones(3)
        save_file(state, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("short", "is damaged or cut short"),
        ("gone", "has no weights: it needs model.safetensors"),
        ("shape", "the tensor model.norm.weight of 'B' has another shape than the configuration asks for"),
    ],
)
@pytest.mark.parametrize("nulls", [[], ["untrained"]])
def test_weights_of_all_checkpoints_are_whole_before_one_is_loaded(
    kind: str, message: str, nulls: list[str], study_data: STUDY, model_folder: Path, tmp_path: Path, run: Run
) -> None:
    other = Path(shutil.copytree(model_folder, tmp_path / "other"))
    spoil_weights(other, kind)
    study_data["checkpoints"][1]["repo"] = str(other)
    path = written(tmp_path, study_data | {"nulls": nulls})
    for command in (("run", path), ("run", path, "--dry-run")):
        code, _, err = run(*command)
        assert code == 2
        assert message in err
    assert not (tmp_path / "results").exists()


def test_an_untrained_checkpoint_needs_no_weights(study_data: STUDY, model_folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(model_folder, tmp_path / "other"))
    (other / "model.safetensors").unlink()
    study_data["checkpoints"] = [{"name": "u", "repo": str(other), "random_weights": True}]
    assert "1 checkpoint" in plan_study(parse_study(study_data))


def test_a_hub_index_must_name_files_that_are_listed(
    study_data: STUDY, tokenizer_folder: Path, tmp_path: Path, serve: Any
) -> None:
    folder = save_llama(tmp_path / "sharded", shards="20KB")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    lost = "model-00002-of-00006.safetensors"
    hub: HubStandIn = serve({"org/m": {"main": {name: data for name, data in files.items() if name != lost}}})
    study_data["checkpoints"] = [{"name": "h", "repo": "org/m", "tokenizer": str(folder), "context": 32}]
    with pytest.raises(RopewalkError, match=f"^org/m lacks the weight file {lost}, which .* names: fetch it$"):
        plan_study(parse_study(study_data))
    assert not any(path.endswith(".safetensors") for path in hub.fetched())


def test_one_blueprint_serves_a_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = save_llama(tmp_path / "first")
    second = Path(shutil.copytree(first, tmp_path / "second"))
    made = []
    build = blueprint.auto_class
    monkeypatch.setattr(blueprint, "auto_class", lambda config: made.append(config) or build(config))
    monkeypatch.setattr(blueprint, "_known", {})
    models = [blueprint.blueprint(checkpoint(folder), load_config(checkpoint(folder))) for folder in (first, second)]
    assert models[0] is models[1]
    assert len(made) == 1
    assert all(weights.is_meta for weights in models[0].parameters())
    other = checkpoint(first, overrides={"rms_norm_eps": 0.5})
    assert blueprint.blueprint(other, load_config(other)) is not models[0]
