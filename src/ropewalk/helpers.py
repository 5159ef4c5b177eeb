"""Sharing work with other processes: each takes a piece that nobody has begun."""

import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from threadpoolctl import threadpool_limits

from ropewalk.threads import cores

MOST = 3
"""Helpers at most: further ones take as long to start as they save."""
LARGEST = 500_000_000
"""Bytes of what another process must know: it takes their room once more."""

# Not a fork, which threads of torch do not survive, and not by `multiprocessing`, which runs the user's script again.
# The path is that of this process, so that the code is the same.
_HELP = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from ropewalk.helper import serve; serve(sys.stdin.buffer)"
)
_CANNOT_PICKLE = (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError)

Item = TypeVar("Item")
Found = TypeVar("Found")
_Numbered = tuple[int, Any]


def spare_processes() -> int:
    """How many helpers this machine has cores for."""
    return min(cores() - 1, MOST)


class Helpers:
    """Up to so many processes that take their part in one kind of work after the other.

    They are started when there is enough to do, and end with the block, so that only the first work waits for their
    start. Where there may be any, BLAS has one thread within the block: its others would wait for each other.

    Whatever a helper did not do, because it could not or was killed, is done here: so errors and warnings come out as
    they do without one.

    >>> with Helpers(1) as helpers:
    ...     list(helpers.each([3, -4], abs, abs, share=1))
    [3, 4]
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._started: list[_Helper] = []
        self._limits: threadpool_limits | None = None

    def __enter__(self) -> Self:
        self._limits = threadpool_limits(1) if self._most > 0 else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self._limits is not None:
            self._limits.restore_original_limits()

    @property
    def are_there(self) -> bool:
        """Whether any was started."""
        return bool(self._started)

    def count(self, pieces: int, share: int) -> int:
        """How many take part in so many pieces of work, `share` of which are worth a process."""
        return max(0, min(self._most, pieces // share - 1))

    def each(
        self, items: Sequence[Item], here: Callable[[Item], Found], there: Callable[[Item], Found], share: int
    ) -> Iterator[Found]:
        """What the work gives for each item, in order, each as soon as it and those before it are done.

        This process takes items from the beginning and does them `here`; helpers take them from the end and do the same
        by `there`, which is pickled: a function of a module, or a `partial` of one and of what it must know.
        """
        waiting: deque[_Numbered] = deque(enumerate(items))
        found: dict[int, Found] = {}
        own = 0
        try:
            busy = self._begun(there, waiting, found, self.count(len(items), share))
            while (taken := _taken(waiting.popleft)) is not None:
                result = here(taken[1])
                own += 1
                yield result
            for helper in busy:
                helper.join()
        except BaseException:
            # Nobody waits for what they are doing.
            self.end()
            raise
        for number in range(own, len(items)):
            yield found.pop(number) if number in found else here(items[number])

    def _begun(
        self, there: Callable[[Any], Any], waiting: deque[_Numbered], found: dict[int, Any], count: int
    ) -> "list[_Helper]":
        """So many helpers, as far as there can be, that have begun to take what waits."""
        work = _order(there) if count > 0 else None
        if work is None or len(work) > LARGEST:
            return []
        for helper in [helper for helper in self._started if not helper.is_there]:
            self._started.remove(helper)
            helper.end()
        with suppress(OSError):  # of a process that cannot be started
            while len(self._started) < count:
                self._started.append(_Helper())
        for helper in self._started[:count]:
            helper.begin(work, waiting, found)
        return self._started[:count]

    def end(self) -> None:
        """End the processes, whatever they are doing."""
        while self._started:
            self._started.pop().end()


ALONE = Helpers(0)
"""No helpers."""


def _taken(take: Callable[[], _Numbered]) -> _Numbered | None:
    """A piece that is left, with its number; None where there is none."""
    try:
        return take()
    except IndexError:
        return None


def _order(content: Any) -> bytes | None:
    """Something as it is sent to a helper; None where it cannot be given to another process."""
    try:
        return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    except _CANNOT_PICKLE:
        return None


class _Helper:
    """A process that helps, and the thread that gives it what is to be done."""

    def __init__(self) -> None:
        # Whatever would be said by it is said here, when it is done again.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _HELP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._thread: Thread | None = None
        self._is_greeted = False
        self.is_there = True

    def begin(self, work: bytes, waiting: deque[_Numbered], found: dict[int, Any]) -> None:
        """Begin to take pieces that wait, the last first, and to note what is found, by number."""
        self._thread = Thread(target=self._help, args=(work, waiting, found), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until no piece is left."""
        if self._thread is not None:
            self._thread.join()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.terminate()
        self.join()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what it did not read any more
                pipe.close()  # type: ignore[union-attr]

    def _help(self, work: bytes, waiting: deque[_Numbered], found: dict[int, Any]) -> None:
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        try:
            if not self._is_greeted:
                pickle.dump(sys.path, orders)
                self._is_greeted = True
            pickle.dump((True, work), orders)
            while (taken := _taken(waiting.pop)) is not None:
                number, item = taken
                order = _order(item)
                if order is None:
                    continue
                pickle.dump((False, order), orders)
                orders.flush()
                answer = pickle.load(answers)
                if answer is not None:
                    found[number] = pickle.loads(answer)
        except (OSError, EOFError, pickle.UnpicklingError, ValueError):
            # It is gone, or going.
            self.is_there = False
