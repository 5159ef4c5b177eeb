"""Plasticity map: does it matter how far apart two keys are, and how far back?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption, Table
from ropewalk.figures.courses import courses
from ropewalk.figures.findings import Candidate, Finding, certain, choose, scale, sign
from ropewalk.figures.phrases import CORRELATION
from ropewalk.figures.production import steps
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import HATCHED, contrasting, page, plain, shortened, style
from ropewalk.figures.wording import (
    cell,
    titled,
    unclaimed,
    value,
)
from ropewalk.geometry.plasticity import CELLS
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View

TABLE = "plasticity_map"
COLOURS = "cividis"
COUNT = 3
"""Maps that there is room for."""


def cell_means(view: View, index: int) -> Any:
    """[apart, away] Mean over heads of the plasticity in each cell, NaN where no pair falls."""
    rows = view.rows(TABLE, index)
    means = rows.groupby(["apart", "away"], as_index=False)["plasticity"].mean()
    found = np.full((CELLS, CELLS), np.nan)
    steps_of = [np.round(means[side] * CELLS).astype(int) for side in ("apart", "away")]
    found[steps_of[0], steps_of[1]] = means["plasticity"]
    return found


@style()
def draw(view: View, *, checkpoints: Sequence[str] | None = None) -> Figure:
    """Mean plasticity over heads by the distance between two keys (up) and from the query to their middle (right).

    `checkpoints` are names or labels; without them the first, one between and the last.
    """
    view = selected(view, checkpoints, COUNT)
    count = len(view.lineup)
    columns = min(count, 3)
    rows = -(-count // columns)
    maps = [cell_means(view, index) for index in range(count)]
    known = np.concatenate([one[np.isfinite(one)] for one in maps])
    low = float(known.min()) if len(known) else 0.0
    high = float(known.max()) if len(known) else 1.0
    figure = page({1: 3.4, 2: 5.4, 3: 7.4}[columns], 0.9 + 2.15 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    edges = np.arange(CELLS + 1) / CELLS
    for index, ax in enumerate(grid.flat):
        if index >= count:
            ax.set_visible(False)
            continue
        ax.patch.set(**HATCHED)
        mesh = ax.pcolormesh(
            edges, edges, np.ma.masked_invalid(maps[index]), cmap=COLOURS, vmin=low, vmax=max(high, low + 1e-9)
        )
        for row, column in np.argwhere(np.isfinite(maps[index])):
            mean = maps[index][row, column]
            ax.text(
                *((column + 0.5) / CELLS, (row + 0.5) / CELLS, f"{mean:.2f}"[-3:] if mean < 0.995 else "1"),
                ha="center",
                va="center",
                fontsize=5.5,
                color=contrasting(mesh.cmap(mesh.norm(mean))),
                gid=f"cell {row} {column}",
            )
        ax.set_title(plain(shortened(view.lineup.labels[index])))
        ax.set_aspect("equal")
        ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        ax.set_yticks([0, 0.5, 1])
        ax.spines[:].set_visible(False)
        ax.tick_params(labelbottom=index + columns >= count)
        ax.set_xlabel("query to pair / context" if index + columns >= count else "")
        ax.set_ylabel("between keys / context" if index % columns == 0 else "")
    bar = figure.colorbar(mesh, ax=list(grid.flat[:count]), location="right", aspect=18, pad=0.02, shrink=0.75)
    bar.outline.set_visible(False)
    bar.set_label("plasticity")
    return figure


def caption(view: View, source: str, *, checkpoints: Sequence[str] | None = None) -> Caption:
    """Which distances leave the query most and least to decide, at the last checkpoint shown."""
    shown = selected(view, checkpoints, COUNT)
    last = len(shown.lineup) - 1
    none = not np.isfinite(cell_means(shown, last)).any()
    return Caption(
        titled("Plasticity by Distance", view),
        choose(
            (_extremes(shown), *(_along(shown, side) for side in SIDES), *courses(view, "mean_ap_overall")),
            f"At {shown.lineup.labels[last]} no cell holds pairs"
            if none
            else unclaimed(view, "plasticity by distance"),
        ),
        _table(shown),
        "Mean plasticity over heads, by the distance between the two keys (up) and from the query to the middle of the "
        "pair (right), both as shares of the context in steps of an eighth. Hatched cells hold no pair: a pair cannot "
        "be nearer to the query than half its own distance.",
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `plasticity_map.csv` beside it, a row per head and cell, with errors; errors of means over "
            "heads are as if all heads and cells erred together: at most that large.",
            selection_step(view, checkpoints, COUNT),
            drawing=f'mean over the heads that have pairs in a cell, in the "{COLOURS}" colour map, from the lowest to '
            "the highest cell shown.",
            checkpoints=checkpoints,
        ),
    )


SIDES = {"apart": "the two keys are far apart", "away": "the pair is far back"}
"""The sides of the map, and what their far ends are."""


def _mean(rows: pd.DataFrame, groups: int) -> Estimate:
    """Mean over rows of the table; its error is as if all of them erred together."""
    se = float(rows["se_plasticity"].mean()) if "se_plasticity" in rows else float("nan")
    return Estimate(float(rows["plasticity"].mean()), se, groups)


def _halves(view: View, index: int, side: str) -> tuple[Estimate, Estimate]:
    """Means over cells in the near and in the far half of one side, at distances that the other side has both of."""
    rows = view.rows(TABLE, index).dropna(subset=["plasticity"])
    other = "away" if side == "apart" else "apart"
    far = rows[side] >= 0.5
    shared = set(rows.loc[far, other].round(6)) & set(rows.loc[~far, other].round(6))
    rows = rows[rows[other].round(6).isin(shared)]
    far = rows[side] >= 0.5
    groups = view.groups[index]
    return _mean(rows[~far], groups), _mean(rows[far], groups)


def _along(view: View, side: str) -> Candidate:
    """Whether the query decides more or less where keys are far apart, or far back."""
    last = len(view.lineup) - 1
    near, far = _halves(view, last, side)
    change = Estimate(far.value - near.value, far.se + near.se, far.groups)
    way = sign(change, CORRELATION)
    if not way or view.lineup.side_by_side:
        return None
    return Finding(
        f"The query decides {'more' if way > 0 else 'less'} where {SIDES[side]}",
        f"plasticity {value(far, CORRELATION)} beyond half the context, {value(near, CORRELATION)} within it, at "
        f"{view.lineup.labels[last]}",
        frozenset({side}),
        certain(change, CORRELATION) / scale("mean_ap_overall", view.samples[last]),
    )


def _extremes(view: View) -> Candidate:
    """The cells with most and least plasticity, as the farthest apart of all pairs."""
    last = len(view.lineup) - 1
    rows = view.rows(TABLE, last).dropna(subset=["plasticity"])
    cells = {
        (float(part["apart"].iloc[0]), float(part["away"].iloc[0])): _mean(part, view.groups[last])
        for _, part in rows.groupby(["apart", "away"])
    }
    if len(cells) < 2 or view.lineup.side_by_side:
        return None
    low, high = (pick(cells, key=lambda key: cells[key].value) for pick in (min, max))
    apart = Estimate(cells[high].value - cells[low].value, cells[high].se + cells[low].se, view.groups[last])
    pairs = len(cells) * (len(cells) - 1) // 2
    if not sign(apart, CORRELATION, pairs):
        return None
    texts = [
        f"{value(cells[key], CORRELATION)} for keys {key[0]:.0%} to {key[0] + 1 / CELLS:.0%} of the context apart and "
        f"{key[1]:.0%} to {key[1] + 1 / CELLS:.0%} back"
        for key in (high, low)
    ]
    return Finding(
        "How much the query decides depends on where the two keys are",
        f"{texts[0]}, {texts[1]}, at {view.lineup.labels[last]}",
        frozenset({"extremes"}),
        certain(apart, CORRELATION, pairs) / scale("mean_ap_overall", view.samples[last]),
    )


def _table(view: View) -> Table:
    """Mean plasticity within and beyond half the context, on both sides of the map."""
    rows = []
    for index, label in enumerate(view.lineup.labels):
        found = [one for side in SIDES for one in _halves(view, index, side)]
        rows.append((label, *(cell(one, CORRELATION) for one in found)))
    header = (view.lineup.noun, "keys near each other", "keys far apart", "pair near", "pair far back")
    return Table(header, tuple(rows), "Near and far: within and beyond half the context.")


FIGURE = FigureSpec(
    "plasticity_map",
    "Plasticity by distance",
    draw,
    caption,
    own_options=OPTIONS,
    on_axis=False,
    columns=("ap_overall",),
    tables=(TABLE,),
    statistic="sample",
)
