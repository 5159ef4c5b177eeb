"""Progress of long work: a bar on a terminal, plain lines in a log.

The library says what it does through the logger `ropewalk`, which is silent unless someone listens: the command line
does (`listening`), a notebook may (`logging.basicConfig(level="INFO")`).
"""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from ropewalk.text import printable

LINE_EVERY = 15.0
"""Seconds between two plain lines."""

logger = logging.getLogger("ropewalk")
logger.addHandler(logging.NullHandler())


class _Lines(logging.Handler):
    """Plain lines on standard error, without tearing a bar apart."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(printable(self.format(record), newlines=record.exc_info is not None), file=sys.stderr)


@contextmanager
def listening() -> Iterator[None]:
    """While the block runs, print what the library says, line by line: what the command line does."""
    lines, level, propagate = _Lines(), logger.level, logger.propagate
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
        logger.propagate = propagate


class Meter:
    """How far a piece of work is, in any unit, and how long it will take: a bar where there is a terminal.

    What is `done` already counts towards the whole and not towards the speed. `options` are those of the bar.
    """

    def __init__(self, total: float, done: float = 0, **options: Any) -> None:
        self._total, self._done, self._before = total, done, done
        self._start = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty() and logger.isEnabledFor(logging.INFO):
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=done, file=sys.stderr, leave=False, **options)

    @property
    def speed(self) -> float:
        """Work per second since the start."""
        return (self._done - self._before) / max(time.monotonic() - self._start, 1e-9)

    @property
    def left(self) -> str:
        """The time that the rest will take, for people."""
        return (
            f"{_clock(max(0.0, self._total - self._done) / self.speed)} left" if self.speed > 0 else "unknown time left"
        )

    def add(self, work: float) -> None:
        """Count work as done."""
        self._done += work
        if self._bar is not None:
            self._bar.update(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class Progress(Meter):
    """Counts `total` tokens of a piece of work and shows speed and time left."""

    def __init__(self, label: str, total: int, done: int = 0) -> None:
        super().__init__(total, done, desc=printable(label), unit=" tokens", unit_scale=True)
        self._label, self._last = label, self._start

    def advance(self, tokens: int, note: str = "") -> None:
        """Count tokens as done; `note` says where the work stands (such as the shard)."""
        if self._bar is not None:
            self._bar.set_postfix_str(printable(note), refresh=False)
        self.add(tokens)
        if self._bar is None and time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            logger.info(
                f"{self._label}: {note + ', ' if note else ''}{self._done:,} of {self._total:,} tokens, "
                f"{self.speed:,.0f} tokens/s, {self.left}"
            )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
