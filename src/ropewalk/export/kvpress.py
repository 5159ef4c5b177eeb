"""What KVPress loads: query statistics before the rotation, filters, and scores of heads (docs/export.md)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from safetensors.numpy import save

from ropewalk.errors import RopewalkError
from ropewalk.export.arrays import in_order
from ropewalk.export.folder import writing
from ropewalk.export.formats import Format
from ropewalk.export.heads import arrays, head_scores
from ropewalk.export.source import POST, Source, facts
from ropewalk.files import write_bytes
from ropewalk.geometry.lowrank import covariance, leading_direction
from ropewalk.geometry.moments import Floats, merge_all, stack
from ropewalk.schema import Part
from ropewalk.statistics.base import LayerHeads
from ropewalk.statistics.frame import PRE

STATISTICS = ("config.json", "model.safetensors")
"""What its class of statistics loads, at the top of the folder."""
FACTS = "ropewalk.facts.json"
FILTERS = ("qfilters/config.json", "qfilters/model.safetensors")
PATTERN = ("duo/config.json", "duo/full_attention_heads.tsv")
SINK, RECENT = 128, 256
"""Sink and recent tokens of streaming heads, where KVPress has no pattern that says others."""
DISTANCE = "-score_r2_distance"
"""Scores unless a column is chosen: what distance alone explains needs no more than sinks and the recent."""


class Scores(Part):
    """What can be chosen of the folder."""

    column: str | None = Field(
        None,
        description="Column of heads.csv by which heads keep their whole cache, the largest first; with a leading `-`, "
        "the smallest first. `-score_r2_distance` by default, where it was measured.",
    )
    name: str | None = Field(
        None, description="Name of the model in the folder's config; where it came from by default."
    )


def write(source: Source, path: Path, options: Scores) -> list[Path]:
    """Write a folder: query statistics, filters, and (where heads have scores) a pattern of heads."""
    mean, spread = query_statistics(source)
    filters = None if source.pre_rope else query_filters(source)
    pattern = head_pattern(source, options.column)
    layers, heads, d = mean.shape
    scope = source.captured.scope
    config = {
        "num_layers": layers,
        "num_heads": heads,
        "head_dim": d,
        "dataset_name": _dataset(source),
        "model_name": options.name or str(source.origin.get("model") or source.label),
        "num_samples": scope.documents,
        "sample_seq_len": scope.context,
        "n_sink": scope.skip_first,
    }
    files: dict[str, bytes] = {
        STATISTICS[0]: _json(config),
        STATISTICS[1]: save(in_order({"query_mean": mean, "query_cov": spread}), metadata={"format": "pt"}),
        FACTS: _json(facts(source)),
    }
    if filters is not None:
        shape = dict(zip(("num_layers", "num_kv_heads", "kv_head_dim"), filters.shape, strict=True))
        files |= {
            FILTERS[0]: _json(shape),
            FILTERS[1]: save(in_order({"q_filters": filters}), metadata={"format": "pt"}),
        }
    if pattern is not None:
        files[PATTERN[0]] = _json({"sink_size": SINK, "recent_size": RECENT})
        files[PATTERN[1]] = ("\n".join("\t".join(f"{one:.9g}" for one in row) for row in pattern) + "\n").encode()
    with writing(path, list(files), facts(source)):
        for name, data in files.items():
            write_bytes(path / name, data)
    return [path / name for name in files]


def query_statistics(source: Source) -> tuple[Any, Any]:
    """Mean [layers, heads, d] and covariance Sxx / (n - 1) [layers, heads, d, d] of queries before the rotation.

    float32, as KVPress holds them. All layers and heads must be there, all alike.
    """
    found = [merge_all(source.need(heads, PRE)["q"]) for heads in _alike(source)]
    means = np.stack([one.mean for one in found])
    return means.astype(np.float32), np.stack([covariance(one, ddof=1) for one in found]).astype(np.float32)


def query_filters(source: Source) -> Any:
    """Filters [layers, key heads, d], float32: minus the leading direction of the queries that read a key head.

    KVPress keeps keys whose product with a filter is small; u points to where queries point, so -u is what it wants.
    """
    rows = []
    for heads in _alike(source):
        queries = merge_all(source.need(heads, POST)["q"])
        groups = [np.flatnonzero(heads.key_index == index) for index in range(len(heads.key_heads))]
        pooled = stack([merge_all([queries[np.array([one])] for one in group]) for group in groups])
        rows.append(-leading_direction(pooled)[0])
    return np.stack(rows).astype(np.float32)


def head_pattern(source: Source, column: str | None) -> Floats | None:
    """Scores [layers, key heads] from 0 to 1: heads with the largest keep their whole cache; None without scores."""
    wanted = DISTANCE if column is None else column
    name = wanted.removeprefix("-")
    if column is None and name not in source.heads:
        return None
    scores = arrays(source, head_scores(source, name))[1] * (-1 if wanted.startswith("-") else 1)
    if np.isnan(scores).all():
        raise RopewalkError(f"no head has a number in {name!r}: choose another column of heads.csv")
    low, high = np.nanmin(scores), np.nanmax(scores)
    # What was not measured keeps its cache: nothing is known against it.
    return np.nan_to_num((scores - low) / (high - low if high > low else 1.0), nan=1.0)


def _alike(source: Source) -> list[LayerHeads]:
    """All layers with all their heads; KVPress has one array for all of them."""
    layout, layers = source.captured.layout, source.layers
    whole = [one for one in layers if len(one.heads) == one.layer.query_heads]
    if len(whole) < layout.depth:
        raise RopewalkError(
            f"KVPress wants every head of all {layout.depth} layers, and {len(whole)} of {source.label!r} have all of "
            "theirs: run the study with `capture: {heads: all}` on a model whose layers all attend"
        )
    shapes = {(one.layer.query_heads, one.layer.key_heads, one.layer.head_dim) for one in layers}
    if len(shapes) > 1:
        raise RopewalkError(
            f"KVPress wants layers of one shape, and those of {source.label!r} have {len(shapes)} (query heads, key "
            f"heads, head_dim: {sorted(shapes)}): export to safetensors instead"
        )
    return layers


def _dataset(source: Source) -> str:
    known = [str(one["dataset"]) for one in source.documents if one.get("dataset")]
    return known[0] if known else "local"


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=1) + "\n").encode()


FORMAT = Format(
    "kvpress", "the folder that KVPress's expected attention loads, filters and scores of heads", Scores, write
)
