"""Several workers at one capture: giving them shards, and what is done when one of them is lost."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.capture.account import Account
from ropewalk.capture.shards import Pieces
from ropewalk.capture.work import Order, Piece
from ropewalk.engines.schedule import ATTEMPTS, Schedule, Task
from ropewalk.errors import RopewalkError
from ropewalk.files import CannotWriteError
from ropewalk.progress import logger


@dataclass(frozen=True)
class Opened:
    """A worker has loaded the model of its order; what it tells for the manifest."""

    worker: int
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Advanced:
    """A worker has done tokens of its shard."""

    worker: int
    tokens: int


@dataclass(frozen=True)
class Done:
    """A worker has written its shard, or sends it back."""

    worker: int
    data: bytes = b""


@dataclass(frozen=True)
class Failed:
    """A worker could not compute its shard. `final` is what would fail again: a mistake that the user can mend."""

    worker: int
    sentence: str
    final: bool
    cannot_write: bool = False

    @classmethod
    def of(cls, worker: int, error: Exception) -> "Failed":
        """What to tell of an exception."""
        final = isinstance(error, RopewalkError)
        sentence = str(error) if final else f"{type(error).__name__}: {error}"
        return cls(worker, sentence, final, isinstance(error, CannotWriteError))


@dataclass(frozen=True)
class Lost:
    """A worker is gone in the middle of its shard."""

    worker: int
    reason: str


Event = Opened | Advanced | Done | Failed | Lost


class Crew(ABC):
    """Workers, known by their numbers from 0. Each has one shard at a time; one that was lost is there again."""

    size: int

    @abstractmethod
    def give(self, worker: int, order: Order, piece: Piece) -> None:
        """Let a worker compute a shard; it loads the model unless it has it already."""

    @abstractmethod
    def events(self) -> Iterator[Event]:
        """What happened since, after waiting for a while at most."""


def conduct(crew: Crew, account: Account) -> None:
    """Let a crew compute everything that an account wants.

    A shard whose worker is lost, or fails for a reason that may pass, is tried again, and nothing else is; after some
    attempts it is told to have failed, and the rest goes on. What cannot be written stops everything. Who has done a
    shard is given the next before that one is settled, which may take as long as a short shard.
    """
    orders = {order.name: order for order in account.orders}
    schedule = Schedule(account.wanted, {order.name: order.checkpoint.context for order in account.orders})
    tasks: dict[int, Task] = {}
    loaded: dict[int, str] = {}
    finished: list[tuple[Order, int, Pieces]] = []

    def settle() -> None:
        while finished:
            account.done(*finished.pop(0))

    while not schedule.is_over:
        for worker in range(crew.size):
            if worker in tasks:
                continue
            task = schedule.take(worker, loaded.get(worker))
            if task is None:
                break
            order = orders[task.checkpoint]
            tasks[worker] = task
            if loaded.get(worker) != order.name:
                loaded.pop(worker, None)
            account.begun(order, task.number)
            crew.give(worker, order, account.piece(order, task.number))
        settle()
        for event in crew.events():
            if event.worker not in tasks:
                # One that had nothing to do; it comes back with its next shard.
                loaded.pop(event.worker, None)
                continue
            task = tasks[event.worker]
            order = orders[task.checkpoint]
            if isinstance(event, Opened):
                loaded[event.worker] = order.name
                account.opened(order, event.facts)
                continue
            if isinstance(event, Advanced):
                account.advanced(order, task.number, event.tokens)
                continue
            del tasks[event.worker]
            if isinstance(event, Done):
                schedule.done(task)
                finished.append((order, task.number, [event.data] if event.data else ()))
                continue
            account.dropped(order, task.number)
            opened = loaded.get(event.worker) == order.name
            if isinstance(event, Failed) and event.cannot_write:
                raise CannotWriteError(event.sentence)
            if isinstance(event, Failed) and event.final:
                schedule.done(task)
                given_up, reason = [task.number], event.sentence
                if not opened:
                    given_up += schedule.give_up(order.name)
            else:
                if isinstance(event, Lost):
                    loaded.pop(event.worker, None)
                reason = event.reason if isinstance(event, Lost) else event.sentence
                given_up = schedule.again(task, opened=opened)
                if not given_up:
                    logger.warning(
                        "%s, shard %d/%d: %s; it is tried again", order.label, task.number + 1, order.shards, reason
                    )
                reason = f"{reason} (in each of {ATTEMPTS} attempts)"
            if given_up:
                account.failed(order, sorted(given_up), reason)
    settle()
