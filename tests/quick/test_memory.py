"""Memory that runs out: the shard again with fewer documents at once, the same sums, and at one a sentence."""

import logging
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.collecting import collected
from helpers.tiny import CONTEXT, DOCUMENTS, tiny_smollm3
from ropewalk.capture import memory
from ropewalk.capture.memory import too_long
from ropewalk.errors import OutOfMemoryError, RopewalkError
from ropewalk.live import Observer
from ropewalk.models import footprint
from ropewalk.models.device import is_out_of_memory
from ropewalk.models.footprint import check_fits_context, square_bytes
from ropewalk.models.probe import read_layout
from ropewalk.models.rotary import with_rotary
from ropewalk.record import read_record
from ropewalk.statistics.base import Observation, Statistic
from ropewalk.statistics.moments import MomentSums
from ropewalk.statistics.registry import BUILT_IN, build
from ropewalk.yamlfile import dump_yaml

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: 9"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]
"""As a GPU, Apple's, a CPU, a library of CUDA's and NumPy say it."""


Passes = list[tuple[int, list[int]]]
"""Layers and documents that were seen."""


def scarce(
    fails: Callable[[Observation], bool] = lambda _: False, error: BaseException = ERRORS[0]
) -> tuple[Statistic, Passes]:
    """A statistic for which memory runs out where `fails` says so, and what it saw."""
    passes: Passes = []

    class Scarce(Statistic):
        name = "scarce"

        def accumulator(self, *_: Any) -> Any:
            return self

        def update(self, seen: Observation) -> None:
            passes.append((seen.heads.layer.layer, list(seen.documents)))
            if fails(seen):
                # A new one each time: its traceback must be all that holds on to the pass.
                raise type(error)(*error.args)

        def sums(self) -> dict[str, Any]:
            return {}

    return Scarce(), passes


def batches(passes: Passes) -> list[int]:
    return [len(documents) for layer, documents in passes if layer == 0]


def everything() -> list[Statistic]:
    return list(build({name: {"full": True} if name == "frame" else {} for name in BUILT_IN}))


@pytest.mark.parametrize("trial", range(8))
def test_what_is_left_of_a_batch_that_failed_is_not_counted(trial: int, tokens: np.ndarray) -> None:
    """At any layer, batch and statistic, with any error: to the bit the sums of the small batch from the start."""
    chance = random.Random(trial)
    model, own = tiny_smollm3(), everything()
    layout = with_rotary(model, read_layout(model), CONTEXT)
    assert {one.name for one in own} == set(BUILT_IN)
    layer, fits = chance.randrange(5), chance.choice([1, 2, 3])
    document = chance.randrange(fits, DOCUMENTS)
    failing, passes = scarce(
        lambda seen: len(seen.documents) > fits and seen.heads.layer.layer == layer and document in seen.documents,
        ERRORS[trial % len(ERRORS)],
    )
    place, told = chance.randrange(len(own) + 1), []
    found = collected(
        model, tokens, *own[:place], failing, *own[place:], layout=layout, batch=DOCUMENTS, advance=told.append
    )
    batch = len(passes[-1][1])
    assert batch < DOCUMENTS
    assert (sum(told), min(told) >= 0) == (tokens.size, True)
    expected = collected(tiny_smollm3(), tokens, *own, layout=layout, batch=batch)
    assert {key for key in found if key[0] != "scarce"} == expected.keys()
    for key, arrays in expected.items():
        assert found[key].keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[key][name], array, err_msg=f"{key} {name}")


def test_a_smaller_batch_is_said_once_and_kept(
    tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, freed = tiny_smollm3(), []
    monkeypatch.setattr(memory, "free_caches", freed.append)
    failing, passes = scarce(lambda seen: len(seen.documents) > 2)
    with caplog.at_level(logging.WARNING, "ropewalk"):
        collected(model, tokens, failing, batch=64)
        assert batches(passes) == [6, 3, 1, 1, 1, 1, 1, 1]
        collected(model, tokens, failing, batch=64)
    assert batches(passes)[8:] == [1] * 6
    assert caplog.messages == [
        "no memory for 6 documents of 64 tokens at once: going on with 3 at a time (`batch_tokens: 192` does so from "
        "the start)",
        "no memory for 3 documents of 64 tokens at once: going on with 1 at a time (`batch_tokens: 64` does so from "
        "the start)",
    ]
    assert freed == [torch.device("cpu")] * 2


def test_another_model_and_another_length_have_their_own_batch(tokens: np.ndarray) -> None:
    model = tiny_smollm3()
    collected(model, tokens, scarce(lambda seen: len(seen.documents) > 2)[0], batch=64)
    plenty, passes = scarce()
    collected(tiny_smollm3(), tokens, plenty, batch=64)
    collected(model, np.ascontiguousarray(tokens[:, :32]), plenty, batch=64)
    assert batches(passes) == [6, 2, 2, 2]


def test_nothing_holds_on_to_a_pass_that_failed(tokens: np.ndarray) -> None:
    model, kept = tiny_smollm3(), list[weakref.ref[torch.Tensor]]()

    def fails(seen: Observation) -> bool:
        assert all(one() is None for one in kept)
        if len(seen.documents) > 1:
            kept.append(weakref.ref(seen.call.query))
        return len(seen.documents) > 1

    collected(model, tokens, scarce(fails)[0], batch=6)
    assert len(kept) == 2


def test_other_failures_are_not_taken_for_it(tokens: np.ndarray) -> None:
    failing, passes = scarce(lambda _: True, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        collected(tiny_smollm3(), tokens, failing, batch=6)
    assert batches(passes) == [6]
    assert not is_out_of_memory(ValueError("out of memory"))


# One document is too much


@pytest.mark.parametrize("error", ERRORS, ids=lambda one: type(one).__name__)
def test_a_statistic_that_needs_too_much_is_named(error: BaseException, tokens: np.ndarray) -> None:
    with pytest.raises(OutOfMemoryError) as stop:
        collected(tiny_smollm3(), tokens, MomentSums(), scarce(lambda _: True, error)[0], batch=6)
    assert str(stop.value) == (
        "this machine has no memory for what `scarce` adds up of one document of 64 tokens: choose fewer `heads`, "
        "leave `scarce` out of `statistics`, close other programs, or lower `context`"
    )
    assert repr(stop.value.__cause__) == repr(error)


def test_sums_that_need_too_much_are_said(tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.capture.collector._Collector.result", lambda _: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(OutOfMemoryError, match=r"^there is no memory for the sums of 20 heads: choose fewer"):
        collected(tiny_smollm3(), tokens, MomentSums())


def test_a_model_that_needs_too_much_says_what_would_need_less(tokens: np.ndarray) -> None:
    model = tiny_smollm3()
    layout = read_layout(model)
    model.model.layers[2].mlp.register_forward_hook(lambda *_: (_ for _ in ()).throw(ERRORS[0]))
    with pytest.raises(OutOfMemoryError) as stop:
        collected(model, tokens, MomentSums(), layout=layout, batch=6)
    assert str(stop.value) == (
        "this machine has no memory for one document of 64 tokens: set `dtype: bfloat16`, close other programs, or "
        "lower `context`"
    )


@pytest.mark.parametrize(
    ("changes", "device", "dtype", "expected"),
    [
        (
            {"attn_implementation": "eager"},
            "cuda",
            torch.bfloat16,
            "the device (cuda) has no memory for one document of 100,000 tokens: set `attention: sdpa` (`eager` holds "
            "all scores of a layer at once, here 180.0 GB), set `device_map: auto`, or lower `context`",
        ),
        (
            {},
            "mps",
            torch.float32,
            "the device (mps) has no memory for one document of 100,000 tokens: set `dtype: bfloat16`, set "
            "`device_map: auto`, or lower `context`",
        ),
        (
            {"use_sliding_window": True, "sliding_window": 512, "layer_types": ["sliding_attention"] * 5},
            "cuda",
            torch.float32,
            "the device (cuda) has no memory for one document of 100,000 tokens: set `attention: flash_attention_2` on "
            "a GPU (masks of sliding windows take 50.0 GB here), set `dtype: bfloat16`, set `device_map: auto`, or "
            "lower `context`",
        ),
    ],
    ids=["eager", "sdpa", "sliding"],
)
def test_what_would_help_is_what_fits_the_case(
    changes: dict[str, Any], device: str, dtype: torch.dtype, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "input_device", lambda _: torch.device(device))
    assert str(too_long(tiny_smollm3(**changes).to(dtype), 100_000, None)) == expected


def test_where_all_is_done_a_shorter_context_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "input_device", lambda _: torch.device("cuda:1"))
    model = tiny_smollm3().to(torch.bfloat16)
    model.hf_device_map = {"": "cuda:1"}
    assert str(too_long(model, 2**17, None)) == (
        "the device (cuda:1) has no memory for one document of 131,072 tokens: lower `context`"
    )


# A context that cannot fit is known before it is tried


def test_scores_that_cannot_fit_are_said_before_anything_is_computed(
    run: Any, study_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_data["checkpoints"][1]["attention"] = "eager"
    path = tmp_path / "study.yaml"
    path.write_text(dump_yaml(study_data))
    # 96² tokens, four heads, eight bytes each, and a mask of four: 331,776 bytes.
    monkeypatch.setattr(footprint, "memory_of", lambda _: 331_775)
    code, _, errors = run("run", str(path))
    assert code == 2
    assert errors.strip().endswith(
        "`eager` attention of 'B' holds at least 331.8 KB at once over 96 tokens, and the memory is 331.8 KB: set "
        "`attention: sdpa`, or lower `context`"
    )
    assert not (tmp_path / "results").exists()
    monkeypatch.setattr(footprint, "memory_of", lambda _: 331_776)
    assert run("run", str(path), "--dry-run")[0] == 0


def test_attention_in_blocks_has_no_such_limit() -> None:
    assert square_bytes(tiny_smollm3(), 10**6, 4) == 0
    check_fits_context(tiny_smollm3(), torch.device("cpu"), 10**6, 4, "mine")
    with pytest.raises(OutOfMemoryError, match=r"`eager` attention of 'mine' holds at least 36\.0 TB"):
        check_fits_context(tiny_smollm3(attn_implementation="eager"), torch.device("cpu"), 10**6, 4, "mine")


# Live


def test_a_training_goes_on_where_there_is_no_memory_to_look_at_it(
    tokens: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_smollm3().train()
    observer = Observer(model, tokens, context=CONTEXT, results=tmp_path / "live", shards=2)
    full = observer.observe(0)
    hook = model.model.layers[1].mlp.register_forward_hook(lambda *_: (_ for _ in ()).throw(ERRORS[0]))
    with caplog.at_level(logging.WARNING, "ropewalk"):
        assert observer.observe(1).keys() == {"seconds"}
    assert caplog.messages[-1].startswith("step 1 is not observed: this machine has no memory for one document of 64")
    assert model.training
    hook.remove()
    assert observer.observe(2).keys() == full.keys()
    record = read_record(tmp_path / "live")
    assert record is not None
    assert [one.step for one in record.study.checkpoints] == [0, 2]


def test_nor_where_there_is_none_for_its_first_look(
    tokens: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ropewalk.live.observer.make_ready", lambda *_: (_ for _ in ()).throw(ERRORS[1]))
    with caplog.at_level(logging.WARNING, "ropewalk"):
        assert Observer(tiny_smollm3(), tokens, context=CONTEXT).observe(0).keys() == {"seconds"}
    assert "step 0 is not observed: there is no memory for a few tokens beside the training" in caplog.messages[-1]
    monkeypatch.setattr("ropewalk.live.observer.make_ready", lambda *_: (_ for _ in ()).throw(RopewalkError("no")))
    with pytest.raises(RopewalkError, match=r"^no$"):
        Observer(tiny_smollm3(), tokens, context=CONTEXT).observe(0)
