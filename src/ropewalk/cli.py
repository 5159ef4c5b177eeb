"""The command line. Each command imports what it needs when it runs, so that help answers at once."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError

FolderPath = click.Path(path_type=Path, file_okay=False)
FilePath = click.Path(path_type=Path, dir_okay=False)


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


def model_argument(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the argument MODEL and the options that say which of its weights."""
    for option in (
        click.option(
            "--random-weights", is_flag=True, help="Build the architecture untrained: no weights are fetched."
        ),
        click.option("--gguf-file", help="Name of a GGUF file in the repository or folder."),
        click.option("--revision", help="Branch, tag or commit on the hub."),
        click.argument("model"),
    ):
        command = option(command)
    return command


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "--version", message="ropewalk %(version)s")
def cli() -> None:
    """Watch attention heads learn position.

    Takes the checkpoints of a language model, runs them over long documents, and shows where and how strongly each
    head's queries and keys carry token position: tables, figures and a report.

    \b
    Start here:
      ropewalk demo                       the built-in study, a few minutes on a laptop
      ropewalk run study.yaml             your own study, from checkpoints to report
      ropewalk checkpoints owner/name     write a study from a hub repository's branches
    """


@cli.command(example="ropewalk demo")
@click.option("--results", type=FolderPath, help="Where results go; results/miniature by default.")
def demo(results: Path | None) -> None:
    """Run the built-in study of a miniature SmolLM3."""
    from ropewalk.demo import demo_study
    from ropewalk.pipeline import run_study

    study = demo_study()
    _print_results(run_study(study.model_copy(update={"results": str(results)}) if results else study))


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

    _print_results(run_study(loaded))


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


@cli.command(example="ropewalk analyze results/miniature")
@click.argument("results", type=FolderPath)
def analyze(results: Path) -> None:
    """Compute the tables from the shards.

    Writes qk.csv, the same as Parquet, and the replicates behind the standard errors into the RESULTS folder.
    """
    from ropewalk.analysis import analyze as compute

    table = compute(results)
    click.echo(f"{results / 'qk.csv'}: {len(table):,} rows, {table['checkpoint'].nunique()} checkpoints")


@cli.command(example="ropewalk figures results/miniature")
@click.argument("results", type=FolderPath)
def figures(results: Path) -> None:
    """Draw the figures, each with its caption.

    Writes a folder per figure (PNG, PDF, README) below the RESULTS folder.
    """
    from ropewalk.figures import write_figures
    from ropewalk.pipeline import portraits

    for path in write_figures(results, portraits=portraits(results)):
        click.echo(path)


@cli.command(example="ropewalk report results/miniature")
@click.argument("results", type=FolderPath)
def report(results: Path) -> None:
    """Write report.html, one file for everything.

    It opens from disk, without a network: figures, captions, tables and how the RESULTS were made.
    """
    from ropewalk.report import write_report

    click.echo(write_report(results))


@cli.command(example="ropewalk compare results/smollm3_training_progress --published smollm3")
@click.argument("results", type=FolderPath)
@click.option("--published", default="smollm3", show_default=True, help="Set of published numbers.")
def compare(results: Path, published: str) -> None:
    """Set RESULTS against published numbers.

    Per checkpoint and quantity: published, measured, difference, standard error, and whether they agree.
    """
    from ropewalk.compare import format_table, write_compare

    path, rows = write_compare(results, published)
    click.echo(format_table(rows))
    click.echo(path)


@cli.command(example="ropewalk inspect HuggingFaceTB/SmolLM3-3B")
@model_argument
def inspect(model: str, **choices: Any) -> None:
    """Show the attention layers of a MODEL.

    MODEL is a hub name or a folder. Per layer: query and key heads, head_dim, RoPE or NoPE and the rotated share of
    dimensions (measured by shifting positions), sliding window.
    """
    from ropewalk.models.probe import read_layout

    layout = read_layout(_load(model, choices))
    note = ", absolute position embeddings" if layout.absolute_positions else ""
    click.echo(f"{model}: {layout.model_type}, {len(layout.layers)} attention layers of {layout.depth}{note}")
    click.echo("layer  query heads  key heads  head_dim  position  rotated  window")
    for layer in layout.layers:
        position = "unknown" if layer.rope is None else "RoPE" if layer.rope else "NoPE"
        rotated = "?" if layer.rotary is None else f"{layer.rotary:.0%}"
        click.echo(
            f"{layer.layer:5}  {layer.query_heads:11}  {layer.key_heads:9}  {layer.head_dim:8}  {position:8}  "
            f"{rotated:>7}  {layer.window or '-':>6}"
        )


@cli.command(example="ropewalk doctor HuggingFaceTB/SmolLM2-135M")
@model_argument
def doctor(model: str, **choices: Any) -> None:
    """Prove that the tap sees what a MODEL uses.

    MODEL is a hub name or a folder. Attention is recomputed from the captured tensors, captured keys are moved, and
    logits are compared with and without the tap.
    """
    from ropewalk.models.doctor import examine

    findings = examine(_load(model, choices))
    for finding in findings:
        click.echo(f"{'ok  ' if finding.passed else 'FAIL'}  {finding.check}: {finding.detail}")
    if not all(finding.passed for finding in findings):
        raise RopewalkError(f"{model} cannot be trusted under the tap: see the checks that failed above")


@cli.command(example="ropewalk checkpoints EleutherAI/pythia-160m --log-spaced 12 --output pythia.yaml")
@click.argument("repo")
@click.option("--every", type=int, help="Keep every Nth checkpoint of a phase.")
@click.option("--log-spaced", type=int, help="Keep N checkpoints, evenly spaced in log step.")
@click.option("--phase", "phases", multiple=True, help="Only this phase; may be given again.")
@click.option("--context", type=int, help="Tokens of each document, at most.")
@click.option("--output", type=FilePath, help="Write a study with these checkpoints to this file.")
@click.option("--no-audit", is_flag=True, help="Do not look for doubles, missing files and changed configurations.")
def checkpoints(
    repo: str,
    every: int | None,
    log_spaced: int | None,
    phases: Sequence[str],
    context: int | None,
    output: Path | None,
    no_audit: bool,
) -> None:
    """Make a study of a hub REPO's branches.

    Lists the branches as an ordered series, audits it (doubles, missing files, changed configurations) before anything
    is downloaded, and writes a study.
    """
    from ropewalk import series
    from ropewalk.files import write_text

    listed = series.thin(series.list_series(repo), every=every, log_spaced=log_spaced, phases=list(phases))
    if no_audit and output is None:
        click.echo(series.describe(listed, []))
        return
    scanned = series.scan(listed, one_per_phase=no_audit)
    findings = [] if no_audit else series.audit(scanned)
    click.echo(series.describe(listed if no_audit else scanned, findings))
    if output is not None:
        write_text(output, series.to_study(scanned, context=context, findings=findings))
        click.echo(f"study written to {output}: run it with `ropewalk run {output}`")


@cli.command(example="ropewalk train --output miniature")
@click.argument("recipe", type=FilePath, required=False)
@click.option(
    "--output", type=FolderPath, default=Path("miniature"), show_default=True, help="Folder for checkpoints and state."
)
@click.option("--device", default="auto", show_default=True, help="`auto` (a GPU where there is one), `cpu`, `cuda`.")
def train(recipe: Path | None, output: Path, device: str) -> None:
    """Train the miniature SmolLM3 from scratch.

    By a RECIPE, the one of the built-in study by default. An interrupted training goes on where it was.
    """
    from ropewalk.progress import say
    from ropewalk.train import train as run_training

    run_training(recipe, output, device=device, log=say)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake the user can fix is one line and exit code 2."""
    try:
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


def _load(model: str, choices: dict[str, Any]) -> Any:
    from ropewalk.models.loading import load_model
    from ropewalk.study import parse_study

    checkpoint = {"repo": model, "name": "model", "context": 2, **choices}
    study = parse_study({"name": "model", "checkpoints": [checkpoint]}, name=model)
    return load_model(study.checkpoints[0])


def _print_plan(study: Any) -> None:
    from ropewalk.capture.plan import describe
    from ropewalk.capture.run import prepare_jobs

    click.echo(describe(study, prepare_jobs(study)))


def _print_results(folder: Path) -> None:
    click.echo(f"report:  {folder / 'report.html'}")
    click.echo(f"table:   {folder / 'qk.csv'}")
    click.echo(f"figures: {folder / 'figures'}")
