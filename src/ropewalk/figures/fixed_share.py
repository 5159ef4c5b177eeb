"""Why a head carries position: the constant part of its queries and keys before the rotation, against r_q and |r_k|."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.claims import CHANCE_STEP, correlations, heads_with, listed, related
from ropewalk.figures.curves import correlation_limits, curve
from ropewalk.figures.phrases import CORRELATION, SHARE
from ropewalk.figures.production import steps
from ropewalk.figures.remarks import about_axis
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import AXIS_STYLES, page, plain, shortened, style
from ropewalk.figures.wording import AXIS_NAMES, WHERE, capitalised, checkpoints_shown, overall, titled, value
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
    """How far fixed shares say which heads carry position, on each choice of axis."""
    view = view.on("pooled")
    turned = {name: view.on(name) for name in view.axes}
    last = len(view.lineup) - 1
    below = (
        f" Below, these correlations at {checkpoints_shown(view)}, queries above keys." if len(view.lineup) > 1 else ""
    )
    return Caption(
        titled("Why a Head Carries Position: Fixed Shares", view),
        (
            _finding(view, turned, last),
            *_courses_said(view, turned),
            "The fixed share is how much of a head's energy is one constant vector before the rotation, which RoPE "
            "then turns with position; layers without RoPE have none. Points are the heads of "
            f"{view.lineup.labels[last]}, the darker the shallower: fixed share (x) against r_q (upper row) and |r_k| "
            f"(lower row), in columns {', '.join(SHORT[name] for name in turned)}. The number in a panel is its "
            f"correlation over heads.{below}",
            *about_axis(view),
        ),
        steps(
            view,
            source,
            FIGURE.name,
            "**Fixed share**: vectors are turned back by the angles that the model turned them by; Σ |mean|² over the "
            "rotated pairs, divided by the mean of |x|².",
            CHANCE_STEP,
            aggregation="none for the points; Pearson correlations over the heads of RoPE layers.",
            drawing=f'points coloured by layer / last layer in the "{DEPTHS}" colour map; curves over the checkpoints.',
        ),
        _takeaway(view, turned, last),
    )


def _found(kind: Kind, turned: dict[str, View], index: int) -> dict[str, tuple[Any, int]]:
    """Correlation over heads, and how many they are, by choice of axis."""
    return {
        name: (other.track(kind.measure).at(index), heads_with(other.samples[index], kind.share, kind.r))
        for name, other in turned.items()
    }


def _finding(view: View, turned: dict[str, View], index: int) -> str:
    """The correlations at one checkpoint, and how large fixed shares are."""
    texts = []
    for kind in KINDS:
        found = _found(kind, turned, index)
        known = {SHORT[name]: pair for name, pair in found.items() if not np.isnan(pair[0].value)}
        relation = (
            f"the fixed share of {kind.noun} correlates with {kind.name} {correlations(known)}" if known else None
        )
        texts.append(relation or kind.too_few)
    means = [f"{value(view.track(f'mean_{kind.share}').at(index), SHARE)} of {kind.noun}" for kind in KINDS]
    return (
        f"Over the heads of {view.lineup.labels[index]}, {'; '.join(texts)}. On average, the fixed share is "
        f"{listed(means)}."
    )


def _courses_said(view: View, turned: dict[str, View]) -> list[str]:
    """Where the correlations go over training, or between which models they lie; on PC0."""
    if len(view.lineup) == 1:
        return []
    tracks = {kind: turned["pooled"].track(kind.measure) for kind in KINDS}
    texts = [
        overall(view, f"the correlation with {kind.name} on PC0", track, CORRELATION)
        for kind, track in tracks.items()
        if not np.isnan(track.values[[0, -1]]).any()
    ]
    return [f"{capitalised('; '.join(texts))}."] if texts else []


def _takeaway(view: View, turned: dict[str, View], index: int) -> str:
    """On which axes heads with larger fixed shares carry more position."""
    texts = []
    for kind in KINDS:
        found = _found(kind, turned, index)
        if all(np.isnan(estimate.value) for estimate, _ in found.values()):
            texts.append(kind.too_few)
            continue
        said = []
        for way, word in ((1, "larger"), (-1, "smaller")):
            there = [SHORT[name] for name, pair in found.items() if related(*pair) == way]
            if there:
                said.append(f"{kind.noun} with a larger fixed share have a {word} {kind.name} {listed(there)}")
        texts += said or [f"the fixed share of {kind.noun} does not say how large {kind.name} is on any axis"]
    return f"At {view.lineup.labels[index]}, {'; '.join(texts)}."


FIGURE = FigureSpec(
    "fixed_share",
    "Why a head carries position",
    draw,
    caption,
    on_axis=False,
    columns=tuple(kind.share for kind in KINDS),
    statistic="frame",
)
