"""Commands about models: what they are, where they come from, training the miniature."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from ropewalk.cli.base import AnyPath, FilePath, FolderPath, cli
from ropewalk.errors import RopewalkError

_MARKS = {True: "ok  ", False: "FAIL", None: "open"}
"""What is printed before a check, by its outcome."""


def model_argument(command: Callable[..., None], *, required: bool = True) -> Callable[..., None]:
    """Give a command the argument MODEL and the options that say which of its weights."""
    for option in (
        click.option(
            "--random-weights", is_flag=True, help="Build the architecture untrained: no weights are fetched."
        ),
        click.option(
            "--dtype",
            type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
            default="auto",
            show_default=True,
            help="Type to compute in.",
        ),
        click.option("--gguf-file", help="Name of a GGUF file in the repository or folder."),
        click.option("--revision", help="Branch, tag or commit on the hub."),
        click.argument("model", required=required),
    ):
        command = option(command)
    return command


@cli.command(example="ropewalk inspect HuggingFaceTB/SmolLM3-3B")
@model_argument
def inspect(model: str, **choices: Any) -> None:
    """Show the attention layers of a MODEL.

    MODEL is a hub name or a folder. Per layer: query and key heads, head_dim, RoPE or NoPE and the rotated share of
    dimensions (measured by shifting positions), sliding window.
    """
    from ropewalk.models.probe import read_layout
    from ropewalk.text import printable, table

    layout = read_layout(_load(model, choices))
    note = ", absolute position embeddings" if layout.absolute_positions else ""
    head = f"{model}: {layout.model_type}, {len(layout.layers)} attention layers of {layout.depth}{note}"
    click.echo(printable(head))
    rows = [
        (
            str(layer.layer),
            str(layer.query_heads),
            str(layer.key_heads),
            str(layer.head_dim),
            "unknown" if layer.rope is None else "RoPE" if layer.rope else "NoPE",
            "?" if layer.rotary is None else f"{layer.rotary:.0%}",
            str(layer.window or "-"),
        )
        for layer in layout.layers
    ]
    headers = ("layer", "query heads", "key heads", "head_dim", "position", "rotated", "window")
    for line in table(headers, rows, right=(0, 1, 2, 3, 5, 6)):
        click.echo(line)


@cli.command(example="ropewalk doctor HuggingFaceTB/SmolLM2-135M")
@click.option(
    "--statistics",
    type=AnyPath,
    help="Is this file of statistics true of the model? Ours (safetensors, npz), or a folder of KVPress.",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="GLOB",
    help="With --statistics: texts to hold it against; may be given again.",
)
@click.option("--device", help="Try this device of yours (`cpu`, `cuda`, `cuda:1`, `mps`), with MODEL or a tiny one.")
@partial(model_argument, required=False)
def doctor(
    model: str | None, statistics: Path | None, texts: Sequence[str], device: str | None, **choices: Any
) -> None:
    """Prove that the tap sees what a MODEL uses.

    MODEL is a hub name or a folder. Logits are compared with and without the tap and attention is recomputed from the
    captured tensors, as every capture does before its first shard; then the captured keys are moved, layer by layer.
    With --statistics, a file is held against a short fresh capture instead: it agrees within its error, or the likely
    fault is named.
    With --device, it is the device that is tried: precision, memory, and a short capture beside that of the CPU.
    """
    if texts and statistics is None:
        raise RopewalkError("--text goes with --statistics: give the file that is to be held against these texts")
    if device is not None:
        if statistics is not None or choices["dtype"] != "auto":
            raise RopewalkError("--device is tried in float32 and bfloat16: leave --statistics and --dtype out")
        outcomes = _shown(_tried(device, model, choices))
        if False in outcomes:
            raise RopewalkError(f"device {device} cannot be trusted: see the checks that failed above")
        if None in outcomes:
            raise RopewalkError(f"device {device} could not be proven: see the checks marked open above")
        return
    if model is None:
        raise RopewalkError("no MODEL is given: name a hub repository or a folder, or try a device by --device")
    if statistics is not None:
        outcomes = _shown(_held_against(model, choices, statistics, texts))
        if False in outcomes:
            raise RopewalkError(f"{statistics} is not true of {model}: see what failed above")
        if None in outcomes:
            raise RopewalkError(f"{statistics} could not be told to be true of {model}: see what is open above")
        return
    outcomes = _shown(_examined(model, choices))
    if False in outcomes:
        raise RopewalkError(f"{model} cannot be trusted under the tap: see the checks that failed above")
    if None in outcomes:
        raise RopewalkError(f"{model} could not be proven under the tap: see the checks marked open above")


def _shown(findings: Iterable[Any]) -> set[bool | None]:
    """Print findings as they come; what came out."""
    from ropewalk.text import printable

    outcomes = set()
    for finding in findings:
        click.echo(printable(f"{_MARKS[finding.passed]}  {finding.check}: {finding.detail}"))
        outcomes.add(finding.passed)
    return outcomes


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

    # What stands there may be a study that was written so and edited since.
    if output is not None and output.exists():
        raise RopewalkError(f"{output} is there already: give another file to write the study to, or move it away")
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
@click.option("--adopt", is_flag=True, help="Take over the training of this recipe from before it was moved.")
@click.option("--observe", type=FolderPath, help="Folder for results that grow as the model trains.")
def train(recipe: Path | None, output: Path, device: str, adopt: bool, observe: Path | None) -> None:
    """Train the miniature SmolLM3 from scratch.

    By a RECIPE, the one of the built-in study by default. An interrupted training goes on where it was.
    """
    from ropewalk.train import train as run_training

    run_training(recipe, output, device=device, adopt=adopt, observe=observe)


def _tried(device: str, model: str | None, choices: dict[str, Any]) -> Any:
    from ropewalk.demo import demo_study
    from ropewalk.models.source import ModelSource, locate
    from ropewalk.scrutiny import examine_device

    tiny = demo_study().checkpoints[-1] if model is None else None
    return examine_device(device, tiny or ModelSource(repo=locate(str(model)), label=str(model), **choices))


def _examined(model: str, choices: dict[str, Any]) -> Any:
    from ropewalk.models.doctor import examine

    return examine(_load(model, choices))


def _held_against(model: str, choices: dict[str, Any], statistics: Path, texts: Sequence[str]) -> Any:
    from ropewalk.capture.texts import check_corpus
    from ropewalk.corpora import Corpus
    from ropewalk.export.claims import read_claim
    from ropewalk.models.loading import load_tokenizer
    from ropewalk.scrutiny import examine_statistics

    # What is wrong with these shows at once, and a model is long to load.
    read_claim(statistics)
    if texts:
        check_corpus(Corpus(source="files", paths=tuple(texts)))
    tokenizer = load_tokenizer(_source(model, choices))
    loaded = _load(model, choices)
    return examine_statistics(loaded, statistics, tokenizer, texts)


def _load(model: str, choices: dict[str, Any]) -> Any:
    from ropewalk.models.loading import load_model

    return load_model(_source(model, choices))


def _source(model: str, choices: dict[str, Any]) -> Any:
    from ropewalk.models.source import ModelSource, locate
    from ropewalk.text import cut
    from ropewalk.validation import validated

    return validated(ModelSource, {"repo": locate(model), "label": cut(model, 200), **choices}, "the model")
