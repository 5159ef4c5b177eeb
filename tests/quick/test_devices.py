"""Devices: what cannot be run here is pretended, and the command that tries a device of the user's runs whole."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.collecting import collected
from helpers.pretended import MPS, Pretended, moved
from helpers.tiny import CONTEXT, tiny_smollm3
from ropewalk.capture.collector import Collection, _Collector
from ropewalk.models.loading import load_model
from ropewalk.models.probe import read_layout
from ropewalk.models.rotary import with_rotary
from ropewalk.models.source import ModelSource
from ropewalk.models.tap import Finished
from ropewalk.scrutiny import devices, examine_device
from ropewalk.statistics import stream
from ropewalk.statistics.base import Scope, Statistic
from ropewalk.statistics.precision import Products
from ropewalk.statistics.registry import BUILT_IN, build

LAYERS = [0, 3]
"""One that rotates and one that does not."""


def pretended(layout: Any, statistics: list[Statistic], tokens: np.ndarray, calls: list[Any]) -> Any:
    """Sums of tapped calls whose tensors are on a device without float64."""
    heads = layout.heads(layers=LAYERS)
    collector = _Collector(Collection(layout, heads, statistics, Scope(CONTEXT, len(tokens), 4)))
    ids = moved(torch.from_numpy(tokens.astype(np.int64)))
    with Pretended(), torch.inference_mode():
        collector.begin(range(len(tokens)), ids)
        with suppress(Finished):
            for call in calls:
                there = {name: moved(getattr(call, name)) for name in ("query", "key", "value")}
                collector.view(call._replace(**there))
        return collector.result()


@pytest.mark.parametrize("name", BUILT_IN)
def test_statistics_do_without_float64_on_the_device(name: str, tokens: np.ndarray, by_hand: list[Any]) -> None:
    model = tiny_smollm3()
    layout = with_rotary(model, read_layout(model), CONTEXT)
    own = build({name: {"full": True} if name == "frame" else {}})
    found = pretended(layout, own, tokens, by_hand)
    expected = collected(model, tokens, *own, layout=layout, heads=layout.heads(layers=LAYERS), batch=len(tokens))
    for key, arrays in expected.items():
        for part, array in arrays.items():
            size = max(float(np.abs(array).max(initial=0)), 1e-3)
            np.testing.assert_allclose(found[key][part], array, rtol=0, atol=1e-5 * size, err_msg=f"{key} {part}")


def test_a_statistic_that_needs_float64_there_shows(tokens: np.ndarray, by_hand: list[Any]) -> None:
    """The control of the test above."""

    class Wide(Statistic):
        name = "wide"

        def observe(self, seen: Any) -> Any:
            assert seen.query.device == MPS
            return {"sum": seen.query.double().sum()}

    with pytest.raises(TypeError, match="MPS does not support float64"):
        pretended(read_layout(tiny_smollm3()), [Wide()], tokens, by_hand)


# ropewalk doctor --device

CHECKS = [
    "the device is there",
    "moments are multiplied in a type that the device has",
    "moments are those of the CPU in float64",
    "in float32, logits with and without the tap are identical",
    "in float32, softmax(qkᵀ)v from the tapped tensors is the attention output",
    "a capture in float32 is that of the CPU in float32",
    "a capture goes on where memory runs out",
    "in bfloat16, logits with and without the tap are identical",
    "in bfloat16, softmax(qkᵀ)v from the tapped tensors is the attention output",
    "a capture in bfloat16 is that of the CPU in float32",
]


@pytest.fixture
def source(model_folder: Path) -> ModelSource:
    return ModelSource(repo=str(model_folder), label="tiny")


def failed(source: ModelSource) -> list[str]:
    return [finding.check for finding in examine_device("cpu", source) if not finding.passed]


def test_the_cpu_passes_every_check(run: Any, model_folder: Path) -> None:
    code, out, errors = run("doctor", str(model_folder), "--device", "cpu")
    lines = out.splitlines()
    assert [line[:4] for line in lines] == ["ok  "] * len(CHECKS)
    assert [line[6:].split(": ")[0] for line in lines] == CHECKS
    assert code == 0
    assert "float64 takes" in lines[1]
    assert lines[1].endswith("; in float64")
    assert "sums of moments, frame, profile, behaviour, sample within 0.0e+00, limit 1e-03" in lines[5]
    assert "memory was refused on purpose 2 times" in lines[6]
    assert errors.count("no memory for") == 2


@pytest.mark.parametrize("device", ["cuda", "mps", "abacus"])
def test_a_device_that_is_not_there_is_one_sentence(device: str, run: Any) -> None:
    assert run("doctor", "--device", device) == (
        2,
        "",
        f"ropewalk: device '{device}' is not available here: use `auto` or `cpu`\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no MODEL is given: name a hub repository or a folder, or try a device by --device"),
        (
            ["--device", "cpu", "--dtype", "float16"],
            "--device is tried in float32 and bfloat16: leave --statistics and",
        ),
        (["--device", "cpu", "--statistics", "x"], "--device is tried in float32 and bfloat16: leave --statistics and"),
    ],
)
def test_what_goes_with_a_device_is_said(arguments: list[str], message: str, run: Any) -> None:
    code, _, errors = run("doctor", *arguments)
    assert code == 2
    assert errors.startswith(f"ropewalk: {message}")


def test_products_in_float32_pass_and_rounded_ones_fail(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rounded(Products):
        def add(self, segment: int, blocks: Iterable[torch.Tensor]) -> None:
            super().add(segment, (block.bfloat16().to(block.dtype) for block in blocks))

    monkeypatch.setattr(stream, "products_in", lambda _: torch.float32)
    assert all(one.passed for one in islice(examine_device("cpu", source), 3))
    monkeypatch.setattr(stream, "Products", Rounded)
    assert [one.check for one in islice(examine_device("cpu", source), 3) if not one.passed] == [CHECKS[2]]


def test_a_device_without_float64_is_told_so_and_multiplies_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: torch.device, dtype: torch.dtype) -> float:
        if dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return 1.0

    monkeypatch.setattr(devices, "_seconds", refused)
    here = devices._float64(torch.device("cpu"))
    assert (here.passed, here.detail) == (False, "there is no float64; in float64")
    apple = devices._float64(MPS)
    assert (apple.passed, apple.detail) == (True, "there is no float64; in float32")


def test_other_numbers_on_the_device_fail(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def load(own: ModelSource) -> Any:
        loaded.append(load_model(own))
        if len(loaded) > 1:
            with torch.no_grad():
                loaded[-1].model.layers[1].self_attn.k_proj.weight *= 1.05
        return loaded[-1]

    monkeypatch.setattr(devices, "load_model", load)
    assert failed(source) == [CHECKS[5]]


def test_a_refusal_that_is_not_understood_fails(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.capture.collector.is_out_of_memory", lambda _: False)
    found = {one.check: one for one in examine_device("cpu", source)}[CHECKS[6]]
    assert found.passed is False
    assert found.detail.startswith("this is not taken for it: ")


def test_documents_that_count_twice_after_a_refusal_fail(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[int, Any] = {}

    def same_again(collection: Any) -> Any:
        return kept.setdefault(id(collection), _Collector(collection))

    monkeypatch.setattr("ropewalk.capture.collector._Collector", same_again)
    assert failed(source) == [CHECKS[6]]


def test_a_type_that_the_device_does_not_have_fails(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(own: ModelSource) -> Any:
        if own.dtype == "bfloat16":
            raise RuntimeError("BFloat16 is not supported on MPS")
        return load_model(own)

    monkeypatch.setattr(devices, "load_model", load)
    last = list(examine_device("cpu", source))[-1]
    assert (last.check, last.passed, last.detail) == (
        "a capture in bfloat16 runs",
        False,
        "BFloat16 is not supported on MPS",
    )
