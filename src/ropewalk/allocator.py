"""What the C library does with memory that is freed, where it is glibc, and the size of the pages that torch takes."""

import ctypes
import os
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Settings of `mallopt`, by the numbers of glibc's header."""
KEPT_BLOCK, KEPT = 1 << 25, 1 << 29
"""Bytes of the largest block that is kept when it is freed (the most that glibc comes to by itself), and of all."""
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""The variable by which torch is told to ask Linux for huge pages; it looks at it when it makes its first tensor."""


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


def suit_passes() -> None:
    """Let this process take and keep memory as a model's forward passes on the CPU need it: freed memory is kept, and
    torch takes large tensors in huge pages, where Linux gives any, unless the user has decided that.

    They come and go with fewer faults. And torch has such tensors begin with a page: of those that begin anywhere glibc
    leaves slivers between, in which small objects settle, so that a block that was freed is too small for the next one
    of its size, and passes wander through more memory than they need at any time.
    """
    keep_freed()
    os.environ.setdefault(HUGE_PAGES, "1")


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
