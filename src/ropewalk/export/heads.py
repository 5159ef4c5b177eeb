"""Scores of heads: one column of heads.csv as CSV, JSON and arrays."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from ropewalk.errors import RopewalkError
from ropewalk.export.folder import writing
from ropewalk.export.formats import Format
from ropewalk.export.source import Source, facts
from ropewalk.files import write_bytes, write_text
from ropewalk.geometry.moments import Floats
from ropewalk.schema import Part
from ropewalk.tables import HEAD_FACTS, write_csv
from ropewalk.text import some

FILES = ("scores.csv", "scores.json", "query_heads.npy", "key_heads.npy")


class Column(Part):
    """Which score."""

    column: str = Field(description="Column of heads.csv that holds numbers.")


def write(source: Source, path: Path, options: Column) -> list[Path]:
    """Write a folder with the scores of a checkpoint: `FILES`."""
    scores = head_scores(source, options.column)
    by_query, by_key = arrays(source, scores)
    with writing(path, FILES, facts(source)):
        write_csv(path / FILES[0], scores)
        write_text(path / FILES[1], json.dumps(_as_json(source, options.column, by_query, by_key), indent=1) + "\n")
        for name, array in zip(FILES[2:], (by_query, by_key), strict=True):
            buffer = io.BytesIO()
            np.save(buffer, array)
            write_bytes(path / name, buffer.getvalue())
    return [path / name for name in FILES]


def head_scores(source: Source, column: str) -> pd.DataFrame:
    """layer, head, k_head and the score with its error, as far as there is one: a row for each head."""
    numbers = [
        name
        for name in source.heads
        if name not in HEAD_FACTS
        and pd.api.types.is_numeric_dtype(source.heads[name])
        and not str(name).startswith("se_")
    ]
    if column not in numbers:
        what = "is not a number" if column in source.heads else "is no column of heads.csv"
        raise RopewalkError(f"{column!r} {what}: choose a column such as {some(numbers, 8)}")
    kept = [name for name in ("layer", "head", "k_head", column, f"se_{column}") if name in source.heads]
    return source.heads[kept].reset_index(drop=True)


def arrays(source: Source, scores: pd.DataFrame) -> tuple[Floats, Floats]:
    """Scores [layers, query heads] and, as means over the query heads that read each, [layers, key heads].

    Every layer of the model has its row. What was not captured, or is not in a layer, is NaN.
    """
    layout = source.captured.layout
    most = [max(getattr(layer, name) for layer in layout.layers) for name in ("query_heads", "key_heads")]
    by_query, by_key = (np.full((layout.depth, count), np.nan) for count in most)
    column = scores.columns[3]
    by_query[scores["layer"], scores["head"]] = scores[column].astype(float)
    means = scores.groupby(["layer", "k_head"], as_index=False)[column].mean()
    by_key[means["layer"], means["k_head"]] = means[column].astype(float)
    return by_query, by_key


def _as_json(source: Source, column: str, by_query: Floats, by_key: Floats) -> dict[str, Any]:
    return {
        "column": column,
        "query_heads": _plain(by_query),
        "key_heads": _plain(by_key),
        **facts(source),
    }


def _plain(array: Floats) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in array]


FORMAT = Format("heads", "one column of heads.csv as CSV, JSON and arrays", Column, write)
