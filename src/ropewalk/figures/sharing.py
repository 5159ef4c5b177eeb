"""Sharing the work of drawing with other processes: each takes a figure that nobody has begun."""

import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from ropewalk.summary.view import View
from ropewalk.threads import cores

MOST = 3
"""Helpers at most: further ones take as long to start as they save."""
SHARE = 6
"""Figures that there must be for each process, or it is not worth its start."""
LARGEST = 500_000_000
"""Bytes of a view that another process is given: it takes their room once more."""

DONE, FAILED = b"+", b"-"
"""What a helper answers."""

# Not a fork, which threads of torch do not survive, and not by `multiprocessing`, which runs the user's script again.
# The path is that of this process, so that the code is the same.
_HELP = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from ropewalk.figures.helper import serve; serve(sys.stdin.buffer, sys.stdout.buffer)"
)
_CANNOT_PICKLE = (pickle.PicklingError, AttributeError, TypeError, RecursionError)


@dataclass(frozen=True)
class Task:
    """A figure to write: its name, its folder, and its options."""

    figure: str
    target: Path
    options: dict[str, Any]


def spare_processes() -> int:
    """How many helpers this machine has cores for."""
    return min(cores() - 1, MOST)


def shared(
    tasks: Sequence[Task], write: Callable[[Task], object], view: View, source: str, helpers: int
) -> Iterator[Task]:
    """Write figures, with up to so many helpers that take them from the end; yield each when it is written, in order.

    What a helper did not write, for whatever reason, is written here at last: so errors and warnings come out as they
    do without one.
    """
    waiting, written, own = deque(tasks), set[str](), 0
    with ExitStack() as ends:
        crew: list[_Helper] = []
        count = min(helpers, len(tasks) // SHARE - 1)
        if count > 0 and (known := _known(view, source)) is not None:
            with suppress(OSError):  # of a process that cannot be started
                for _ in range(count):
                    crew.append(_Helper(known, waiting, written))
                    ends.callback(crew[-1].end)
                    crew[-1].start()
        while (task := _taken(waiting.popleft)) is not None:
            write(task)
            own += 1
            yield task
        for helper in crew:
            helper.join()
    for task in tasks[own:]:
        if task.figure not in written:
            write(task)
        yield task


def _taken(take: Callable[[], Task]) -> Task | None:
    """A task that is left; None where there is none."""
    try:
        return take()
    except IndexError:
        return None


def _known(view: View, source: str) -> bytes | None:
    """What helpers must know; None where it cannot be given to another process."""
    try:
        known = pickle.dumps(sys.path) + pickle.dumps((view.bare(), source))
    except _CANNOT_PICKLE:
        return None
    return known if len(known) <= LARGEST else None


class _Helper:
    """A process that writes figures, and the thread that gives them to it."""

    def __init__(self, known: bytes, waiting: "deque[Task]", written: set[str]) -> None:
        # Whatever would be said by it is said here, when it is done again.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _HELP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._thread = Thread(target=self._work, args=(known, waiting, written), daemon=True)

    def start(self) -> None:
        """Begin to take tasks that wait, the last first, and to note those that are written."""
        self._thread.start()

    def join(self) -> None:
        """Wait until no task is left."""
        self._thread.join()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.terminate()
        if self._thread.is_alive():
            self._thread.join()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what it did not read any more
                pipe.close()  # type: ignore[union-attr]

    def _work(self, known: bytes, waiting: "deque[Task]", written: set[str]) -> None:
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        with suppress(OSError, *_CANNOT_PICKLE):
            orders.write(known)
            orders.flush()
            while (task := _taken(waiting.pop)) is not None:
                orders.write(pickle.dumps(task))
                orders.flush()
                answer = answers.read(1)
                if answer == DONE:
                    written.add(task.figure)
                if not answer:
                    return
