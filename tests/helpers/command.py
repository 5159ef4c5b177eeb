"""The command line, run in-process."""

from collections.abc import Callable

from ropewalk.cli import main

Run = Callable[..., tuple[int, str, str]]
"""Takes the words of a command, gives (exit code, standard output, standard error)."""


def exit_code(*arguments: str) -> int:
    """Run a command and say how it ended."""
    try:
        main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
