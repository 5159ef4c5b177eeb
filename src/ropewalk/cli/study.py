"""Commands that run a study, or a part of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ropewalk.cli.base import FilePath, FolderPath, cli


def results_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which folder its results go to."""
    for option in (
        click.option("--adopt", is_flag=True, help="Take over the results of this study from before it was moved."),
        click.option("--results", type=FolderPath, help="Results folder, in place of the one that the study names."),
    ):
        command = option(command)
    return command


@cli.command(example="ropewalk demo")
@click.option("--results", type=FolderPath, help="Where results go; results/miniature by default.")
def demo(results: Path | None) -> None:
    """Run the built-in study of a miniature SmolLM3."""
    from ropewalk.demo import demo_study
    from ropewalk.pipeline import run_study

    study = demo_study(results)
    run_study(study)
    _print_results(study.folder)


@cli.command(example="ropewalk run configs/smollm3_training_progress.yaml --dry-run")
@click.argument("study", type=FilePath)
@click.option("--dry-run", is_flag=True, help="Print the plan (tokens, shards, memory, disk) and stop.")
@results_options
def run(study: Path, dry_run: bool, results: Path | None, adopt: bool) -> None:
    """Run a whole STUDY, or what is left of it.

    Capture, tables, figures, report. A run that was stopped goes on where it was. Where weights could not be fetched,
    the rest is finished, what is missing is said, and the exit code is 3.
    """
    from ropewalk.studyfile import load_study

    loaded = load_study(study, results)
    if dry_run:
        _print_plan(loaded, (), adopt)
        return
    from ropewalk.errors import IncompleteError
    from ropewalk.pipeline import run_study

    try:
        run_study(loaded, adopt=adopt)
    except IncompleteError:
        if (loaded.folder / "report.html").is_file():
            _print_results(loaded.folder)
        raise
    _print_results(loaded.folder)


@cli.command(example="ropewalk capture study.yaml --checkpoint S1-40K --shard 0 --shard 1")
@click.argument("study", type=FilePath)
@click.option("--checkpoint", "only", multiple=True, metavar="LABEL", help="Only this checkpoint; may be given again.")
@click.option("--shard", "shards", multiple=True, type=int, metavar="N", help="Only this shard; may be given again.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@results_options
def capture(
    study: Path, only: Sequence[str], shards: Sequence[int], dry_run: bool, results: Path | None, adopt: bool
) -> None:
    """Compute the missing shards of a STUDY.

    Parts of a study can run on different machines.
    """
    from ropewalk.studyfile import load_study

    loaded = load_study(study, results)
    if dry_run:
        _print_plan(loaded, only, adopt)
        return
    from ropewalk.capture.run import capture_study

    capture_study(loaded, only=only, shards=shards or None, adopt=adopt)


def _print_plan(study: Any, only: Sequence[str], adopt: bool) -> None:
    from ropewalk.capture.run import plan_study

    click.echo(plan_study(study, only=only, adopt=adopt))


def _print_results(folder: Path) -> None:
    click.echo(f"report:  {folder / 'report.html'}")
    click.echo(f"table:   {folder / 'qk.csv'}")
    click.echo(f"figures: {folder / 'figures'}")
