"""What all commands have in common: the group, help that ends in an example, kinds of paths."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ropewalk._version import __version__
from ropewalk.reading import check_name


class _Path(click.Path):
    """A path whose name is text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A `Path`, or a sentence where its name, or that of a folder above it, could not be written down."""
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        check_name(path.absolute())
        return path


FolderPath = _Path(path_type=Path, file_okay=False)
FilePath = _Path(path_type=Path, dir_okay=False)
AnyPath = _Path(path_type=Path)


class Command(click.Command):
    """A command whose help ends in an example that can be pasted as it is."""

    def __init__(self, *args: Any, example: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.example = example

    def format_epilog(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the example below the options."""
        if self.example:
            with formatter.section("Example"):
                for line in self.example.splitlines():
                    formatter.write_text(line)


class Group(click.Group):
    """The command group; lists commands in the order of the work, not of the alphabet."""

    command_class = Command

    def list_commands(self, _: click.Context) -> list[str]:
        """Names of the commands as they were added."""
        return list(self.commands)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "--version", message="ropewalk %(version)s")
@click.option(
    "--plugin",
    "plugins",
    type=FilePath,
    multiple=True,
    help="Import this Python file first: it registers statistics of your own. It runs with your rights.",
)
def cli(plugins: Sequence[Path]) -> None:
    """Watch attention heads learn position.

    Takes the checkpoints of a language model, runs them over long documents, and shows where and how strongly each
    head's queries and keys carry token position: tables, figures and a report.

    \b
    Start here:
      ropewalk demo                       the built-in study, a few minutes on a laptop
      ropewalk run study.yaml             your own study, from checkpoints to report
      ropewalk checkpoints owner/name     write a study from a hub repository's branches
    """
    if plugins:
        from ropewalk.statistics.registry import load_plugin

        for path in plugins:
            load_plugin(path)
