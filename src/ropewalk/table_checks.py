"""Whether a table from a file can be believed: its columns, numbers and rows, before anything is made of them.

A table may come from a stranger, who can write a seal beside it.
"""

from collections.abc import Iterable, Mapping, Sequence, Sized

import numpy as np
import pandas as pd

from ropewalk.errors import RopewalkError
from ropewalk.models.layout import Head
from ropewalk.study import LONGEST_CONTEXT, MOST_CHECKPOINTS
from ropewalk.text import cut

NAMES = ("checkpoint", "phase", "label", "family", "untrained")
WORDS = ("category", "concordance")
"""Columns of text; those of other axes begin with the same words."""
FLAGS = ("rope", "sliding")
KEY = ["checkpoint", "layer", "head"]

MOST_COLUMNS = 10_000
MOST_PLACES = 10_000_000
"""Layers times heads of a model: pictures have a cell for each."""
MOST_NUMBERS = 250_000_000
"""Numbers of all replicates, which are packed in their file and are not in memory."""
LARGEST = 1e30
"""Beyond all that is measured: squares and sums of such numbers still have a value."""
WHOLE = {"layer": 10_000, "head": 1_000_000, "pc": 10_000, "layers": 10_001, "left_out": 1_000_000}
"""Columns of whole numbers that every row has, and what they are below."""
STEP, CONTEXT = 2**63, LONGEST_CONTEXT + 1
AGAIN = "make it again with `ropewalk analyze`"


class TableError(RopewalkError):
    """A table that is not one of ours, or not as ours are."""

    def __init__(self, reason: str, remedy: str = AGAIN) -> None:
        super().__init__(f"{reason}: {remedy}")
        self.reason = reason


def check_width(columns: Sized, name: str) -> None:
    """Stop at a table of more columns than statistics have."""
    if len(columns) > MOST_COLUMNS:
        raise TableError(f"{name} has {len(columns):,} columns, and {MOST_COLUMNS:,} are the most")


def check_table(table: pd.DataFrame, name: str, required: Sequence[str], numbers: Sequence[str] | None = None) -> None:
    """Stop where a column is missing, or holds something else than it must.

    `numbers` are the columns that hold numbers if they are there, but for those that are known as text: all by default.
    """
    check_width(table.columns, name)
    missing = [column for column in required if column not in table]
    if missing:
        raise TableError(f"{name} has no column {missing[0]!r}, and needs {', '.join(required)}")
    for column in map(str, table.columns if numbers is None else numbers):
        if column in table and column not in (*NAMES, *FLAGS) and not column.startswith(WORDS):
            _check_numbers(table[column], column, name)
    for column in FLAGS:
        if column in table and not table[column].dropna().isin([True, False]).all():
            raise TableError(f"{name} has something else than True and False in the column {column!r}")
    for column, below in {**WHOLE, "step": STEP, "context": CONTEXT}.items():
        if column in table:
            _check_whole(table[column], column, name, below, gaps=column not in WHOLE)
    if table["checkpoint"].isna().any() or table["checkpoint"].nunique() > MOST_CHECKPOINTS:
        raise TableError(f"{name} has rows without a checkpoint, or more than {MOST_CHECKPOINTS:,} checkpoints")
    if len(table) and (int(table["layer"].max()) + 1) * (int(table["head"].max()) + 1) > MOST_PLACES:
        raise TableError(f"{name} has layers and heads beyond what a model has")


def check_rows(table: pd.DataFrame, name: str, key: Sequence[str]) -> None:
    """Stop at a row that is there twice."""
    twice = table[table.duplicated(list(key))]
    if len(twice):
        row = ", ".join(f"{column} {cut(str(twice.iloc[0][column]), 60)!r}" for column in key)
        raise TableError(f"{name} has two rows of {row}")


def check_known(table: pd.DataFrame, name: str, heads: pd.DataFrame, of: str) -> None:
    """Stop at heads that another table does not have."""
    own = pd.MultiIndex.from_frame(table[KEY].drop_duplicates())
    unknown = own[~own.isin(pd.MultiIndex.from_frame(heads[KEY]))]
    if len(unknown):
        checkpoint, layer, head = unknown[0]
        raise TableError(f"{name} has head {head} of layer {layer} of {cut(repr(checkpoint), 100)}, which {of} has not")


def check_measured(heads: pd.DataFrame, name: str, captured: Mapping[str, Iterable[Head]]) -> None:
    """Stop at a head of a checkpoint whose capture is at hand, and is not of that head."""
    measured = {checkpoint: {(one.layer, one.head) for one in own} for checkpoint, own in captured.items()}
    for checkpoint, layer, head in heads[KEY].itertuples(index=False):
        if checkpoint in measured and (layer, head) not in measured[checkpoint]:
            raise TableError(
                f"{name} has head {head} of layer {layer} of {cut(repr(checkpoint), 100)}, which was not measured"
            )


def check_replicates(table: pd.DataFrame, name: str, heads: pd.DataFrame) -> None:
    """Stop where replicates are not as many for every head of a checkpoint."""
    check_rows(table, name, [*KEY, "left_out"])
    check_known(table, name, heads, "heads.csv")
    rows, groups = table.groupby("checkpoint").size(), table.groupby("checkpoint")["left_out"].nunique()
    expected = groups * heads.groupby("checkpoint").size().reindex(groups.index)
    for checkpoint in rows.index[(rows != expected).to_numpy()]:
        raise TableError(
            f"{name} has {rows[checkpoint]:,} rows of {cut(repr(checkpoint), 100)} where its heads and groups make "
            f"{int(expected[checkpoint]):,}"
        )


def _check_numbers(values: pd.Series, column: str, name: str) -> None:
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        raise TableError(f"{name} has something else than numbers in the column {cut(repr(column), 60)}")
    largest = np.abs(values.to_numpy(dtype=float, na_value=np.nan))
    # A pair of dimensions that does not turn has no end to its wavelength.
    if "wavelength" not in column and np.nanmax(largest, initial=0) > LARGEST:
        raise TableError(f"{name} has numbers in the column {cut(repr(column), 60)} that are beyond {LARGEST:.0e}")


def _check_whole(values: pd.Series, column: str, name: str, below: int, *, gaps: bool) -> None:
    numbers = values.dropna() if gaps else values
    if not pd.api.types.is_numeric_dtype(numbers) and not numbers.empty:
        raise TableError(f"{name} has something else than whole numbers in the column {column!r}")
    found = numbers.to_numpy(dtype=float, na_value=np.nan)
    if not bool(((found % 1 == 0) & (found >= 0) & (found < below)).all()):
        raise TableError(
            f"{name} has something else than whole numbers from 0 to {below - 1:,} in the column {column!r}"
        )
