"""Sinks: attention on the first token by layer, and what leaving the first tokens out does to r_q, r_k and shares."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import ScaledTranslation

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.contrasts import CHANCE_STEP, LAYERS, farthest, opposed
from ropewalk.figures.courses import courses
from ropewalk.figures.curves import curve, from_zero, legend_above
from ropewalk.figures.findings import Candidate, Finding, agreed, certainly, choose, compared, scale
from ropewalk.figures.phrases import CORRELATION, QUANTITIES, SHARE
from ropewalk.figures.production import classification_step, steps
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import BESIDE_ROW, HATCHED, KEY, NOPE, QUERY, category_look, page, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    capitalised,
    clearest,
    known,
    signed,
    titled,
    unclaimed,
)
from ropewalk.geometry.taxonomy import CATEGORIES, DEPTH_BINS, bin_label
from ropewalk.summary.measures import Among, Mean, in_bins, in_layer
from ropewalk.summary.sensitivity import FIRST, SKIPPED
from ropewalk.summary.tracks import Gap
from ropewalk.summary.view import View

COLUMN = "mass_first"
COLOURS = "magma_r"
TRIANGLE: dict[str, Any] = {"marker": BESIDE_ROW, "s": 9, "color": NOPE.colour, "linewidths": 0}


class Series(NamedTuple):
    """A measure, what the legend calls it, and how it is drawn."""

    measure: str
    label: str
    look: Mapping[str, Any]


MASSES = (
    Series("mean_mass_first", "first token", {"color": "#2b5c7d", "marker": "o"}),
    Series("mean_mass_first4", "first four tokens", {"color": "#8a8a8a", "marker": "s"}),
    Series("mean_mass_sink", "learned sink", {"color": "#b5408a", "marker": "D"}),
)
CORRELATIONS = (
    Series("mean_r_q", "mean $r_q$", {"color": QUERY, "marker": "o"}),
    Series("mean_abs_r_k", "mean $|r_k|$", {"color": KEY, "marker": "s"}),
)
SHARES = tuple(Series(f"share_{category}", category, category_look(category)) for category in CATEGORIES)
"""What is compared with and without the first tokens."""


class Rows(NamedTuple):
    """The rows of the heat map: what they are, the name of each, and its heads."""

    noun: str
    names: Sequence[str]
    heads: Sequence[Among]


def rows(view: View) -> Rows:
    """Layers, or depth bins where models are of several depths."""
    depths = {int(part["layers"].iloc[0]) for part in view.parts}
    if len(depths) > 1:
        bins = range(DEPTH_BINS)
        return Rows("depth bin", [bin_label(depth) for depth in bins], [in_bins(depth) for depth in bins])
    layers = range(depths.pop())
    return Rows("layer", [str(layer) for layer in layers], [in_layer(layer) for layer in layers])


def without_first(view: View) -> dict[str, Gap]:
    """What measures become without the first tokens of every document, less what they are; none where not captured."""
    if not view.has_columns(SKIPPED):
        return {}
    other = view.with_columns(SKIPPED)
    return {measure: Gap(view.track(measure), other.track(measure)) for measure, *_ in (*CORRELATIONS, *SHARES)}


@style()
def draw(view: View) -> Figure:
    """Attention on the first token by layer and checkpoint (docs/method.md §10), and its means over all heads.

    Below, what changes when the first tokens of every document are left out: mean r_q, mean |r_k| and the shares of
    categories, with paired standard errors; only where these numbers are at hand.
    """
    view = view.on("pooled")
    lineup, layers, gaps = view.lineup, rows(view), without_first(view)
    high = min(max(0.09 * len(layers.names), 1.2), 3.2)
    heights = [high, 1.15, *([1.15, 1.15] if gaps else [])]
    figure = page(axis.width(lineup), sum(heights) + 1.2 + 0.35 * len(heights))
    axes = list(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights))
    if _heatmap(figure, axes[0], view, layers):
        axes[1].scatter([], [], label=NOPE.label, **TRIANGLE)
    for measure, label, look in MASSES:
        if known(view, measure):
            curve(axes[1], lineup, view.track(measure), label=label, **look)
    from_zero(axes[1])
    axes[1].set_ylabel("attention,\nall heads")
    for ax, quantities, label in zip(axes[2:], (CORRELATIONS, SHARES), ("mean", "share"), strict=False):
        ax.axhline(0, color="#b5b5b5", linewidth=0.8, zorder=1)
        ax.set_ylabel(f"change of {label}\nwithout first 4")
        shifts = np.linspace(-0.26, 0.26, len(quantities))
        for (measure, name, look), shift in zip(quantities, shifts, strict=True):
            curve(ax, lineup, gaps[measure], shift, label=name, **look)
    for ax in axes[1:]:
        ax.grid(axis="y")
    axis.along_x(figure, axes, lineup)
    for ax in axes[1:]:
        legend_above(figure, ax, ncols=3)
    return figure


def _heatmap(figure: Figure, ax: Any, view: View, layers: Rows) -> bool:
    """Mean attention on the first token, a row per layer (the first on top), a column per checkpoint.

    Returns whether rows of layers without RoPE are marked.
    """
    count, high = len(view.lineup), len(layers.names)
    means = [[Mean(COLUMN, among=heads)(sample.columns) for sample in view.samples] for heads in layers.heads]
    ax.add_patch(Rectangle((-0.5, 0), count, high, zorder=0.5, linewidth=0, **HATCHED))
    edges = np.arange(count + 1) - 0.5, np.arange(high + 1)
    drawn = {"cmap": COLOURS, "vmin": 0, "edgecolors": "face", "linewidth": 0.1}
    mesh = ax.pcolormesh(*edges, np.ma.masked_invalid(np.array(means, dtype=float)), **drawn)
    ax.set_ylim(high, 0)
    ax.spines[:].set_visible(False)
    stride = max(1, -(-high // 10))
    ax.set_yticks(np.arange(0, high, stride) + 0.5, layers.names[::stride])
    ax.set_ylabel(layers.noun)
    bar = figure.colorbar(mesh, ax=ax, aspect=18, pad=0.045, fraction=0.05)
    bar.outline.set_visible(False)
    bar.set_label("on the first token")
    nope = [row for row, heads in enumerate(layers.heads) if _without_rope(view, heads)]
    if nope:
        beside = ax.transData + ScaledTranslation(5 / 72, 0, figure.dpi_scale_trans)
        ax.scatter(
            [count - 0.5] * len(nope), np.array(nope) + 0.5, transform=beside, clip_on=False, gid=NOPE.label, **TRIANGLE
        )
    return bool(nope)


def _without_rope(view: View, among: Among) -> bool:
    """Whether all heads of a row are in layers without RoPE, at every checkpoint."""
    ropes = np.concatenate([sample.columns["rope"][among(sample.columns)] for sample in view.samples])
    return len(ropes) > 0 and bool((ropes == 0).all())


def caption(view: View, source: str) -> Caption:
    """How much attention sits on the first token and where, and what hangs on the first tokens."""
    view = view.on("pooled")
    gaps, layers = without_first(view), rows(view)
    masses = known(view, *(series.measure for series in MASSES))
    below = (
        f" Below these, what mean r_q, mean |r_k| and the shares of categories on PC0 become {FIRST} of every "
        "document, less what they are with them."
    )
    marked = "; triangles mark layers without RoPE" if any(_without_rope(view, row) for row in layers.heads) else ""
    return Caption(
        titled("Sinks", view),
        choose(
            (
                *courses(view, *(QUANTITIES[measure] for measure in masses if measure != "mean_mass_first4")),
                _place(view, layers),
                *(_moved(view, gaps[measure], measure, 1) for measure in MOVING if gaps),
                _moved(view, gaps[_most_moved(gaps)], _most_moved(gaps), len(SHARES)) if gaps else None,
                opposed(view, COLUMN, LAYERS, "put more attention on the first token", SHARE, "sides", " of attention"),
            ),
            unclaimed(view, "attention on the first token"),
        ),
        tabulated(
            view,
            *masses,
            beside={f"{QUANTITIES[name].header}, change": (gaps[name], CORRELATION) for name in MOVING if gaps},
        ),
        f"Cells are the mean attention of the heads of a {layers.noun} (rows, the first on top) on the first "
        f"token{marked}; hatched cells have none. Below, means over all heads.{below if gaps else ''}",
        steps(
            view,
            source,
            FIGURE.name,
            *([classification_step()] if gaps else []),
            "**Attention**: exact rows at sampled queries beyond the first eighth of the context.",
            CHANCE_STEP,
            drawing=f'means over heads, cells in the "{COLOURS}" colour map from 0 on.',
        ),
    )


MOVING = tuple(series.measure for series in CORRELATIONS)
"""What is said to change without the first tokens, beside the category that changes most."""


def _place(view: View, layers: Rows) -> Candidate:
    """The layers with most and least attention on the first token at the last checkpoint."""
    found = farthest(view, lambda heads: Mean(COLUMN, among=heads), layers.heads, SHARE)
    if found is None:
        return None
    most, least = (f"{layers.noun} {layers.names[row]}" for row in (found.high, found.low))
    return Finding(
        f"{capitalised(most)} attends to the first token most, {least} least",
        f"{found.numbers}, at {view.lineup.labels[-1]}",
        frozenset({"place"}),
        found.size,
    )


def _most_moved(gaps: dict[str, Gap]) -> str:
    """The category whose share changes most without the first tokens at the last checkpoint."""
    changes = {series.measure: np.nan_to_num(gaps[series.measure].values[-1]) for series in SHARES}
    return max(changes, key=lambda measure: abs(changes[measure]))


def _moved(view: View, gap: Gap, measure: str, candidates: int) -> Candidate:
    """How a measure moves without the first tokens at the last checkpoint; over models, in most of them one way."""
    quantity, shown = QUANTITIES[measure], compared(view)
    claim = agreed(
        view,
        {
            index: certainly(gap.at(index), quantity.unit, candidates * len(shown))
            / scale(measure, view.samples[index])
            for index in shown
        },
    )
    if claim is None:
        return None
    return Finding(
        capitalised(f"{claim.begin}{quantity.name} is {'higher' if claim.way > 0 else 'lower'} {FIRST}"),
        f"{signed(gap.at(claim.at), quantity.unit)}, {clearest(view, claim.at)}",
        frozenset({f"without first {measure}"}),
        claim.size,
    )


FIGURE = FigureSpec("sinks", "Sinks", draw, caption, on_axis=False, columns=(COLUMN,), statistic="behaviour")
