"""The position signal: mean correlation of queries and of keys with position, over the checkpoints."""

from typing import NamedTuple

from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.courses import courses, tightening
from ropewalk.figures.curves import (
    HOLLOW,
    PERMUTED,
    UNTRAINED,
    correlation_limits,
    curve,
    half_width,
    reference,
    spread,
)
from ropewalk.figures.findings import choose
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import (
    about_axis,
    above_nulls,
    above_shuffled,
    queries_and_keys,
    separating,
    turning_keys,
)
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import KEY, MARKERS, QUERY, Colour, page, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    AXIS_NAMES,
    capitalised,
    titled,
    unclaimed,
    where,
)
from ropewalk.summary.view import View


class Series(NamedTuple):
    """A column of the table and how its mean is drawn."""

    column: str
    label: str
    colour: Colour
    marker: str
    shift: float


SERIES = (
    Series("r_q", "mean $r_q$ (queries)", QUERY, "o", -0.14),
    Series("r_k", "mean $r_k$ (keys)", KEY, "s", 0.14),
)


@style()
def draw(view: View) -> Figure:
    """Mean r_q and r_k on PC0 per checkpoint, with bands of one standard deviation over heads, and mean |r_k|.

    Markers carry jackknife standard errors where there are replicates. The dashed line of |r_k| tells keys that lose
    position from keys that turn discordant (docs/method.md §4).
    """
    lineup = view.lineup
    figure = page(axis.width(lineup), 3.5)
    ax = figure.subplots()
    ax.grid(axis="y")
    lows = []
    for column, label, colour, marker, shift in SERIES:
        track, half = view.track(f"mean_{column}"), half_width(view, column)
        spread(ax, lineup, track.values, half, colour, shift)
        curve(ax, lineup, track, shift, color=colour, marker=marker, label=label)
        lows.append(track.values - half)
    curve(ax, lineup, view.track("mean_abs_r_k"), 0.32, label="mean $|r_k|$", zorder=2.5, linewidth=1.1, **HOLLOW)
    shown = []
    for null, tracks in (
        (PERMUTED, [view.track(f"mean_{series.column}_permuted") for series in SERIES]),
        (UNTRAINED, [view.track_untrained(f"mean_{series.column}") for series in SERIES]),
    ):
        drawn = [
            reference(ax, lineup, track, null, series.colour) for track, series in zip(tracks, SERIES, strict=True)
        ]
        shown += [null.handle()] if any(drawn) else []
    correlation_limits(ax, *lows)
    ax.set_ylabel(f"correlation with position, {AXIS_NAMES[view.axis]}")
    handles = ax.get_legend_handles_labels()[0]
    figure.legend(handles=[*handles, *shown], loc="outside lower center", ncols=3)
    axis.along_x(figure, [ax], lineup)
    return figure


def caption(view: View, source: str) -> Caption:
    """Where r_q and r_k go, whether keys lose position or turn, which layers do, and how both stand to their nulls."""
    bars = ", bars on the markers one standard error" if view.has_errors else ""
    means = " and ".join(f"mean {s.column} ({s.colour.name}, {MARKERS[s.marker]})" for s in SERIES)
    return Caption(
        titled("Position Correlation", view),
        choose(
            (
                turning_keys(view),
                *courses(view, "mean_r_q", "mean_r_k", "mean_abs_r_k"),
                queries_and_keys(view),
                *(tightening(view, series.column) for series in SERIES),
                *above_nulls(view, "mean_r_q", "mean_abs_r_k"),
                above_shuffled(view),
                separating(view),
            ),
            unclaimed(view, "r_q and r_k"),
        ),
        tabulated(view, "mean_r_q", "mean_r_k", "mean_abs_r_k", "discordant"),
        f"{capitalised(means)}: how strongly a head's queries and keys correlate with token position {where(view)}, as "
        f"means over heads. Shaded {'bands' if view.lineup.connected else 'bars'} are ± 1 standard deviation over "
        f"heads{bars}. Hollow {MARKERS[HOLLOW['marker']]} are mean |r_k|, which does not fall when a key's correlation "
        f"only changes its sign; in discordant heads r_q and r_k differ in sign, both beyond their errors."
        f"{_lines(view)}{'' if view.axis == 'pooled' else about_axis(view)}",
        steps(
            view,
            source,
            FIGURE.name,
            drawing="means and standard deviations (n - 1) over all heads of a checkpoint.",
        ),
    )


def _lines(view: View) -> str:
    """What the thin lines are."""
    shown = [
        text
        for text, there in (
            ("dotted lines are r_q and r_k with positions shuffled within documents", view.has_permuted),
            ("dash-dotted lines are the same model untrained", view.track_untrained("mean_r_q") is not None),
        )
        if there
    ]
    return f" {capitalised(', '.join(shown))}." if shown else ""


FIGURE = FigureSpec("position_signal", "Position signal", draw, caption)
