"""Observing a training: the schedule, the observer, what it writes, and that the model is left as it was."""

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ropewalk
from helpers.command import Run
from helpers.tiny import tiny_smollm3
from ropewalk.errors import RopewalkError
from ropewalk.live import Observer
from ropewalk.live.observer import SCALARS
from ropewalk.live.schedule import Schedule
from ropewalk.live.undisturbed import undisturbed, unwrapped
from ropewalk.results import analyze
from ropewalk.summary.measures import MEASURES

CONTEXT = 32
DOCUMENTS = np.random.default_rng(0).integers(1, 300, (6, CONTEXT)).tolist()
OPTIONS: dict[str, Any] = {"context": CONTEXT, "shards": 3}


def moved(model: Any, by: float) -> Any:
    """The model after something like a step."""
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(by * torch.ones_like(weights).cumsum(0) / len(weights))
    return model


def test_every_so_many_steps() -> None:
    assert [step for step in range(-3, 25) if step in Schedule(every=10)] == [0, 10, 20]


@pytest.mark.parametrize(
    ("per_octave", "expected"),
    [(1, [0, 1, 2, 4, 8, 16, 32, 64]), (2, [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64])],
)
def test_log_spaced_steps(per_octave: int, expected: list[int]) -> None:
    assert [step for step in range(70) if step in Schedule(per_octave=per_octave)] == expected


def test_log_spaced_steps_go_on_for_ever() -> None:
    due = [step for step in range(1, 100_000) if step in Schedule(per_octave=2)]
    assert due == sorted({round(2 ** (k / 2)) for k in range(34) if round(2 ** (k / 2)) < 100_000})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say when to look: `every=100` for every hundred steps, or `log_spaced=True`"),
        ({"every": 1, "per_octave": 2}, "say when to look"),
        ({"every": 0}, "every is 0: give a whole number of at least 1"),
        ({"every": 2.5}, r"every is 2\.5: give a whole number"),
        ({"every": True}, "every is True: give a whole number"),
    ],
)
def test_a_schedule_that_says_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RopewalkError, match=message):
        Schedule(**options)


def test_an_observation_is_what_measuring_gives(tmp_path: Path) -> None:
    """The numbers of a live table are those of the same weights afterwards; those of other weights are not."""
    model = tiny_smollm3()
    observer = Observer(model, DOCUMENTS, results=tmp_path / "live", **OPTIONS)
    kept = {}
    for step in (0, 5, 10):
        found = observer.observe(step)
        kept[step] = copy.deepcopy(model)
        moved(model, 0.02)
    live = analyze(tmp_path / "live")
    assert live.view.lineup.labels == ("0", "5", "10")
    for step, then in kept.items():
        offline = ropewalk.measure(then, DOCUMENTS, **OPTIONS)
        own = live.heads[live.heads["step"] == step].reset_index(drop=True)
        numbers = own.select_dtypes("number").columns.drop("step")
        pd.testing.assert_frame_equal(own[numbers], offline.heads[numbers], check_exact=True)
        other = live.heads[live.heads["step"] == (5 if step == 0 else 0)].reset_index(drop=True)
        assert (other["r_q"] - offline.heads["r_q"]).abs().max() > 1e-3
    summary = live.view
    assert set(found) == {*SCALARS, "seconds"}
    for name in SCALARS:
        assert found[name] == pytest.approx(summary.track(name).values[-1], abs=1e-9), name


def test_scalars_are_measures() -> None:
    assert set(SCALARS) <= set(MEASURES)
    assert 8 <= len(SCALARS) <= 12


def test_what_was_not_captured_is_not_told() -> None:
    found = Observer(tiny_smollm3(), DOCUMENTS, **OPTIONS, statistics=["moments"]).observe(0)
    assert "mean_r_q" in found
    assert not {"mean_mass_first", "mean_fixed_share_q"} & set(found)


@pytest.mark.slow
def test_the_report_can_be_written_at_any_time(tmp_path: Path, run: Run) -> None:
    model, folder = tiny_smollm3(), tmp_path / "live"
    observer = Observer(model, DOCUMENTS, results=folder, **OPTIONS, statistics=["moments"])
    for step in (0, 1):
        observer.observe(step)
        code, _, error = run("report", str(folder))
        assert code == 0, error
        assert ropewalk.load(folder).heads["step"].unique().tolist() == list(range(step + 1))
        moved(model, 0.02)
    assert run("verify", str(folder))[0] == 0


def test_a_training_that_goes_on_goes_on(tmp_path: Path) -> None:
    model, folder = tiny_smollm3(), tmp_path / "live"
    first = Observer(model, DOCUMENTS, results=folder, **OPTIONS, statistics=["moments"])
    for step in (0, 10, 20):
        first.observe(step)
        moved(model, 0.02)
    before = analyze(folder).heads
    again = Observer(model, DOCUMENTS, results=folder, **OPTIONS, statistics=["moments"])
    again.observe(20)
    again.observe(30)
    after = analyze(folder).heads
    assert after["step"].unique().tolist() == [0, 10, 20, 30]
    pd.testing.assert_frame_equal(after[after["step"] < 20], before[before["step"] < 20])
    # Observed again, with other weights.
    new, old = (table[table["step"] == 20]["r_q"].to_numpy() for table in (after, before))
    assert np.abs(new - old).max() > 1e-3
    again.observe(10)
    assert analyze(folder).heads["step"].unique().tolist() == [0, 10]


def test_other_documents_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    model, folder = tiny_smollm3(), tmp_path / "live"
    Observer(model, DOCUMENTS, results=folder, **OPTIONS, statistics=["moments"]).observe(0)
    message = "holds observations over other documents or with other settings: give another folder as `results`"
    for documents, options in ((DOCUMENTS[::-1], {}), (DOCUMENTS, {"skip_first": 2})):
        with pytest.raises(RopewalkError, match=message):
            Observer(model, documents, results=folder, **OPTIONS, statistics=["moments"], **options)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(RopewalkError, match="is not empty and was not made by ropewalk"):
        Observer(model, DOCUMENTS, results=tmp_path / "mine", **OPTIONS)


def test_contexts_and_phases_of_a_training_that_changes_them(tmp_path: Path) -> None:
    model = tiny_smollm3()
    observer = Observer(model, DOCUMENTS, context=(16, 32), results=tmp_path / "live", shards=3)
    observer.observe(3, phase="short", context=16)
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_theta": 5e5}
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    observer.observe(3, phase="long", label="L3", context=32)
    live = analyze(tmp_path / "live")
    assert live.view.lineup.labels == ("short 3", "L3")
    assert live.heads.groupby("checkpoint", sort=False)["context"].first().tolist() == [16, 32]
    # Cut to the shortest, as a study of both does.
    assert live.heads["r_q_common"].notna().any()
    with pytest.raises(RopewalkError, match=r"this observer has the contexts \(16, 32\): say which"):
        observer.observe(4)
    with pytest.raises(RopewalkError, match=r"context 24 is none of this observer's \(16, 32\)"):
        observer.observe(4, context=24)


def test_mistakes_show_before_the_training(tmp_path: Path) -> None:
    model = tiny_smollm3()
    for options, message in [
        ({"statistics": ["momments"]}, "momments"),
        ({"context": 64}, "none of the 6 documents has 64 tokens"),
        ({"context": ()}, "`context` is empty"),
        ({"heads": 0}, "heads"),
    ]:
        with pytest.raises(RopewalkError, match=message):
            Observer(model, DOCUMENTS, results=tmp_path / "live", **{**OPTIONS, **options})
    with pytest.raises(RopewalkError, match="documents are text, so a tokenizer is needed"):
        Observer(model, ["text"], **OPTIONS)
    assert not (tmp_path / "live").exists()


def test_everything_is_put_back() -> None:
    model = tiny_smollm3(attention_dropout=0.5).train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    buffer = model.model.rotary_emb.inv_freq
    before = buffer.clone()
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    with torch.autocast("cpu", dtype=torch.bfloat16), undisturbed(model):
        assert not torch.is_autocast_enabled("cpu")
        assert not any(module.training for module in model.modules())
        assert torch.is_inference_mode_enabled()
        torch.rand(3), np.random.rand(3), random.random()
        buffer.mul_(2)
        model.model.rotary_emb.register_buffer("inv_freq", torch.zeros(3))
    assert [module.training for module in model.modules()] == modes
    assert model.model.rotary_emb.inv_freq is buffer
    assert torch.equal(buffer, before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]
    assert not torch.is_inference_mode_enabled()


def test_a_failing_look_leaves_the_model_too() -> None:
    model = tiny_smollm3().train()
    with pytest.raises(KeyError), undisturbed(model):
        raise KeyError
    assert all(module.training for module in model.modules())


def test_compiled_code_is_left_aside() -> None:
    model = tiny_smollm3()
    calls: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        calls.append(1)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    assert unwrapped(compiled) is model
    rows = torch.tensor(DOCUMENTS[:1])
    with undisturbed(model):
        compiled(input_ids=rows)
    assert not calls
    with torch.no_grad():
        compiled(input_ids=rows)
    assert calls


def test_weights_cut_over_processes_are_refused() -> None:
    model = tiny_smollm3()
    next(iter(model.parameters())).ds_id = 0
    with pytest.raises(RopewalkError, match=r"cut over processes \(FSDP, ZeRO-3\).*run a study of them with"):
        Observer(model, DOCUMENTS, **OPTIONS)
