"""What a study will cost, before it is run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ropewalk.capture.downloads import Needs
from ropewalk.capture.jobs import Draft, Job
from ropewalk.capture.vectors import SourceJob
from ropewalk.models.device import compute_dtype
from ropewalk.models.loading import built
from ropewalk.statistics.moments import MomentSums
from ropewalk.study import Study
from ropewalk.text import count, printable, size, table

HEADERS = ("checkpoint", "context", "documents", "tokens", "shards (done)", "heads", "weights", "disk")
NONE = "–"
ALL = "all"
"""Documents, where the study asks for all that are long enough and they were not counted yet."""


@dataclass(frozen=True)
class Cost:
    """Of one checkpoint: tokens, shards (and how many are done), heads, bytes of weights and of results on disk.

    `asked` counts the heads that the study asks for: of vectors on disk, not all of them may be there. How many
    `documents` and `tokens` there are is not known (None) of a corpus that was never tokenized, and `disk` is the least
    that it can be then.
    """

    label: str
    context: int
    documents: int | None
    tokens: int | None
    shards: int
    done: int
    heads: int
    weights: int | None
    disk: int
    asked: int


def costs(study: Study, jobs: Sequence[Job | Draft], sources: Sequence[SourceJob] = ()) -> list[Cost]:
    """Estimate from the configurations alone; the architecture is built without memory to count its parameters.

    In the order of the study. Datasets of vectors have no model to run: neither tokens nor weights.
    """
    rows = {one.label: one for one in (*(cost(study, job) for job in jobs), *map(_source_cost, sources))}
    return [rows[checkpoint.label] for checkpoint in study.checkpoints if checkpoint.label in rows]


def describe(
    study: Study, jobs: Sequence[Job | Draft], sources: Sequence[SourceJob] = (), needs: Needs | None = None
) -> str:
    """The plan as text: a line per checkpoint, what is to be fetched, and the sums."""
    rows = costs(study, jobs, sources)
    cells: list[list[str]] = [
        [
            row.label,
            f"{row.context:,}",
            ALL if row.documents is None else f"{row.documents:,}",
            NONE if row.tokens is None else f"{row.tokens:,}",
            f"{row.shards:,} ({row.done:,})",
            f"{row.heads:,}" if row.heads >= row.asked else f"{row.heads:,} of {row.asked:,}",
            NONE if row.weights is None else size(row.weights),
            size(row.disk),
        ]
        for row in rows
    ]
    head = f"study {study.name}: {count(len(study.checkpoints), 'checkpoint')}, results in {study.folder}"
    lines = [printable(head)]
    lines += [f"  {line}" for line in table(HEADERS, cells, right=range(1, len(HEADERS)))]
    for source in sources:
        lack = f", which has {source.describe_heads()}" if source.lacks_heads else ""
        lines.append(printable(f"{source.checkpoint.label} is read from {source.checkpoint.source}{lack}"))
    if any(isinstance(job, Draft) for job in jobs):
        asked = "all documents that are long enough" if study.corpus.documents is None else "the documents asked for"
        lines.append(f"the corpus is tokenized when the study runs: {asked} are counted then")
    if needs is not None and needs.weights:
        lines.append(printable(needs.describe()))
    memory = max((row.weights or 0) + row.disk // max(row.shards, 1) for row in rows)
    uncounted = any(row.documents is None for row in rows)
    tokens = "tokens not counted yet" if uncounted else count(sum(row.tokens or 0 for row in rows), "token")
    lines.append(
        f"in all: {tokens}, "
        f"{count(sum(row.shards - row.done for row in rows), 'shard')} to compute, "
        f"about {size(memory)} of memory (weights and sums; activations come on top), "
        f"{'at least ' if uncounted else ''}{size(sum(row.disk for row in rows))} of disk"
    )
    return "\n".join(lines)


def _source_cost(source: SourceJob) -> Cost:
    heads = source.dataset.heads
    head_dim = max(layer.head_dim for layer in source.dataset.layout.layers)
    disk = MomentSums().stored_bytes(len(source.dataset.files), head_dim, source.scope, len(source.shards))
    return Cost(
        label=source.checkpoint.label,
        context=source.checkpoint.context,
        documents=len(source.documents),
        tokens=None,
        shards=len(source.shards),
        done=len(source.shards) - len(source.missing()),
        heads=len(heads),
        weights=None,
        disk=round(disk),
        asked=source.dataset.asked,
    )


def cost(study: Study, job: Job | Draft) -> Cost:
    """What one checkpoint costs, from its configuration alone."""
    text: Any = job.config.get_text_config(decoder=True)
    layers, queries = _number(text, "num_hidden_layers", 1), _number(text, "num_attention_heads", 1)
    keys = _number(text, "num_key_value_heads", queries)
    d = _number(text, "head_dim", max(_number(text, "hidden_size", 1) // queries, 1))
    capture = study.capture
    available = (len(capture.layers) if capture.layers is not None else layers) * queries
    heads = (
        len(capture.pairs)
        if capture.pairs is not None
        else available
        if capture.heads == "all"
        else min(capture.heads, available)
    )
    stored = heads + min(heads, layers * keys)
    documents, shards = (
        (job.documents, job.shards) if isinstance(job, Draft) else (job.documents.documents, len(job.shards))
    )
    disk = sum(statistic.stored_bytes(stored, d, job.scope, shards) for statistic in job.statistics)
    return Cost(
        label=job.checkpoint.label,
        context=job.checkpoint.context,
        documents=documents,
        tokens=None if documents is None else documents * job.checkpoint.context,
        shards=shards,
        done=shards - len(job.missing()),
        heads=heads,
        weights=_weights(job),
        disk=round(disk),
        asked=heads,
    )


def _number(config: Any, name: str, default: int) -> int:
    """A size in a configuration; where layers differ in it, the largest."""
    value = getattr(config, name, None)
    numbers = [one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, int) and one]
    return max(numbers, default=default)


def _weights(job: Job | Draft) -> int:
    name = compute_dtype(job.checkpoint, job.config)
    # Where not even the configuration tells: most that do not are from before half precision.
    dtype = torch.float32 if name == "auto" else getattr(torch, name)
    # What attention is asked for does not change the weights, and need not be installed for a plan.
    model = built(job.checkpoint.model_copy(update={"attention": None}), job.config)
    return int(sum(p.numel() for p in model.parameters())) * dtype.itemsize
