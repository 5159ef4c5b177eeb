"""The command line. Each command imports what it needs when it runs, so that help answers at once."""

import sys
from collections.abc import Sequence

import click

# isort: off
# Commands are listed in the order in which they are added: that of the work.
from ropewalk.cli import study, results, models  # noqa: F401

# isort: on
from ropewalk.cli.base import cli
from ropewalk.errors import RopewalkError

__all__ = ["cli", "main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake the user can fix is one line and exit code 2."""
    from ropewalk.progress import listening

    try:
        with listening():
            cli.main(args=None if arguments is None else list(arguments), prog_name="ropewalk", standalone_mode=False)
    except RopewalkError as error:
        click.echo(f"ropewalk: {error}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("ropewalk: stopped; the same command goes on where it was", err=True)
        sys.exit(130)
