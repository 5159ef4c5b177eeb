"""How much of the variance of queries and keys lies on PC0, over the checkpoints."""

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.curves import UNTRAINED, curve, half_width, reference, spread
from ropewalk.figures.phrases import SHARE
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import against_nulls
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import SIGNAL, page, style
from ropewalk.figures.wording import checkpoints_shown, overall, story_of, takeaway_of, titled
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
    """Where the share of variance on PC0 goes, phase by phase, and how far heads differ in it."""
    return Caption(
        titled("Explained Variance of PC0", view),
        (
            "The share of the pooled variance of queries and keys that lies on their first principal component, as a "
            f"mean over the heads of {checkpoints_shown(view)}, with ± 1 standard deviation over heads.",
            *story_of(view, MEASURE),
            *against_nulls(view.on("pooled"), MEASURE),
            f"Over heads, {overall(view, 'the standard deviation', view.track(deviation(COLUMN)), SHARE)}.",
        ),
        steps(
            view,
            source,
            FIGURE.name,
            aggregation=f"mean and standard deviation (n - 1) of `{COLUMN}` over all heads of a checkpoint.",
            drawing="line with a band over training, markers with bars over models.",
        ),
        takeaway_of(view, MEASURE),
    )


FIGURE = FigureSpec("explained_variance", "Explained variance of PC0", draw, caption, on_axis=False)
