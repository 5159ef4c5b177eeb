"""What a study will cost, before it is run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ropewalk.capture.jobs import Job
from ropewalk.models.loading import auto_class
from ropewalk.study import Study
from ropewalk.text import count, size, table

HEADERS = ("checkpoint", "context", "documents", "tokens", "shards (done)", "heads", "weights", "disk")


@dataclass(frozen=True)
class Cost:
    """Of one checkpoint: tokens, shards (and how many are done), heads, bytes of weights and of results on disk."""

    label: str
    context: int
    documents: int
    tokens: int
    shards: int
    done: int
    heads: int
    weights: int
    disk: int


def costs(study: Study, jobs: Sequence[Job]) -> list[Cost]:
    """Estimate from the configurations alone; the architecture is built without memory to count its parameters."""
    return [_cost(study, job) for job in jobs]


def describe(study: Study, jobs: Sequence[Job]) -> str:
    """The plan as text: a line per checkpoint and the sums."""
    rows = costs(study, jobs)
    cells: list[list[str]] = [
        [
            row.label,
            f"{row.context:,}",
            f"{row.documents:,}",
            f"{row.tokens:,}",
            f"{row.shards:,} ({row.done:,})",
            f"{row.heads:,}",
            size(row.weights),
            size(row.disk),
        ]
        for row in rows
    ]
    cells += [[c.label, f"read from {c.source}"] for c in study.checkpoints if c.source]
    lines = [f"study {study.name}: {count(len(study.checkpoints), 'checkpoint')}, results in {study.folder}"]
    lines += [f"  {line}" for line in table(HEADERS, cells, right=range(1, len(HEADERS)))]
    if rows:
        memory = max(row.weights + row.disk // max(row.shards, 1) for row in rows)
        lines.append(
            f"in all: {count(sum(row.tokens for row in rows), 'token')}, "
            f"{count(sum(row.shards - row.done for row in rows), 'shard')} to compute, "
            f"about {size(memory)} of memory (weights and sums; activations come on top), "
            f"{size(sum(row.disk for row in rows))} of disk"
        )
    return "\n".join(lines)


def _cost(study: Study, job: Job) -> Cost:
    text: Any = job.config.get_text_config(decoder=True)
    layers, queries = int(text.num_hidden_layers), int(text.num_attention_heads)
    keys = int(getattr(text, "num_key_value_heads", None) or queries)
    d = int(getattr(text, "head_dim", None) or text.hidden_size // queries)
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
    disk = sum(statistic.stored_bytes(stored, d, job.scope, len(job.shards)) for statistic in job.statistics)
    return Cost(
        label=job.checkpoint.label,
        context=job.checkpoint.context,
        documents=job.documents.documents,
        tokens=job.tokens,
        shards=len(job.shards),
        done=len(job.shards) - len(job.missing()),
        heads=heads,
        weights=_weights(job),
        disk=round(disk),
    )


def _weights(job: Job) -> int:
    width = {"float32": 4, "bfloat16": 2, "float16": 2}.get(job.checkpoint.dtype)
    dtype = job.config.dtype or torch.float32
    with torch.device("meta"):
        model = auto_class(job.config).from_config(job.config, trust_remote_code=job.checkpoint.trust_remote_code)
    return int(sum(p.numel() for p in model.parameters())) * (width or torch.finfo(dtype).bits // 8)
