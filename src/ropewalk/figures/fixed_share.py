"""Why a head carries position: the constant part of its queries and keys before the rotation, against r_q and |r_k|."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption, Table
from ropewalk.figures.contrasts import CHANCE_STEP, Relation
from ropewalk.figures.courses import courses
from ropewalk.figures.curves import correlation_limits, curve
from ropewalk.figures.findings import Candidate, Finding, agreed, choose
from ropewalk.figures.phrases import CORRELATION, SHARE, Quantity
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import about_axis
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import AXIS_STYLES, page, plain, shortened, style
from ropewalk.figures.tabulated import shown_rows
from ropewalk.figures.wording import (
    AXIS_NAMES,
    WHERE,
    capitalised,
    cell,
    clearest,
    listed,
    titled,
    unclaimed,
    value,
)
from ropewalk.summary.sample import Sample
from ropewalk.summary.tracks import Track
from ropewalk.summary.view import View


class Kind(NamedTuple):
    """Queries or keys: the column of their fixed share, that of their correlation with position, and their measures.

    `label` and `name` are what the correlation (or its size) is called in the figure and in captions.
    """

    noun: str
    share: str
    r: str
    label: str
    name: str

    @property
    def measure(self) -> str:
        """The correlation of the two columns over heads."""
        return f"correlation_{self.share}_{'abs_' if self.r == 'r_k' else ''}{self.r}"

    @property
    def too_few(self) -> str:
        """What is said where there is no correlation."""
        return f"too few heads have a fixed share of {self.noun} and {self.name} to say whether one goes with the other"

    def points(self, sample: Sample) -> tuple[Any, Any]:
        """Fixed share and size of the correlation [heads]."""
        # Queries are oriented so that their correlation is no less than 0.
        return sample.columns[self.share], np.abs(sample.columns[self.r]) if self.r == "r_k" else sample.columns[self.r]


KINDS = (
    Kind("queries", "fixed_share_q", "r_q", "$r_q$", "r_q"),
    Kind("keys", "fixed_share_k", "r_k", "$|r_k|$", "|r_k|"),
)
SHORT = {**WHERE, "centred": "with both centred apart"}
"""Where r_q and r_k are measured, in fewer words than elsewhere: each stands beside the others."""
DEPTHS = "viridis"
LIMITS = (-0.05, 1.05)


@style()
def draw(view: View) -> Figure:
    """Scatter of fixed shares (docs/method.md §8) against r_q and |r_k| at the last checkpoint, a point per head.

    Rows are queries and keys, columns the choices of axis, colours the depth of the layer; each panel says its
    correlation over heads. Below, where there are several checkpoints, these correlations over all of them.
    """
    view = view.on("pooled")
    lineup, turned = view.lineup, {name: view.on(name) for name in view.axes}
    followed = len(KINDS) if len(lineup) > 1 else 0
    figure = page(max(axis.width(lineup), 1.4 + 1.5 * len(turned)), 4.2 + 1.35 * followed + 0.7 * bool(followed))
    rows = figure.add_gridspec(len(KINDS) + followed, len(turned))
    grid = np.array([[figure.add_subplot(rows[row, column]) for column in range(len(turned))] for row in range(2)])
    for line, kind in zip(grid, KINDS, strict=True):
        for ax, (name, other) in zip(line, turned.items(), strict=True):
            points = _panel(ax, kind, other.samples[-1], other.track(kind.measure))
            if ax in grid[0]:
                ax.set_title(AXIS_NAMES[name], pad=16)
            ax.set_xlabel(f"fixed share, {kind.noun}")
            ax.tick_params(labelleft=ax is line[0] or ax.get_ylim() != line[0].get_ylim())
        line[0].set_ylabel(kind.label)
    bar = figure.colorbar(points, ax=list(grid.flat), aspect=34, pad=0.01, fraction=0.04)
    bar.outline.set_visible(False)
    bar.set_label(f"layer / last layer, at {plain(shortened(lineup.labels[-1]))}")
    if followed:
        below = [figure.add_subplot(rows[len(KINDS) + row, :]) for row in range(followed)]
        _courses(figure, below, view, turned)
    return figure


def _panel(ax: Any, kind: Kind, sample: Sample, track: Track) -> Any:
    """The heads of one checkpoint on one axis; returns the points."""
    ax.grid()
    depth = sample.columns["layer"] / np.maximum(sample.columns["layers"] - 1, 1)
    x, y = kind.points(sample)
    drawn = {"s": 11, "cmap": DEPTHS, "vmin": 0, "vmax": 1, "alpha": 0.85, "edgecolors": "white", "linewidths": 0.3}
    points = ax.scatter(x, y, c=depth, gid=kind.share, **drawn)
    # Off PC0 the queries' correlation may be below 0.
    below = bool((y < LIMITS[0]).any())
    ax.set(xlim=LIMITS, xticks=[0, 0.5, 1])
    ax.set(ylim=(-LIMITS[1], LIMITS[1]) if below else LIMITS, yticks=[-1, 0, 1] if below else [0, 0.5, 1])
    last = track.at(len(track.values) - 1)
    if not np.isnan(last.value):
        above = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center", "va": "bottom"}
        text = value(last, CORRELATION).replace("-", "−")
        ax.annotate(text, (0.5, 1.0), (0, 3), fontsize=7.5, gid="correlation", **above)
    return points


def _courses(figure: Figure, axes: list[Any], view: View, turned: dict[str, View]) -> None:
    """The correlations over heads at every checkpoint, queries above keys."""
    shifts = dict(zip(turned, np.linspace(-0.18, 0.18, max(len(turned), 2)), strict=False))
    for ax, kind in zip(axes, KINDS, strict=True):
        ax.grid(axis="y")
        ax.set_ylabel(f"correlation\nwith {kind.label}")
        tracks = {name: other.track(kind.measure) for name, other in turned.items()}
        for name, track in tracks.items():
            curve(ax, view.lineup, track, shifts[name], color=AXIS_STYLES[name].colour, marker=AXIS_STYLES[name].marker)
        correlation_limits(ax, *(track.values for track in tracks.values()))
    handles = [
        Line2D([], [], linewidth=1.5, markersize=4.5, label=AXIS_NAMES[name], color=look.colour, marker=look.marker)
        for name, look in AXIS_STYLES.items()
        if name in turned
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    axis.along_x(figure, axes, view.lineup)


def caption(view: View, source: str) -> Caption:
    """On which axes heads with larger fixed shares carry more position, and how that goes over training."""
    view = view.on("pooled")
    turned = {name: view.on(name) for name in view.axes}
    below = " Below, these correlations at every checkpoint." if len(view.lineup) > 1 else ""
    followed = [
        Quantity(
            f"the correlation with {kind.name}", CORRELATION, kind.measure, f"with {kind.name}", f"course {kind.r}"
        )
        for kind in KINDS
    ]
    candidates = [
        *(
            (_in_models(view, kind) if view.lineup.side_by_side else _going_with(turned, kind, view.lineup.labels[-1]))
            for kind in KINDS
        ),
        *(courses(view, *followed) if len(view.lineup) > 1 else ()),
        *courses(view, *(f"mean_{kind.share}" for kind in KINDS)),
    ]
    too_few = [kind.too_few for kind in KINDS if _unknown(turned, kind)]
    nothing = capitalised(too_few[0]) if too_few else unclaimed(view, "fixed shares")
    return Caption(
        titled("Why a Head Carries Position: Fixed Shares", view),
        choose(candidates, nothing),
        _table(view, turned),
        "The fixed share is how much of a head's energy is one constant vector before the rotation, which RoPE then "
        f"turns with position; layers without RoPE have none. Points are the heads of {view.lineup.labels[-1]}, the "
        "darker the shallower: fixed share (across) against r_q (upper row) and |r_k| (lower row), in columns "
        f"{', '.join(SHORT[name] for name in turned)}, with the correlation over heads.{below}{about_axis(view)}",
        steps(
            view,
            source,
            FIGURE.name,
            "**Fixed share**: vectors are turned back by the angles that the model turned them by; Σ |mean|² over the "
            "rotated pairs, divided by the mean of |x|².",
            CHANCE_STEP,
            drawing=f'points coloured by layer / last layer in the "{DEPTHS}" colour map; Pearson correlations over '
            "the heads of RoPE layers.",
        ),
    )


def _relations(turned: dict[str, View], kind: Kind, index: int = -1) -> dict[str, Relation]:
    """Correlation over heads, and how many they are, by choice of axis."""
    return {
        name: Relation.of(other.samples[index], kind.share, kind.r, size=kind.r == "r_k")
        for name, other in turned.items()
    }


def _unknown(turned: dict[str, View], kind: Kind) -> bool:
    return all(np.isnan(one.estimate.value) for one in _relations(turned, kind).values())


def _going_with(turned: dict[str, View], kind: Kind, label: str) -> Candidate:
    """Whether heads with a larger fixed share have a larger correlation, on which axes; that on none must be said."""
    found = {name: one for name, one in _relations(turned, kind).items() if not np.isnan(one.estimate.value)}
    if not found:
        return None
    there = [name for name, one in found.items() if one.way > 0]
    against = [name for name, one in found.items() if one.way < 0]
    numbers = [f"{value(one.estimate, CORRELATION)} {SHORT[name]}" for name, one in found.items()]
    evidence = f"correlation over {max(one.heads for one in found.values())} heads {listed(numbers)}, at {label}"
    topics = frozenset({f"going with {kind.r}"})
    if not there:
        says = "Queries" if kind.r == "r_q" else "Keys"
        words = f"{says} with a larger fixed share have no larger {kind.name}"
        return Finding(words + (" but a smaller one" if against else ""), evidence, topics, needed=True)
    only = "" if len(there) == len(found) else f", {listed([SHORT[name] for name in there])}"
    return Finding(
        f"{capitalised(kind.noun)} with a larger fixed share have a larger {kind.name}{only}",
        evidence,
        topics,
        max(found[name].size for name in there),
    )


def _in_models(view: View, kind: Kind) -> Candidate:
    """In how many models heads with a larger fixed share have a larger correlation on PC0."""
    found = {
        index: Relation.of(sample, kind.share, kind.r, size=kind.r == "r_k")
        for index, sample in enumerate(view.samples)
    }
    claim = agreed(view, {index: one.way * one.size for index, one in found.items()})
    if claim is None:
        return None
    more = "larger" if claim.way > 0 else "smaller"
    return Finding(
        capitalised(f"{claim.begin}{kind.noun} with a larger fixed share have a {more} {kind.name} on PC0"),
        f"correlation over heads {value(found[claim.at].estimate, CORRELATION)}, {clearest(view, claim.at)}",
        frozenset({f"going with {kind.r}"}),
        claim.size,
    )


def _table(view: View, turned: dict[str, View]) -> Table:
    """Fixed shares and their correlations by axis, at the first and the last checkpoint, or by model."""
    lineup = view.lineup
    shown = shown_rows(view) if lineup.side_by_side else sorted({0, len(lineup) - 1})
    rows = [
        (
            lineup.labels[index],
            kind.noun,
            cell(view.track(f"mean_{kind.share}").at(index), SHARE),
            *(cell(other.track(kind.measure).at(index), CORRELATION) for other in turned.values()),
        )
        for index in shown
        for kind in KINDS
    ]
    header = (lineup.noun, "", "mean fixed share", *(AXIS_NAMES[name] for name in turned))
    return Table(header, tuple(rows), "By axis: correlation of the fixed share with r_q, or |r_k|, over heads.")


FIGURE = FigureSpec(
    "fixed_share",
    "Why a head carries position",
    draw,
    caption,
    on_axis=False,
    columns=tuple(kind.share for kind in KINDS),
    statistic="frame",
)
