"""Rotation metrics: how strongly heads drift along their drift axis, and how much of them their plane holds."""

from typing import NamedTuple

from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.courses import courses
from ropewalk.figures.curves import from_zero, legend_above
from ropewalk.figures.findings import choose
from ropewalk.figures.production import steps
from ropewalk.figures.quartiles import quartile_bars
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import page, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    titled,
    unclaimed,
)
from ropewalk.summary.view import View


class Panel(NamedTuple):
    """What a panel shows: its label, and the columns in it with their markers."""

    label: str
    columns: tuple[tuple[str, str], ...]
    size: bool = False


PANELS = (
    Panel("|r| along the\ndrift axis", (("r_q_a", "o"), ("r_k_a", "s")), size=True),
    Panel("share of variance", (("var_frac_a", "o"), ("var_frac_b", "s"))),
    Panel("separation strength", (("separation_strength", "o"),)),
)
LEGENDS = (("queries", "keys"), ("drift axis a", "separation axis b"), ())
MEASURES = ("mean_abs_r_q_a", "mean_abs_r_k_a", "mean_plane_var_fraction", "mean_separation_strength")


@style()
def draw(view: View) -> Figure:
    """Medians and middle halves over heads: |r| along the drift axis, variance along both axes, separation strength."""
    lineup = view.lineup
    figure = page(axis.width(lineup), 5.4)
    axes = list(figure.subplots(len(PANELS), 1, sharex=True))
    for ax, panel, names in zip(axes, PANELS, LEGENDS, strict=True):
        ax.grid(axis="y")
        ax.set_ylabel(panel.label)
        shifts = (-0.13, 0.13) if len(panel.columns) > 1 else (0.0,)
        for (_, marker), name in zip(panel.columns, names, strict=False):
            look = {"color": "#555555", "markerfacecolor": "white" if marker == "s" else "#555555", "markersize": 4.5}
            ax.plot([], [], linestyle="none", marker=marker, label=name, **look)
        for (column, marker), shift in zip(panel.columns, shifts, strict=True):
            hollow = marker == "s"
            quartile_bars(ax, view, column, size=panel.size, shift=shift, marker=marker, hollow=hollow)
        from_zero(ax)
    axis.along_x(figure, axes, lineup)
    for ax in axes:
        legend_above(figure, ax)
    return figure


def caption(view: View, source: str) -> Caption:
    """How the drift along the axis and the share of the plane go over the checkpoints."""
    return Caption(
        titled("Planar Rotation", view),
        choose(
            courses(view, *MEASURES),
            unclaimed(view, "the drift of queries and keys"),
        ),
        tabulated(view, *MEASURES),
        "Every head is turned into a plane of two axes: the drift axis a, which holds all covariance of its queries "
        "and keys with position, and the separation axis b, along which the means of queries and keys differ most "
        "beside it. Markers are medians over heads, bars their middle half (not errors). From top to bottom: |r| of "
        "queries (filled) and keys (hollow) along a; the share of the variance along a (filled) and b (hollow); "
        "separation strength, the share along b of the scatter of independent query-key pairs.",
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: these columns and their errors are also in `rotated.csv` beside it; findings are on means.",
            drawing="median and quartiles over the heads of a checkpoint.",
        ),
    )


FIGURE = FigureSpec(
    "rotation_metrics",
    "Planar rotation",
    draw,
    caption,
    on_axis=False,
    columns=("r_k_a", "var_frac_a"),
    statistic="moments",
)
