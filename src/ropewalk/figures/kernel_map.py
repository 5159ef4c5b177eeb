"""Kernels of all heads: K by head and distance, at a few checkpoints beside each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import AsinhNorm
from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption, Table
from ropewalk.figures.courses import courses
from ropewalk.figures.findings import YES_OR_NO, Candidate, Finding, choose
from ropewalk.figures.head_panels import log_axis, nothing
from ropewalk.figures.kernels import BOTH, FAR, FLAT, LEAST, NEAR, WAYS, Count, Kernels, kernels
from ropewalk.figures.phrases import NATS, Quantity
from ropewalk.figures.production import steps
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import below_title, page, plain, shortened, style
from ropewalk.figures.wording import (
    NO_VALUE,
    cell,
    listed,
    over,
    titled,
)
from ropewalk.summary.measures import Mean
from ropewalk.summary.view import View

COUNT = 4
"""Checkpoints that there is room for beside each other."""
COLOUR_MAP = "RdBu_r"
TICKS = np.linspace(0.02, 0.98, 7)
"""Where numbers stand along the bar of colours: rounded, they must not lie beyond its ends."""
ROBUST = 99
"""Percentile of the sizes of centred K at which the colours end."""


@style()
def draw(view: View, *, checkpoints: Sequence[str] | None = None) -> Figure:
    """K less its mean over the bins as colour, a row per head (by layer, then head) and a column per bin of distances.

    The same colours mean the same at all checkpoints; they are linear near 0 and logarithmic beyond the median size, so
    that a few strong heads do not drown the others. Hatched rows have no kernel. `checkpoints` are names or labels;
    without them up to four are chosen: the first, ends of phases, the last.
    """
    view = selected(view, checkpoints, COUNT)
    count = len(view.lineup)
    maps = [kernels(view, index) for index in range(count)]
    rows = max(len(one.heads) for one in maps)
    figure = page(5.2 if count < 3 else 7.0, 1.7 + min(max(0.03 * rows, 0.35), 5.6))
    axes = figure.subplots(1, count, squeeze=False)[0]
    norm = _norm(maps)
    last = max((one.edges[-1] for one in maps if len(one.edges)), default=1.0)
    mesh = None
    for ax, label, one in zip(axes, view.lineup.labels, maps, strict=True):
        mesh = _panel(ax, one, norm, last) or mesh
        log_axis(ax, last, most=4 if count > 2 else 6)
        ax.set_xlabel("distance (tokens)")
        ax.set_title(plain(shortened(label, 18 if count > 2 else 24)), fontweight="bold", pad=24)
    axes[0].set_ylabel("layer")
    if mesh is not None:
        bar = figure.colorbar(mesh, ax=list(axes), location="bottom", shrink=0.75, aspect=40, pad=0.04, extend="both")
        bar.outline.set_visible(False)
        ticks = [float(f"{tick:.2g}") for tick in norm.inverse(TICKS)]
        bar.set_ticks(ticks, labels=[f"{tick:g}".replace("-", "−") for tick in ticks])
        bar.minorticks_off()
        hatched = "" if all(one.known.all() for one in maps) else "; hatched: no kernel"
        bar.set_label(f"$K$ − its mean over distances (nats){hatched}")
    return figure


def _norm(maps: Sequence[Kernels]) -> AsinhNorm:
    """Colours for the sizes of all kernels that are shown."""
    sizes = np.concatenate([np.abs(one.centred[np.isfinite(one.centred)]) for one in maps])
    sizes = sizes[sizes > 0] if (sizes > 0).any() else np.ones(1)
    return AsinhNorm(float(np.median(sizes)), vmin=-np.percentile(sizes, ROBUST), vmax=np.percentile(sizes, ROBUST))


def _panel(ax: Any, one: Kernels, norm: AsinhNorm, last: float) -> Any:
    """The kernels of one checkpoint; returns its cells, or None where it has none."""
    rows = len(one.heads)
    ax.patch.set(facecolor="#ededed", edgecolor="#b0b0b0", hatch="/////")
    ax.set_ylim(rows, 0)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    layers, starts = np.unique(one.heads[:, 0], return_index=True)
    stops = np.append(starts[1:], rows)
    for start in starts[1:]:
        ax.axhline(start, color="#333333", linewidth=0.4, zorder=3, gid="layer line")
    stride = -(-len(layers) // 12)
    ax.set_yticks(((starts + stops) / 2)[::stride], layers[::stride].tolist())
    if not one.known.any():
        nothing(ax, "no head with\na kernel")
        return None
    if one.edges[-1] < last:
        # Distances that a shorter context does not have are no missing numbers.
        ax.axvspan(one.edges[-1] - 0.5, last, facecolor="white", edgecolor="none", zorder=3.5, gid="beyond")
    ways = one.tally().ways
    below_title(ax, f"{ways[NEAR]} {NEAR}, {ways[FAR]} {FAR},\n{ways[BOTH]} {BOTH}, {ways[FLAT]} {FLAT}", "counts")
    # Edges half a token below whole distances, so that each stands in the middle of its column.
    return ax.pcolormesh(
        one.edges - 0.5,
        np.arange(rows + 1),
        np.ma.masked_invalid(one.centred),
        cmap=COLOUR_MAP,
        norm=norm,
        rasterized=True,
    )


def caption(view: View, source: str, *, checkpoints: Sequence[str] | None = None) -> Caption:
    """How many heads prefer near keys, far ones, or go both ways, how that changes, and whether kernels strengthen."""
    shown = selected(view, checkpoints, COUNT)
    whole = shown if checkpoints else view
    ranges = Quantity("the mean range of K", NATS, Mean("kernel_range"), "range of K (nats)", "range")
    counts = [kernels(shown, index).tally() for index in range(len(shown.lineup))]
    none = not any(one.total for one in counts)
    return Caption(
        titled("Kernels of All Heads", shown),
        choose(
            (_change(shown, counts), _preferring(shown, counts), *courses(whole, ranges)),
            f"There is no kernel {over(shown)}" if none else "No one way of the kernels has a majority",
        ),
        _table(shown, counts, ranges),
        "Rows are heads, by layer and then head; columns are distances (logarithmic in distance + 1). Red is K above "
        "its mean over the bins (keys at this distance score higher), blue below; hatched rows have no kernel, as in "
        f"layers without RoPE. Colours mean the same at all {shown.lineup.noun}s: linear up to about the median size, "
        f"logarithmic beyond it, ending at the {ROBUST}th percentile.",
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `distance.csv` beside it, a row per head and bin of distances (one by one up to 8, then four "
            "per octave).",
            selection_step(view, checkpoints, COUNT),
            f"**Which way a kernel goes**: {FLAT} where it spans less than {LEAST} nats or no more than its error; "
            f"else {NEAR} or {FAR} where its mean over the nearest third of the bins is above or below that over the "
            f"farthest by more than a third of its range; else {BOTH}. Undecided are heads that stand nearer to one of "
            "these limits than their error; a count is said to change by more than these.",
            drawing=f'cells in the "{COLOUR_MAP}" colour map, each head less its mean over the bins.',
            checkpoints=checkpoints,
        ),
    )


VERDICTS = {
    NEAR: "prefer near keys",
    FAR: "prefer far keys",
    BOTH: "go both ways with distance",
    FLAT: "are flat: distance alone does not change the score",
}
"""What is said of most kernels, by the way they go."""


def _preferring(view: View, counts: Sequence[Count]) -> Candidate:
    """What most kernels of the last checkpoint do, those that are undecided counted against it; over models, in all."""
    shown = [index for index, one in enumerate(counts) if one.total]
    shown = shown if view.lineup.side_by_side else shown[-1:]
    if not shown or counts[shown[-1]].total == 0 or (not view.lineup.side_by_side and not counts[-1].total):
        return None
    ahead = {
        way: [(2 * (counts[i].ways[way] - counts[i].undecided) - counts[i].total) / counts[i].total for i in shown]
        for way in WAYS
    }
    found = [way for way in WAYS if min(ahead[way]) > 0]
    if not found:
        return None
    way, last = found[0], counts[shown[-1]]
    begin = f"In all {len(shown)} {view.lineup.noun}s most" if len(shown) > 1 else "Most"
    texts = [f"{counts[i].ways[way]} of {counts[i].total} in {view.lineup.labels[i]}" for i in shown]
    undecided = f", {last.undecided} undecided" if view.has_errors else ""
    alone = f"{last.ways[way]} of {last.total} heads{undecided}, at {view.lineup.labels[shown[-1]]}"
    return Finding(
        f"{begin} kernels {VERDICTS[way]}",
        listed(texts) if len(shown) > 1 else alone,
        frozenset({way}),
        min(ahead[way]) / YES_OR_NO,
    )


def _change(view: View, counts: Sequence[Count]) -> Candidate:
    """Which way gained or lost most heads between the first and the last checkpoint, beyond the undecided."""
    first, last = counts[0], counts[-1]
    if not view.lineup.connected or first.total != last.total or not last.total:
        return None
    unsure = first.undecided + last.undecided
    way = max(WAYS, key=lambda one: abs(last.ways[one] - first.ways[one]))
    change = last.ways[way] - first.ways[way]
    if abs(change) <= unsure:
        return None
    names = {NEAR: "prefer near keys", FAR: "prefer far keys", BOTH: "go both ways", FLAT: "are flat"}
    return Finding(
        f"{'More' if change > 0 else 'Fewer'} kernels {names[way]} as training goes on",
        f"{first.ways[way]} of {first.total} heads at {view.lineup.labels[0]}, {last.ways[way]} at "
        f"{view.lineup.labels[-1]}",
        frozenset({way}),
        (abs(change) - unsure) / last.total / YES_OR_NO,
    )


def _table(view: View, counts: Sequence[Count], ranges: Quantity) -> Table:
    """Heads by the way their kernel goes, and the mean range, at the checkpoints shown."""
    track = view.track(ranges.measure)
    rows = [
        (
            label,
            str(one.total),
            *(str(one.ways[way]) for way in WAYS),
            str(one.undecided) if view.has_errors else NO_VALUE,
            cell(track.at(index), ranges.unit),
        )
        for index, (label, one) in enumerate(zip(view.lineup.labels, counts, strict=True))
    ]
    return Table((view.lineup.noun, "heads", *WAYS, "undecided", ranges.header), tuple(rows))


FIGURE = FigureSpec(
    "kernel_map",
    "Kernels of all heads",
    draw,
    caption,
    own_options=OPTIONS,
    on_axis=False,
    columns=("kernel_range",),
    tables=("distance",),
    statistic="behaviour",
)
