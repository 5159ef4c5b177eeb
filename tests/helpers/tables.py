"""Synthetic tables of results, and plain ways to read them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.freshness import tables_made_from
from ropewalk.record import store
from ropewalk.seals import Ledger
from ropewalk.study import Study


def synthetic(
    checkpoints: int = 10, *, layers: int = 36, heads: int = 300, phases: int = 5, models: bool = False, seed: int = 0
) -> pd.DataFrame:
    """A qk table of the published shape: heads of NoPE layers (3, 7, ...) turn discordant as training goes on."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(layers * 16)[:heads]
    layer, head = np.sort(cells) // 16, np.sort(cells) % 16
    rope = layer % 4 != 3
    base_q, base_k = rng.normal(0.1, 0.12, heads), rng.normal(0.0, 0.22, heads)
    tables = []
    for index in range(checkpoints):
        age = index / max(checkpoints - 1, 1)
        phase = index * phases // checkpoints
        r_q = np.clip(0.55 + 0.22 * age**0.5 + base_q + rng.normal(0, 0.06, heads), -0.04, 0.99)
        r_k = np.where(rope, 0.55 + 0.25 * age, 0.2 - 0.8 * age) + base_k + rng.normal(0, 0.07, heads)
        family = ("Llama", "Qwen", "SmolLM", "OLMo 2")[index * 4 // checkpoints]
        tables.append(
            pd.DataFrame(
                {
                    "checkpoint": f"{family}-{index}" if models else f"stage{phase + 1}-step-{index * 40000}",
                    "phase": ""
                    if models
                    else f"stage {phase + 1}"
                    if phase < 3
                    else f"LC {4 * 8 ** (phase - 3)}K->{32 * 2 ** (phase - 3)}K",
                    "step": pd.NA if models else index * 40000,
                    "layer": layer,
                    "head": head,
                    "k_head": head // 4,
                    "rope": rope,
                    "pc": 0,
                    "explained_variance": np.clip(rng.normal(0.2 + 0.12 * age, 0.06, heads), 0.02, 0.9),
                    "r_q": r_q,
                    "r_k": np.clip(r_k, -0.97, 0.97),
                    "label": f"{family}-{2 ** (index % 3)}B" if models else f"S{phase + 1}-{index * 40}K",
                    "family": family if models else "",
                    "layers": layers,
                }
            )
        )
    table = pd.concat(tables, ignore_index=True)
    return pd.concat([table, table.assign(pc=1, r_q=0.1, r_k=-0.1, explained_variance=0.05)], ignore_index=True)


def leave_one_out(table: pd.DataFrame, shards: int = 8, noise: float = 0.01, seed: int = 1) -> pd.DataFrame:
    """Replicates scattered about the PC0 rows of a table."""
    rng = np.random.default_rng(seed)
    heads = table[table["pc"] == 0][["checkpoint", "layer", "head", "explained_variance", "r_q", "r_k"]]
    parts = []
    for shard in range(shards):
        part = heads.assign(left_out=shard)
        for column in ("explained_variance", "r_q", "r_k"):
            part[column] = part[column] + rng.normal(0, noise) + rng.normal(0, noise, len(part))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def category(row: pd.Series) -> str | None:
    """The taxonomy, spelled out once more."""
    r_q, size = row["r_q"], abs(row["r_k"])
    if math.isnan(r_q) or math.isnan(size):
        return None
    if r_q > 0.7 and size > 0.7:
        return "position-dominated"
    if r_q > 0.7 and size < 0.3:
        return "Q-positional"
    if r_q < 0.3 and size > 0.7:
        return "K-positional"
    if r_q < 0.3 and size < 0.3:
        return "content-focused"
    return "mixed"


def heads_of(table: pd.DataFrame) -> pd.DataFrame:
    heads = table[table["pc"] == 0].copy()
    heads["category"] = heads.apply(category, axis=1)
    return heads


def by_checkpoint(table: pd.DataFrame, value: str, how: str = "mean") -> np.ndarray:
    return table[table["pc"] == 0].groupby("checkpoint", sort=False)[value].agg(how).to_numpy()


def random_table(
    checkpoints: Sequence[dict[str, Any]], *, layers: int, heads: int, shards: int, noise: float, seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A qk table with two components, and replicates scattered about PC0; `checkpoints` are their columns of facts."""
    rng = np.random.default_rng(seed)
    rows, replicates = [], []
    for facts in checkpoints:
        for layer in range(layers):
            for head in range(heads):
                values = {
                    "explained_variance": rng.uniform(0.1, 0.6),
                    "r_q": rng.uniform(0, 1),
                    "r_k": rng.uniform(-1, 1),
                }
                key = {"checkpoint": facts["checkpoint"], "layer": layer, "head": head}
                known = {**key, "rope": layer % 4 != 3, "k_head": head // 4, "layers": layers, **facts}
                rows.append(known | {"pc": 0, "eigengap": rng.uniform()} | values)
                rows.append(known | {"pc": 1, "explained_variance": 0.01, "r_q": 0.0, "r_k": 0.0})
                for shard in range(shards):
                    moved = {column: value + rng.normal(0, noise) for column, value in values.items()}
                    replicates.append(key | {"left_out": shard} | moved)
    return pd.DataFrame(rows), pd.DataFrame(replicates)


def write_results(
    folder: Path,
    table: pd.DataFrame,
    replicates: pd.DataFrame | None = None,
    record: dict[str, Any] | None = None,
) -> Path:
    """A results folder with these tables and this record."""
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "qk.csv", index=False)
    if replicates is not None:
        replicates.to_parquet(folder / "replicates.parquet")
    if record is not None:
        store(folder, record)
        study = Study.model_validate(record["study"])
        names = [path.name for path in folder.iterdir() if path.suffix in (".csv", ".parquet")]
        Ledger.of(folder, names, tables_made_from(study, {})).write(folder)
    return folder
