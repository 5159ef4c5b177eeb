"""The command line. Each command imports what it needs when it runs, so that help answers at once."""

import atexit
import gc
import io
import os
import sys
from collections.abc import Sequence

import click

# isort: off
# Commands are listed in the order in which they are added: that of the work.
from ropewalk.cli import study, results, sharing, models  # noqa: F401

# isort: on
from ropewalk.cli.base import cli
from ropewalk.errors import RopewalkError

__all__ = ["cli", "main"]

LONGEST_LINE = 1000
"""Characters of a line of an error."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake the user can fix is one line and exit code 2, work that lacks a part 3."""
    from ropewalk.progress import listening
    from ropewalk.text import cut, printable

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot write a character is no reason to stop.
            stream.reconfigure(errors="backslashreplace")
    # Half a million objects of torch and transformers would be searched for circles, which takes over a second: memory
    # goes back to the system at once, and whatever matters was closed before.
    atexit.register(gc.freeze)
    try:
        with listening():
            cli.main(args=None if arguments is None else list(arguments), prog_name="ropewalk", standalone_mode=False)
    except RopewalkError as error:
        # Whatever a message repeats, no line of it fills a terminal.
        lines = [cut(line, LONGEST_LINE) for line in printable(str(error), newlines=True).split("\n")]
        click.echo("ropewalk: " + "\n".join(lines), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(_usage(error) + f"Error: {cut(printable(error.format_message()), LONGEST_LINE)}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("ropewalk: stopped; the same command goes on where it was", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # Who read the output has seen enough; what is left of it has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        click.echo(f"ropewalk: {_told(error)}", err=True)
        sys.exit(2)
    except MemoryError:
        click.echo(
            "ropewalk: the memory of this machine ran out: close other programs, or lower what the study asks for "
            "(`batch_tokens`, `context`, `heads`)",
            err=True,
        )
        sys.exit(2)


def _usage(error: click.ClickException) -> str:
    """How a command is called, where it was called wrongly."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return ""
    return f"{context.get_usage()}\nTry '{context.command_path} --help' for help.\n\n"


def _told(error: OSError) -> str:
    """What the system says of a file, where nothing closer to it made a sentence of it."""
    from ropewalk.text import one_line

    if error.strerror is None:
        return one_line(error)
    reason = one_line(error.strerror)
    names = [one_line(os.fsdecode(name)) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    where = f"{' and '.join(names)} cannot be used" if names else "a file cannot be used"
    return f"{where}: the system says '{reason}'"
