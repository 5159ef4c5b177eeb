"""Models from strangers: weights are safetensors or GGUF whatever a file says, and nonsense is a sentence."""

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from helpers.llama import Edit, checkpoint, configured, save_llama, write_gguf
from ropewalk.errors import RopewalkError
from ropewalk.models.device import is_out_of_memory
from ropewalk.models.documents import MOST_LAYERS
from ropewalk.models.identity import model_fingerprint
from ropewalk.models.loading import load_model, load_tokenizer
from ropewalk.models.weights import INDEX, WEIGHTS, read_header

PICKLE = "pytorch_model.bin"
Changed = Callable[[Edit], Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def changed(whole: Path, tmp_path: Path) -> Changed:
    """A copy of the model's folder after an edit."""

    def change(edit: Edit) -> Path:
        folder = Path(shutil.copytree(whole, tmp_path / "changed"))
        edit(folder)
        return folder

    return change


def refusal(folder: Path, **options: Any) -> str:
    """What loading a model says, which is one line for a terminal."""
    with pytest.raises(RopewalkError) as caught:
        load_model(checkpoint(folder, **options))
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 600
    return text


# Nothing but safetensors


def pickled(folder: Path, name: str = PICKLE) -> None:
    torch.save(transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict(), folder / name)


def index_of(name: str) -> Edit:
    def edit(folder: Path) -> None:
        names = [tensor for tensor, _, _ in read_header(folder / WEIGHTS)]
        pickled(folder)
        (folder / WEIGHTS).rename(folder / "rest.safetensors")
        named = dict.fromkeys(names, "rest.safetensors") | {names[-1]: name}
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": named}))

    return edit


def link_to_pickle(folder: Path) -> None:
    pickled(folder)
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(PICKLE)


def with_file(name: str, **content: Any) -> Edit:
    return lambda folder: (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (index_of(PICKLE), f"names {PICKLE}, which is not a safetensors file and is not read: convert the weights"),
        (index_of("adapter_model.bin"), "names adapter_model.bin, which is not a safetensors file"),
        (index_of("../x.safetensors"), f"{INDEX} of "),
        (link_to_pickle, "is damaged or cut short"),
        (configured(transformers_weights="adapter_model.bin"), "`transformers_weights` in config.json of"),
        (configured(transformers_weights="other.safetensors"), "`transformers_weights` in config.json of"),
        (configured(text_config={"transformers_weights": PICKLE}), "`transformers_weights` in config.json of"),
        (configured(configuration_files=["config.5.0.0.json"]), "`configuration_files` in config.json of"),
        (configured(attn_implementation="org/kernel"), "code of another repository on the hub, which is not run"),
        (configured(_attn_implementation={"": "org/kernel"}), "code of another repository on the hub"),
        (with_file("adapter_config.json", base_model_name_or_path="org/base"), "is an adapter (adapter_config.json)"),
        (with_file("shard-00000-model-00001-of-00001.safetensors"), "holds a distributed checkpoint"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_weights_are_safetensors_whatever_a_file_says(
    edit: Edit, message: str, changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = changed(edit)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    assert message in refusal(folder)


def test_a_gguf_file_of_the_same_name_elsewhere_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meant, other = tmp_path / "meant", tmp_path / "other"
    meant.mkdir()
    other.mkdir()
    written = write_gguf(meant / "tiny.gguf", seed=1)
    write_gguf(other / "tiny.gguf", seed=2)
    monkeypatch.chdir(other)
    model = load_model(checkpoint(meant, gguf_file="tiny.gguf", dtype="float32"))
    np.testing.assert_array_equal(model.state_dict()["model.embed_tokens.weight"], written["token_embd.weight"])


# Code that is trusted


def add_code(folder: Path) -> None:
    (folder / "own.py").write_text(
        "import transformers\nfrom .part.inner import VALUE\n"
        "class OwnConfig(transformers.LlamaConfig):\n    model_type = 'own'\n"
        "class OwnModel(transformers.LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    (folder / "part").mkdir()
    (folder / "part" / "inner.py").write_text("VALUE = 1\n")
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    configured(model_type="own", auto_map=classes)(folder)


def test_trusted_code_in_folders_below_is_part_of_the_model(changed: Changed) -> None:
    folder = changed(add_code)
    source, config = checkpoint(folder, trust_remote_code=True), transformers.LlamaConfig()
    prints = [model_fingerprint(source, config)]
    for name, text in (("part/inner.py", "VALUE = 2\n"), ("part/more.py", ""), ("own.py", "")):
        (folder / name).write_text(text)
        prints.append(model_fingerprint(source, config))
    (folder / "notes.txt").write_text("nothing")
    assert len(set(prints)) == len(prints) == 4
    assert model_fingerprint(source, config) == prints[-1]


@pytest.mark.parametrize(
    ("auto_map", "message"),
    [
        ({"AutoConfig": "org/elsewhere--own.OwnConfig"}, "names code of another repository ('org/elsewhere--own.Own"),
        ({"AutoModelForCausalLM": "org/elsewhere--own.OwnModel"}, "names code of another repository"),
        ({"AutoConfig": "../own.OwnConfig"}, "which is not a class in a file beside it"),
        ({"AutoConfig": "own"}, "which is not a class in a file beside it"),
        ({"AutoConfig": 3}, "is not a mapping to names of classes"),
        (3, "is not a mapping to names of classes"),
    ],
)
def test_code_of_another_repository_is_refused(auto_map: Any, message: str, changed: Changed) -> None:
    folder = changed(add_code)
    configured(auto_map=auto_map)(folder)
    assert message in refusal(folder, trust_remote_code=True)
    assert message in refusal(folder)


def test_code_that_is_not_run_may_be_named_by_a_known_type(changed: Changed) -> None:
    folder = changed(configured(auto_map={"AutoModelForCausalLM": "org/elsewhere--own.OwnModel"}))
    assert type(load_model(checkpoint(folder))) is transformers.LlamaForCausalLM
    assert "names code of another repository" in refusal(folder, trust_remote_code=True)


# Configurations


DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"3", b'"x"', b"\xff\xfe{}", b"\0" * 100, b"[" * 10**5, b'{"a":' * 10**5),
        *(b'{"model_type": 3}', b'{"model_type": []}', b'{"model_type": null}', b"{}", b'{"model_type": "llama"'),
        b'{"model_type": "' + b"x" * 10**6 + b'"}',
        b'{"model_type": "\\u001b[2J\\nresults: x"}',
        b'{"vocab_size": ' + b"9" * 10**5 + b"}",
    ],
    ids=range(18),
)
def test_a_config_that_is_none(content: bytes, changed: Changed) -> None:
    refusal(changed(lambda folder: (folder / "config.json").write_bytes(content)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**9}, f"no model has more than {MOST_LAYERS:,}"),
        ({"num_hidden_layers": 1e300}, f"no model has more than {MOST_LAYERS:,}"),
        ({"text_config": {"n_layer": 10**12}}, f"no model has more than {MOST_LAYERS:,}"),
        ({"num_local_experts": 10**8}, "no model has more than"),
        ({"num_hidden_layers": 4000, "num_experts": 4000}, "describes 4,000 layers of 4,000 experts"),
        ({"num_attention_heads": 10**9}, "no model has more than"),
        ({"num_attention_heads": 0}, "num_attention_heads of config.json of"),
        ({"num_attention_heads": -4}, "num_attention_heads of config.json of"),
        ({"hidden_size": -32}, "hidden_size"),
        ({"hidden_size": 33}, "The hidden size (33) is not a multiple of the number of attention heads (4)"),
        ({"vocab_size": 0}, "vocab_size in the configuration of"),
        ({"max_position_embeddings": 10**30}, "max_position_embeddings in the configuration of"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings"),
        ({"text_config": True}, "that of its language model is True"),
        ({"text_config": [1]}, "cannot be used"),
        ({"rope_parameters": 3}, "cannot be used"),
        ({"rope_parameters": {"rope_type": "zzz", "rope_theta": 1.0}}, ""),
        ({"rope_parameters": DEEP}, "is not JSON that describes a model"),
        ({"dtype": "load"}, "`dtype` in config.json of"),
        ({"dtype": "int64"}, "`dtype` in config.json of"),
        ({"dtype": [1]}, ""),
        ({"hidden_act": "zzz"}, "no model can be built of the configuration of"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "cannot load 'm' from"),
        ({"quantization_config": 3}, "does not name a quant_method: mend it, or remove it"),
        ({"model_type": "clip"}, "has no causal language model"),
        ({"model_type": "llava", "vision_config": None, "text_config": None}, ""),
        ({"attn_implementation": "zzz"}, "no model can be built of the configuration of"),
        ({"id2label": [3]}, "cannot be used"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_config_of_nonsense_is_a_sentence(change: dict[str, Any], message: str, changed: Changed) -> None:
    assert message in refusal(changed(configured(**change)))


def test_a_tokenizer_of_tokenizers_is_none(changed: Changed) -> None:
    folder = changed(with_file("tokenizer_config.json", tokenizer_class="RagTokenizer"))
    with pytest.raises(RopewalkError, match=r"the tokenizer at .* for 'm' cannot be used"):
        load_tokenizer(checkpoint(folder))


def test_how_outputs_are_handed_over_is_not_for_a_config_to_say(changed: Changed) -> None:
    model = load_model(checkpoint(changed(configured(return_dict=False))))
    assert model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.shape == (1, 4, 64)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"eos_token_id": {}, "max_length": "x"}', b"null"])
def test_how_a_repository_would_generate_is_not_read(content: bytes, changed: Changed) -> None:
    load_model(checkpoint(changed(lambda folder: (folder / "generation_config.json").write_bytes(content))))


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "tokenizer.json"])
@pytest.mark.parametrize("kind", ["folder", "loop", "dangling"])
def test_what_is_no_file_is_a_sentence(name: str, kind: str, changed: Changed) -> None:
    def edit(folder: Path) -> None:
        (folder / name).unlink()
        if kind == "folder":
            (folder / name).mkdir()
        else:
            (folder / name).symlink_to(name if kind == "loop" else "nowhere")

    folder = changed(edit)
    load = load_tokenizer if name == "tokenizer.json" else load_model
    with pytest.raises(RopewalkError):
        load(checkpoint(folder))


# Weight files


def header(change: Callable[[dict[str, Any]], object]) -> Edit:
    """An edit of what a safetensors file says of itself."""

    def edit(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        content = json.loads(data[8 : 8 + length])
        change(content)
        text = json.dumps(content).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return edit


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: (folder / WEIGHTS).write_bytes(b""),
        lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", 2**63) + b"{}"),
        lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", 10**8) + b"{}"),
        lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", 2) + b"[]"),
        lambda folder: os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 1),
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes() + b"x"),
        header(lambda content: content[NORM].update(dtype="Z9")),
        header(lambda content: content[NORM].update(shape=[-32])),
        header(lambda content: content[NORM].update(shape=[2**40, 2**40])),
        header(lambda content: content[NORM].update(data_offsets=[-4, 124])),
        header(lambda content: content[NORM].update(data_offsets=[0, 128])),
        header(lambda content: content[NORM].update(data_offsets=[10**15, 10**15 + 128])),
    ],
)
def test_a_damaged_weight_file_is_named(edit: Edit, changed: Changed) -> None:
    folder = changed(edit)
    assert refusal(folder).startswith(f"the weight file {folder / WEIGHTS} is damaged or cut short (")


def denied(name: str) -> Callable[..., Any]:
    """What opens files, but for one that may not be read: the tests may run as a user who may read everything."""

    def opened(path: Any, *arguments: Any, **options: Any) -> Any:
        if Path(str(path)).name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path, *arguments, **options)

    original = os.open
    return opened


def test_weights_that_may_not_be_read_are_neither_damaged_nor_missing(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", denied(WEIGHTS))
    with pytest.raises(RopewalkError, match=rf"{WEIGHTS} cannot be read \(Permission denied\): check who may read it"):
        read_header(whole / WEIGHTS)


def test_a_model_or_tokenizer_that_may_not_be_read(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "tokenizer.json")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(RopewalkError, match=r"^tokenizer.json cannot be read \(Permission denied\): check who may"):
        load_tokenizer(checkpoint(whole))
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert f"{whole} cannot be read (Permission denied): check who may read it" in refusal(whole)


def test_the_name_of_a_tensor_does_not_steer_the_terminal(changed: Changed) -> None:
    text = refusal(changed(header(lambda content: content.update({"x\x1b[2J\n": content.pop(NORM)}))))
    assert text.startswith(f"the files of 'm' lack the tensor {NORM}")


def test_an_index_without_metadata(changed: Changed) -> None:
    def edit(folder: Path) -> None:
        names = [tensor for tensor, _, _ in read_header(folder / WEIGHTS)]
        (folder / WEIGHTS).rename(folder / "all.safetensors")
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, "all.safetensors")}))

    assert "lacks its `metadata`" in refusal(changed(edit))


def spoiled(data: bytes, at: int, *values: int) -> bytes:
    return data[:at] + bytes(values) + data[at + len(values) :]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:3],
        lambda data: data[:200],
        lambda data: data[:-10],
        lambda data: b"GGML" + data[4:],
        lambda data: spoiled(data, 4, 9, 0, 0, 0),
        lambda data: spoiled(data, 8, *[255] * 8),
        lambda data: spoiled(data, 16, *[255] * 8),
        lambda data: spoiled(data, 24, *[255] * 8),
        lambda data: data.replace(b"block_count\x04\0\0\0\x02\0\0\0", b"block_count\x04\0\0\0\xff\xff\xff\x7f"),
        # Sizes that are not found are those of a large model: memory must not be given to it.
        lambda data: data.replace(b"llama.", b"zzzzz."),
        lambda data: data.replace(b"\0llama", b"\0zzzzz", 1),
    ],
    ids=range(12),
)
def test_a_gguf_file_that_is_none(spoil: Callable[[bytes], bytes], tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    spoilt = spoil(data)
    assert spoilt != data
    (tmp_path / "tiny.gguf").write_bytes(spoilt)
    refusal(tmp_path, gguf_file="tiny.gguf")


# Memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to ..."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_memory_that_runs_out_while_loading(error: Exception, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    assert is_out_of_memory(error)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fails)
    assert refusal(whole).startswith("the memory of this machine ran out while 'm' was loaded: set a smaller `dtype`")


def test_weights_larger_than_the_memory(whole: Path) -> None:
    text = refusal(whole, overrides={"hidden_size": 2**36, "head_dim": 8}, random_weights=True)
    assert text.startswith("the weights of 'm' need ")
    assert "and the memory of this machine is " in text
