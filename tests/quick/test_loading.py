"""Loading: every place a model can come from, every device map, and every mistake that stops a run with a sentence."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import constants
from safetensors.torch import load_file
from torch import nn
from transformers import modeling_gguf_pytorch_utils

from helpers.collecting import collected
from helpers.hub import HubStandIn
from helpers.llama import SIZES, Edit, checkpoint, configured, save_llama, save_tokenizer, tensors, write_gguf
from helpers.logs import heard
from ropewalk.capture.shards import ShardSums
from ropewalk.errors import RopewalkError
from ropewalk.models import hub, loading
from ropewalk.models.device import choose_device, compute_dtype, device_of
from ropewalk.models.identity import model_fingerprint
from ropewalk.models.loading import load_config, load_model, load_tokenizer, model_class
from ropewalk.models.weights import index_files
from ropewalk.statistics.moments import MomentSums
from ropewalk.statistics.sample import VectorSample
from ropewalk.study import Checkpoint
from ropewalk.text import install_extra

VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
S = ".safetensors"
Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("sharded"), shards="20KB")


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[Path, Edit], Path]:
    """A copy of a model's folder after an edit."""

    def change(source: Path, edit: Edit) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(source, folder)
        edit(folder)
        return folder

    return change


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def captured(model: nn.Module) -> ShardSums:
    tokens = np.random.default_rng(0).integers(3, 64, (3, 32))
    return collected(model, tokens, MomentSums(), VectorSample())


def assert_same(a: ShardSums, b: ShardSums) -> None:
    assert a.keys() == b.keys()
    for key in a:
        assert a[key].keys() == b[key].keys()
        for name, array in a[key].items():
            np.testing.assert_array_equal(array, b[key][name])


# Places


def test_a_folder_gives_the_saved_weights_in_evaluation_mode(llama: Path) -> None:
    model = load_model(checkpoint(llama))
    assert not model.training
    assert same_weights(model, transformers.LlamaForCausalLM.from_pretrained(llama))


def test_sharded_files_give_the_same_model(llama: Path, sharded: Path) -> None:
    assert len(list(sharded.glob("model-*.safetensors"))) > 3
    assert same_weights(load_model(checkpoint(sharded)), load_model(checkpoint(llama)))


def test_a_hub_repo_gives_its_revision_and_only_what_is_needed(
    llama: Path, sharded: Path, tmp_path: Path, serve: Callable[..., HubStandIn]
) -> None:
    other = save_llama(tmp_path / "other", rms_norm_eps=1e-3)
    extra = {"consolidated.safetensors": b"large", "pytorch_model.bin": b"large", "onnx/model.json": b"{}"}
    hub = serve({"org/m": {"main": files_of(llama) | extra, "step2": files_of(other), "step3": files_of(sharded)}})
    first = checkpoint("org/m")
    config = load_config(first)
    assert not any("safetensors" in path for path in hub.fetched())
    model = load_model(first, config)
    assert same_weights(model, load_model(checkpoint(llama)))
    fetched = {path.rsplit("/", 1)[1] for path in hub.fetched()}
    assert fetched == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    }
    assert load_config(checkpoint("org/m", revision="step2")).rms_norm_eps == 1e-3
    assert same_weights(load_model(checkpoint("org/m", revision="step3")), model)
    prints = {model_fingerprint(c, load_config(c)) for c in (first, checkpoint("org/m", revision="step2"))}
    assert len(prints) == 2


def test_what_is_in_the_cache_needs_no_hub(
    llama: Path, serve: Callable[..., HubStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve({"org/m": {"main": files_of(llama)}})
    load_model(checkpoint("org/m"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub._commit.cache_clear()
    assert same_weights(load_model(checkpoint("org/m")), load_model(checkpoint(llama)))
    load_tokenizer(checkpoint("org/m"))


def test_a_branch_that_moves_during_a_run_does_not_mix_two_commits(
    llama: Path, tmp_path: Path, serve: Callable[..., HubStandIn]
) -> None:
    branches = {"main": files_of(llama), "later": files_of(save_llama(tmp_path / "later", rms_norm_eps=1e-3))}
    repos = {"org/moving": branches}
    serve(repos)
    config = load_config(checkpoint("org/moving"))
    repos["org/moving"] = {"later": branches["later"], "main": branches["later"]}
    assert load_config(checkpoint("org/moving")).rms_norm_eps == config.rms_norm_eps


def test_gguf_gives_weights_and_tokenizer(tmp_path: Path) -> None:
    written = write_gguf(tmp_path / "tiny.gguf")
    place = checkpoint(tmp_path, gguf_file="tiny.gguf", dtype="float32")
    model = load_model(place)
    state = model.state_dict()
    assert state["model.layers.0.self_attn.v_proj.weight"].dtype == torch.float32
    np.testing.assert_array_equal(
        state["model.layers.0.self_attn.v_proj.weight"].numpy(), written["blk.0.attn_v.weight"]
    )
    np.testing.assert_array_equal(state["model.embed_tokens.weight"].numpy(), written["token_embd.weight"])
    assert {layer for _, layer in captured(model)} == {0, 1}
    assert load_tokenizer(place)("abcdx")["input_ids"] == [29, 30, 26]
    before = model_fingerprint(place, load_config(place))
    write_gguf(tmp_path / "tiny.gguf", seed=1)
    assert model_fingerprint(place, load_config(place)) != before


def test_gguf_is_read_without_a_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    bar = modeling_gguf_pytorch_utils.tqdm
    place = checkpoint(tmp_path, gguf_file="tiny.gguf")
    model = load_model(place)
    assert model.dtype == torch.float32
    load_tokenizer(place)
    assert capfd.readouterr() == ("", "")
    assert modeling_gguf_pytorch_utils.tqdm is bar
    # transformers alone shows one, whatever it is told of bars.
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    assert "GGUF tensors" in capfd.readouterr().err
    write_gguf(tmp_path / "tiny.gguf", leave_out="blk.1.attn_k.weight")
    with pytest.raises(RopewalkError):
        load_model(place)
    assert modeling_gguf_pytorch_utils.tqdm is bar


def test_gguf_from_the_hub(tmp_path: Path, serve: Callable[..., HubStandIn]) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    hub = serve({"org/gguf": {"main": files_of(tmp_path) | {"other.gguf": b"large", "config.json": b"{}"}}})
    remote, local = checkpoint("org/gguf", gguf_file="tiny.gguf"), checkpoint(tmp_path, gguf_file="tiny.gguf")
    assert same_weights(load_model(remote), load_model(local))
    assert not any("other.gguf" in path for path in hub.fetched())


def test_a_gguf_file_without_a_tensor_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", leave_out="blk.1.attn_k.weight")
    with pytest.raises(RopewalkError, match=r"lack the tensor model\.layers\.1\.self_attn\.k_proj\.weight"):
        load_model(checkpoint(tmp_path, gguf_file="tiny.gguf"))


# Models inside models


def wrapped(kind: str) -> Any:
    text = {**SIZES, "model_type": "gemma3_text" if kind == "gemma3" else "mistral", "sliding_window": 8}
    vision = {
        **VISION,
        "model_type": "siglip_vision_model"
        if kind == "gemma3"
        else "pixtral"
        if kind == "mistral3"
        else "clip_vision_model",
    }
    extra = {"mm_tokens_per_image": 4, "boi_token_index": 60, "eoi_token_index": 61, "image_token_index": 62}
    extra = extra if kind == "gemma3" else {"image_token_index": 62}
    return transformers.CONFIG_MAPPING[kind](text_config=text, vision_config=vision, **extra)


@pytest.mark.parametrize("kind", ["gemma3", "mistral3", "llava"])
def test_the_text_model_inside_a_multimodal_one_runs_alone(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = model_class(wrapped(kind))(wrapped(kind)).eval()
    original.save_pretrained(tmp_path)
    place = checkpoint(tmp_path, overrides={"rope_theta": 500_000, "max_position_embeddings": 48}, context=48)
    model = load_model(place)
    assert same_weights(model, original)
    assert model.config.text_config.max_position_embeddings == 48
    called = []
    for name, module in model.named_modules():
        if "vision" in name:
            module.register_forward_pre_hook(lambda *_, name=name: called.append(name))
    result = captured(model)
    assert called == []
    assert sorted({layer for _, layer in result}) == [0, 1, 2]
    assert {len(result["moments", layer]["q.n"]) for layer in (0, 1, 2)} == {4}
    plain = captured(load_model(checkpoint(tmp_path)))
    assert not np.allclose(result["moments", 0]["q.mean"], plain["moments", 0]["q.mean"])
    with pytest.raises(RopewalkError, match="context 49 of 'm' is beyond the 48 positions"):
        load_config(place, context=49)


# Overrides


def rope(llama: Path, **overrides: Any) -> Any:
    return load_config(checkpoint(llama, overrides=overrides)).rope_parameters


def test_rope_theta_and_scaling_are_set_where_the_model_reads_them(llama: Path) -> None:
    assert rope(llama, rope_theta=5_000_000) == {"rope_theta": 5e6, "rope_type": "default"}
    yarn = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    for order in ({"max_position_embeddings": 256}, {}):
        scaling = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
        assert rope(llama, **order, **scaling) == rope(llama, **scaling, **order) == yarn
    assert rope(llama, rope_scaling={"type": "linear", "factor": 2.0}) == {
        "rope_theta": 1e4,
        "rope_type": "linear",
        "factor": 2.0,
    }
    assert (
        load_config(checkpoint(llama, context=200, overrides={"max_position_embeddings": 256})).max_position_embeddings
        == 256
    )


def test_overrides_reach_the_rotation(llama: Path) -> None:
    def frequencies(**overrides: Any) -> torch.Tensor:
        return load_model(checkpoint(llama, overrides=overrides)).get_buffer("model.rotary_emb.inv_freq")

    steps = torch.arange(0, 8, 2) / 8
    torch.testing.assert_close(frequencies(), 1e4**-steps)
    torch.testing.assert_close(frequencies(rope_theta=2e6), 2e6**-steps)
    torch.testing.assert_close(frequencies(rope_scaling={"rope_type": "linear", "factor": 4.0}), 1e4**-steps / 4)
    yarn = frequencies(rope_scaling={"rope_type": "yarn", "factor": 4.0}, max_position_embeddings=256)
    # YaRN keeps the fast rotations and stretches the slow ones by the factor.
    torch.testing.assert_close(yarn[-1], 1e4 ** -steps[-1] / 4)
    assert yarn[0] > 1 / 4


def test_new_scaling_replaces_the_old_one(changed: Callable[[Path, Edit], Path], llama: Path) -> None:
    old = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    folder = changed(llama, configured(rope_parameters=old | {"original_max_position_embeddings": 16}))
    scaled = rope(folder, rope_scaling={"rope_type": "yarn", "factor": 2.0})
    assert scaled == {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16}
    assert rope(folder, rope_scaling=None) == {"rope_type": "default", "rope_theta": 1e4}


def test_rope_per_kind_of_layer(tmp_path: Path) -> None:
    transformers.Gemma3TextConfig(**SIZES).save_pretrained(tmp_path)
    both = rope(tmp_path, rope_theta=7e5)
    assert {kind: part["rope_theta"] for kind, part in both.items()} == {
        "full_attention": 7e5,
        "sliding_attention": 7e5,
    }
    one = rope(tmp_path, rope_theta={"full_attention": 7e5})
    assert {kind: part["rope_theta"] for kind, part in one.items()} == {"full_attention": 7e5, "sliding_attention": 1e4}
    scaled = rope(tmp_path, rope_scaling={"full_attention": {"rope_type": "linear", "factor": 8.0}})
    assert scaled["full_attention"] == {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
    assert scaled["sliding_attention"] == {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"rope_tetha": 1e6},
            "overrides.rope_tetha is not in the configuration of a llama model: did you mean `rope_theta`?",
        ),
        ({"to_dict": 1}, "overrides.to_dict is not in the configuration of a llama model: "),
        ({"rope_theta": "large"}, "overrides.rope_theta is 'large': it must be a positive number, such as 10000.0"),
        ({"rope_theta": 0}, "overrides.rope_theta is 0: it must be a positive number, such as 10000.0"),
        (
            {"rope_theta": {"full_attention": 1e6}},
            "overrides.rope_theta is {'full_attention': 1000000.0}: it must be a positive number",
        ),
        (
            {"rope_scaling": 4},
            "overrides.rope_scaling is 4: it must be a mapping, such as {rope_type: yarn, factor: 4.0}",
        ),
        (
            {"rope_scaling": {"rope_type": "yran"}},
            "overrides.rope_scaling.rope_type is 'yran': it must be one of default, dynamic, linear",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn"}},
            "overrides.rope_scaling is {'rope_type': 'yarn'}: Missing required keys",
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "fctor": 2}},
            "overrides.rope_scaling.fctor is not a parameter of RoPE: did you mean `factor`?",
        ),
        (
            {"max_position_embeddings": 16.5},
            "overrides.max_position_embeddings is 16.5: TypeError: Field 'max_position_embeddings' expected int",
        ),
    ],
)
def test_wrong_overrides_are_named(overrides: dict[str, Any], message: str, llama: Path) -> None:
    with pytest.raises(RopewalkError, match=f"^{re.escape(message)}"):
        load_config(checkpoint(llama, overrides=overrides))


def test_rope_of_a_model_without_it_cannot_be_changed(tmp_path: Path) -> None:
    transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, n_positions=64, vocab_size=64).save_pretrained(tmp_path)
    with pytest.raises(RopewalkError, match=r"^overrides\.rope_theta: a gpt2 model has no RoPE to change$"):
        load_config(checkpoint(tmp_path, overrides={"rope_theta": 1e6}))
    with pytest.raises(RopewalkError, match="context 65 of 'm' is beyond the 64 positions"):
        load_config(checkpoint(tmp_path), context=65)


# Types, devices, random weights


SLOW = {"architecture": "x86_64", "avx2": True, "avx512_bf16": False}
BF16 = {**SLOW, "avx512_bf16": True}
FP16 = {**SLOW, "avx512_fp16": True}
ARM = {"architecture": "aarch64", "neon": True, "bf16": True, "fp16_arith": True}


def on(monkeypatch: pytest.MonkeyPatch, instructions: dict[str, Any]) -> None:
    """Let this machine be one with these instructions, and without a GPU."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions)
    for kind in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(kind, "is_available", lambda: False)


@pytest.fixture
def halves(tmp_path: Path) -> dict[str, Path]:
    """The same model stored in each type."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    for name in ("float32", "bfloat16", "float16"):
        model.to(getattr(torch, name)).save_pretrained(tmp_path / name)
    return {name: tmp_path / name for name in ("float32", "bfloat16", "float16")}


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize(
    ("stored", "dtype", "instructions", "expected"),
    [
        ("bfloat16", "auto", SLOW, "float32"),
        ("bfloat16", "auto", FP16, "float32"),
        ("bfloat16", "auto", BF16, "bfloat16"),
        ("bfloat16", "auto", ARM, "bfloat16"),
        ("float16", "auto", SLOW, "float32"),
        ("float16", "auto", BF16, "float32"),
        ("float16", "auto", FP16, "float16"),
        ("float16", "auto", ARM, "float16"),
        ("float32", "auto", SLOW, "float32"),
        ("bfloat16", "bfloat16", SLOW, "bfloat16"),
        ("bfloat16", "float16", SLOW, "float16"),
        ("float32", "bfloat16", SLOW, "bfloat16"),
        ("bfloat16", "float32", BF16, "float32"),
    ],
)
def test_dtype(
    stored: str,
    dtype: str,
    instructions: dict[str, Any],
    expected: str,
    random: bool,
    halves: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is asked for is obeyed; `auto` is the stored type, and float32 where that would be slow."""
    on(monkeypatch, instructions)
    said: list[str] = []
    with heard(said.append):
        model = load_model(checkpoint(halves[stored], dtype=dtype, random_weights=random))
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, expected)}
    changed = dtype == "auto" and expected != stored
    line = f"m: stored in {stored}, computed in float32, as this CPU is slow in the former; `dtype: {stored}` keeps it"
    assert said == ([line] if changed else [])


def test_a_device_map_and_another_device_keep_the_stored_type(
    halves: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, SLOW)
    place = halves["bfloat16"]
    assert load_model(checkpoint(place, device_map="cpu")).dtype == torch.bfloat16
    config = load_config(checkpoint(place))
    # Asked for on a machine that has no such device, as a plan is.
    assert compute_dtype(checkpoint(place, device="cuda"), config) == "bfloat16"
    assert compute_dtype(checkpoint(place, device="cpu"), config) == "float32"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert compute_dtype(checkpoint(place), config) == "bfloat16"


def test_a_type_that_only_the_weights_tell_is_left_to_them(
    halves: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, SLOW)
    path = halves["float16"] / "config.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in told.items() if name != "dtype"}))
    place = checkpoint(halves["float16"])
    assert compute_dtype(place, load_config(place)) == "auto"
    assert load_model(place).dtype == torch.float16


def test_the_fingerprint_has_the_type_that_auto_comes_to(
    halves: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same study on two machines: shards of the one are not taken for the other's where their types differ."""

    def fingerprint(dtype: str) -> str:
        place = checkpoint(halves["bfloat16"], dtype=dtype)
        return model_fingerprint(place, load_config(place))

    on(monkeypatch, SLOW)
    slow = fingerprint("auto")
    assert slow == fingerprint("float32") != fingerprint("bfloat16")
    on(monkeypatch, BF16)
    assert slow != fingerprint("auto") == fingerprint("bfloat16")


ON_DISK = {"model.layers.1": "disk", "model.layers.2": "disk"}
REST = dict.fromkeys(("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head"), "cpu")


@pytest.mark.parametrize(
    "device_map",
    ["auto", "cpu", {"": "cpu"}, REST | ON_DISK, {"": "disk"}],
    ids=["auto", "cpu", "all-cpu", "cpu-and-disk", "all-disk"],
)
def test_a_device_map_changes_no_number(device_map: Any, llama: Path) -> None:
    model = load_model(checkpoint(llama, device_map=device_map))
    away = {".".join(name.split(".")[:3]) for name, parameter in model.named_parameters() if parameter.is_meta}
    if device_map == {"": "disk"}:
        assert all(parameter.is_meta for parameter in model.parameters())
    else:
        assert away == (set(ON_DISK) if device_map == REST | ON_DISK else set())
    assert_same(captured(model), captured(load_model(checkpoint(llama))))


def test_random_weights_come_from_their_seed(llama: Path) -> None:
    def drawn(seed: int) -> nn.Module:
        return load_model(checkpoint(llama, random_weights=True, weights_seed=seed))

    state = torch.random.get_rng_state()
    assert same_weights(drawn(3), drawn(3))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not same_weights(drawn(3), drawn(4))
    assert not same_weights(drawn(0), load_model(checkpoint(llama)))
    places = [checkpoint(llama, random_weights=True, weights_seed=seed) for seed in (3, 4)]
    assert model_fingerprint(places[0], load_config(places[0])) == model_fingerprint(places[0], load_config(places[0]))
    assert model_fingerprint(places[0], load_config(places[0])) != model_fingerprint(places[1], load_config(places[1]))


def test_tied_embeddings_are_not_missing(tmp_path: Path) -> None:
    folder = save_llama(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    model = load_model(checkpoint(folder))
    assert model.get_parameter("lm_head.weight") is model.get_parameter("model.embed_tokens.weight")


def test_old_buffers_in_a_pythia_checkpoint_are_no_mismatch(tmp_path: Path) -> None:
    config = transformers.GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k != "head_dim"})
    transformers.GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    buffers = {
        "attention.bias": torch.ones(1, 1, 4, 4),
        "attention.masked_bias": torch.ones(()),
        "attention.rotary_emb.inv_freq": torch.ones(1),
    }
    tensors(lambda state: state.update({f"gpt_neox.layers.0.{name}": value for name, value in buffers.items()}))(
        tmp_path
    )
    load_model(checkpoint(tmp_path))


@pytest.mark.parametrize(("cuda", "mps", "chosen"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_the_device_is_a_gpu_where_there_is_one(
    cuda: bool, mps: bool, chosen: str, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device("auto") == device_of(checkpoint(llama)) == torch.device(chosen)


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "nowhere"])
def test_a_device_that_is_not_there(device: str, llama: Path) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one here")
    message = f"^device '{device}' is not available here: use `auto` or `cpu`$"
    with pytest.raises(RopewalkError, match=message):
        device_of(checkpoint(llama, device=device))
    with pytest.raises(RopewalkError, match=message):
        load_model(checkpoint(llama, device_map={"": device}))
    with pytest.raises(RopewalkError, match=message):
        load_model(checkpoint(llama, device_map=device))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zzz", "is not known to transformers: choose among eager, "),
        ("sdpaa", "is not known to transformers: did you mean 'sdpa'?"),
        ("flash_attention2", "is not known to transformers: did you mean 'flash_attention_2'"),
        ("org/kernel", "is code on the hub, which is not run: choose among eager, "),
        ("x\x1b[2J", "is not known to transformers: choose among"),
    ],
)
def test_an_attention_that_is_not_there(name: str, message: str, llama: Path) -> None:
    with pytest.raises(RopewalkError, match=re.escape(message)) as caught:
        load_model(checkpoint(llama, attention=name))
    assert str(caught.value).startswith("attention ")
    assert str(caught.value).isprintable()


def test_an_attention_that_is_not_installed(llama: Path) -> None:
    with pytest.raises(
        RopewalkError,
        match=r"^attention 'flash_attention_2' of 'm' cannot be used here \(.*\): install what it needs, or",
    ):
        load_model(checkpoint(llama, attention="flash_attention_2"))
    assert load_model(checkpoint(llama, attention="eager")).config._attn_implementation == "eager"


# Weights that do not match


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s: s.pop(Q), f"the files of 'm' lack the tensor {Q}, which the configuration asks for"),
        (
            lambda s: [s.pop(Q), s.pop("model.norm.weight")],
            f"the files of 'm' lack the tensor {Q}, which the configuration asks for (and 1 more)",
        ),
        (
            lambda s: s.update({"model.layers.7.x": torch.ones(2)}),
            "the files of 'm' hold the tensor model.layers.7.x, for which the configuration has no place",
        ),
        (
            lambda s: s.update({Q: torch.ones(8, 32)}),
            f"the tensor {Q} of 'm' has another shape than the configuration asks for",
        ),
    ],
    ids=["missing", "two missing", "unexpected", "shape"],
)
def test_tensors_that_do_not_match_are_named(
    edit: Callable[[dict[str, torch.Tensor]], object], message: str, llama: Path, changed: Callable[[Path, Edit], Path]
) -> None:
    folder = changed(llama, tensors(edit))
    with pytest.raises(
        RopewalkError, match=f"^{re.escape(message)}: the weights and config.json do not belong together$"
    ):
        load_model(checkpoint(folder))


def test_a_model_with_fewer_layers_than_its_files_is_refused(llama: Path) -> None:
    with pytest.raises(
        RopewalkError, match=r"hold the tensor model\.layers\.2\.input_layernorm\.weight.*\(and 8 more\)"
    ):
        load_model(checkpoint(llama, overrides={"num_hidden_layers": 2}))


@pytest.mark.parametrize("size", [0, 5, 1000, -100])
def test_a_file_cut_short_is_named(size: int, sharded: Path, changed: Callable[[Path, Edit], Path]) -> None:
    name = "model-00002-of-00006.safetensors"
    folder = changed(sharded, lambda f: (f / name).write_bytes((f / name).read_bytes()[:size]))
    with pytest.raises(
        RopewalkError,
        match=f"^the weight file {re.escape(str(folder / name))} is damaged or cut short .*: fetch it again$",
    ):
        load_model(checkpoint(folder))


def test_a_missing_shard_is_named(
    sharded: Path, changed: Callable[[Path, Edit], Path], serve: Callable[..., HubStandIn]
) -> None:
    name = "model-00003-of-00006.safetensors"
    folder = changed(sharded, lambda f: (f / name).unlink())
    sentence = f"lacks the weight file {name}, which model.safetensors.index.json names: fetch it$"
    with pytest.raises(RopewalkError, match=f"^{re.escape(str(folder))} {sentence}"):
        load_model(checkpoint(folder))
    serve({"org/m": {"main": files_of(folder)}})
    with pytest.raises(RopewalkError, match=f"^org/m {sentence}"):
        load_model(checkpoint("org/m"))


@pytest.mark.parametrize(
    ("index", "names"),
    [
        ({"weight_map": {"x": f"b{S}", "y": f"a{S}", "z": f"b{S}"}}, [f"a{S}", f"b{S}"]),
        ({"weight_map": {"x": f"part/a..b{S}"}}, [f"part/a..b{S}"]),
        ({"weight_map": {"x": f"a{S}", "y": "pytorch_model.bin"}}, None),
        ({"weight_map": {"x": f"a{S}.bin"}}, None),
        ({"weight_map": {"x": "a.SAFETENSORS"}}, None),
        ({"weight_map": {}}, None),
        ({"weight_map": ["a"]}, None),
        ({"weight_map": {"x": 3}}, None),
        ({"weight_map": {"x": ["a"]}}, None),
        ({"weight_map": {"x": "a", "y": None}}, None),
        *(
            ({"weight_map": {"x": name}}, None)
            for name in (
                *("", ".", "a", "a.bin", "/etc/a", "../a", f"/etc/a{S}", f"../a{S}", f"b/../../a{S}"),
                *(f"C:\\a{S}", f"C:a{S}", f"..\\a{S}", f"a\0{S}", f"a\nb{S}", f"{'a' * 300}{S}"),
            )
        ),
        ({}, None),
        (["a"], None),
        (None, None),
    ],
)
def test_the_files_an_index_names(index: Any, names: list[str] | None) -> None:
    assert index_files(index) == names


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', "{}", '{"weight_map": {"x": "../y"}}'])
def test_a_damaged_index(text: str, sharded: Path, changed: Callable[[Path, Edit], Path]) -> None:
    folder = changed(sharded, lambda f: (f / "model.safetensors.index.json").write_text(text))
    with pytest.raises(RopewalkError, match=r"^model\.safetensors\.index\.json of .* is damaged: fetch it again$"):
        load_model(checkpoint(folder))


def test_pickled_weights_are_refused(
    llama: Path, changed: Callable[[Path, Edit], Path], serve: Callable[..., HubStandIn]
) -> None:
    folder = changed(llama, lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"))
    sentence = "has its weights as .bin files, which can run code when read: convert them to safetensors first$"
    with pytest.raises(RopewalkError, match=sentence):
        load_model(checkpoint(folder))
    hub = serve({"org/m": {"main": files_of(folder)}})
    with pytest.raises(RopewalkError, match=f"^org/m {sentence}"):
        load_model(checkpoint("org/m"))
    assert not any(".bin" in path for path in hub.fetched())
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(
        RopewalkError,
        match=r"has no weights: it needs model\.safetensors, or model\.safetensors\.index\.json and the files",
    ):
        load_model(checkpoint(folder))


# Configurations that cannot be used


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda f: (f / "config.json").unlink(),
            "{place} has no config.json: give the repository or folder of a transformers model",
        ),
        (
            lambda f: (f / "config.json").write_text("{"),
            "config.json of {place} is not JSON that describes a model: fetch it again",
        ),
        (
            lambda f: (f / "config.json").write_text("[]"),
            "config.json of {place} is not JSON that describes a model: fetch it again",
        ),
        (
            configured(model_type="zzz"),
            "model type 'zzz' of {place} is not known to transformers {version}: a newer one may know it",
        ),
        (configured(model_type="t5"), "model type 't5' has no causal language model in transformers {version}"),
        (
            configured(hidden_size="wide"),
            "the configuration of {place} cannot be used: Validation error for field 'hidden_size': TypeError",
        ),
        (
            configured(
                model_type="zzz",
                auto_map={"AutoConfig": "configuration_zzz.Config", "AutoModelForCausalLM": "modeling_zzz.Model"},
            ),
            "{place} comes with modelling code of its own, which is not run unasked: "
            "read it, and set `trust_remote_code: true` if you trust it",
        ),
    ],
    ids=["none", "broken", "list", "unknown", "no decoder", "wrong value", "own code"],
)
def test_a_configuration_that_cannot_be_used(
    edit: Edit, message: str, llama: Path, changed: Callable[[Path, Edit], Path]
) -> None:
    folder = changed(llama, edit)
    sentence = message.format(place=folder, version=transformers.__version__)
    for load in (load_config, load_model):
        with pytest.raises(RopewalkError, match=f"^{re.escape(sentence)}"):
            load(checkpoint(folder))


@pytest.mark.parametrize("kind", ["bloom", "gptj", "falcon", "mpt"])
def test_a_type_that_does_not_dispatch_is_refused_before_weights(kind: str, tmp_path: Path) -> None:
    transformers.CONFIG_MAPPING[kind]().save_pretrained(tmp_path)
    with pytest.raises(
        RopewalkError,
        match=f"^model type '{kind}' is not supported: its attention does not go through transformers' registry",
    ):
        load_model(checkpoint(tmp_path))


def test_own_code_runs_only_when_asked(
    llama: Path, changed: Callable[[Path, Edit], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def add_code(folder: Path) -> None:
        (folder / "own.py").write_text(
            "import transformers\n"
            "class OwnConfig(transformers.LlamaConfig):\n    model_type = 'own'\n"
            "class OwnModel(transformers.LlamaForCausalLM):\n    config_class = OwnConfig\n"
        )
        configured(model_type="own", auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"})(
            folder
        )

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = changed(llama, add_code)
    with pytest.raises(RopewalkError, match="comes with modelling code of its own"):
        load_model(checkpoint(folder))
    assert not (tmp_path / "modules").exists()
    model = load_model(checkpoint(folder, trust_remote_code=True))
    assert type(model).__name__ == "OwnModel"
    assert_same(captured(model), captured(load_model(checkpoint(llama))))


def test_gguf_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"junk")
    with pytest.raises(
        RopewalkError,
        match=rf"^the weight file bad\.gguf of {re.escape(str(tmp_path))} is damaged or cut short .*: fetch",
    ):
        load_config(checkpoint(tmp_path, gguf_file="bad.gguf"))
    with pytest.raises(RopewalkError, match=r"has no lost\.gguf: check `gguf_file`$"):
        load_config(checkpoint(tmp_path, gguf_file="lost.gguf"))
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(RopewalkError, match=f"^GGUF files need an extra: {re.escape(install_extra('gguf'))}$"):
        load_config(checkpoint(tmp_path, gguf_file="bad.gguf"))


def test_context_beyond_the_positions(llama: Path) -> None:
    with pytest.raises(
        RopewalkError,
        match=r"^context 65 of 'm' is beyond the 64 positions of the model: lower `context`, or set max_position_",
    ):
        load_config(checkpoint(llama), context=65)
    load_config(checkpoint(llama), context=64)


# The hub


@pytest.mark.parametrize("load", [load_config, load_model, load_tokenizer])
def test_hub_mistakes(load: Callable[[Checkpoint], object], llama: Path, serve: Callable[..., HubStandIn]) -> None:
    serve({"org/m": {"main": files_of(llama)}, "org/closed": {"main": files_of(llama)}}, gated=("org/closed",))
    for place, message in [
        (
            checkpoint("org/m", revision="step9"),
            "org/m has no revision 'step9': `ropewalk checkpoints org/m` lists its branches",
        ),
        (checkpoint("not a name"), "'not a name' is not the name of a hub repo: give it as owner/name"),
        (
            checkpoint("org/none"),
            "no repo org/none on the hub: check the spelling (owner/name), and if it is private, log in with",
        ),
        (
            checkpoint("org/closed"),
            "org/closed is gated: ask for access on its page on the hub, then log in with `hf auth login`",
        ),
    ]:
        with pytest.raises(RopewalkError, match=f"^{re.escape(message)}"):
            load(place)


def test_an_offline_hub(llama: Path, serve: Callable[..., HubStandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        r"^the hub cannot be reached and org/offline is not in its cache: check the connection, or give a local folder$"
    )
    serve({"org/offline": {"main": files_of(llama)}})
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(RopewalkError, match=message):
            load_config(checkpoint("org/offline"))
    config = load_config(checkpoint("org/offline"))
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(RopewalkError, match=r"^HF_HUB_OFFLINE is set, and org/offline is on the hub: unset it"):
            load_model(checkpoint("org/offline"), config)


def test_an_unreachable_hub(serve: Callable[..., HubStandIn]) -> None:
    hub = serve({})
    hub._server.shutdown()
    hub._server.server_close()
    with pytest.raises(RopewalkError, match=r"^the hub cannot be reached and org/far is not in its cache"):
        load_config(checkpoint("org/far"))


# Tokenizers


def test_a_tokenizer_from_elsewhere(llama: Path, tmp_path: Path, serve: Callable[..., HubStandIn]) -> None:
    save_tokenizer(tmp_path / "words", 40)
    hub = serve({"org/tokenizer": {"v2": files_of(tmp_path / "words")}})
    assert len(load_tokenizer(checkpoint(llama))) == 64
    assert len(load_tokenizer(checkpoint(llama, tokenizer=str(tmp_path / "words")))) == 40
    assert len(load_tokenizer(checkpoint(llama, tokenizer="org/tokenizer", tokenizer_revision="v2"))) == 40
    assert len(load_tokenizer(checkpoint("org/any", tokenizer="org/tokenizer", tokenizer_revision="v2"))) == 40
    assert not any("org/any" in request.path for request in hub.log)
    with pytest.raises(RopewalkError, match=r"^org/tokenizer has no revision 'v3'"):
        load_tokenizer(checkpoint(llama, tokenizer="org/tokenizer", tokenizer_revision="v3"))


def test_a_missing_tokenizer(llama: Path, changed: Callable[[Path, Edit], Path]) -> None:
    folder = changed(llama, lambda f: [p.unlink() for p in f.glob("tokenizer*")])
    with pytest.raises(RopewalkError) as caught:
        load_tokenizer(checkpoint(folder))
    assert str(caught.value).startswith(f"no tokenizer at {folder} for 'm'")
    assert str(caught.value).endswith(": name the repository or folder that has one as `tokenizer`")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"model": {"type": "BPE"}}', b"[" * 10**5]
)
def test_a_damaged_tokenizer_is_not_called_missing(
    content: bytes, llama: Path, changed: Callable[[Path, Edit], Path]
) -> None:
    folder = changed(llama, lambda f: (f / "tokenizer.json").write_bytes(content))
    with pytest.raises(RopewalkError) as caught:
        load_tokenizer(checkpoint(folder))
    assert str(caught.value).startswith(f"the tokenizer at {folder} for 'm' cannot be used (")
    assert str(caught.value).endswith("): fetch it again, or name another as `tokenizer`")


def test_a_bug_keeps_its_traceback(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("not a mistake of the user")

    monkeypatch.setattr(loading.transformers.AutoModelForCausalLM, "from_pretrained", broken)
    with pytest.raises(RuntimeError, match="not a mistake of the user"):
        load_model(checkpoint(llama))
