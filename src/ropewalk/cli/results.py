"""Commands that look at results."""

from pathlib import Path

import click

from ropewalk.cli.base import AnyPath, FolderPath, cli

AXES = ("pooled", "centred", "drift")
"""Choices of axis, said again here because help must not wait for NumPy."""


@cli.command(example="ropewalk analyze results/miniature")
@click.argument("results", type=FolderPath)
def analyze(results: Path) -> None:
    """Compute the tables from the shards.

    Writes qk.csv, heads.csv and the replicates behind the standard errors into the RESULTS folder. Where checkpoints
    are not finished, the tables are of the others, and the exit code is 3.
    """
    from ropewalk.errors import IncompleteError
    from ropewalk.helpers import Helpers, spare_processes
    from ropewalk.results import analyze as compute
    from ropewalk.text import count, some

    with Helpers(spare_processes()) as helpers:
        computed = compute(results, helpers)
    table = computed.table
    rows, checkpoints = count(len(table), "row"), count(table["checkpoint"].nunique(), "checkpoint")
    click.echo(f"{results / 'qk.csv'}: {rows}, {checkpoints}")
    if computed.missing:
        raise IncompleteError(
            f"the tables lack {some(computed.missing, 10)}: run `ropewalk capture STUDY` again, which computes them"
        )


@cli.command(example="ropewalk figures results/miniature")
@click.argument("results", type=AnyPath)
@click.option("--axis", type=click.Choice(AXES), help="Where r_q and r_k are measured; as the study says.")
def figures(results: Path, axis: str | None) -> None:
    """Draw the figures, each with its caption.

    RESULTS is the folder of a run, or a qk.csv alone. Writes a folder per figure (PNG, PDF, README) into `figures`
    there; with --axis into a folder beside it, such as `figures_drift`.
    """
    from ropewalk.helpers import Helpers, spare_processes
    from ropewalk.pipeline import up_to_date

    folder = _folder(results) / (f"figures_{axis}" if axis else "figures")
    with Helpers(spare_processes()) as helpers:
        up_to_date(results, helpers).write_figures(folder, axis, done=click.echo, helpers=helpers)


@cli.command(example="ropewalk head results/miniature --checkpoint LC2-120 --layer 3 --head 1")
@click.argument("results", type=AnyPath)
@click.option("--checkpoint", metavar="LABEL", help="Name or label of the checkpoint; the last by default.")
@click.option("--layer", type=int, required=True, help="Layer of the head.")
@click.option("--head", "number", type=int, required=True, help="Query head within the layer.")
def head(results: Path, checkpoint: str | None, layer: int, number: int) -> None:
    """Draw one head on one page.

    Its vectors in two planes, plasticity, kernel and measured score, attention by distance, its way through training.
    Writes a folder (PNG, PDF, README) into `heads` in the RESULTS folder; what was not captured is left out.
    """
    from ropewalk.figures.head_collage import COLLAGES
    from ropewalk.pipeline import up_to_date

    loaded = up_to_date(results)
    click.echo(repr(loaded.head(layer, number, checkpoint)).strip("<>"))
    click.echo(loaded.write_collage(_folder(results) / COLLAGES, layer, number, checkpoint))


@cli.command(example="ropewalk report results/miniature --open")
@click.argument("results", type=AnyPath)
@click.option("--open", "opened", is_flag=True, help="Open the page in the browser.")
def report(results: Path, opened: bool) -> None:
    """Write report.html, one file for everything.

    RESULTS is the folder of a run, or a qk.csv alone. The page opens from disk, without a network: an explorer of all
    heads, figures, captions, tables and how the results were made.
    """
    from ropewalk.pipeline import up_to_date

    page = up_to_date(results).report(_folder(results))
    click.echo(page)
    if opened:
        _open(page)


@cli.command(example="ropewalk compare results/smollm3_training_progress --published smollm3")
@click.argument("results", type=AnyPath)
@click.option("--published", default="smollm3", show_default=True, help="Set of published numbers.")
def compare(results: Path, published: str) -> None:
    """Set RESULTS against published numbers.

    RESULTS is the folder of a run, or a qk.csv alone. Per checkpoint and quantity: published, measured, difference,
    standard error, and whether they agree.
    """
    from ropewalk.compare import format_table, write_compare
    from ropewalk.pipeline import up_to_date

    rows = up_to_date(results).compare(published)
    click.echo(format_table(rows))
    click.echo(write_compare(_folder(results), rows, published))


@cli.command(example="ropewalk verify results/miniature --repair")
@click.argument("results", type=FolderPath)
@click.option("--repair", is_flag=True, help="Make again what is damaged, missing or out of date.")
def verify(results: Path, repair: bool) -> None:
    """Check that RESULTS are what was written.

    Every file against its digest (tokens, shards, tables, figures, report), and every step against what it was made
    from. With --repair, shards and tokens are computed again from the model and the corpus, the rest from the shards.
    """
    from ropewalk.errors import RopewalkError
    from ropewalk.text import count
    from ropewalk.verify import repair as make_again
    from ropewalk.verify import verify as check

    checks = check(results)
    wrong = [one for one in checks if one.state is not None]
    for one in wrong:
        click.echo(f"{one.state}: {one.path}")
    if wrong and repair:
        make_again(results, checks)
        checks = check(results)
        left = [one for one in checks if one.state is not None]
        click.echo(f"made again: {count(len(wrong) - len(left), 'file')}")
        wrong = left
    if wrong:
        raise RopewalkError(
            f"{count(len(wrong), 'file')} of {len(checks)} in {results} {'is' if len(wrong) == 1 else 'are'} not as "
            f"written: `ropewalk verify {results} --repair` makes {'it' if len(wrong) == 1 else 'them'} again"
        )
    click.echo(f"{results}: {count(len(checks), 'file')}, all as they were written")


def _open(page: Path) -> None:
    import webbrowser

    from ropewalk.errors import RopewalkError

    if not webbrowser.open(page.resolve().as_uri()):
        raise RopewalkError(f"no browser could be started: open {page} yourself, or without --open")


def _folder(results: Path) -> Path:
    """The folder of results that may be given by their table."""
    return results.parent if results.is_file() else results
