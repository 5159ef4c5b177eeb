"""The model card of a training run, computed from its record."""

import math
from collections.abc import Mapping
from typing import Any

_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [smollm3, miniature]
---
# {name}

{parameters:.2f} million parameters, trained from scratch to watch attention heads learn position while it happens.
It has the architecture of SmolLM3 and goes through the phases of its training in small: pre-training in stages at
a short context, then context extensions with a larger rope_theta. It is an object of study; it does not write
useful code.

## Made by

    {command}

with ropewalk {ropewalk}, Python {python}, torch {torch}, transformers {transformers}, tokenizers {tokenizers} and
numpy {numpy}, in {minutes:.0f} minutes (device: {device}, threads: {threads}). The same recipe, text, versions and
thread count give the same weights on the same machine. `losses.json` holds the whole recipe.

| | |
|---|---|
| layers | {layers}, every {nope_interval}th without rotary embedding (NoPE) |
| heads | {heads} query heads and {key_heads} key heads per layer, of {head_dim} dimensions |
| width | {hidden}, feed-forward {intermediate}, embeddings tied |
| tokenizer | byte-level BPE of {vocabulary:,} tokens, learned from the training text |
| text | {text} |
| held out | {heldout_files} files, in neither the training text nor the tokenizer's |
| optimizer | AdamW, betas {betas[0]} and {betas[1]}, weight decay {weight_decay}, gradients clipped at {clip} |
| seed | {seed} |

## Phases

| phase | steps | sequences × context | rope_theta | learning rate | text |
|---|---|---|---|---|---|
{phases}

{theta}

## Checkpoints

Held-out loss in nats per token, of the bfloat16 weights as they are here, over the same {longest:,} tokens of each
held-out file, cut into windows of the checkpoint's context.

| checkpoint | label | phase | context | rope_theta | held-out loss |
|---|---|---|---|---|---|
{checkpoints}

## Licence

{licence}
"""

_LICENCE = """\
The weights have the licence of ropewalk (Apache-2.0). `heldout.jsonl` holds parts of files of Python {python}, which
are under the Python Software Foundation licence in `LICENSE-python.txt`."""

_PUBLISHED = ((4096, 50_000), (32_768, 2_000_000), (65_536, 5_000_000))
"""Context and rope_theta of the published run, whose heads have 128 dimensions."""

_OTHER_LICENCE = "`heldout.jsonl` holds parts of the text that was trained on, whose licence is that of its source."


def model_card(record: Mapping[str, Any]) -> str:
    """Markdown of the card; every number comes from the record that `losses.json` keeps."""
    recipe = record["recipe"]
    text = ", ".join(f"{name} {count / 1e6:.2f} million tokens" for name, count in record["tokens"].items())
    values = {
        **{key: record[key] for key in ("ropewalk", "python", "command", "heldout_files")},
        **record["identity"],
        **recipe["model"],
        **recipe["optimizer"],
        "name": recipe["name"],
        "seed": recipe["seed"],
        "vocabulary": recipe["vocabulary"],
        "parameters": record["parameters"] / 1e6,
        "minutes": record["seconds"] / 60,
        "text": text,
        "theta": _theta(recipe),
        "licence": (_OTHER_LICENCE if recipe["corpus"]["root"] else _LICENCE).format_map(record),
        "longest": max(phase["context"] for phase in recipe["phases"]),
        "phases": "\n".join(map(_phase, recipe["phases"])),
        "checkpoints": "\n".join(map(_checkpoint, record["checkpoints"])),
    }
    return _CARD.format_map(values)


def _slowest(theta: float, head_dim: int, context: int) -> float:
    """The slowest wavelength of the rotary embedding, in contexts: `2π θ^((d-2)/d) / context`."""
    return float(2 * math.pi * theta ** ((head_dim - 2) / head_dim) / context)


def _theta(recipe: Mapping[str, Any]) -> str:
    """What rope_theta means here, beside the published run."""
    shape = {phase["context"]: phase["rope_theta"] for phase in recipe["phases"]}
    here = [_slowest(theta, recipe["model"]["head_dim"], context) for context, theta in shape.items()]
    there = [_slowest(theta, 128, context) for context, theta in _PUBLISHED]
    return (
        "rope_theta is scaled to the context: the slowest wavelength of the rotary embedding, 2π θ^((d-2)/d) tokens\n"
        f"for d dimensions, is {', '.join(f'{ratio:.0f}' for ratio in here)} contexts long here, and "
        f"{', '.join(f'{ratio:.0f}' for ratio in there)} in the published run (θ of 50,000,\n"
        "2,000,000 and 5,000,000 at contexts of 4,096, 32,768 and 65,536, with d = 128)."
    )


def _phase(phase: Mapping[str, Any]) -> str:
    rates = f"{phase['learning_rate']:g}"
    if phase["end_learning_rate"] != phase["learning_rate"]:
        rates += f" to {phase['end_learning_rate']:g}"
    if phase["warmup"]:
        rates += f", warm-up {phase['warmup']}"
    total = sum(phase["mix"].values())
    mix = ", ".join(f"{name} {share / total:.0%}" for name, share in phase["mix"].items())
    if phase["min_tokens"]:
        mix += f"; documents of {phase['min_tokens']:,} tokens or more"
    size = f"{phase['batch']} × {phase['context']:,}"
    return f"| {phase['title']} | {phase['steps']:,} | {size} | {phase['rope_theta']:,.0f} | {rates} | {mix} |"


def _checkpoint(row: Mapping[str, Any]) -> str:
    place = f"{row['context']:,} | {row['rope_theta']:,.0f}"
    return f"| `{row['name']}` | {row['label']} | {row['phase']} | {place} | {row['heldout_loss']:.3f} |"
