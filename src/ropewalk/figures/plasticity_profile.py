"""Plasticity profile: how far queries decide, by their position in the context, head by head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption
from ropewalk.figures.phrases import CORRELATION
from ropewalk.figures.production import steps
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import NOPE, SIGNAL, page, plain, shortened, style
from ropewalk.figures.wording import takeaway_of, titled
from ropewalk.summary.view import View

TABLE = "plasticity_profile"


def curves(view: View, index: int) -> tuple[Any, Any, Any]:
    """x [buckets] (query position / context), plasticity [heads, buckets], and whether heads are in RoPE layers."""
    rows, part = view.rows(TABLE, index), view.parts[index]
    context = int(part["context"].iloc[0])
    wide = rows.pivot_table(index=["layer", "head"], columns="start", values="empirical")
    stops = rows.drop_duplicates("start").set_index("start")["stop"]
    x = (wide.columns.to_numpy() + stops.loc[wide.columns].to_numpy() - 1) / 2 / context
    ropes = part.set_index(["layer", "head"])["rope"].reindex(wide.index)
    return x, wide.to_numpy(), ropes.fillna(True).to_numpy(dtype=bool)


@style()
def draw(view: View, *, checkpoints: Sequence[str] | None = None) -> Figure:
    """Plasticity over the position of the query, heads as thin lines (NoPE layers in their own colour), the mean thick.

    `checkpoints` are names or labels; without them the first, ends of groups and the last.
    """
    view = selected(view, checkpoints)
    count = len(view.lineup)
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = page({1: 3.6, 2: 5.4, 3: 7.0}[columns], 0.7 + 2.0 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    shown_nope = False
    for index, ax in enumerate(grid.flat):
        if index >= count:
            ax.set_visible(False)
            continue
        x, values, ropes = curves(view, index)
        for rope, colour in ((True, SIGNAL), (False, NOPE.colour)):
            lines = [np.column_stack([x, one])[~np.isnan(one)] for one in values[ropes == rope]]
            shown_nope |= not rope and bool(lines)
            ax.add_collection(LineCollection(lines, colors=colour, linewidths=0.5, alpha=0.25, gid=f"heads {rope}"))
        ax.plot(x, np.nanmean(values, axis=0), color="#111111", linewidth=2.0, gid="mean")
        ax.set_title(plain(shortened(view.lineup.labels[index])))
        ax.set_xlim(0, 1)
        ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        ax.set_ylim(0, 1.08)
        ax.grid(axis="y")
        ax.tick_params(labelbottom=index + columns >= count)
        ax.set_xlabel("query position / context" if index + columns >= count else "")
        ax.set_ylabel("plasticity" if index % columns == 0 else "")
    handles = [
        figure.axes[0].plot([], [], color="#111111", linewidth=2.0, label="mean over heads")[0],
        figure.axes[0].plot([], [], color=SIGNAL, linewidth=0.8, label="a head")[0],
        *(
            [figure.axes[0].plot([], [], color=NOPE.colour, linewidth=0.8, label="a NoPE head")[0]]
            if shown_nope
            else []
        ),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def caption(view: View, source: str, *, checkpoints: Sequence[str] | None = None) -> Caption:
    """Where along the context plasticity is highest and lowest at the last checkpoint, and how far heads spread."""
    shown = selected(view, checkpoints)
    return Caption(
        titled("Plasticity by Query Position", view),
        (
            _course(shown),
            "Attention plasticity by the position of the query, in 16 buckets of the context: thin lines are heads, "
            "the thick line is their mean. At 1 the query decides which of two earlier keys scores higher; at 0 the "
            "outcome is the same whatever the query.",
        ),
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `plasticity_profile.csv` beside it, a row per head and bucket, with errors and both forms.",
            selection_step(view, checkpoints),
            aggregation="mean over heads of each bucket for the thick line.",
            drawing="a panel per checkpoint with the same axes.",
            checkpoints=checkpoints,
        ),
        takeaway_of(view, "mean_ap_first_20", "mean_ap_last_20"),
    )


def _course(view: View) -> str:
    last = len(view.lineup) - 1
    x, values, _ = curves(view, last)
    mean = np.nanmean(values, axis=0)
    high, low = int(np.nanargmax(mean)), int(np.nanargmin(mean))
    ends = np.nanpercentile(np.nanmean(values, axis=1), (10, 90))
    return (
        f"At {view.lineup.labels[last]} mean plasticity is highest for queries {x[high]:.0%} into the context "
        f"({CORRELATION.number(mean[high])}) and lowest at {x[low]:.0%} ({CORRELATION.number(mean[low])}); between "
        f"heads it spreads from {CORRELATION.number(ends[0])} to {CORRELATION.number(ends[1])} (10% and 90% of heads)."
    )


FIGURE = FigureSpec(
    "plasticity_profile",
    "Plasticity by query position",
    draw,
    caption,
    own_options=OPTIONS,
    on_axis=False,
    columns=("ap_overall",),
    tables=(TABLE,),
    statistic="sample",
)
