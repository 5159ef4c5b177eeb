"""What the C library does with memory that is freed, where it is glibc; elsewhere nothing is done."""

import ctypes
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Settings of `mallopt`, by the numbers of glibc's header."""
KEPT_BLOCK, KEPT = 1 << 25, 1 << 29
"""Bytes of the largest block that is kept when it is freed (the most that glibc comes to by itself), and of all."""


def keep_freed() -> None:
    """Let this process keep memory that one layer frees for the next.

    By itself glibc gives it back to the system after each, and takes it again page by page: a tenth to a fifth of the
    time of a small model's forward pass on a CPU, or of a table. Blocks beyond `KEPT_BLOCK` still come and go: work
    with such arrays computes long enough on each page.
    """
    set_option = _function("mallopt")
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, KEPT_BLOCK)
        set_option(M_TRIM_THRESHOLD, KEPT)


def give_back_freed() -> None:
    """Give memory that was freed and kept back to the system."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Any:
    """A function of the C library; None where it has none of this name."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    # Windows has no library without a name.
    except TypeError:
        return None
