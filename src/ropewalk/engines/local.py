"""Processes of this machine, each with a model of its own."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from ropewalk.capture.account import Account, InOneProcess
from ropewalk.engines.crew import Advanced, Crew, Done, Event, Failed, Lost, Opened, conduct
from ropewalk.engines.hand import is_free
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
        with _Processes(workers, gpus) as crew:
            conduct(crew, account)


def _gpus(account: Account) -> int:
    """GPUs of this machine that models can have for themselves: those that the study leaves to choose."""
    import torch

    return torch.cuda.device_count() if any(is_free(order.checkpoint) for order in account.orders) else 0


class _Processes(Crew):
    """Workers as processes; one that was lost is started again with its next shard."""

    def __init__(self, size: int, gpus: int) -> None:
        self.size, self._gpus = size, gpus
        # Not forked: threads of torch do not survive that.
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[int, Any] = {}
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
            ours, theirs = self._context.Pipe()
            device = f"cuda:{worker % self._gpus}" if self._gpus > 1 else None
            threads = max(1, cores() // self.size)
            process = self._context.Process(target=serve, args=(theirs, threads, device), daemon=True)
            process.start()
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


class _Sent(logging.Handler):
    """What a worker says, sent to where people see it."""

    def __init__(self, end: Connection) -> None:
        super().__init__()
        self._end = end

    def emit(self, record: logging.LogRecord) -> None:
        self._end.send(("said", (record.levelno, record.getMessage())))


def serve(end: Connection, threads: int, device: str | None) -> None:
    """Compute what comes through a pipe, until it is closed: what a process of the engine does."""
    # Who started it stops it, also where both hear of Control-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    logger.addHandler(_Sent(end))
    logger.setLevel(logging.INFO)
    import torch

    from ropewalk.engines.hand import Hand

    # Those who chose a number of threads know why.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    hand = Hand(device)
    with suppress(EOFError, OSError):
        while True:
            order, piece = end.recv()
            try:
                facts = hand.open(order)
                if facts is not None:
                    end.send(("opened", (facts,)))
                hand.write(piece, lambda tokens: end.send(("advanced", (tokens,))))
                end.send(("done", ()))
            # Whatever it was is told where people see it; one that nobody listens to any more ends the process.
            except Exception as error:
                failed = Failed.of(0, error)
                end.send(("failed", (failed.sentence, failed.final, failed.cannot_write)))


def _end_with(sentinel: int) -> None:
    """End this process when another one has: nobody would take its work any more."""
    wait([sentinel])
    os._exit(1)
