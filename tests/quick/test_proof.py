"""Every capture proves itself before its first shard, and says how in its manifest and report."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import ropewalk
from helpers.logs import heard
from helpers.model_types import tiny_model
from helpers.tiny import CONTEXT
from ropewalk.capture import work
from ropewalk.capture.collector import changes_after_rotation
from ropewalk.capture.manifest import NO_MODEL, read_manifest, write_manifest
from ropewalk.capture.run import capture_study
from ropewalk.errors import RopewalkError
from ropewalk.models.tap import replaced_attention
from ropewalk.report import Origin
from ropewalk.report.parts import Grid
from ropewalk.report.settings import proofs
from ropewalk.results import analyze
from ropewalk.study import Study
from ropewalk.studyfile import parse_study


def faulty(model: nn.Module) -> AbstractContextManager[None]:
    """The attention of a model reads keys that are one percent longer than those it is given."""

    def wrap(original: Any) -> Any:
        def function(module: nn.Module, query: Any, key: Any, *args: Any, **options: Any) -> Any:
            return original(module, query, key * 1.01, *args, **options)

        return function

    return replaced_attention(model, wrap)


@pytest.fixture
def study(study_data: dict[str, Any]) -> Study:
    return parse_study(study_data)


def loading(monkeypatch: pytest.MonkeyPatch, change: Callable[[nn.Module], object]) -> None:
    """Let what a run loads be changed."""
    load = work.load_model

    def changed(*arguments: Any) -> nn.Module:
        model = load(*arguments)
        change(model)
        return model

    monkeypatch.setattr(work, "load_model", changed)


def test_the_manifest_says_how_a_capture_was_proven(study: Study) -> None:
    capture_study(study, only=["A"])
    manifest = read_manifest(study.folder / "captures" / "first")
    proof = manifest["proof"]
    assert manifest["dtype"] == "float32"
    assert (proof["outcome"], proof["dtype"], proof["limit"], proof["tokens"]) == ("proven", "float32", 1e-5, 24)
    assert (proof["calls"], proof["compared"], proof["half"], proof["added"]) == (5, 5, None, None)
    assert 0 < proof["difference"] < 1e-6
    assert [(check["check"], check["passed"]) for check in proof["checks"]] == [
        ("logits with and without the tap are identical", True),
        ("softmax(qkᵀ)v from the tapped tensors is the attention output", True),
    ]


def test_a_proof_that_fails_stops_the_run_before_any_shard(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: list[AbstractContextManager[None]] = []

    def spoil(model: nn.Module) -> None:
        contexts.append(faulty(model))
        contexts[-1].__enter__()

    loading(monkeypatch, spoil)
    with pytest.raises(
        RopewalkError,
        match=r"\nA: what would be captured of 'A' is not what its attention uses: .* 1e-05\); see",
    ):
        capture_study(study)
    contexts[0].__exit__(None, None, None)
    assert list(study.folder.glob("captures/**/*")) == []


def test_a_run_with_nothing_to_do_keeps_the_proof(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    capture_study(study)
    path = study.folder / "captures" / "first" / "manifest.json"
    manifest = read_manifest(path.parent)
    manifest["proof"]["difference"] = 1.25e-7
    write_manifest(path.parent, manifest)
    monkeypatch.setattr(work, "load_model", lambda *_: pytest.fail("a model was loaded"))
    capture_study(study)
    assert read_manifest(path.parent)["proof"]["difference"] == 1.25e-7
    # One of before captures proved themselves stays without.
    del manifest["proof"], manifest["dtype"]
    write_manifest(path.parent, manifest)
    capture_study(study)
    assert "proof" not in read_manifest(path.parent)
    assert analyze(study.folder).captures["first"].proof is None


def test_what_could_not_be_proven_is_said_and_captured(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    loading(
        monkeypatch,
        lambda model: model.lm_head.register_forward_hook(lambda *given: given[2] + torch.rand(()) * 1e-3),
    )
    said: list[str] = []
    with heard(said.append):
        capture_study(study, only=["A"])
    reason = "could not be proven: two passes without the tap differ too"
    assert f"A: logits with and without the tap are identical: {reason}" in said
    manifest = read_manifest(study.folder / "captures" / "first")
    assert manifest["proof"]["outcome"] == "could not be proven"
    assert len(list((study.folder / "captures" / "first").glob("shard-*"))) == 4


def test_measuring_proves_too(model: Any, tokens: np.ndarray, tmp_path: Path) -> None:
    with faulty(model), pytest.raises(RopewalkError, match=r"^what would be captured of 'mine' is not what its"):
        ropewalk.measure(model, tokens, context=CONTEXT, label="mine", shards=2)
    captured = ropewalk.measure(model, tokens, context=CONTEXT, label="mine", shards=2).captures["mine"]
    assert captured.dtype == "float32"
    assert captured.proof is not None
    assert captured.proof["outcome"] == "proven"
    assert captured.proof["compared"] == len(captured.layout.layers)


def test_half_precision_is_told_in_the_manifest(tokens: np.ndarray) -> None:
    model = tiny_model("llama").to(torch.bfloat16)
    captured = ropewalk.measure(model, tokens[:, :32] % 64, context=32, label="half", shards=2).captures["half"]
    assert captured.proof is not None
    assert (captured.dtype, captured.proof["dtype"], captured.proof["half"]) == ("bfloat16", "float32", "bfloat16")
    assert captured.proof["difference"] < 1e-6 < 1e-4 < captured.proof["added"]


def test_a_model_without_a_vocabulary_projection_is_proven(tokens: np.ndarray) -> None:
    backbone = tiny_model("llama").model
    captured = ropewalk.measure(backbone, tokens[:, :32] % 64, context=32, label="m", shards=2).captures["m"]
    assert captured.proof is not None
    assert captured.proof["outcome"] == "proven"


def test_a_model_of_few_positions_is_proven_on_as_many() -> None:
    config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=2, n_positions=20, vocab_size=64)
    documents = [list(range(12)) for _ in range(4)]
    captured = ropewalk.measure(transformers.GPT2LMHeadModel(config), documents, context=12, shards=2, label="m")
    assert captured.captures["m"].proof["tokens"] == 20  # type: ignore[index]


# The report


def rows(origins: dict[str, Origin]) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """What the report says of origins: its entries, and the rows of the proof by column."""
    found = {entry.name: entry.value for entry in proofs(origins)}
    table = found["proof"]
    assert isinstance(table, Grid)
    titles = [column.title for column in table.columns]
    return found, [dict(zip(titles, (cell.text for cell in row), strict=True)) for row in table.rows]


def proof(difference: float = 2e-7, added: float | None = None, **more: Any) -> dict[str, Any]:
    half = None if added is None else "bfloat16"
    numbers = {"difference": difference, "limit": 1e-5, "half": half, "added": added}
    return {"outcome": "proven", "checks": [], "tokens": 24, "compared": 4, "dtype": "float32", **numbers, **more}


PROVEN = "the attention output is softmax(qkᵀ)v of what was captured, and the tap leaves the logits as they are"


def test_captures_that_were_proven_alike_share_a_row_with_the_largest_numbers() -> None:
    found, table = rows({"A": Origin("bfloat16", proof(2e-7, 3e-3)), "B": Origin("bfloat16", proof(4e-7, 2e-3))})
    assert found["computed in"] == "bfloat16"
    assert table == [
        {
            "checkpoint": "all",
            "what was proven": PROVEN,
            "on tokens": "24",
            "attention calls": "4",
            "in": "float32",
            "largest difference": "4.0e-07",
            "limit": "1e-05",
            "bfloat16 adds": "3.0e-03",
        }
    ]


def test_captures_that_were_made_otherwise_have_rows_of_their_own() -> None:
    check = {"check": "this", "passed": None, "detail": "could not be proven: that"}
    found, table = rows(
        {
            "A": Origin("float32", proof()),
            "B": Origin("bfloat16", proof(added=2e-3)),
            "C": Origin("float32", {"outcome": "could not be proven", "checks": [check]}),
            "D": Origin(None, NO_MODEL),
            "E": Origin(None, None),
            "F": Origin("float32", proof()),
        }
    )
    assert found["computed in"] == "float32, bfloat16"
    assert [(row["checkpoint"], row["what was proven"]) for row in table] == [
        ("A, F", PROVEN),
        ("B", PROVEN),
        ("C", "this: could not be proven: that"),
        ("D", "none: vectors read from disk, without their model"),
        ("E", "not recorded"),
    ]
    assert [row["bfloat16 adds"] for row in table] == ["–", "2.0e-03", "–", "–", "–"]
    assert proofs({}) == ()


# Before the rotation


def pre_rope_line(model_type: str) -> list[str]:
    said: list[str] = []
    documents = [list(range(3, 35))] * 2
    with heard(said.append):
        ropewalk.measure(tiny_model(model_type), documents, context=32, label="m", shards=2, pre_rope=True)
    return [line for line in said if "pre_rope" in line]


def test_pre_rope_says_where_a_norm_follows_the_rotation() -> None:
    line = "m: its QK-norm comes after the rotation; pre_rope gives the vectors before both"
    assert pre_rope_line("nanochat") == [line]
    assert pre_rope_line("qwen3") == []
    assert pre_rope_line("llama") == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaling_queries_or_rotated_dimensions_is_no_norm_after_the_rotation(dtype: torch.dtype) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16}
    assert not changes_after_rotation(tiny_model("ministral3").to(dtype))
    assert not changes_after_rotation(
        tiny_model("glm", rope_parameters=yarn | {"partial_rotary_factor": 0.5}).to(dtype)
    )
    assert changes_after_rotation(tiny_model("hunyuan_v1_dense").to(dtype))
