"""Processes of this machine, each with a model of its own."""

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from ropewalk.capture.account import Account, InOneProcess
from ropewalk.engines.ahead import started
from ropewalk.engines.crew import Advanced, Crew, Done, Event, Failed, Lost, Opened, conduct
from ropewalk.engines.hand import is_free
from ropewalk.engines.worker import serve
from ropewalk.models.device import device_of
from ropewalk.progress import logger
from ropewalk.threads import cores

if TYPE_CHECKING:
    from ropewalk.capture.work import Order, Piece

PATIENCE = 1.0
"""Seconds to wait for news at most."""


class LocalEngine:
    """As many processes as asked for; by default one, or one for each GPU where there are several."""

    name = "local"

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers

    def run(self, account: Account) -> None:
        """Compute everything that the account wants."""
        gpus = _gpus(account)
        workers = min(self._workers or max(1, gpus), sum(map(len, account.wanted.values())))
        if workers <= 1:
            InOneProcess().run(account)
            return
        with _Processes(workers, gpus, on_cpu=_on_cpu(account)) as crew:
            conduct(crew, account)


def _gpus(account: Account) -> int:
    """GPUs of this machine that models can have for themselves: those that the study leaves to choose."""
    import torch

    return torch.cuda.device_count() if any(is_free(order.checkpoint) for order in account.orders) else 0


def _on_cpu(account: Account) -> bool:
    """Whether all models run on the CPU, by what the study says and what there is."""
    checkpoints = [order.checkpoint for order in account.orders]
    return all(one.device_map is None and device_of(one).type == "cpu" for one in checkpoints)


class _Processes(Crew):
    """Workers as processes; one that was lost is started again with its next shard."""

    def __init__(self, size: int, gpus: int, *, on_cpu: bool) -> None:
        self.size, self._gpus, self._on_cpu = size, gpus, on_cpu
        self._processes: dict[int, BaseProcess] = {}
        self._ends: dict[int, Connection] = {}

    def __enter__(self) -> "_Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()

    def give(self, worker: int, order: "Order", piece: "Piece") -> None:
        """Send an order and a piece to a process, which is started if it is not there."""
        if worker not in self._ends:
            ours, theirs = multiprocessing.Pipe()
            device = f"cuda:{worker % self._gpus}" if self._gpus > 1 else None
            threads = max(1, cores() // self.size)
            process = started(serve, theirs, threads, device, on_cpu=self._on_cpu)
            theirs.close()
            self._processes[worker], self._ends[worker] = process, ours
        # One that is gone is found to be so when its answer is waited for.
        with suppress(OSError):
            self._ends[worker].send((order.pinned(), piece))

    def events(self) -> Iterator[Event]:
        """What processes sent; one whose end of the pipe is closed is lost."""
        numbers = {id(end): worker for worker, end in self._ends.items()}
        for end in wait(list(self._ends.values()), PATIENCE):
            worker = numbers[id(end)]
            try:
                kind, value = self._ends[worker].recv()
            except (EOFError, OSError):
                yield Lost(worker, self._ended(worker))
                continue
            if kind == "said":
                logger.log(*value)
            else:
                yield _EVENTS[kind](worker, *value)

    def _ended(self, worker: int) -> str:
        """How a process ended, as far as the system tells."""
        process = self._processes.pop(worker)
        self._ends.pop(worker).close()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            return "its process was killed (signal 9), perhaps for want of memory"
        return f"its process ended with exit code {process.exitcode}"


_EVENTS: dict[str, Any] = {"opened": Opened, "advanced": Advanced, "done": Done, "failed": Failed}
