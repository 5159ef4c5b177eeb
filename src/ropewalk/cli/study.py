"""Commands that run a study, or a part of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ropewalk.cli.base import FilePath, FolderPath, cli


@cli.command(example="ropewalk demo")
@click.option("--results", type=FolderPath, help="Where results go; results/miniature by default.")
def demo(results: Path | None) -> None:
    """Run the built-in study of a miniature SmolLM3."""
    from ropewalk.demo import demo_study
    from ropewalk.pipeline import run_study

    study = demo_study()
    study = study.model_copy(update={"results": str(results)}) if results else study
    run_study(study)
    _print_results(study.folder)


@cli.command(example="ropewalk run configs/smollm3_training_progress.yaml --dry-run")
@click.argument("study", type=FilePath)
@click.option("--dry-run", is_flag=True, help="Print the plan (tokens, shards, memory, disk) and stop.")
def run(study: Path, dry_run: bool) -> None:
    """Run a whole STUDY, or what is left of it.

    Capture, tables, figures, report. A run that was stopped goes on where it was.
    """
    from ropewalk.study import load_study

    loaded = load_study(study)
    if dry_run:
        _print_plan(loaded)
        return
    from ropewalk.pipeline import run_study

    run_study(loaded)
    _print_results(loaded.folder)


@cli.command(example="ropewalk capture study.yaml --checkpoint S1-40K --shard 0 --shard 1")
@click.argument("study", type=FilePath)
@click.option("--checkpoint", "only", multiple=True, metavar="LABEL", help="Only this checkpoint; may be given again.")
@click.option("--shard", "shards", multiple=True, type=int, metavar="N", help="Only this shard; may be given again.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
def capture(study: Path, only: Sequence[str], shards: Sequence[int], dry_run: bool) -> None:
    """Compute the missing shards of a STUDY.

    Parts of a study can run on different machines.
    """
    from ropewalk.study import load_study

    loaded = load_study(study)
    if dry_run:
        _print_plan(loaded)
        return
    from ropewalk.capture.run import capture_study

    capture_study(loaded, only=only, shards=shards or None)


def _print_plan(study: Any) -> None:
    from ropewalk.capture.jobs import prepare_jobs
    from ropewalk.capture.nulls import with_nulls
    from ropewalk.capture.plan import describe
    from ropewalk.capture.vectors import prepare_sources

    study = with_nulls(study)
    click.echo(describe(study, prepare_jobs(study), prepare_sources(study)))


def _print_results(folder: Path) -> None:
    click.echo(f"report:  {folder / 'report.html'}")
    click.echo(f"table:   {folder / 'qk.csv'}")
    click.echo(f"figures: {folder / 'figures'}")
