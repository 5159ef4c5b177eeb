"""The heads of all layers of a checkpoint as tables, from what the statistics gave of each layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.geometry.axes import AXES
from ropewalk.geometry.jackknife import critical, jackknife_covariance, jackknife_error
from ropewalk.geometry.taxonomy import category_numbers, classify, concordance, probabilities
from ropewalk.statistics.base import LayerHeads


def side_by_side(parts: Sequence[Mapping[str, Any]], layers: Sequence[LayerHeads]) -> dict[str, Any]:
    """Columns [..., heads of all layers] from those of each layer; missing where a layer does not have one."""
    shapes = {name: np.shape(column)[:-1] for part in parts for name, column in part.items()}
    return {
        name: np.concatenate(
            [
                part[name] if name in part else np.full((*shape, len(heads.heads)), np.nan)
                for part, heads in zip(parts, layers, strict=True)
            ],
            axis=-1,
        )
        for name, shape in shapes.items()
    }


def heads_table(layers: Sequence[LayerHeads], values: Mapping[str, Any], replicates: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each head: where it is, what kind of head it is, and every column [heads] with its standard error."""
    own = [(heads.layer, head) for heads in layers for head in heads.heads]
    nothing = np.full(len(own), np.nan)
    columns: dict[str, Any] = {
        "layer": [layer.layer for layer, _ in own],
        "head": [head for _, head in own],
        "k_head": [layer.k_head(head) for layer, head in own],
        "rope": pd.array([layer.rope for layer, _ in own], dtype="boolean"),
        "sliding": [layer.window is not None for layer, _ in own],
    }
    for ending in AXES.values():
        columns |= _kinds(ending, values, replicates)
    for name, column in values.items():
        columns[name] = column
        if name in replicates or not replicates:
            columns[f"se_{name}"] = jackknife_error(replicates[name]) if replicates else nothing
    return pd.DataFrame(columns)


def _kinds(ending: str, values: Mapping[str, Any], replicates: Mapping[str, Any]) -> dict[str, Any]:
    """What kind of head each is along an axis: category and its probability, concordance of keys with queries."""
    names = [f"r_q{ending}", f"r_k{ending}"]
    r_q, r_k = (values[name] for name in names)
    categories = category_numbers(r_q, r_k)
    certainty, concordant = np.full(len(r_q), np.nan), np.full(len(r_q), None, dtype=object)
    if replicates:
        parts = np.stack([replicates[name] for name in names], axis=2)
        groups = len(parts)
        chances = probabilities(r_q, r_k, jackknife_covariance(parts), groups)
        certainty = np.where(categories >= 0, chances[np.arange(len(r_q)), categories], np.nan)
        beyond = np.abs([r_q, r_k]) > critical(groups) * jackknife_error(parts).T
        concordant = concordance(r_q, r_k, beyond.all(axis=0))
    return {
        f"category{ending}": classify(r_q, r_k),
        f"certainty{ending}": certainty,
        f"concordance{ending}": concordant,
    }


def replicates_table(layers: Sequence[LayerHeads], replicates: Mapping[str, Any]) -> pd.DataFrame:
    """Every column of each head with each group left out."""
    groups = len(next(iter(replicates.values()))) if replicates else 0
    own = [(heads.layer.layer, head) for heads in layers for head in heads.heads]
    return pd.DataFrame(
        {
            "layer": np.repeat([layer for layer, _ in own], groups),
            "head": np.repeat([head for _, head in own], groups),
            "left_out": np.tile(np.arange(groups), len(own)),
            **{name: column.T.ravel() for name, column in replicates.items()},
        }
    )
