"""What a process does that helps to draw figures (`sharing`)."""

import pickle
import signal
import sys
import warnings
from contextlib import suppress
from typing import BinaryIO

from ropewalk.figures.gallery import write_task
from ropewalk.figures.sharing import DONE, FAILED, Task
from ropewalk.summary.view import View


def serve(orders: BinaryIO, answers: BinaryIO) -> None:
    """Write the figures that are asked for, and answer after each; until nobody can ask any more."""
    # Who started it ends it, also where both hear of Control-C; a file that it writes is not left half written then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with suppress(EOFError, OSError):
        view, source = pickle.load(orders)
        while True:
            answers.write(DONE if _is_written(pickle.load(orders), view, source) else FAILED)
            answers.flush()


def _is_written(task: Task, view: View, source: str) -> bool:
    """Write a figure; whether that went without an error and without a warning."""
    with warnings.catch_warnings(record=True) as said:
        try:
            write_task(task, view, source)
        except Exception:
            return False
    return not said
