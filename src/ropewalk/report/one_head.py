"""The data of the page's section on one head: every number and curve of any head of the last checkpoint."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.statistics.registry import described_columns
from ropewalk.summary.view import View
from ropewalk.tables import HEAD_FACTS

DIGITS = 5
"""Significant digits of the numbers that the page draws."""

CURVES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "distance": ("distance", ("kernel", "score", "se_score", "mass")),
    "profiles": ("start", ("q", "k", "line_q", "line_k")),
    "spectrum": ("wavelength", ("energy_q", "energy_k", "kernel_share")),
}
"""By table: the column that its curves run over, and the curves."""


def one_head(view: View) -> Mapping[str, Any] | None:
    """What the page's script shows of the head that a reader chooses; None where there is but PC0.

    `numbers` are the columns of heads, what they mean and, by head, values and errors; `curves` by table the points of
    each head, a list for each of x and the columns of `CURVES`.
    """
    index = len(view.lineup) - 1
    part = view.parts[index]
    # Of another axis than the pooled one, the columns are those of the table as it was written.
    table = (view.origin or view).parts[index]
    known = described_columns()
    names = [name for name in table if name in known and name not in HEAD_FACTS and table[name].notna().any()]
    curves = {name: _curves(view, name, index) for name in CURVES if name in view.tables}
    if not curves:
        return None
    return {
        "checkpoint": view.lineup.labels[index],
        "context": int(part["context"].iloc[0]),
        "heads": [[int(layer), int(head)] for layer, head in zip(part["layer"], part["head"], strict=True)],
        "numbers": [
            {
                "name": str(name),
                "meaning": known[str(name)],
                "values": _numbers(table[name]),
                "errors": _numbers(table[f"se_{name}"]) if f"se_{name}" in table else None,
            }
            for name in names
        ],
        "curves": curves,
    }


def _curves(view: View, name: str, index: int) -> Mapping[str, Any]:
    """By `layer head`, the points of a table's curves, in the order of its rows."""
    x, columns = CURVES[name]
    rows = view.rows(name, index)
    return {
        f"{layer} {head}": [_numbers(own[column]) if column in own else None for column in (x, *columns)]
        for (layer, head), own in rows.groupby(["layer", "head"], sort=False)
    }


def _numbers(column: "pd.Series[Any]") -> list[float | None]:
    """Plain numbers of a few digits; None where missing."""
    return [None if not np.isfinite(value) else float(f"{value:.{DIGITS}g}") for value in column.to_numpy(dtype=float)]
