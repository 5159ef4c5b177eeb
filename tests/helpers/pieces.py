"""Work that another process can be given."""

import logging
import os
import signal
import time
import warnings
from pathlib import Path

import numpy as np  # noqa: F401 - brings such a library
from threadpoolctl import threadpool_info


def square(number: int) -> int:
    """A number times itself."""
    return number * number


def troubled(item: str) -> str:
    """The item; on the way there, what it names goes wrong in the process that does it."""
    if item == "raises":
        raise ValueError("as it is said here")
    if item == "warns":
        warnings.warn("as it is warned here", stacklevel=1)
    if item == "prints":
        print("as it is printed here")
    if item == "logs":
        logging.getLogger("ropewalk").info("as it is logged here")
    if item == "writes":
        # Past Python, as a library in C does.
        os.write(1, b"as it is written here")
    return item


def blas_threads(item: object) -> list[int]:
    """How many threads each library of linear algebra has in the process that does it."""
    del item
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def killed(item: object, parent: int) -> object:
    """The item; any other process than this one is killed by it."""
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def noted(item: Path) -> int:
    """Which process does it, once another has begun: each notes itself in a folder."""
    (item.parent / f"{os.getpid()}.pid").touch()
    deadline = time.monotonic() + 60
    while len(list(item.parent.glob("*.pid"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    return os.getpid()
