"""Progress of long work: a bar on a terminal, plain lines in a log."""

import sys
import time
from types import TracebackType

from tqdm import tqdm

LINE_EVERY = 15.0
"""Seconds between two plain lines."""


def say(text: str) -> None:
    """Print a line for people, on standard error, without tearing a bar apart."""
    tqdm.write(text, file=sys.stderr)


class Progress:
    """Counts `total` tokens of a piece of work and shows speed and time left."""

    def __init__(self, label: str, total: int, done: int = 0) -> None:
        self._label, self._total, self._done = label, total, done
        self._skipped, self._start = done, time.monotonic()
        self._last = self._start
        self._bar: tqdm | None = None  # type: ignore[type-arg]
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=total, initial=done, desc=label, unit=" tokens", unit_scale=True, file=sys.stderr, leave=False
            )

    def advance(self, tokens: int, note: str = "") -> None:
        """Count tokens as done; `note` says where the work stands (such as the shard)."""
        self._done += tokens
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(tokens)
        elif time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            say(f"{self._label}: {note + ', ' if note else ''}{self._describe()}")

    def _describe(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        speed = (self._done - self._skipped) / seconds
        left = (self._total - self._done) / speed if speed > 0 else float("nan")
        return f"{self._done:,} of {self._total:,} tokens, {speed:,.0f} tokens/s, {_clock(left)} left"

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def _clock(seconds: float) -> str:
    if seconds != seconds:
        return "unknown time"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
