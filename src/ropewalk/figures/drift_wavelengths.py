"""Drift by wavelength: which pairs of dimensions that RoPE turns the drift axis and PC0 lie in."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.figures.caption import Caption
from ropewalk.figures.courses import courses
from ropewalk.figures.findings import YES_OR_NO, Candidate, Finding, certain, choose, scale, sign
from ropewalk.figures.head_panels import nothing
from ropewalk.figures.phrases import SHARE
from ropewalk.figures.production import steps
from ropewalk.figures.quartiles import tones
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.spectrum import MARKS, profile, shown_checkpoints
from ropewalk.figures.style import RULE, page, plain, shortened, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    titled,
    unclaimed,
    value,
)
from ropewalk.summary.tracks import Estimate, Gap
from ropewalk.summary.view import View

PANELS = (("drift_energy", "drift axis"), ("pc0_energy", "PC0"))


@style()
def draw(view: View, *, checkpoints: Sequence[str] | None = None) -> Figure:
    """Share of the energy of the drift axis and of PC0 per pair over wavelength / context, as means over heads.

    Bands are the middle half of the heads. `checkpoints` are names or labels; without them the first and the last of
    each phase (of many phases a few), or a few models.
    """
    view = selected(view, checkpoints, shown_checkpoints(view))
    colours = tones(len(view.lineup))
    figure = page(7.0, 3.5)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for ax, (column, name) in zip(axes, PANELS, strict=True):
        ax.grid(axis="y")
        ax.set_title(name)
        ax.set_xlabel("wavelength / context")
        for index, colour in enumerate(colours):
            curve = profile(view.rows("spectrum", index), column)
            if len(curve):
                mark = MARKS[index % len(MARKS)]
                ax.fill_between(curve["x"], curve["low"], curve["high"], color=colour, alpha=0.12, linewidth=0)
                ax.plot(curve["x"], curve["mean"], color=colour, marker=mark, markersize=2.6, linewidth=1.3, gid=column)
        if not ax.lines:
            nothing(ax, "no numbers")
        ax.axvline(1.0, color=RULE, linestyle="--", linewidth=0.9, zorder=1, gid="context")
    axes[0].set_ylim(bottom=0)
    axes[0].set_xscale("log")
    axes[0].xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes[0].set_ylabel("share of energy per pair")
    handles = [
        Line2D([], [], color=colour, marker=MARKS[index % len(MARKS)], markersize=3.5, label=plain(shortened(label)))
        for index, (colour, label) in enumerate(zip(colours, view.lineup.labels, strict=True))
    ]
    handles.append(Line2D([], [], color=RULE, linestyle="--", linewidth=0.9, label="wavelength = context"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def caption(view: View, source: str, *, checkpoints: Sequence[str] | None = None) -> Caption:
    """How much of the drift lies in pairs that do not turn once within the context."""
    return Caption(
        titled("Drift by Wavelength", view),
        choose(
            (_mostly(view), _more_than_first(view), *courses(view, "mean_drift_slow", "mean_pc0_slow")),
            unclaimed(view, "the wavelengths of the drift axis"),
        ),
        tabulated(view, "mean_drift_slow", "mean_pc0_slow"),
        "RoPE turns pairs of dimensions, each with a wavelength of its own. Curves show, pair by pair, the share of "
        "the drift axis (left) and of PC0 (right) that lies in it, as means over the RoPE heads; bands are the middle "
        "half of the heads. Right of the dashed line a pair is slow: it does not turn once within the context, and a "
        "constant in it drifts one way; left of it, what turns comes round again.",
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `spectrum.csv` beside it, a row per head and pair; layers without RoPE have none.",
            selection_step(view, checkpoints, shown_checkpoints(view)),
            drawing="mean and quartiles over the heads of a checkpoint at each wavelength / context.",
            checkpoints=checkpoints,
        ),
    )


def _mostly(view: View) -> Candidate:
    """Whether most of the drift axis lies in slow pairs, or in others, at the last checkpoint."""
    last = len(view.lineup) - 1
    share = view.track("mean_drift_slow").at(last)
    away = Estimate(share.value - YES_OR_NO, share.se, share.groups)
    way = sign(away, SHARE)
    if not way or view.lineup.side_by_side:
        return None
    return Finding(
        f"{'Most' if way > 0 else 'Less than half'} of the drift axis lies in pairs too slow to turn once within the "
        "context",
        f"{value(share, SHARE)} at {view.lineup.labels[last]}",
        frozenset({"mostly"}),
        certain(away, SHARE) / YES_OR_NO,
    )


def _more_than_first(view: View) -> Candidate:
    """Whether more of the drift axis than of PC0 lies in slow pairs at the last checkpoint."""
    last = len(view.lineup) - 1
    gap = Gap(view.track("mean_pc0_slow"), view.track("mean_drift_slow")).at(last)
    way = sign(gap, SHARE)
    if not way or view.lineup.side_by_side:
        return None
    shares = [value(view.track(name).at(last), SHARE) for name in ("mean_drift_slow", "mean_pc0_slow")]
    return Finding(
        f"Slow pairs hold {'more' if way > 0 else 'less'} of the drift axis than of PC0",
        f"{shares[0]} against {shares[1]} at {view.lineup.labels[last]}",
        frozenset({"more"}),
        certain(gap, SHARE) / scale("mean_drift_slow", view.samples[last]),
    )


FIGURE = FigureSpec(
    "drift_wavelengths",
    "Drift by wavelength",
    draw,
    caption,
    own_options=OPTIONS,
    on_axis=False,
    columns=("drift_slow",),
    tables=("spectrum",),
    statistic="moments",
)
