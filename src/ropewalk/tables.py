"""The tables on disk: their columns, and reading them back with the mistakes named."""

from pathlib import Path

import pandas as pd

from ropewalk.errors import RopewalkError

QK_KEY = ["checkpoint", "phase", "step", "layer", "head", "k_head", "rope", "pc"]
QK_VALUES = ["explained_variance", "r_q", "r_k"]
QK_EXTRA = [
    "label",
    "family",
    "context",
    "layers",
    "sliding",
    "category",
    "eigengap",
    "se_explained_variance",
    "se_r_q",
    "se_r_k",
    "n_q",
    "n_k",
    "shards",
]
QK_COLUMNS = QK_KEY + QK_VALUES + QK_EXTRA
"""Columns of `qk.csv`, one row per (checkpoint, layer, head, pc); rows of a checkpoint stand together, in study order.

`label` is the short name for axes, `family` groups checkpoints of a study over models, `layers` is the model's number
of layers, `category` and `eigengap` ((λ0-λ1)/λ0) belong to PC0 and are empty on the others, `se_*` are delete-one-shard
jackknife standard errors (empty with fewer than two shards), `n_q` and `n_k` count tokens.
"""

REPLICATE_COLUMNS = ["checkpoint", "layer", "head", "left_out", "explained_variance", "r_q", "r_k"]
"""Columns of `qk_replicates.parquet`: PC0 of every head with one shard left out, for the error of any summary."""

REQUIRED = ["checkpoint", "layer", "head", "pc", "explained_variance", "r_q", "r_k"]


def read_qk(path: Path | str) -> pd.DataFrame:
    """Read `qk.csv` (a file, or the results folder that holds it); say what is missing.

    `phase` and `label` come back as text ("" and the checkpoint's name where empty), `step` as a nullable integer,
    `rope` as a nullable boolean (missing in tables that do not know).
    """
    path = Path(path)
    file = path / "qk.csv" if path.is_dir() else path
    if not file.is_file():
        raise RopewalkError(f"no table at {file}: run `ropewalk analyze {path}` first, or give the folder of a run")
    try:
        table = pd.read_csv(file, dtype={"checkpoint": str, "phase": str, "label": str, "family": str})
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise RopewalkError(
            f"{file} is not a table that can be read ({error}): make it again with `ropewalk analyze`"
        ) from error
    return check_qk(table, str(file))


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
    table = table.copy()
    for column in ("phase", "family"):
        # An empty column is read as numbers: it becomes text before its gaps are filled.
        table[column] = table[column].astype(object).fillna("").astype(str) if column in table else ""
    table["checkpoint"] = names = table["checkpoint"].astype(str)
    table["label"] = table["label"].astype(object).fillna(names).astype(str) if "label" in table else names
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


def read_replicates(path: Path | str) -> pd.DataFrame | None:
    """Read `qk_replicates.parquet` beside a table; None where there is none (one shard, or a table from elsewhere)."""
    path = Path(path)
    file = (path if path.is_dir() else path.parent) / "qk_replicates.parquet"
    if not file.is_file():
        return None
    try:
        return pd.read_parquet(file)
    except (OSError, ValueError) as error:
        raise RopewalkError(f"{file} is damaged: make it again with `ropewalk analyze`") from error
