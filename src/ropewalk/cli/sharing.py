"""Commands that hand results on: to other tools, to the hub."""

from pathlib import Path
from typing import Any

import click

from ropewalk.cli.base import AnyPath, FolderPath, cli

FORMATS = ("safetensors", "npz", "kvpress", "bases", "heads")
"""Formats, said again here because help must not wait for NumPy."""


@cli.command(example="ropewalk export results/miniature --to bases miniature-bases --rank 16")
@click.argument("results", type=AnyPath)
@click.argument("out", type=AnyPath)
@click.option("--to", type=click.Choice(FORMATS), required=True, help="Format; docs/export.md says what each holds.")
@click.option("--checkpoint", metavar="LABEL", help="Which checkpoint, by name or label; the last by default.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="safetensors, npz: type of the numbers.")
@click.option("--rank", type=int, help="bases: directions of each basis; 16 by default.")
@click.option("--energy", type=float, help="bases: as many directions as hold this share, in place of a rank.")
@click.option("--grouped", is_flag=True, default=None, help="bases: one for all query heads that read a key head.")
@click.option("--centred", is_flag=True, default=None, help="bases: keys about their mean, as a softmax sees them.")
@click.option("--column", help="heads, kvpress: column of heads.csv that is the score.")
def export(results: Path, out: Path, to: str, checkpoint: str | None, **options: Any) -> None:
    """Write statistics that other tools read.

    From the sums of RESULTS (the folder of a run, or owner/name on the hub) into OUT: a file for safetensors and npz, a
    folder for the others.
    """
    from ropewalk.results import load

    chosen = {name: value for name, value in options.items() if value is not None}
    for path in load(results).export(out, to, checkpoint, **chosen):
        click.echo(path)


@cli.command(example="ropewalk push results/miniature owner/miniature-heads --private")
@click.argument("results", type=FolderPath)
@click.argument("repo")
@click.option("--private", is_flag=True, help="Make a new dataset private.")
@click.option("--tables-only", is_flag=True, help="Leave the sums out: the dataset is small, and cannot be exported.")
def push(results: Path, repo: str, private: bool, tables_only: bool) -> None:
    """Push results to a dataset on the hub.

    Tables, figures, report, sums and a card that is computed from them, in one commit to REPO (owner/name). Tokens and
    kept vectors stay here. `ropewalk.load("owner/name")` reads them back.
    """
    from ropewalk.publishing.push import push as send

    click.echo(send(results, repo, private=private, sums=not tables_only))
