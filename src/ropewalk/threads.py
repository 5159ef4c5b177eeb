"""Work on many arrays in several threads."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

Item = TypeVar("Item")
Found = TypeVar("Found")

LARGE = (32 << 20) - (1 << 16)
"""Bytes of the largest array that the C library learns from."""


def work_on_each(work: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """What the work gives for each item, by as many threads as there are cores: NumPy releases the interpreter.

    None has threads inside: matrices are small, and those of BLAS would stand in each other's way.
    """
    _keep_memory()
    with ThreadPoolExecutor(os.cpu_count()) as pool, threadpool_limits(1):
        return list(pool.map(work, items))


def _keep_memory() -> None:
    # Once a large array was freed, glibc keeps up to twice its size for later ones; otherwise all arrays of an item go
    # back to the system and come again page by page, which takes a seventh of the time.
    np.empty(LARGE, np.uint8)
