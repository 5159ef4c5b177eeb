"""Attention by distance: how much of it goes how far back, layer by layer, at some checkpoints."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from ropewalk.figures.caption import Caption
from ropewalk.figures.contrasts import CHANCE_STEP, LAYERS, contrast, farthest, told
from ropewalk.figures.courses import courses
from ropewalk.figures.curves import from_zero
from ropewalk.figures.findings import Candidate, Finding, certain, choose, compared, scale, sign
from ropewalk.figures.phrases import QUANTITIES, SHARE, Quantity
from ropewalk.figures.production import steps
from ropewalk.figures.selection import OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import BESIDE_ROW, HATCHED, NOPE, page, plain, shortened, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    missing,
    titled,
    unclaimed,
    value,
)
from ropewalk.summary.measures import Among, Mean, everywhere, in_layer
from ropewalk.summary.sums import Sum
from ropewalk.summary.view import View

PANELS = 5
"""Checkpoints that are shown where none are named."""
NEAR, FAR = 8, 128
"""Keys fewer tokens back than the first are near, as many as the second or more far."""
COLOURS, GAMMA = "magma_r", 0.5
"""Of the cells. Most of them hold little: under a square root they differ too."""
CURVES = "viridis"
NOPE_ROOM = 0.018
"""Room for the triangle beside the row of a layer without RoPE, as a share of all panels' width."""


class Octave(NamedTuple):
    """A column of masses and the distances `start <= Δ < stop` that it is of."""

    column: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """What a caption calls it."""
        named = {0: "the token itself", 1: "the previous token"}
        return named.get(self.start, f"keys {self.start:,} to {self.stop - 1:,} tokens back")


def octaves(view: View) -> list[Octave]:
    """The octaves of distance that any checkpoint has, nearest first."""
    found = [Octave("mass_self", 0, 1), Octave("mass_previous", 1, 2)]
    names = {str(name) for part in view.parts for name in part if part[name].notna().any()}
    starts = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"mass_(\d+)", name)))
    return found + [Octave(f"mass_{start}", start, 2 * start) for start in starts]


def total(parts: Sequence[Octave], among: Among = everywhere) -> Sum:
    """Attention on several octaves together, as a mean over heads; those that a context has not count as none."""
    return Sum(tuple(part.column for part in parts), among)


@style()
def draw(view: View, *, checkpoints: Sequence[str] | None = None) -> Figure:
    """Mean attention per layer (rows) and octave of distance (columns) at some checkpoints (docs/method.md §10).

    Below, the means over all heads as curves, with standard errors. Triangles mark layers without RoPE. `checkpoints`
    are names or labels; without them a few are chosen.
    """
    view = selected(view.on("pooled"), checkpoints, PANELS)
    count, parts = len(view.lineup), octaves(view)
    deepest = max(int(part["layers"].iloc[0]) for part in view.parts)
    high = min(max(0.085 * deepest, 1.2), 3.6)
    figure = page(min(max(5.2, 1.0 + 1.25 * count), 7.0), high + 3.2)
    rows = figure.add_gridspec(2, count, height_ratios=[high, 1.9])
    panels = [figure.add_subplot(rows[0, index]) for index in range(count)]
    tables = [_cells(view, index, parts) for index in range(count)]
    largest = max((float(np.nanmax(table)) for table in tables if np.isfinite(table).any()), default=1.0)
    norm = PowerNorm(GAMMA, 0, largest)
    same = len({table.shape for table in tables}) == 1
    for index, (ax, table) in enumerate(zip(panels, tables, strict=True)):
        mesh = _panel(ax, view, index, table, norm, parts)
        ax.tick_params(labelleft=index == 0 or not same)
    panels[0].set_ylabel("layer")
    bar = figure.colorbar(mesh, ax=panels, aspect=26, pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    bar.set_label("share of attention")
    handles = _curves(figure.add_subplot(rows[1, :]), view, parts)
    if _has_nope(view):
        look: dict[str, Any] = {"linestyle": "none", "marker": BESIDE_ROW, "markersize": 4, "color": NOPE.colour}
        handles.append(Line2D([], [], label=NOPE.label, **look))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _cells(view: View, index: int, parts: Sequence[Octave]) -> NDArray[np.float64]:
    """Mean masses [layers, octaves] of a checkpoint; NaN where there are no heads, or no such distances."""
    sample = view.samples[index]
    layers = range(int(sample.table["layers"].iloc[0]))
    means = [[Mean(part.column, among=in_layer(layer))(sample.columns) for part in parts] for layer in layers]
    return np.array(means, dtype=float)


def _panel(ax: Any, view: View, index: int, table: NDArray[np.float64], norm: PowerNorm, parts: list[Octave]) -> Any:
    """The heat map of one checkpoint, the first layer on top; returns it."""
    layers = len(table)
    ax.add_patch(Rectangle((0, 0), len(parts), layers, zorder=0.5, linewidth=0, **HATCHED))
    edges = np.arange(len(parts) + 1), np.arange(layers + 1)
    drawn = {"cmap": COLOURS, "norm": norm, "edgecolors": "face", "linewidth": 0.1}
    mesh = ax.pcolormesh(*edges, np.ma.masked_invalid(table), **drawn)
    room = NOPE_ROOM * len(view.lineup) * len(parts)
    ax.set(xlim=(0, len(parts) + room * _has_nope(view)), ylim=(layers, 0))
    ax.spines[:].set_visible(False)
    stride = max(1, -(-layers // 9))
    ax.set_yticks(np.arange(0, layers, stride) + 0.5, range(0, layers, stride))
    _distances(ax, parts, 0.5, -(-len(parts) // max(2, 16 // len(view.lineup))))
    ax.tick_params(length=1.5, labelsize=7)
    ax.set_title(plain(shortened(view.lineup.labels[index], 14)), fontsize=7.5)
    part = view.parts[index]
    nope = sorted(set(part.loc[(~part["rope"]).fillna(False).astype(bool), "layer"]))
    if nope:
        look = {"s": 9, "color": NOPE.colour, "linewidths": 0, "gid": NOPE.label}
        ax.scatter([len(parts) + room / 2] * len(nope), np.array(nope) + 0.5, marker=BESIDE_ROW, **look)
    return mesh


def _distances(ax: Any, parts: Sequence[Octave], offset: float, stride: int) -> None:
    """Ticks with the first distance of octaves, every so many."""
    shown = range(0, len(parts), stride)
    ax.set_xticks([index + offset for index in shown], [_short(parts[index].start) for index in shown])


def _short(distance: int) -> str:
    return f"{distance // 1024}K" if distance >= 1024 else str(distance)


def _curves(ax: Any, view: View, parts: Sequence[Octave]) -> list[Any]:
    """The mean over all heads of every octave, a curve per checkpoint; returns the curves."""
    count = len(view.lineup)
    colours = matplotlib.colormaps[CURVES](np.linspace(0.0, 0.88, count))
    tracks = [view.track(Mean(part.column)) for part in parts]
    for index, colour in enumerate(colours):
        values, errors = (np.array([getattr(track, name)[index] for track in tracks]) for name in ("values", "errors"))
        bars = errors if np.isfinite(errors).any() else None
        label, look = plain(shortened(view.lineup.labels[index], 16)), {"marker": "o", "markersize": 3.2}
        ax.errorbar(range(len(parts)), values, yerr=bars, color=colour, label=label, capsize=2, linewidth=1.3, **look)
    ax.grid(axis="y")
    from_zero(ax)
    _distances(ax, parts, 0.0, -(-len(parts) // 16))
    ax.set(xlabel="distance of the key in tokens (start of the octave)", ylabel="attention,\nall heads")
    return list(ax.get_legend_handles_labels()[0])


def caption(view: View, source: str, *, checkpoints: Sequence[str] | None = None) -> Caption:
    """Where attention goes, near or far, what changes over training, and which layers look nearest."""
    view = view.on("pooled")
    shown = selected(view, checkpoints, PANELS)
    parts = octaves(shown)
    close = [part for part in parts if part.stop <= NEAR]
    near = Quantity(f"attention within {NEAR} tokens", SHARE, total(close), f"within {NEAR} tokens", "near")
    sink = " What is missing to 1 is on the learned sink." if shown.lacks(("mass_sink",)) is None else ""
    marked = "; triangles mark layers without RoPE" if _has_nope(shown) else ""
    none = all(np.isnan(shown.track(Mean(part.column)).values).all() for part in parts)
    # A short context has no far keys.
    others = [
        Quantity(name, SHARE, total(far), name, "far")
        for name, low, high in ((f"{NEAR} to {FAR - 1}", NEAR, FAR), (f"{FAR} and more", FAR, float("inf")))
        if (far := [part for part in parts if low <= part.start < high])
    ]
    first = [QUANTITIES["mean_mass_first"]] if shown.lacks(("mass_first",)) is None else []
    return Caption(
        titled("Attention by Distance", shown),
        choose(
            (*courses(shown, near), _octave(shown, parts), _layers(shown, close), _sides(shown, close)),
            missing(shown, "attention by distance") if none else unclaimed(shown, "attention by distance"),
        ),
        tabulated(shown, near, *others, *first, rows=range(len(shown.lineup))),
        "Cells are the mean attention of a layer's heads (rows, the first on top) on keys of an octave of distances "
        "(columns: the token itself, the previous one, 2 to 3, 4 to 7 and so on), coloured by the square root of "
        f"attention{marked}. Hatched cells are beyond the context, or without heads. Below, the means over all heads."
        f"{sink} An octave holds twice as many keys as the one before it, and the first token counts by its distance."
        f"{_contexts(shown)}",
        steps(
            view,
            source,
            FIGURE.name,
            selection_step(view, checkpoints, PANELS),
            "**Attention**: exact rows at sampled queries beyond the first eighth of the context, summed by distance.",
            CHANCE_STEP,
            drawing=f'means over heads, cells in the "{COLOURS}" colour map, curves in "{CURVES}", dark first.',
            checkpoints=checkpoints,
        ),
    )


def _contexts(view: View) -> str:
    """That there is more to attend to at some checkpoints than at others."""
    contexts = [int(part["context"].iloc[0]) for part in view.parts if "context" in part]
    if len(set(contexts)) < 2:
        return ""
    return f" Contexts differ ({min(contexts):,} to {max(contexts):,} tokens): only the longer have the farthest keys."


def _has_nope(view: View) -> bool:
    return any((~part["rope"]).fillna(False).any() for part in view.parts)


def _octave(view: View, parts: Sequence[Octave]) -> Candidate:
    """The octave whose attention changes most over training, as the largest of all."""
    lineup, last = view.lineup, len(view.lineup) - 1
    if not lineup.connected:
        return None
    tracks = {part: view.track(Mean(part.column)) for part in parts}
    known = {part: track.change(0, last) for part, track in tracks.items() if np.isfinite(track.change(0, last).value)}
    if not known:
        return None
    part = max(known, key=lambda one: abs(known[one].value))
    way = sign(known[part], SHARE, len(known))
    if not way:
        return None
    ends = [f"{value(tracks[part].at(index), SHARE)} at {lineup.labels[index]}" for index in (0, last)]
    return Finding(
        f"Of all distances, attention on {part.name} {'grows' if way > 0 else 'shrinks'} most",
        ", ".join(ends),
        frozenset({"octave"}),
        certain(known[part], SHARE, len(known)) / scale(Mean(part.column), view.samples[0], view.samples[last]),
    )


def _layers(view: View, close: Sequence[Octave]) -> Candidate:
    """The layers that look nearest and farthest at the last checkpoint."""
    layers = sorted(set(view.parts[-1]["layer"]))
    found = farthest(view, lambda heads: total(close, heads), [in_layer(layer) for layer in layers], SHARE)
    if found is None:
        return None
    return Finding(
        f"Layer {layers[found.high]} looks nearest and layer {layers[found.low]} farthest",
        f"{found.numbers} of attention within {NEAR} tokens, at {view.lineup.labels[-1]}",
        frozenset({"layers"}),
        found.size,
    )


def _sides(view: View, close: Sequence[Octave]) -> Candidate:
    """Whether RoPE layers look nearer than NoPE layers, or the other way round."""
    shown = compared(view)
    found = {
        index: contrast(view.samples[index], lambda heads: total(close, heads), LAYERS.first, LAYERS.second, len(shown))
        for index in shown
    }
    return told(
        view, found, LAYERS, f"put more attention on the nearest {NEAR} tokens", SHARE, "sides", " of attention"
    )


FIGURE = FigureSpec(
    "attention_by_distance",
    "Attention by distance over training",
    draw,
    caption,
    OPTIONS,
    on_axis=False,
    columns=("mass_self", "mass_previous"),
    statistic="behaviour",
)
