"""How much of the variance of queries and keys lies on PC0, over the checkpoints."""

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.courses import courses, tightening
from ropewalk.figures.curves import UNTRAINED, curve, half_width, reference, spread
from ropewalk.figures.findings import choose
from ropewalk.figures.phrases import SHARE, Quantity
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import above_nulls
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import SIGNAL, page, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    titled,
    unclaimed,
)
from ropewalk.summary.measures import deviation
from ropewalk.summary.view import View

MEASURE, COLUMN = "mean_explained_variance", "explained_variance"


@style()
def draw(view: View) -> Figure:
    """Mean share of the variance on PC0 per checkpoint, with a band of one standard deviation over heads."""
    figure = page(axis.width(view.lineup), 3.0)
    ax = figure.subplots()
    ax.grid(axis="y")
    track, half = view.track(MEASURE), half_width(view, COLUMN)
    spread(ax, view.lineup, track.values, half, SIGNAL)
    curve(ax, view.lineup, track, color=SIGNAL, marker="o")
    if reference(ax, view.lineup, view.track_untrained(MEASURE), UNTRAINED, SIGNAL):
        figure.legend(handles=[UNTRAINED.handle()], loc="outside lower center")
    top = np.nanmax(track.values + half) if np.isfinite(track.values).any() else 1.0
    ax.set_ylim(0, min(max(1.1 * top, 0.1), 1.0))
    ax.set_ylabel("share of variance on PC0")
    axis.along_x(figure, [ax], view.lineup)
    return figure


def caption(view: View, source: str) -> Caption:
    """Where the share of variance on PC0 goes, how far heads differ in it, and how it stands to the untrained model."""
    spread_over = Quantity("the spread over heads", SHARE, deviation(COLUMN), "SD over heads", "spread")
    return Caption(
        titled("Explained Variance of PC0", view),
        choose(
            (
                *courses(view, MEASURE),
                tightening(view, COLUMN, "the share of variance on PC0", SHARE),
                *above_nulls(view.on("pooled"), MEASURE),
            ),
            unclaimed(view, "the share of variance on PC0"),
        ),
        tabulated(view, MEASURE, spread_over),
        "The share of the variance of a head's queries and keys, taken together, that lies on their first principal "
        "component: mean and ± 1 standard deviation over heads.",
        steps(
            view,
            source,
            FIGURE.name,
            drawing=f"mean and standard deviation (n - 1) of `{COLUMN}` over all heads of a checkpoint.",
        ),
    )


FIGURE = FigureSpec("explained_variance", "Explained variance of PC0", draw, caption, on_axis=False)
