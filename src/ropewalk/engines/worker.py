"""What a process of the local engine does: shards that come through a pipe, until it is closed."""

import logging
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, wait

import torch

from ropewalk.engines.crew import Failed
from ropewalk.engines.hand import Hand
from ropewalk.progress import logger


class _Sent(logging.Handler):
    """What a worker says, sent to where people see it."""

    def __init__(self, end: Connection) -> None:
        super().__init__()
        self._end = end

    def emit(self, record: logging.LogRecord) -> None:
        self._end.send(("said", (record.levelno, record.getMessage())))


def serve(end: Connection, threads: int, device: str | None) -> None:
    """Compute what comes through a pipe, until it is closed."""
    # Who started it stops it, also where both hear of Control-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    logger.addHandler(_Sent(end))
    logger.setLevel(logging.INFO)
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
