"""Models that are wrong: configurations, weights, indices, GGUF files, tokenizers."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.bad_studies import ODD, mutated
from faults.case import Case, Edit, study_data, write_study

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
MUTATIONS = 60


def models(chance: random.Random) -> Iterator[Case]:
    """Configurations key by key with odd values, files of weights that are damaged, missing or something else."""
    keys = (
        *("model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rope_parameters"),
        *("rope_theta", "rope_scaling", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "dtype", "auto_map"),
        *("transformers_weights", "quantization_config", "attn_implementation", "layer_types", "sliding_window"),
    )
    for key in keys:
        for value in ODD:
            if _is_json(value):
                yield Case(f"config.{key} = {repr(value)[:60]}", _config(key, value))
    for content in (b"", b"{", b"[]", b"null", b"\xff", b'{"model_type": "llama"}', b"[" * 100_000, b"\0" * 1000):
        yield Case(f"config is {content[:20]!r}", _bytes(CONFIG, content))
    for name, header in _headers().items():
        yield Case(f"weights: {name}", _bytes(WEIGHTS, header))
    for name, index in _indices().items():
        yield Case(f"index: {name}", _index(index))
    for name, edit in _folders().items():
        yield Case(f"folder: {name}", edit)
    for number in range(MUTATIONS):
        yield Case(f"config mutated {number}", _mutate(f"model/{CONFIG}", chance), late=True)
        yield Case(f"weights mutated {number}", _mutate(f"model/{WEIGHTS}", chance, first=4000), late=True)
    yield Case("weights with a NaN", _nan, late=True)


def tokenizers(chance: random.Random) -> Iterator[Case]:
    """Tokenizers that are damaged, missing, or of another model."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        for content in (b"", b"{", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000, b"\0" * 100):
            yield Case(f"{name} is {content[:20]!r}", _bytes(name, content, "tokenizer"))
        for number in range(MUTATIONS // 2):
            yield Case(f"{name} mutated {number}", _mutate(f"tokenizer/{name}", chance), late=True)
        yield Case(f"no {name}", lambda folder, name=name: (folder / "tokenizer" / name).unlink())
    yield Case("too many tokens", _too_many)
    yield Case(
        "a folder without files", lambda folder: shutil.rmtree(folder / "tokenizer") or _make(folder, "tokenizer")
    )


def ggufs(chance: random.Random) -> Iterator[Case]:
    """GGUF files that are damaged, cut or something else."""
    use = _chosen({"repo": "./gguf", "gguf_file": "tiny.gguf"})

    def case(name: str, change: Callable[[bytes], bytes]) -> Case:
        def edit(folder: Path) -> None:
            path = folder / "gguf" / "tiny.gguf"
            path.write_bytes(change(path.read_bytes()))
            use(folder)

        return Case(name, edit, late=True)

    yield Case("a right one", use)
    yield case("empty", lambda _: b"")
    yield case("its magic alone", lambda data: data[:4])
    yield case("cut", lambda data: data[: len(data) // 2])
    yield case("another version", lambda data: data[:4] + struct.pack("<I", 99) + data[8:])
    yield case("very many tensors", lambda data: data[:8] + struct.pack("<Q", 2**60) + data[16:])
    yield case("very many keys", lambda data: data[:16] + struct.pack("<Q", 2**60) + data[24:])
    yield case("another architecture", lambda data: data.replace(b"llama", b"zzzzz"))
    for number in range(MUTATIONS):
        yield case(f"mutated {number}", _mutation(chance, first=3000))
    for value in ("", "x", "../model/model.safetensors", "/etc/passwd", ".", "x" * 300, "a\nb"):
        yield Case(f"gguf_file = {value[:40]!r}", _chosen({"repo": "./gguf", "gguf_file": value}))


def _headers() -> dict[str, bytes]:
    def packed(header: Any, data: bytes = b"") -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    one = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    return {
        "empty": b"",
        "eight bytes": b"\0" * 8,
        "a header without end": struct.pack("<Q", 2**62) + b"{}",
        "a header longer than the file": struct.pack("<Q", 10**6) + b"{}",
        "no JSON": packed(b"hello"),
        "a list": packed([]),
        "no tensors": packed({}),
        "an unknown type": packed({"a": one | {"dtype": "X9"}}, b"\0" * 16),
        "offsets beyond the end": packed({"a": one | {"data_offsets": [0, 10**12]}}, b"\0" * 16),
        "offsets in reverse": packed({"a": one | {"data_offsets": [16, 0]}}, b"\0" * 16),
        "a shape of nothing": packed({"a": one | {"shape": [-1, 2]}}, b"\0" * 16),
        "a shape without end": packed({"a": one | {"shape": [2**62, 2**62]}}, b"\0" * 16),
        "a tensor of another model": packed({"a": one}, b"\0" * 16),
        "overlapping tensors": packed({"a": one, "b": one}, b"\0" * 16),
        "a name with escapes": packed({"\x1b[2J": one}, b"\0" * 16),
        "depth": packed(b"[" * 50_000),
        "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
        "a zip": b"PK\x03\x04" + b"\0" * 100,
        "a git pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "HTML": b"<html>404</html>",
    }


def _indices() -> dict[str, Any]:
    return {
        "empty": b"",
        "a list": [],
        "no map": {},
        "a map that is a list": {"weight_map": []},
        "an empty map": {"weight_map": {}},
        "numbers": {"weight_map": {"model.norm.weight": 3}},
        "a pickle": {"weight_map": {"model.norm.weight": "pytorch_model.bin"}},
        "a file elsewhere": {"weight_map": {"model.norm.weight": "../tokenizer/tokenizer.json"}},
        "an absolute file": {"weight_map": {"model.norm.weight": "/etc/passwd"}},
        "a missing file": {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}},
        "a name of lines": {"weight_map": {"model.norm.weight": "a\nb.safetensors"}},
        "a long name": {"weight_map": {"model.norm.weight": "x" * 5000 + ".safetensors"}},
        "depth": b"[" * 50_000,
        "not UTF-8": b"\xff\xfe",
    }


def _folders() -> dict[str, Edit]:
    def without(name: str) -> Edit:
        return lambda folder: (folder / "model" / name).unlink()

    def linked(name: str, target: str) -> Edit:
        def edit(folder: Path) -> None:
            (folder / "model" / name).unlink()
            (folder / "model" / name).symlink_to(target)

        return edit

    def replaced(name: str) -> Edit:
        return lambda folder: ((folder / "model" / name).unlink(), (folder / "model" / name).mkdir())

    def piped(name: str) -> Edit:
        return lambda folder: ((folder / "model" / name).unlink(), os.mkfifo(folder / "model" / name))

    edits: dict[str, Edit] = {
        "no folder": lambda folder: shutil.rmtree(folder / "model"),
        "empty": lambda folder: shutil.rmtree(folder / "model") or _make(folder, "model"),
        "a file": lambda folder: shutil.rmtree(folder / "model") or (folder / "model").write_text("x"),
        "a pickle alone": lambda folder: (folder / "model" / WEIGHTS).rename(folder / "model" / "pytorch_model.bin"),
        "an adapter": lambda folder: (folder / "model" / "adapter_config.json").write_text("{}"),
    }
    for name in (CONFIG, WEIGHTS):
        edits[f"without {name}"] = without(name)
        edits[f"{name} a folder"] = replaced(name)
        edits[f"{name} a pipe"] = piped(name)
        for target in ("nowhere", name, "/dev/zero", "/dev/null", "/proc/self/mem"):
            edits[f"{name} a link to {target}"] = linked(name, target)
    return edits


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _config(key: str, value: Any) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "model" / CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return edit


def _bytes(name: str, content: bytes, where: str = "model") -> Edit:
    return lambda folder: (folder / where / name).write_bytes(content)


def _index(content: Any) -> Edit:
    def edit(folder: Path) -> None:
        (folder / "model" / WEIGHTS).rename(folder / "model" / "part.safetensors")
        (folder / "model" / INDEX).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())

    return edit


def _chosen(changes: dict[str, Any]) -> Edit:
    def edit(folder: Path) -> None:
        data = study_data()
        data["checkpoints"][0] |= changes
        write_study(folder, data)

    return edit


def _make(folder: Path, name: str) -> None:
    (folder / name).mkdir()


def _mutation(chance: random.Random, first: int | None = None) -> Callable[[bytes], bytes]:
    own = random.Random(chance.random())
    return lambda data: mutated(data[:first], own) + (b"" if first is None else data[first:])


def _mutate(name: str, chance: random.Random, first: int | None = None) -> Edit:
    change = _mutation(chance, first)
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def _nan(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model" / WEIGHTS)
    state["model.embed_tokens.weight"][5, 0] = float("nan")
    save_file(state, folder / "model" / WEIGHTS, metadata={"format": "pt"})


def _too_many(folder: Path) -> None:
    from helpers.llama import save_tokenizer

    shutil.rmtree(folder / "tokenizer")
    save_tokenizer(folder / "tokenizer", count=500)
    (folder / "texts" / "0.txt").write_text(" ".join(str(number) for number in range(400, 480)))
