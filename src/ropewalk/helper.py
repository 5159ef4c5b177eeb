"""What a process does that helps another (`helpers`)."""

import atexit
import gc
import io
import logging
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, BinaryIO

from threadpoolctl import threadpool_limits

from ropewalk.progress import logger


def serve(orders: BinaryIO) -> None:
    """Do what is asked for, and answer on standard output after each; until nobody can ask any more."""
    # Who started it ends it, also where both hear of Control-C; a file that it writes is not left half written then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    # Its end is waited for: what is left then is not searched for circles.
    atexit.register(gc.freeze)
    # What prints, prints elsewhere: an answer must not be torn apart.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    work: Callable[[Any], Any] | None = None
    with suppress(EOFError, OSError):
        while True:
            is_work, content = pickle.load(orders)
            if is_work:
                work = known(content)
                # Of the libraries that came with it, as in the process that asks.
                threadpool_limits(1)
            else:
                pickle.dump(None if work is None else answer(work, content), answers)
                answers.flush()


def known(content: bytes) -> Callable[[Any], Any] | None:
    """The work that is sent; None where it is not known in this process."""
    try:
        work: Callable[[Any], Any] = pickle.loads(content)
    except Exception:
        return None
    return work


def answer(work: Callable[[Any], Any], content: bytes) -> bytes | None:
    """What the work gives for an item, both as they are sent; None where it raises, warns, logs or prints anything."""
    with _heard() as said, warnings.catch_warnings(record=True) as warned:
        try:
            found = pickle.dumps(work(pickle.loads(content)), pickle.HIGHEST_PROTOCOL)
        except Exception:
            return None
    return None if warned or said.getvalue() else found


@contextmanager
def _heard() -> Iterator[io.StringIO]:
    """Text that takes up all that is printed, and all that the library says."""
    said = io.StringIO()
    lines, level = logging.StreamHandler(said), logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        with redirect_stdout(said), redirect_stderr(said):
            yield said
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
