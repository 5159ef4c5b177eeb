"""What a study will cost, before it is run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ropewalk.capture.run import Job
from ropewalk.models.loading import auto_class
from ropewalk.study import Study

FLOAT64 = 8


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
    width = max([len(row.label) for row in rows] + [10])
    lines = [f"study {study.name}: {len(study.checkpoints)} checkpoints, results in {study.folder}"]
    lines.append(f"  {'checkpoint':{width}}  context  documents       tokens  shards (done)  heads   weights      disk")
    lines += [
        f"  {row.label:{width}}  {row.context:7,}  {row.documents:9,}  {row.tokens:11,}  {row.shards:6} "
        f"{f'({row.done})':>6}"
        f"  {row.heads:5}  {_size(row.weights):>8}  {_size(row.disk):>8}"
        for row in rows
    ]
    lines += [f"  {c.label:{width}}  read from {c.source}" for c in study.checkpoints if c.source]
    if rows:
        memory = max(row.weights + row.disk // max(row.shards, 1) for row in rows)
        lines.append(
            f"in all: {sum(row.tokens for row in rows):,} tokens, "
            f"{sum(row.shards - row.done for row in rows)} shards to compute, "
            f"about {_size(memory)} of memory (weights and moments; activations come on top), "
            f"{_size(sum(row.disk for row in rows))} of disk"
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
    moments = stored * (d * d + 2 * d + 3) * FLOAT64 * len(job.shards)
    kept = stored * d * 4 * job.keep * job.tokens / job.checkpoint.bucket
    return Cost(
        label=job.checkpoint.label,
        context=job.checkpoint.context,
        documents=job.documents.documents,
        tokens=job.tokens,
        shards=len(job.shards),
        done=len(job.shards) - len(job.missing()),
        heads=heads,
        weights=_weights(job),
        disk=round(moments + 2 * kept),
    )


def _weights(job: Job) -> int:
    size = {"float32": 4, "bfloat16": 2, "float16": 2}.get(job.checkpoint.dtype)
    dtype = job.config.dtype or torch.float32
    with torch.device("meta"):
        model = auto_class(job.config).from_config(job.config, trust_remote_code=job.checkpoint.trust_remote_code)
    return int(sum(p.numel() for p in model.parameters())) * (size or torch.finfo(dtype).bits // 8)


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
