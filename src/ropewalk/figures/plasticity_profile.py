"""Plasticity profile: how far queries decide, by their position in the context, head by head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption, Table
from ropewalk.figures.contrasts import CHANCE_STEP, LAYERS, opposed
from ropewalk.figures.courses import courses
from ropewalk.figures.findings import Candidate, Finding, certain, choose, scale, sign
from ropewalk.figures.phrases import CORRELATION
from ropewalk.figures.plasticity_trajectory import dropping
from ropewalk.figures.production import steps
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import NOPE, SIGNAL, page, plain, shortened, style
from ropewalk.figures.wording import (
    NO_VALUE,
    cell,
    titled,
    unclaimed,
    value,
)
from ropewalk.summary.tracks import Estimate
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
    """Whether queries late in the context decide less, where along it they decide most, and how far heads differ."""
    shown = selected(view, checkpoints)
    return Caption(
        titled("Plasticity by Query Position", view),
        choose(
            (
                dropping(shown),
                _peak(shown),
                *courses(view, "mean_ap_first_20", "mean_ap_last_20"),
                opposed(view, "ap_overall", LAYERS, "have a higher plasticity", CORRELATION, "layers"),
            ),
            unclaimed(view, "plasticity along the context"),
        ),
        _table(shown),
        "Attention plasticity by the position of the query, in 16 buckets of the context: thin lines are heads, the "
        "thick line is their mean. At 1 the query decides which of two earlier keys scores higher; at 0 the outcome is "
        "the same whatever the query.",
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `plasticity_profile.csv` beside it, a row per head and bucket, with errors and both forms. "
            "Errors of means over heads are as if all heads erred together: at most that large.",
            selection_step(view, checkpoints),
            CHANCE_STEP,
            drawing="a panel per checkpoint with the same axes.",
            checkpoints=checkpoints,
        ),
    )


def bucket_means(view: View, index: int) -> list[tuple[float, Estimate]]:
    """Where queries stand in the context, and the mean plasticity of heads there; its error is the largest possible."""
    rows, context = view.rows(TABLE, index), int(view.parts[index]["context"].iloc[0])
    found = []
    for _, part in rows[rows["empirical"].notna()].groupby("start"):
        middle = (float(part["start"].iloc[0]) + float(part["stop"].iloc[0]) - 1) / 2 / context
        se = float(part["se_empirical"].mean()) if "se_empirical" in part else float("nan")
        found.append((middle, Estimate(float(part["empirical"].mean()), se, view.groups[index])))
    return found


def _peak(view: View) -> Candidate:
    """Where queries decide most and least at the last checkpoint, as the farthest apart of all buckets."""
    last = len(view.lineup) - 1
    found = bucket_means(view, last)
    if len(found) < 2 or view.lineup.side_by_side:
        return None
    (low, least), (high, most) = (pick(found, key=lambda pair: pair[1].value) for pick in (min, max))
    apart = Estimate(most.value - least.value, most.se + least.se, most.groups)
    pairs = len(found) * (len(found) - 1) // 2
    if not sign(apart, CORRELATION, pairs):
        return None
    return Finding(
        f"Queries decide most {high:.0%} into the context and least at {low:.0%}",
        f"mean plasticity {value(most, CORRELATION)} and {value(least, CORRELATION)}, at {view.lineup.labels[last]}",
        frozenset({"drop", "peak"}),
        certain(apart, CORRELATION, pairs) / scale("mean_ap_overall", view.samples[last]),
    )


def _table(view: View) -> Table:
    """Mean plasticity early and late, and how far heads are apart, at the checkpoints shown."""
    rows = []
    for index, label in enumerate(view.lineup.labels):
        means = view.parts[index]["ap_overall"].dropna()
        ends = [CORRELATION.number(float(means.quantile(part))) if len(means) else NO_VALUE for part in (0.1, 0.9)]
        early, late = (cell(view.track(f"mean_ap_{part}_20").at(index), CORRELATION) for part in ("first", "last"))
        rows.append((label, early, late, *ends))
    header = (view.lineup.noun, "first fifth", "last fifth", "10% of heads below", "10% above")
    return Table(header, tuple(rows))


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
