"""Commands that look at results."""

from pathlib import Path

import click

from ropewalk.cli.base import FolderPath, ResultsPath, cli

AXES = ("pooled", "centred", "drift")
"""Choices of axis, said again here because help must not wait for NumPy."""


@cli.command(example="ropewalk analyze results/miniature")
@click.argument("results", type=FolderPath)
def analyze(results: Path) -> None:
    """Compute the tables from the shards.

    Writes qk.csv, heads.csv and the replicates behind the standard errors into the RESULTS folder.
    """
    from ropewalk.results import analyze as compute
    from ropewalk.text import count

    table = compute(results).table
    rows, checkpoints = count(len(table), "row"), count(table["checkpoint"].nunique(), "checkpoint")
    click.echo(f"{results / 'qk.csv'}: {rows}, {checkpoints}")


@cli.command(example="ropewalk figures results/miniature")
@click.argument("results", type=ResultsPath)
@click.option("--axis", type=click.Choice(AXES), help="Where r_q and r_k are measured; as the study says.")
def figures(results: Path, axis: str | None) -> None:
    """Draw the figures, each with its caption.

    RESULTS is the folder of a run, or a qk.csv alone. Writes a folder per figure (PNG, PDF, README) into `figures`
    there; with --axis into a folder beside it, such as `figures_drift`.
    """
    from ropewalk.results import load

    folder = _folder(results) / (f"figures_{axis}" if axis else "figures")
    load(results).write_figures(folder, axis, done=click.echo)


@cli.command(example="ropewalk report results/miniature")
@click.argument("results", type=ResultsPath)
def report(results: Path) -> None:
    """Write report.html, one file for everything.

    RESULTS is the folder of a run, or a qk.csv alone. The page opens from disk, without a network: figures, captions,
    tables and how the results were made.
    """
    from ropewalk.results import load

    click.echo(load(results).report(_folder(results)))


@cli.command(example="ropewalk compare results/smollm3_training_progress --published smollm3")
@click.argument("results", type=ResultsPath)
@click.option("--published", default="smollm3", show_default=True, help="Set of published numbers.")
def compare(results: Path, published: str) -> None:
    """Set RESULTS against published numbers.

    RESULTS is the folder of a run, or a qk.csv alone. Per checkpoint and quantity: published, measured, difference,
    standard error, and whether they agree.
    """
    from ropewalk.compare import format_table, write_compare
    from ropewalk.results import load

    rows = load(results).compare(published)
    click.echo(format_table(rows))
    click.echo(write_compare(_folder(results), rows, published))


def _folder(results: Path) -> Path:
    """The folder of results that may be given by their table."""
    return results.parent if results.is_file() else results
