"""Commands that run a study, or a part of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ropewalk.cli.base import FilePath, FolderPath, cli
from ropewalk.errors import RopewalkError

MOST_WORKERS = 4
"""Processes of the built-in study: each holds torch and a model in some 500 MB."""


def results_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which folder its results go to."""
    for option in (
        click.option("--adopt", is_flag=True, help="Take over the results of this study from before it was moved."),
        click.option("--results", type=FolderPath, help="Results folder, in place of the one that the study names."),
    ):
        command = option(command)
    return command


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say where shards are computed."""
    for option in (
        click.option("--wait", is_flag=True, help="With slurm: stay until its jobs are done."),
        click.option("--address", help="With ray: the cluster to join (`auto` finds one); else one is started here."),
        click.option("--workers", type=click.IntRange(1, 10_000), metavar="N", help="How many shards at once."),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray", "slurm"]),
            help="Where shards are computed, if not as the study says.",
        ),
    ):
        command = option(command)
    return command


@cli.command(example="ropewalk demo")
@click.option("--results", type=FolderPath, help="Where results go; results/miniature by default.")
def demo(results: Path | None) -> None:
    """Run the built-in study of a miniature SmolLM3."""
    from ropewalk.engines.ahead import import_ahead
    from ropewalk.placement import Placement
    from ropewalk.threads import cores

    # A model this small leaves threads waiting for each other: processes of one thread each are faster.
    placement = Placement(workers=min(cores(), MOST_WORKERS))
    import_ahead(placement)
    from ropewalk.demo import demo_study
    from ropewalk.pipeline import run_study

    study = demo_study(results).model_copy(update={"engine": placement})
    run_study(study)
    _print_results(study.folder)


@cli.command(example="ropewalk run configs/smollm3_training_progress.yaml --dry-run")
@click.argument("study", type=FilePath)
@click.option("--dry-run", is_flag=True, help="Print the plan (tokens, shards, memory, disk) and stop.")
@engine_options
@results_options
def run(study: Path, dry_run: bool, results: Path | None, adopt: bool, wait: bool, **placement: Any) -> None:
    """Run a whole STUDY, or what is left of it.

    Capture, tables, figures, report. A run that was stopped goes on where it was. What could not be fetched or
    computed is left out and said at the end, and the exit code is 3.
    """
    from ropewalk.studyfile import load_study

    loaded = _placed(load_study(study, results), placement, wait)
    if dry_run:
        _print_plan(loaded, (), adopt)
        return
    from ropewalk.engines.ahead import import_ahead

    import_ahead(loaded.engine)
    from ropewalk.capture.account import ComputedElsewhereError
    from ropewalk.errors import IncompleteError
    from ropewalk.pipeline import run_study

    try:
        run_study(loaded, adopt=adopt, wait=wait)
    except ComputedElsewhereError as told:
        click.echo(str(told))
        return
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
@engine_options
@results_options
def capture(
    study: Path,
    only: Sequence[str],
    shards: Sequence[int],
    dry_run: bool,
    results: Path | None,
    adopt: bool,
    wait: bool,
    **placement: Any,
) -> None:
    """Compute the missing shards of a STUDY.

    Parts of a study can run on different machines.
    """
    from ropewalk.studyfile import load_study

    loaded = _placed(load_study(study, results), placement, wait)
    if dry_run:
        _print_plan(loaded, only, adopt)
        return
    from ropewalk.engines.ahead import import_ahead

    import_ahead(loaded.engine)
    from ropewalk.capture.account import ComputedElsewhereError
    from ropewalk.capture.run import capture_study
    from ropewalk.engines import choose_engine

    engine = choose_engine(loaded.engine, wait=wait)
    try:
        capture_study(loaded, only=only, shards=shards or None, adopt=adopt, engine=engine)
    except ComputedElsewhereError as told:
        click.echo(str(told))


@cli.command(example="ropewalk status results/miniature")
@click.argument("results", type=FolderPath)
def status(results: Path) -> None:
    """Tell how far RESULTS are, shard by shard.

    Which are done, running, queued or missing, whatever computes them, and while it does.
    """
    from ropewalk.status import describe_status

    click.echo(describe_status(results))


def _placed(study: Any, options: Mapping[str, Any], wait: bool) -> Any:
    """A study with what the command line says of where it is computed."""
    from ropewalk.placement import Placement
    from ropewalk.validation import validated

    said = {"name": options["engine"], "workers": options["workers"], "address": options["address"]}
    said = {name: value for name, value in said.items() if value is not None}
    # Settings of another engine than the study's have no meaning here.
    same = said.get("name", study.engine.name) == study.engine.name
    stated = study.engine.model_dump(exclude_unset=True) if same else {}
    placement = validated(Placement, {**stated, **said}, "engine")
    if wait and placement.name != "slurm":
        raise RopewalkError(f"--wait goes with --engine slurm: `{placement.name}` is always waited for")
    return study.model_copy(update={"engine": placement})


def _print_plan(study: Any, only: Sequence[str], adopt: bool) -> None:
    from ropewalk.capture.run import plan_study

    click.echo(plan_study(study, only=only, adopt=adopt))


def _print_results(folder: Path) -> None:
    click.echo(f"report:  {folder / 'report.html'}")
    click.echo(f"table:   {folder / 'qk.csv'}")
    click.echo(f"figures: {folder / 'figures'}")
