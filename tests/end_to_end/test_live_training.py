"""The callback in trainings by the Trainer: the weights are the same to the bit, and reporters show the curves."""

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing as processes
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import ropewalk
from helpers.tiny import tiny_smollm3
from ropewalk.errors import RopewalkError
from ropewalk.live import Observer, PositionCallback
from ropewalk.live.observer import SCALARS
from ropewalk.results import analyze

CONTEXT, STEPS = 24, 50
HELD_OUT = np.random.default_rng(1).integers(1, 300, (6, CONTEXT)).tolist()
CAPTURE: dict[str, Any] = {"shards": 3, "statistics": ["moments", "frame", "behaviour"]}


class Rows(Dataset):
    """Random rows to learn."""

    def __init__(self) -> None:
        self.rows = torch.from_numpy(np.random.default_rng(0).integers(1, 300, (64, 16)))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trained(folder: Path, callbacks: list[Any], steps: int = STEPS, **options: Any) -> Trainer:
    """Train a small model with dropout; everything but the callbacks is the same every time."""
    torch.manual_seed(3)
    torch._dynamo.reset()
    model = tiny_smollm3(num_hidden_layers=4, attention_dropout=0.2)
    settings: dict[str, Any] = {
        "max_steps": steps,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "logging_steps": 10,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 5,
        **options,
    }
    arguments = TrainingArguments(str(folder), **settings)
    trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=callbacks)
    trainer.train()
    return trainer


def callback(**options: Any) -> PositionCallback:
    chosen = {} if options.get("every") else {"log_spaced": True}
    return PositionCallback(HELD_OUT, **chosen, **CAPTURE, **options)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "autocast": {"bf16": True},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "torch.compile": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    "accumulated gradients": {"gradient_accumulation_steps": 2, "steps": 12},
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_is_the_same_to_the_bit(variant: str, tmp_path: Path) -> None:
    without = trained(tmp_path / "a", [], **VARIANTS[variant]).model.state_dict()
    observed = callback(results=tmp_path / "live")
    with_it = trained(tmp_path / "b", [observed], **VARIANTS[variant])
    after = with_it.model.state_dict()
    assert without.keys() == after.keys()
    assert all(torch.equal(without[name], after[name]) for name in without)
    # The control: another seed gives other weights.
    other = trained(tmp_path / "c", [], **{**VARIANTS[variant], "seed": 6}).model.state_dict()
    assert not all(torch.equal(without[name], other[name]) for name in without)
    # The last observation is what measuring the trained model gives.
    again = tiny_smollm3(num_hidden_layers=4)
    again.load_state_dict(after)
    offline = ropewalk.measure(again, HELD_OUT, context=CONTEXT, **CAPTURE)
    live = analyze(tmp_path / "live").heads
    steps = VARIANTS[variant].get("steps", STEPS)
    assert live["step"].max() == steps
    last = live[live["step"] == steps].reset_index(drop=True)
    for name in ("r_q", "se_r_q", "r_k", "fixed_share_q", "score_r2_distance", "explained_variance"):
        np.testing.assert_array_equal(last[name], offline.heads[name])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_reporters_get_the_scalars_and_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = tmp_path / "logs"
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(logs))
    options: dict[str, Any] = {"report_to": "tensorboard", "logging_dir": str(logs)} if _has_logging_dir() else {}
    trainer = trained(
        tmp_path / "out", [callback(every=20, results=tmp_path / "live")], **{"report_to": "tensorboard", **options}
    )
    folder = next(logs.rglob("events*")).parent
    events = EventAccumulator(str(folder))
    events.Reload()
    heads = analyze(tmp_path / "live").view
    for name in SCALARS:
        curve = events.Scalars(f"eval/ropewalk/{name}")
        assert [point.step for point in curve] == [0, 20, 40, 50]
        np.testing.assert_allclose([point.value for point in curve], heads.track(name).values, rtol=1e-5, atol=1e-6)
    assert [point.step for point in events.Scalars("train/loss")] == [10, 20, 30, 40, 50]
    history = [row for row in trainer.state.log_history if "eval_ropewalk/mean_r_q" in row]
    assert [row["step"] for row in history] == [0, 20, 40, 50]
    assert all(row["eval_ropewalk/seconds"] > 0 for row in history)


def _has_logging_dir() -> bool:
    return "logging_dir" in TrainingArguments.__dataclass_fields__


def test_a_training_that_is_taken_up_again_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    whole = callback(every=5, results=tmp_path / "whole")
    trained(tmp_path / "w", [whole], steps=20)
    trained(
        tmp_path / "p", [callback(every=5, results=tmp_path / "parts")], steps=20, save_strategy="steps", save_steps=10
    )
    # Killed behind step 10, as it were: begun again from its checkpoint.
    torch.manual_seed(3)
    again = callback(every=5, results=tmp_path / "parts")
    arguments = TrainingArguments(
        str(tmp_path / "p"), max_steps=20, per_device_train_batch_size=4, learning_rate=1e-3, report_to="none",
        use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, seed=5, save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(
        tiny_smollm3(num_hidden_layers=4, attention_dropout=0.2), arguments, train_dataset=Rows(), callbacks=[again]
    )
    trainer.train(resume_from_checkpoint=str(tmp_path / "p" / "checkpoint-10"))
    one, other = (analyze(tmp_path / name).heads for name in ("whole", "parts"))
    assert other["step"].unique().tolist() == [0, 5, 10, 15, 20]
    np.testing.assert_array_equal(one["r_q"], other["r_q"])


def test_texts_need_a_context_and_an_observer_its_trainer() -> None:
    with pytest.raises(RopewalkError, match=r"say how many tokens of each document are read: .*context=512"):
        PositionCallback(["a text"], every=5)
    with pytest.raises(RopewalkError, match=r"say when to look: `every=100`"):
        PositionCallback(HELD_OUT)
    alone = callback(every=5)
    alone.observer = Observer(tiny_smollm3(), HELD_OUT, context=CONTEXT, **CAPTURE)
    state, control = (
        type("Any", (), {"global_step": 5, "should_log": False, "should_training_stop": False}) for _ in "ab"
    )
    with pytest.raises(RopewalkError, match=r"no Trainer is training: use ropewalk\.live\.Observer"):
        alone.on_step_end(None, state, control)


def _observe(rank: int, port: int, folder: str, bad: int) -> None:
    """One of two processes that train together."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = tiny_smollm3(num_hidden_layers=4)
    observer = Observer(model, HELD_OUT, context=CONTEXT, results=folder, **CAPTURE)
    found = observer.observe(0)
    (Path(folder).parent / f"rank-{rank}.txt").write_text(repr(sorted(found)))
    if rank == bad:
        with torch.no_grad():
            model.model.layers[0].self_attn.q_proj.weight.fill_(torch.nan)
    message = ""
    try:
        observer.observe(1)
    except RopewalkError as error:
        message = str(error)
    (Path(folder).parent / f"error-{rank}.txt").write_text(message)
    torch.distributed.destroy_process_group()


def test_several_processes_share_the_documents(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.spawn(_observe, (port, str(tmp_path / "two"), 1), nprocs=2)
    alone = Observer(tiny_smollm3(num_hidden_layers=4), HELD_OUT, context=CONTEXT, results=tmp_path / "one", **CAPTURE)
    expected = sorted(alone.observe(0))
    for rank in range(2):
        assert (tmp_path / f"rank-{rank}.txt").read_text() == repr(expected)
        # A process that fails does not leave the others waiting: all are told why.
        assert "has NaN or infinite queries" in (tmp_path / f"error-{rank}.txt").read_text()
    shards = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("shard-*"))
    assert len(shards) == 3
    for path in shards:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes()
