"""The curves of single heads, from the tables with several rows per head: for the explorer's view of one head."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ropewalk.report.packing import LARGEST, MISSING_CODE, Packed, Packer
from ropewalk.summary.view import View

CURVES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "distance": ("distance", ("kernel", "score", "se_score", "mass")),
    "profiles": ("start", ("q", "k", "line_q", "line_k")),
    "spectrum": ("wavelength", ("energy_q", "energy_k", "kernel_share")),
}
"""By table: the column that its curves run over, and the curves."""


def head_curves(view: View, packer: Packer, budget: int) -> dict[str, Any]:
    """Curves at as many checkpoints as the budget holds, the last among them; empty where no table has any.

    `at` are these checkpoints; `tables` by table and checkpoint have `x` (lists of points, which heads share), `of`
    (which of them is each head's, -1 for a head without rows) and by curve its packed numbers, heads one after the
    other, missing ones as NaN.
    """
    names = [name for name in CURVES if name in view.tables]
    count = len(view.lineup) if names else 0
    while count:
        at = view.lineup.representative(count) if count > 1 else [len(view.lineup) - 1]
        found = {name: {index: _table(view, name, index) for index in at} for name in names}
        parts = [
            part
            for tables in found.values()
            for table in tables.values()
            for pair in table["columns"].values()
            for part in pair
        ]
        cost = sum(part.cost for part in parts)
        if cost <= budget:
            return {
                "at": at,
                "tables": {
                    name: {str(index): _added(table, packer) for index, table in tables.items()}
                    for name, tables in found.items()
                },
            }
        # Costs grow with the checkpoints: try as many as would fit, and at least one fewer.
        count = min(count - 1, int(count * budget / cost))
    return {}


def _table(view: View, name: str, index: int) -> dict[str, Any]:
    x, columns = CURVES[name]
    rows = view.rows(name, index)
    own = rows.groupby(["layer", "head"], sort=False).indices
    along = rows[x].to_numpy(dtype=float)
    points: list[list[float]] = []
    known: dict[bytes, int] = {}
    of, found = [], []
    part = view.parts[index]
    for key in zip(part["layer"], part["head"], strict=True):
        if key not in own:
            of.append(-1)
            continue
        line = along[own[key]]
        if line.tobytes() not in known:
            written = [float(f"{value:.6g}") for value in line]
            if written not in points:
                points.append(written)
            known[line.tobytes()] = points.index(written)
        of.append(known[line.tobytes()])
        found.append(own[key])
    present = [column for column in columns if column in rows and rows[column].notna().any()]
    values = {column: rows[column].to_numpy(dtype=float) for column in present}
    return {
        "x": points,
        "of": of,
        "columns": {column: _packed([whole[one] for one in found]) for column, whole in values.items()},
    }


def _packed(curves: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> tuple[Packed, Packed, Packed]:
    """Curves as 16 bit parts of their size about their middle; missing points are the least whole number."""
    middles, steps, whole = [], [], []
    for curve in curves:
        known = curve[np.isfinite(curve)]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
        middle, step = (low + high) / 2, (high - low) / 2 / LARGEST or 1.0
        whole.append(np.where(np.isfinite(curve), np.rint((curve - middle) / step), MISSING_CODE))
        middles.append(middle)
        steps.append(step)
    return Packed(np.concatenate(whole), "i16"), Packed(np.array(middles), "f32"), Packed(np.array(steps), "f32")


def _added(table: dict[str, Any], packer: Packer) -> dict[str, Any]:
    columns = {name: [packer.add(part) for part in parts] for name, parts in table["columns"].items()}
    return {**table, "columns": columns}
