"""From moments to tables: `qk.csv`, one row per (checkpoint, layer, head, component)."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from pydantic import ValidationError
from threadpoolctl import threadpool_limits

from ropewalk.capture.shards import layer_prefix, open_shard, read_manifest, read_marks, read_moments, shard_path
from ropewalk.errors import RopewalkError
from ropewalk.files import atomic_path
from ropewalk.geometry.jackknife import jackknife_error, leave_one_out
from ropewalk.geometry.moments import Moments
from ropewalk.geometry.pca import COMPONENTS, PCA
from ropewalk.geometry.taxonomy import classify
from ropewalk.models.layout import AttentionLayer, Head, Layout
from ropewalk.study import Checkpoint, Study
from ropewalk.tables import QK_COLUMNS, REPLICATE_COLUMNS

LayerMoments = tuple[Sequence[int], Moments]
"""Numbers of the heads (or key heads) of a layer, and their moments in that order."""


class LayerInput(NamedTuple):
    """A layer, its heads, and how to get the moments of its "q" or "k" per shard (only when it is their turn)."""

    layer: AttentionLayer
    heads: Sequence[Head]
    moments: Callable[[str], Sequence[LayerMoments]]


def analyze(results: Path | str) -> pd.DataFrame:
    """Compute the tables of a results folder from its shards and write qk.csv, qk.parquet and qk_replicates.parquet."""
    results = Path(results)
    study = recorded_study(results)
    tables, replicates = [], []
    for checkpoint in study.checkpoints:
        table, replicate = _checkpoint(results / "captures" / checkpoint.slug, checkpoint, study.capture.components)
        tables.append(table)
        replicates.append(replicate)
    table = pd.concat(tables, ignore_index=True)
    write_tables(results, table, pd.concat(replicates, ignore_index=True))
    return table


def write_tables(results: Path, table: pd.DataFrame, replicates: pd.DataFrame) -> None:
    """Write a table as CSV (nine digits) and Parquet (all of them), and its replicates, each atomically."""
    with atomic_path(results / "qk_replicates.parquet") as temporary:
        replicates.to_parquet(temporary, index=False)
    with atomic_path(results / "qk.parquet") as temporary:
        table.to_parquet(temporary, index=False)
    # Last, because it is what readers look for: the others are never older than it.
    with atomic_path(results / "qk.csv") as temporary:
        table.to_csv(temporary, index=False, float_format="%.9g", lineterminator="\n")


def recorded_study(results: Path) -> Study:
    """The study that a results folder was made from."""
    record = results / "study.yaml"
    if not record.is_file():
        raise RopewalkError(
            f"{results} is not a results folder: it has no study.yaml; run `ropewalk capture` on a study first"
        )
    try:
        # Models may have moved since: only their captures are needed now, so their folders are not looked for.
        return Study.model_validate(yaml.safe_load(record.read_text(encoding="utf-8"))["study"])
    except (yaml.YAMLError, UnicodeDecodeError, ValidationError, KeyError, TypeError) as error:
        raise RopewalkError(f"{record} is damaged: it does not hold a study; run `ropewalk capture` again") from error


def tabulate(
    layers: Iterable[LayerInput], facts: dict[str, Any], components: int = COMPONENTS
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of one checkpoint and its replicates.

    `facts` are columns that are the same for all rows (checkpoint, phase, step, label, family, context, layers). Layers
    are independent and are worked on by as many threads as there are cores (NumPy's decompositions release the
    interpreter), so that no more than so many layers are in memory.
    """
    # One thread per layer and none inside: the matrices are small, and BLAS threads would stand in each other's way.
    with ThreadPoolExecutor(os.cpu_count()) as pool, threadpool_limits(1):
        parts = list(pool.map(lambda layer: _layer(layer, components), layers))
    table = pd.concat([part for part, _ in parts], ignore_index=True).assign(**facts)
    replicates = pd.concat([part for _, part in parts], ignore_index=True).assign(checkpoint=facts["checkpoint"])
    table["step"] = table["step"].astype("Int64")
    return table[QK_COLUMNS], replicates[REPLICATE_COLUMNS]


def checkpoint_facts(checkpoint: Checkpoint, depth: int) -> dict[str, Any]:
    """Columns that are the same for all rows of a checkpoint."""
    return {
        "checkpoint": checkpoint.name,
        "phase": checkpoint.phase,
        "step": pd.NA if checkpoint.step is None else checkpoint.step,
        "label": checkpoint.label,
        "family": checkpoint.family,
        "context": checkpoint.context,
        "layers": depth,
    }


def _checkpoint(folder: Path, checkpoint: Checkpoint, components: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    manifest = read_manifest(folder)
    layout = Layout.from_dict(manifest["layout"])
    heads = [Head(*head) for head in manifest["heads"]]
    shards = manifest["shards"]
    absent = [number for number in range(shards) if not shard_path(folder, number).is_file()]
    if absent:
        raise RopewalkError(
            f"{checkpoint.label!r} has {shards - len(absent)} of its {shards} shards: run `ropewalk capture` "
            "again to compute the others"
        )
    files = [open_shard(shard_path(folder, number)) for number in range(shards)]
    for number, file in enumerate(files):
        marks = read_marks(file)
        expected = (manifest["model"], manifest["settings"], manifest["tokens_of_shards"][number])
        if (marks["model"], marks["settings"], marks["tokens"]) != expected:
            raise RopewalkError(
                f"{shard_path(folder, number)} was made from another model, documents or settings than the rest: "
                f"remove {folder} and capture again"
            )

    def read(layer: AttentionLayer, kind: str) -> list[LayerMoments]:
        prefix = layer_prefix(layer.layer, kind)
        return [(file.get_tensor(f"{prefix}.heads").tolist(), read_moments(file, prefix)) for file in files]

    layers = layer_inputs(layout, heads, read)
    return tabulate(layers, checkpoint_facts(checkpoint, layout.depth), components)


def layer_inputs(
    layout: Layout, heads: Sequence[Head], read: Callable[[AttentionLayer, str], Sequence[LayerMoments]]
) -> list[LayerInput]:
    """One input for each layer that has chosen heads."""
    chosen = [(layer, [head for head in heads if head.layer == layer.layer]) for layer in layout.layers]
    return [LayerInput(layer, own, partial(read, layer)) for layer, own in chosen if own]


def _layer(source: LayerInput, components: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    layer, heads = source.layer, source.heads
    q, k = source.moments("q"), source.moments("k")
    if any(list(stored) != [head.head for head in heads] for stored, _ in q):
        raise RopewalkError(
            f"a shard holds other heads of layer {layer.layer} than its manifest names: remove it and capture again"
        )
    key_of = np.array([k[0][0].index(head.k_head) for head in heads])
    queries, keys = [part for _, part in q], [part for _, part in k]
    whole, left_out = leave_one_out(queries, keys, key_of, components)
    counts = {
        "n_q": np.sum([part.n for part in queries], axis=0).astype(np.int64),
        "n_k": np.sum([part.n[key_of] for part in keys], axis=0).astype(np.int64),
        "shards": np.full(len(heads), len(queries)),
    }
    return _rows(layer, heads, whole, left_out, counts), _replicates(heads, left_out)


def _rows(
    layer: AttentionLayer,
    heads: Sequence[Head],
    whole: PCA,
    left_out: Sequence[PCA],
    counts: dict[str, Any],
) -> pd.DataFrame:
    count, components = whole.r_q.shape
    first = np.tile(np.arange(components) == 0, count)

    def spread(values: Any) -> Any:
        return np.repeat(np.asarray(values), components)

    def error(name: str) -> Any:
        replicates = np.array([getattr(pca, name) for pca in left_out]).reshape(len(left_out), count, components)
        return jackknife_error(replicates).ravel()

    return pd.DataFrame(
        {
            "layer": layer.layer,
            "head": spread([head.head for head in heads]),
            "k_head": spread([head.k_head for head in heads]),
            "rope": pd.array([layer.rope] * (count * components), dtype="boolean"),
            "pc": np.tile(np.arange(components), count),
            "explained_variance": whole.explained_variance.ravel(),
            "r_q": whole.r_q.ravel(),
            "r_k": whole.r_k.ravel(),
            "sliding": layer.window is not None,
            "category": np.where(first, spread(classify(whole.r_q[:, 0], whole.r_k[:, 0])), None),
            "eigengap": np.where(first, spread(whole.eigengap), np.nan),
            "se_explained_variance": error("explained_variance"),
            "se_r_q": error("r_q"),
            "se_r_k": error("r_k"),
            **{name: spread(count) for name, count in counts.items()},
        }
    )


def _replicates(heads: Sequence[Head], left_out: Sequence[PCA]) -> pd.DataFrame:
    """PC0 of each head with each shard left out."""
    count = len(left_out)
    return pd.DataFrame(
        {
            "layer": np.repeat([head.layer for head in heads], count),
            "head": np.repeat([head.head for head in heads], count),
            "left_out": np.tile(np.arange(count), len(heads)),
            **{
                name: np.array([getattr(pca, name)[:, 0] for pca in left_out]).reshape(count, len(heads)).T.ravel()
                for name in ("explained_variance", "r_q", "r_k")
            },
        }
    )
