"""Plasticity map: does it matter how far apart two keys are, and how far back?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption
from ropewalk.figures.phrases import CORRELATION
from ropewalk.figures.production import steps
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import HATCHED, contrasting, page, plain, shortened, style
from ropewalk.figures.wording import takeaway_of, titled
from ropewalk.geometry.plasticity import CELLS
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
    return Caption(
        titled("Plasticity by Distance", view),
        (
            _extremes(shown),
            "Mean plasticity over heads, by the distance between the two keys (up) and from the query to the middle of "
            "the pair (right), both as shares of the context in steps of an eighth. Hatched cells hold no pair: a pair "
            "cannot be nearer to the query than half its own distance.",
        ),
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `plasticity_map.csv` beside it, a row per head and cell, with errors.",
            selection_step(view, checkpoints, COUNT),
            aggregation="mean over the heads that have pairs in a cell.",
            drawing=f'cells in the "{COLOURS}" colour map, from the lowest to the highest cell shown.',
            checkpoints=checkpoints,
        ),
        takeaway_of(view, "mean_ap_overall"),
    )


def _extremes(view: View) -> str:
    last = len(view.lineup) - 1
    means = cell_means(view, last)
    if not np.isfinite(means).any():
        return f"At {view.lineup.labels[last]} no cell holds pairs."
    low, high = (np.unravel_index(pick(means), means.shape) for pick in (np.nanargmin, np.nanargmax))
    texts = [
        f"{CORRELATION.number(means[cell])} (keys {cell[0] / CELLS:.0%} to {(cell[0] + 1) / CELLS:.0%} of the context "
        f"apart, {cell[1] / CELLS:.0%} to {(cell[1] + 1) / CELLS:.0%} back)"
        for cell in (low, high)
    ]
    return f"At {view.lineup.labels[last]} cells range from {texts[0]} to {texts[1]}."


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
