"""The tables on disk: their columns and what they hold, writing them, and reading them back with the mistakes named."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ropewalk.errors import RopewalkError
from ropewalk.files import atomic_path
from ropewalk.geometry.axes import AXES
from ropewalk.reading import START, not_text, open_regular, unreadable
from ropewalk.table_checks import (
    KEY,
    MOST_NUMBERS,
    NAMES,
    TableError,
    check_known,
    check_replicates,
    check_rows,
    check_table,
    check_width,
)
from ropewalk.text import one_line

FACTS: Mapping[str, str] = {
    "checkpoint": "name of the checkpoint; its rows stand together, in the order of the study",
    "phase": "phase of training, empty where there is none",
    "step": "training step, empty where there is none",
    "layer": "index of the layer",
    "head": "query head within the layer",
    "k_head": "key head that the query head reads",
    "rope": "whether the layer rotates queries and keys (measured); empty where that is not known",
    "label": "short name of the checkpoint, for axes",
    "family": "family of models, in a study over models",
    "context": "tokens of each document that were read",
    "layers": "number of layers of the model",
    "sliding": "whether the layer attends within a sliding window",
    "untrained": "checkpoint with random weights that is the null of this one, itself for that one; empty without",
}
"""Columns that several tables share."""

QK: Mapping[str, str] = {
    **{name: FACTS[name] for name in ("checkpoint", "phase", "step", "layer", "head", "k_head", "rope")},
    "pc": "principal component, 0 first",
    "explained_variance": "share of the pooled variance of queries and keys on the component",
    "r_q": "correlation of the queries' projection with token position; the component is oriented so that it is ≥ 0",
    "r_k": "correlation of the keys' projection with token position; below 0, keys drift against queries",
    **{name: FACTS[name] for name in ("label", "family", "context", "layers", "sliding", "untrained")},
    "category": "category of the head by the taxonomy; on PC0 only",
    "eigengap": "(λ0 - λ1) / λ0: near 0, PC0 is not a stable direction; on PC0 only",
    "separation_share": "share of the component's variance that is the offset between queries and keys",
    "overlap": "smallest |cos| between the component and what it becomes with one shard left out: below 0.7 it mixes "
    "with others, and its errors are those of a mixture",
    "se_explained_variance": "delete-one-shard jackknife standard error; empty with fewer than two shards",
    "se_r_q": "standard error of r_q",
    "se_r_k": "standard error of r_k",
    "se_separation_share": "standard error of separation_share",
    "n_q": "tokens whose queries were counted",
    "n_k": "tokens whose keys were counted",
    "shards": "groups of documents behind the standard errors",
}
"""Columns of `qk.csv`, one row per (checkpoint, layer, head, component)."""

_KINDS: Mapping[str, str] = {
    "category": "category of the head by the taxonomy, {where}",
    "certainty": "probability of that category, given the standard errors of r_q and r_k and their covariance",
    "concordance": "whether keys run with the queries' position (concordant) or against it (discordant), {where}; "
    "undecided where r_q or r_k is not beyond its error",
}
_WHERE = {
    "pooled": "on PC0",
    "centred": "on the first component of queries and keys centred apart",
    "drift": "along the drift axis",
}

HEADS: Mapping[str, str] = {
    **FACTS,
    **{
        f"{name}{ending}": text.format(where=_WHERE[axis])
        for axis, ending in AXES.items()
        for name, text in _KINDS.items()
    },
}
"""Columns that `heads.csv` begins with, one row per (checkpoint, layer, head).

Those of the statistics follow, each with its standard error `se_...`.
"""

REPLICATES: Mapping[str, str] = {
    "checkpoint": FACTS["checkpoint"],
    "layer": FACTS["layer"],
    "head": FACTS["head"],
    "left_out": "number of the shard that was left out",
}
"""Columns that `replicates.parquet` begins with.

Those of `heads.csv` that have an error follow, with one shard left out: enough for the error of any summary over heads.
"""

REPLICATES_FILE = "replicates.parquet"
QK_COLUMNS, HEAD_FACTS, REPLICATE_KEY = list(QK), list(HEADS), list(REPLICATES)
QK_VALUES = ["explained_variance", "r_q", "r_k"]
REPLICATE_COLUMNS = [*REPLICATE_KEY, *QK_VALUES]
"""What a summary needs of replicates."""

REQUIRED = ["checkpoint", "layer", "head", "pc", "explained_variance", "r_q", "r_k"]
TEXT = dict.fromkeys(NAMES, str)
GAPS = ["", "NA", "N/A", "NaN", "nan", "null", "None", "<NA>"]
"""What stands for a missing number in tables from elsewhere; in ours it is nothing."""


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV with nine digits, atomically."""
    # By hand, because pandas takes ten times as long to format a number.
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows(zip(*(_cells(column) for _, column in table.items()), strict=True))


def _cells(column: pd.Series) -> list[Any]:
    """What stands in a column of a file: numbers with nine digits, nothing where something is missing."""
    if pd.api.types.is_float_dtype(column.dtype):
        numbers = column.to_numpy(dtype=float, na_value=float("nan")).tolist()
        return ["" if number != number else f"{number:.9g}" for number in numbers]
    return [None if gone else value for value, gone in zip(column.tolist(), column.isna().tolist(), strict=True)]


def write_replicates(results: Path, replicates: pd.DataFrame) -> None:
    """Write the replicates beside a table, with all their digits."""
    with atomic_path(results / REPLICATES_FILE) as temporary:
        replicates.to_parquet(temporary, index=False)


def read_csv(file: Path) -> pd.DataFrame:
    """A table from a CSV file, or a sentence on why it cannot be read."""
    if not file.exists():
        raise RopewalkError(f"no table at {file}: run `ropewalk analyze` first, or give the folder of a run")
    try:
        with open_regular(file) as opened:
            if other := not_text(opened.read(START)):
                raise RopewalkError(f"{file} {other}, or make it again with `ropewalk analyze`")
            opened.seek(0)
            columns = pd.read_csv(opened, nrows=0).columns
            check_width(columns, str(file))
            opened.seek(0)
            # A name is text, whatever it reads like: NA, null and nan are gaps in other columns alone.
            gaps = {column: GAPS for column in columns if column not in TEXT}
            # Copied, because columns as they were read lie in as many pieces, which pandas is slow with.
            return pd.read_csv(opened, dtype=TEXT, keep_default_na=False, na_values=gaps).copy()
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OverflowError) as error:
        raise TableError(f"{file} is not a table that can be read ({one_line(error, 200)})") from error
    except OSError as error:
        raise unreadable(file, error, "check who may read it, and the disk") from error


def read_qk(path: Path | str) -> pd.DataFrame:
    """Read `qk.csv` (a file, or the results folder that holds it); say what is missing.

    `phase` and `label` come back as text ("" and the checkpoint's name where empty), `step` as a nullable integer,
    `rope` as a nullable boolean (missing in tables that do not know).
    """
    path = Path(path)
    file = path / "qk.csv" if path.is_dir() else path
    table = read_csv(file)
    if table.empty or not set(REQUIRED) <= set(table):
        return check_qk(table, str(file))  # which says so
    # A table from elsewhere may have columns of its own.
    check_table(table, str(file), REQUIRED, None if path.is_dir() else QK_COLUMNS)
    check_rows(table, str(file), [*KEY, "pc"])
    return check_qk(table, str(file))


def read_other(results: Path, name: str, heads: pd.DataFrame, columns: Sequence[str] | None) -> pd.DataFrame:
    """Read a further table of a results folder, which has rows of these heads; None as its `columns` where its
    statistic is not one of the package, and they are not known.
    """
    file = results / f"{name}.csv"
    table = read_csv(file)
    required = [*KEY, "context", *(columns or ())]
    check_table(table, str(file), required, None if columns is not None else KEY[1:])
    if table["context"].isna().any():
        raise TableError(f"{file} has rows without a context")
    check_known(table, str(file), heads, "heads.csv")
    return table


def read_heads(results: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Read `heads.csv` of a results folder, typed as `read_qk` types its columns; else the heads of its qk table."""
    file = results / "heads.csv"
    if not file.is_file():
        return first_components(table)
    heads = read_csv(file)
    check_table(heads, str(file), [*KEY, *QK_VALUES])
    check_rows(heads, str(file), KEY)
    check_known(table, str(results / "qk.csv"), heads, file.name)
    return _typed(heads, str(file))


def check_qk(table: pd.DataFrame, name: str = "the table") -> pd.DataFrame:
    """Return a copy with every optional column present, or say which required column or row is missing."""
    missing = [column for column in REQUIRED if column not in table.columns]
    if missing:
        raise RopewalkError(f"{name} has no column {missing[0]!r}: it needs {', '.join(REQUIRED)}")
    if table.empty:
        raise RopewalkError(f"{name} has no rows: run `ropewalk analyze` on a finished capture")
    for column in QK_VALUES:
        if not pd.api.types.is_numeric_dtype(table[column]):
            raise RopewalkError(f"{name} has text in the column {column!r}, which must hold numbers")
    return _typed(table, name)


def check_heads(table: pd.DataFrame, name: str = "the table") -> pd.DataFrame:
    """A copy of a table of heads (or of the PC0 rows of a qk table) with every column of facts present."""
    heads = first_components(table) if "pc" in table else table
    return check_qk(heads.assign(pc=0), name).drop(columns="pc")


def first_components(table: pd.DataFrame) -> pd.DataFrame:
    """A table of heads from the PC0 rows of a qk table."""
    heads = table[table["pc"] == 0].drop(columns="pc").reset_index(drop=True)
    if heads.empty and not table.empty:
        raise RopewalkError("the table has no row with pc 0: PC0 is what figures and summaries are made of")
    return heads


def _typed(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """The table with its columns of facts in their types, and those that are missing filled in."""
    table = table.copy()
    for column in ("phase", "family", "untrained"):
        # An empty column is read as numbers: it becomes text before its gaps are filled.
        table[column] = table[column].astype(object).fillna("").astype(str) if column in table else ""
    table["checkpoint"] = names = table["checkpoint"].astype(str)
    labels = table["label"].astype(object).fillna("").astype(str) if "label" in table else names
    table["label"] = labels.where(labels != "", names)
    for column in ("step", "layer", "head", "pc"):
        if column in table and not _is_whole(table[column]):
            raise RopewalkError(f"{name} has something else than whole numbers in the column {column!r}")
    if "rope" in table and not table["rope"].dropna().isin([True, False]).all():
        raise RopewalkError(f"{name} has something else than True and False in the column 'rope'")
    table["step"] = table["step"].astype("Int64") if "step" in table else pd.array([pd.NA] * len(table), dtype="Int64")
    table["rope"] = (
        table["rope"].astype("boolean") if "rope" in table else pd.array([pd.NA] * len(table), dtype="boolean")
    )
    if "layers" not in table:
        table["layers"] = table.groupby("checkpoint")["layer"].transform("max") + 1
    return table


def _is_whole(column: pd.Series) -> bool:
    known = column.dropna()
    if known.empty:
        return True
    return pd.api.types.is_numeric_dtype(known) and bool((known.astype(float) % 1 == 0).all())


def read_replicates(results: Path, heads: pd.DataFrame) -> pd.DataFrame | None:
    """Read `replicates.parquet` of a results folder, which has rows of these heads; None where there is none (a table
    from elsewhere).
    """
    file = results / REPLICATES_FILE
    if not file.is_file():
        return None
    try:
        with pq.ParquetFile(file) as opened:
            check_width(opened.schema_arrow.names, str(file))
            held = opened.metadata.num_rows * len(opened.schema_arrow.names)
            if held > MOST_NUMBERS:
                raise TableError(f"{file} has {held:,} numbers, and {MOST_NUMBERS:,} are the most")
            found: pd.DataFrame = opened.read().to_pandas()
    except (OSError, ValueError, pa.ArrowException, MemoryError) as error:
        raise TableError(f"{file} is damaged") from error
    if len(found):
        check_table(found, str(file), REPLICATE_COLUMNS)
        check_replicates(found, str(file), heads)
    return found
