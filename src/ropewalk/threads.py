"""Cores that there are, and work on many arrays in as many threads."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits

from ropewalk.allocator import keep_freed

Item = TypeVar("Item")
Found = TypeVar("Found")


def cores() -> int:
    """How many cores this process may use, where the system tells; a job of a cluster has not all of its node."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work_on_each(work: Callable[[Item], Found], items: Iterable[Item], threads: int | None = None) -> list[Found]:
    """What the work gives for each item, by as many threads as there are cores: NumPy releases the interpreter.

    Where other processes work as well, `threads` is the share of this one. None has threads inside: matrices are small,
    and those of BLAS would stand in each other's way.
    """
    keep_freed()
    with ThreadPoolExecutor(threads or cores()) as pool, threadpool_limits(1):
        return list(pool.map(work, items))
