"""Workers that are forked from a process which has imported what they need, beside the imports of this one."""

import gc
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import reduction, spawn
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from ropewalk.placement import Placement

NEEDED = ("torch", "ropewalk.capture.work", "ropewalk.engines.worker")
"""Modules that workers need, and with them all that these import."""
READ_EARLY = ("OMP_", "MKL_", "OPENBLAS_", "TORCH_", "TRANSFORMERS_", "HF_")
"""How variables begin that libraries read when they are imported."""

# Not `multiprocessing.forkserver`: that one is shared with whatever else the program does, looks for modules in the
# current folder, and ends no sooner than the program. The path is that of this process, so that the code is the same.
_BEGIN = (
    "import sys; from multiprocessing.connection import Connection; end = Connection(int(sys.argv[1])); "
    "sys.path[:] = end.recv(); from ropewalk.engines.forks import attend; attend(end, int(sys.argv[2]))"
)

_begun: "list[Forks]" = []


@contextmanager
def forks_ahead(placement: Placement) -> Iterator[None]:
    """While the block runs, an engine finds a process at hand that workers can be forked from, where it wants several.

    Enter it before torch is imported: the process imports it too, at the same time. Within another such block it does
    nothing. Nothing of it is left after the block.
    """
    forks = None
    if not _begun and placement.name == "local" and (placement.workers or 1) > 1 and sys.platform == "linux":
        with suppress(OSError):  # of a process that cannot be started: workers will say so
            forks = Forks()
            _begun.append(forks)
    try:
        yield
    finally:
        if forks is not None:
            with suppress(ValueError):  # of one that an engine has taken
                _begun.remove(forks)
            forks.close()


def taken_forks() -> "Forks | None":
    """The process that was begun ahead, for one engine alone; None where there is none."""
    return _begun.pop() if _begun else None


class Forks:
    """A process that forks workers on demand, and knows how they ended.

    It has computed nothing and has no threads but those of libraries that know of forks. It ends with this one, however
    that ends, and so do the workers.
    """

    def __init__(self) -> None:
        # It stops those who start workers where a worker imports their script.
        path = spawn.get_preparation_data("forks")["sys_path"]
        self._read, self._ready = _read_early(), False
        self._end, theirs = multiprocessing.Pipe()
        lifeline, self._lifeline = os.pipe()
        ends = [theirs.fileno(), lifeline]
        # Control-C is for this process, also before that one can say that it does not listen.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [os.fsdecode(spawn.get_executable()), *_flags(), "-P", "-c", _BEGIN, *map(str, ends)],
                stdin=subprocess.DEVNULL,
                pass_fds=ends,
            )
        except OSError:
            self._end.close()
            os.close(self._lifeline)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
            os.close(lifeline)
        with suppress(OSError):  # of one that is gone already
            self._end.send(path)

    def fork(self, end: Connection, threads: int, device: str | None) -> "Forked | None":
        """A worker that serves this end of a pipe (see `worker.serve`); None where none can be had in this way.

        That is where modules could not be imported, and where variables were changed that they have read by then.
        """
        if self._read != _read_early():
            return None
        preparation = spawn.get_preparation_data("worker")
        # As plain bytes it can be told; only this process and its own hear it.
        preparation["authkey"] = bytes(preparation["authkey"])
        try:
            if not self._ready:
                self._ready = self._end.recv()
            self._end.send(("fork", (preparation, dict(os.environ), threads, device)))
            reduction.send_handle(self._end, end.fileno(), self._process.pid)
            return Forked(self, self._end.recv())
        except (EOFError, OSError):
            return None

    def wait_for(self, pid: int) -> int | None:
        """Wait until a worker is gone; its exit code, negative for a signal, None where nobody knows it."""
        with suppress(EOFError, OSError):
            self._end.send(("wait", pid))
            code: int = self._end.recv()
            return code
        return None

    def kill(self, pid: int) -> None:
        """Kill a worker."""
        # Its number is its own as long as its parent has not asked for its end. Without a parent, the number may be
        # anybody's; the worker hears from its lifeline then.
        if self._process.poll() is None:
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process, whatever it is doing, and with it workers that are left."""
        if self._end.closed:
            return
        self._end.close()
        os.close(self._lifeline)
        self._process.kill()
        self._process.wait()


class Forked:
    """A worker that was forked elsewhere, with what the engine asks of a process."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks, self.pid = forks, pid
        self.exitcode: int | None = None

    def kill(self) -> None:
        """Kill it; it is joined later."""
        self._forks.kill(self.pid)

    def join(self) -> None:
        """Wait until it is gone."""
        self.exitcode = self._forks.wait_for(self.pid)


def attend(end: Connection, lifeline: int) -> None:
    """What the process does: import, then fork workers and wait for them as it is told, until nobody can tell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for name in NEEDED:
            importlib.import_module(name)
    except Exception:
        # A worker that is started in the other way says why.
        return
    # What is there now stays: to look at it would be to copy it in each worker.
    gc.collect()
    gc.freeze()
    with suppress(EOFError, OSError):
        end.send(True)
        while True:
            task, value = end.recv()
            if task == "wait":
                end.send(os.waitstatus_to_exitcode(os.waitpid(value, 0)[1]))
                continue
            own = reduction.recv_handle(end)
            with warnings.catch_warnings():
                # Python counts threads of libraries, which end theirs before a fork.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                end.close()
                _work(own, lifeline, *value)
            os.close(own)
            end.send(pid)


def _work(
    own: int,
    lifeline: int,
    preparation: dict[str, Any],
    environment: Mapping[str, str],
    threads: int,
    device: str | None,
) -> NoReturn:
    """Be a worker, and nothing after that."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        from ropewalk.engines.worker import serve

        # As `multiprocessing` does it: a script is imported for what it defines, and may not start workers meanwhile.
        process: Any = multiprocessing.current_process()
        process._inheriting = True
        try:
            spawn.prepare(preparation)
        finally:
            del process._inheriting
        serve(Connection(own), threads, device, lifeline)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        # Not the end of the process it was forked from, which is in the middle of its work.
        os._exit(code)


def _read_early() -> dict[str, str]:
    """Those of the environment's variables that it is too late to change for a process that has imported."""
    return {name: value for name, value in os.environ.items() if name.startswith(READ_EARLY)}


def _flags() -> list[str]:
    """Options of this interpreter that others are started with."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return options
