"""Importing what workers need beside the imports of this process: in one that they are forked from then."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from typing import Any

from ropewalk.placement import Placement

NEEDED = ["ropewalk.engines.server"]
"""What imports all that workers need, torch and transformers among it."""
READ_EARLY = ("OMP_", "MKL_", "OPENBLAS_", "TORCH_", "TRANSFORMERS_", "HF_")
"""How variables begin that libraries read when they are imported."""

_known: list[dict[str, str]] = []
"""Those variables as the process that imports ahead has them, if there is one."""


def import_ahead(placement: Placement) -> None:
    """Begin to import what workers need, where several of this machine are wanted; before torch is imported here.

    It is done by the fork server of `multiprocessing`, which has computed nothing and has no threads of its own, so
    that a fork of it is safe. There is one for the whole program, which ends with it: this is for commands, and not for
    libraries.
    """
    if not _known and placement.name == "local" and (placement.workers or 1) > 1 and sys.platform == "linux":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload(NEEDED)
        with _serving():
            forkserver.ensure_running()
        _known.append(_read_early())


def started(target: Callable[..., None], *arguments: Any, on_cpu: bool) -> BaseProcess:
    """A process that calls the target: forked where that was prepared, and nothing that was read early has changed.

    What a GPU needs to be used does not survive a fork.
    """
    if on_cpu and _known == [_read_early()]:
        process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments, daemon=True)
        # Of a server that was killed; another one may not live longer.
        with suppress(EOFError, OSError), _serving():
            process.start()
            return process
    # Never forked from this process: threads of torch do not survive that.
    fresh = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    fresh.start()
    return fresh


@contextmanager
def _serving() -> Iterator[None]:
    """While the fork server may be started: it imports nothing from the current folder, and Control-C is not for it."""
    from multiprocessing import resource_tracker

    # First, because it lets signals come again that were blocked before.
    resource_tracker.ensure_running()
    safe, before = os.environ.get("PYTHONSAFEPATH"), signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        del os.environ["PYTHONSAFEPATH"]
        if safe is not None:
            os.environ["PYTHONSAFEPATH"] = safe


def _read_early() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(READ_EARLY)}
