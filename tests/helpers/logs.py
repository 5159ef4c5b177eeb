"""Hearing what the library says."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Ear(logging.Handler):
    def __init__(self, hear: Callable[[str], object]) -> None:
        super().__init__()
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record.getMessage())


@contextmanager
def heard(hear: Callable[[str], object]) -> Iterator[None]:
    """While the block runs, `hear` is given each line that the library says; what it raises comes through."""
    logger, ear = logging.getLogger("ropewalk"), _Ear(hear)
    level = logger.level
    logger.addHandler(ear)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.setLevel(level)
