"""Engines without their machines: who takes which shard, what is done when a worker is lost, what is submitted."""

import os
import platform
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from helpers.command import Run
from helpers.workers import captured
from ropewalk.capture import working as notes
from ropewalk.capture.account import Account, InOneProcess
from ropewalk.capture.plan import Cost
from ropewalk.capture.run import capture_study
from ropewalk.capture.work import Bench, Order, Piece
from ropewalk.capture.working import Working, clear_notes, workers, working
from ropewalk.engines import hand
from ropewalk.engines.crew import Advanced, Crew, Done, Event, Failed, Lost, Opened, conduct
from ropewalk.engines.hand import Hand
from ropewalk.engines.needs import memory_of, minutes_of
from ropewalk.engines.schedule import ATTEMPTS, Schedule, Task
from ropewalk.errors import IncompleteError, RopewalkError
from ropewalk.files import CannotWriteError, atomic_path
from ropewalk.placement import Placement
from ropewalk.status import study_status
from ropewalk.study import Capture
from ropewalk.studyfile import parse_study
from ropewalk.validation import validated

WANTED = {"a": [0, 1, 2, 3], "b": [0, 1]}


def shards(files: dict[str, bytes]) -> dict[str, bytes]:
    """Shards and manifests among the files of captures: vectors are laid out when all shards are there."""
    return {name: data for name, data in files.items() if name.count("/") == 2}


def test_a_worker_stays_with_its_checkpoint_and_then_helps_where_most_is_left() -> None:
    schedule = Schedule(WANTED)
    assert schedule.take(0, None) == Task("a", 0)
    # Nobody is at b yet: two wait for one worker there, three for two at a.
    assert schedule.take(1, None) == Task("b", 0)
    assert schedule.take(2, None) == Task("a", 1)
    schedule.done(Task("a", 0))
    assert schedule.take(0, "a") == Task("a", 2)
    schedule.done(Task("b", 0))
    assert schedule.take(1, "b") == Task("b", 1)
    schedule.done(Task("b", 1))
    assert schedule.take(1, "b") == Task("a", 3)
    assert schedule.take(3, None) is None
    assert not schedule.is_over
    for number in (1, 2, 3):
        schedule.done(Task("a", number))
    assert schedule.is_over


def test_long_shards_come_first_so_that_workers_end_together() -> None:
    def ends(lengths: dict[str, float] | None) -> list[float]:
        """When each of two workers has nothing left to do: a long shard takes seven times as long as a short one."""
        schedule = Schedule({"short": range(6), "a": [0], "b": [0], "c": [0]}, lengths)
        time, tasks, working = [0.0, 0.0], dict[int, Task](), {0, 1}
        while working:
            worker = min(working, key=time.__getitem__)
            before = tasks.pop(worker, None)
            if before is not None:
                schedule.done(before)
            task = schedule.take(worker, before and before.checkpoint)
            if task is None:
                working.remove(worker)
            else:
                tasks[worker] = task
                time[worker] += 1 if task.checkpoint == "short" else 7
        return sorted(time)

    assert ends({"short": 1, "a": 8, "b": 8, "c": 8}) == [13, 14]
    assert ends(None) == [10, 17]


def test_a_shard_that_is_lost_again_and_again_is_given_up_alone() -> None:
    schedule = Schedule(WANTED)
    for _ in range(ATTEMPTS - 1):
        assert schedule.take(0, "a") == Task("a", 0)
        assert schedule.again(Task("a", 0), opened=True) == []
    assert schedule.take(0, "a") == Task("a", 0)
    assert schedule.again(Task("a", 0), opened=True) == [0]
    assert schedule.take(0, "a") == Task("a", 1)


def test_a_model_that_is_never_loaded_is_given_up_with_all_its_shards() -> None:
    schedule = Schedule(WANTED)
    given_up = []
    for _ in range(ATTEMPTS):
        task = schedule.take(0, "a")
        assert task is not None
        given_up = schedule.again(task, opened=False)
    assert given_up == [0, 1, 2, 3]
    assert schedule.take(0, "a") == Task("b", 0)


class Rehearsed(Crew):
    """A crew in this process that computes for real and fails as it is told, before or after loading the model."""

    def __init__(self, size: int, fails: Any) -> None:
        self.size = size
        self._fails = fails
        self._hands = [Hand() for _ in range(size)]
        self._given: list[tuple[int, Order, Piece]] = []
        self.computed: Counter[tuple[str, int]] = Counter()

    def give(self, worker: int, order: Order, piece: Piece) -> None:
        self._given.append((worker, order, piece))

    def events(self) -> Iterator[Event]:
        worker, order, piece = self._given.pop(0)
        event = self._fails(worker, order.name, piece.number, "before")
        if event is None:
            facts = self._hands[worker].open(order.pinned())
            if facts is not None:
                yield Opened(worker, facts)
            yield Advanced(worker, order.checkpoint.context)
            event = self._fails(worker, order.name, piece.number, "after")
        if event is not None:
            if isinstance(event, Lost):
                self._hands[worker] = Hand()
            yield event
            return
        self.computed[order.name, piece.number] += 1
        yield Done(worker, self._hands[worker].shard(piece, lambda _: None))


class Rehearsal:
    """An engine of a rehearsed crew."""

    name = "rehearsal"

    def __init__(self, crew: Rehearsed) -> None:
        self.crew = crew

    def run(self, account: Any) -> None:
        conduct(self.crew, account)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_workers_that_are_lost_at_random_leave_the_same_bytes(
    study_data: dict[str, Any], whole: dict[str, bytes], size: int
) -> None:
    chance, lost = random.Random(size), Counter[tuple[str, int]]()

    def fails(worker: int, name: str, number: int, when: str) -> Event | None:
        # One less than would give it up.
        if lost[name, number] < ATTEMPTS - 1 and when == "after" and chance.random() < 0.5:
            lost[name, number] += 1
            return Lost(worker, "gone")
        return None

    crew = Rehearsed(size, fails)
    study = parse_study(study_data)
    capture_study(study, engine=Rehearsal(crew))
    assert lost.total() > 2
    assert set(crew.computed.values()) == {1}
    assert captured(study.folder) == whole
    assert not (study.folder / notes.WORKING).exists()


def test_what_killed_workers_were_writing_does_not_stay(
    study_data: dict[str, Any], whole: dict[str, bytes], tmp_path: Path
) -> None:
    study = parse_study(study_data)
    folder = study.folder / "captures" / "first"
    writing = SimpleNamespace()

    class Killed(InOneProcess):
        """One worker was killed while it wrote, as the lock tells that is gone; another writes on."""

        def run(self, account: Account) -> None:
            super().run(account)
            (folder / ".shard-0001.safetensors.killed.ropewalk-tmp").write_text("half")
            writing.end = ExitStack()
            writing.path = writing.end.enter_context(atomic_path(folder / "shard-0002.safetensors"))
            assert len(captured(study.folder)) == len(whole) + 2

    capture_study(study, engine=Killed())
    with writing.end:
        assert set(captured(study.folder)) - set(whole) == {str(writing.path.relative_to(study.folder))}
        writing.path.write_bytes(whole["captures/first/shard-0002.safetensors"])
    assert captured(study.folder) == whole


def test_a_shard_that_always_fails_is_named_and_the_rest_is_finished(
    study_data: dict[str, Any], whole: dict[str, bytes]
) -> None:
    tries: Counter[tuple[str, int]] = Counter()

    def fails(worker: int, name: str, number: int, when: str) -> Event | None:
        if (name, number, when) == ("first", 1, "after"):
            tries[name, number] += 1
            return Failed(worker, "ValueError: of the third kind", final=False)
        if (name, number, when) == ("second", 0, "after"):
            tries[name, number] += 1
            return Failed(worker, "head 3 has NaN: take another", final=True)
        return None

    study = parse_study(study_data)
    with pytest.raises(IncompleteError) as stopped:
        capture_study(study, engine=Rehearsal(Rehearsed(2, fails)))
    message = str(stopped.value)
    assert "A, shard 1 of 4: ValueError: of the third kind (in each of 3 attempts)" in message
    assert "B, shard 0 of 4: head 3 has NaN: take another" in message
    assert tries == {("first", 1): ATTEMPTS, ("second", 0): 1}
    missing = {"captures/first/shard-0001.safetensors", "captures/second/shard-0000.safetensors"}
    assert shards(captured(study.folder)) == {name: one for name, one in shards(whole).items() if name not in missing}
    # The same again, with nothing in its way, does what is left.
    capture_study(study)
    assert captured(study.folder) == whole


def test_a_model_that_cannot_be_loaded_does_not_keep_the_others(study_data: dict[str, Any]) -> None:
    def fails(worker: int, name: str, number: int, when: str) -> Event | None:
        return Failed(worker, "no such weights", final=True) if (name, when) == ("first", "before") else None

    study = parse_study(study_data)
    with pytest.raises(IncompleteError, match=r"\nA: no such weights$"):
        capture_study(study, engine=Rehearsal(Rehearsed(2, fails)))
    assert len(list(study.folder.glob("captures/second/shard-*"))) == 4


def test_who_has_done_a_shard_has_the_next_before_that_one_is_settled(
    study_data: dict[str, Any], whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = Rehearsed(2, lambda *_: None)
    busy: list[int] = []
    real = Account.done

    def done(account: Account, *arguments: Any) -> None:
        busy.append(len(crew._given))
        real(account, *arguments)

    monkeypatch.setattr(Account, "done", done)
    study = parse_study(study_data)
    capture_study(study, engine=Rehearsal(crew))
    # Two work on eight shards: nobody waits but at the end, when nothing is left to give.
    assert busy == [2] * 6 + [1, 0]
    assert captured(study.folder) == whole


def test_a_worker_that_is_lost_with_nothing_to_do_is_no_loss(
    study_data: dict[str, Any], whole: dict[str, bytes]
) -> None:
    class Leaving(Rehearsed):
        """Whoever has done its shard is gone."""

        def events(self) -> Iterator[Event]:
            for event in super().events():
                yield event
                if isinstance(event, Done):
                    self._hands[event.worker] = Hand()
                    yield Lost(event.worker, "gone")

    study = parse_study(study_data)
    capture_study(study, engine=Rehearsal(Leaving(2, lambda *_: None)))
    assert captured(study.folder) == whole


def test_what_cannot_be_written_stops_everything(study_data: dict[str, Any]) -> None:
    crew = Rehearsed(2, lambda worker, *_: Failed.of(worker, CannotWriteError("no space left for it")))
    study = parse_study(study_data)
    with pytest.raises(CannotWriteError, match="no space left"):
        capture_study(study, engine=Rehearsal(crew))
    assert not list(study.folder.glob("captures/*/shard-*"))
    assert not (study.folder / notes.WORKING).exists()


def test_in_one_process_a_checkpoint_that_fails_does_not_keep_the_others(
    study_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes]
) -> None:
    real = Bench.shard

    def shard(bench: Bench, piece: Piece, *rest: Any) -> bytes:
        if (bench.order.name, piece.number) == ("first", 2):
            raise RopewalkError("layer 1 head 0 has NaN: mend it")
        return real(bench, piece, *rest)

    monkeypatch.setattr(Bench, "shard", shard)
    study = parse_study(study_data)
    with pytest.raises(IncompleteError, match=r"\nA, shard 2 of 4: layer 1 head 0 has NaN: mend it$"):
        capture_study(study)
    assert len(shards(captured(study.folder))) == len(shards(whole)) - 1


def test_another_machine_with_other_weights_is_refused(study_data: dict[str, Any]) -> None:
    study, seen = parse_study(study_data), []

    class Elsewhere:
        name = "elsewhere"

        def run(self, account: Any) -> None:
            seen.append(account.orders[0].pinned())

    capture_study(study, engine=Elsewhere())
    (order,) = seen
    assert Path(order.checkpoint.repo).is_absolute()
    assert order.checkpoint.dtype == "float32"
    Bench(replace(order, host="elsewhere"))
    with pytest.raises(RopewalkError, match=r"is another model on .* than on elsewhere"):
        Bench(replace(order, host="elsewhere", model="other"))
    with pytest.raises(RopewalkError, match=r"the study was started by 0\.0"):
        Bench(replace(order, version="0.0"))


@pytest.mark.parametrize(
    ("settings", "device"),
    [
        ({"device": "auto"}, "cuda:1"),
        ({"device": "cuda"}, "cuda:1"),
        ({"device": "cpu"}, "cpu"),
        ({"device": "cuda:0"}, "cuda:0"),
    ],
)
def test_a_process_has_a_gpu_of_its_own_where_the_study_leaves_it_open(
    study_data: dict[str, Any], settings: dict[str, str], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    checkpoint = parse_study(study_data).checkpoints[0].model_copy(update=settings)
    monkeypatch.setattr(
        hand, "Bench", lambda order: opened.append(order.checkpoint.device) or SimpleNamespace(facts={})
    )
    order = Order("A", checkpoint, Capture(), None, Path(), "", None, "float32", {}, 4)  # type: ignore[arg-type]
    Hand("cuda:1").open(order)
    assert opened == [device]
    spread = checkpoint.model_copy(update={"device_map": "auto"})
    assert not hand.is_free(spread)


def test_an_engine_is_no_part_of_what_results_are(study_data: dict[str, Any], tmp_path: Path) -> None:
    plain, placed = parse_study(study_data), parse_study({**study_data, "engine": {"name": "ray", "workers": 2}})
    assert placed.engine == Placement(name="ray", workers=2)
    assert parse_study({**study_data, "engine": "slurm"}).engine.name == "slurm"
    assert plain.owner == placed.owner
    assert plain.model_dump() == placed.model_dump()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "rey"}, "'local', 'ray' or 'slurm'"),
        ({"name": "local", "address": "auto"}, "`address` is of ray, and the engine is `local`"),
        ({"name": "ray", "minutes": 3}, "`minutes` is of slurm, and the engine is `ray`"),
        ({"name": "slurm", "options": {"partition": "a\nb"}}, "`partition` must be text or a number on one line"),
        ({"name": "slurm", "options": {"setup": ["rm"]}}, "`setup` must be text"),
        ({"name": "slurm", "options": {"a b": 1}}, "`a b` must be text"),
        ({"name": "local", "cluster": "here"}, "`cluster` is of slurm, and the engine is `local`"),
        ({"workers": 0}, "greater than 0"),
    ],
)
def test_a_wrong_placement_is_named(data: dict[str, Any], message: str) -> None:
    with pytest.raises(RopewalkError) as refused:
        validated(Placement, data, "engine")
    assert message in str(refused.value)


def cost(**changes: Any) -> Cost:
    facts = {"label": "a", "context": 1024, "documents": 80, "tokens": 80 * 1024, "shards": 8, "done": 0, "heads": 4}
    return Cost(**{**facts, "weights": 4 * 10**9, "disk": 8 * 10**8, "asked": 4, **changes})


def test_memory_and_time_come_from_the_plan() -> None:
    assert memory_of(cost()) == round(2 * 2**30 + 1.5 * (4e9 + 1e8))
    # 2 x 10^9 parameters x 81,920 tokens at 10^10 operations a second: 273 minutes, and ten more.
    assert minutes_of(cost(), 8, cpus=1, gpus=0) == 290
    assert minutes_of(cost(), 4, cpus=1, gpus=0) == 150
    assert minutes_of(cost(), 8, cpus=8, gpus=0) == 50
    assert minutes_of(cost(), 8, cpus=1, gpus=1) == 20


def test_notes_tell_who_works_as_long_as_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with working(tmp_path, "local") as note:
        note.begin("a", 1)
        note.begin("b", 0)
        (found,) = workers(tmp_path)
        assert (found.engine, found.host, found.pid) == ("local", platform.node(), os.getpid())
        assert found.shards == {"a": [1], "b": [0]}
        note.end("a", 1)
        assert workers(tmp_path)[0].shards == {"b": [0]}
    assert workers(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    # One that was killed here is known by its process, one elsewhere by its silence.
    child = os.fork()
    if child == 0:
        Working(tmp_path, "local").write()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.rglob("*.json"))) == 1
    assert workers(tmp_path) == []
    clear_notes(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with working(tmp_path, "ray") as note:
        monkeypatch.setattr(notes.platform, "node", lambda: "elsewhere")
        assert len(workers(tmp_path)) == 1
        long_ago = time.time() - notes.SILENCE - 1
        os.utime(note.path, (long_ago, long_ago))
        assert workers(tmp_path) == []


def test_status_tells_done_running_and_missing(study_data: dict[str, Any], run: Run, tmp_path: Path) -> None:
    study = parse_study(study_data)
    capture_study(study, shards=[0, 2])
    with working(study.folder, "local") as note:
        note.begin("second", 1)
        first, second = study_status(study.folder)
        assert (first.done, first.running, first.missing) == ((0, 2), (), (1, 3))
        assert (second.done, second.running, second.missing) == ((0, 2), (1,), (3,))
        said = run("status", str(study.folder))[1]
        assert any(
            line.split() == ["A", "4", "2", "(0,", "2)", "0", "0", "2", "(1,", "3)"] for line in said.splitlines()
        )
        assert "in all: 4 of 8 shards done, 1 running, 0 queued, 3 missing" in said
        assert f"at work: local, process {os.getpid()} on {platform.node()}" in said
    assert "nobody computes the missing ones: `ropewalk run STUDY` goes on" in run("status", str(study.folder))[1]
    code, _, said = run("status", str(tmp_path))
    assert code == 2
    assert "is not a results folder" in said


def test_wait_is_of_slurm(study_data: dict[str, Any], run: Run, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study_data))
    code, _, said = run("capture", str(tmp_path / "study.yaml"), "--results", str(tmp_path / "r"), "--wait")
    assert code == 2
    assert "--wait goes with --engine slurm: `local` is always waited for" in said
