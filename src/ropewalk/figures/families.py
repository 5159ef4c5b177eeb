"""Families of models side by side: position signal, taxonomy, depth profiles, and how far plasticity drops."""

import textwrap
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.figures.caption import Caption
from ropewalk.figures.courses import differing
from ropewalk.figures.curves import correlation_limits
from ropewalk.figures.findings import Candidate, Finding, certain, choose, scale
from ropewalk.figures.head_panels import nothing
from ropewalk.figures.phrases import QUANTITIES, Quantity
from ropewalk.figures.plasticity_trajectory import dropping
from ropewalk.figures.production import classification_step, steps
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import CATEGORY_COLOURS, KEY, QUERY, page, plain, shortened, style
from ropewalk.figures.tabulated import tabulated
from ropewalk.figures.wording import (
    capitalised,
    known,
    titled,
    unclaimed,
    value,
)
from ropewalk.geometry.taxonomy import CATEGORIES, DEPTH_BINS, DOMINATED, bin_label
from ropewalk.summary.lineup import Group
from ropewalk.summary.view import View, depth_tracks

MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
MEASURES = ("mean_r_q", "mean_abs_r_k", f"share_{DOMINATED}", "mean_ap_drop")


def families(view: View) -> list[Group]:
    """The named families of a study over models, in order; none of a study over training."""
    return [] if view.lineup.training else [group for group in view.lineup.groups if group.name]


def applies(view: View) -> bool:
    """Whether there are several families to set side by side."""
    return len(families(view)) > 1


def heads_of(view: View, group: Group) -> pd.DataFrame:
    """The heads of all models of a family."""
    return pd.concat(view.parts[group.start : group.stop], ignore_index=True)


@style()
def draw(view: View) -> Figure:
    """Four panels by family: r_q and r_k, shares of categories, depth profiles, the drop of plasticity.

    Bars and dots are quartiles and medians over the heads of a family; shares and depth profiles are means over its
    models.
    """
    groups = families(view)
    figure = page(7.2, 5.8)
    signal, taxonomy, depth, drop = figure.subplots(2, 2).flat
    names = [_name(group) for group in groups]
    for column, colour, shift in (("r_q", QUERY, -0.16), ("r_k", KEY, 0.16)):
        _quartiles(signal, [heads_of(view, group)[column] for group in groups], shift, colour, column)
    lows = [heads_of(view, group)[column].quantile(0.25) for group in groups for column in ("r_q", "r_k")]
    correlation_limits(signal, np.array(lows, dtype=float))
    signal.set_ylabel("correlation with position")
    signal.legend(handles=[_dot(QUERY, "$r_q$"), _dot(KEY, "$r_k$")], loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    _shares(taxonomy, view, groups)
    _depth(depth, view, groups)
    if known(view, "mean_ap_drop"):
        _quartiles(drop, [heads_of(view, group)["ap_drop"] for group in groups], 0.0, "#555555", "ap_drop")
        drop.axhline(0, color="#b5b5b5", linewidth=0.8, zorder=1)
    else:
        nothing(drop, "no plasticity: capture `sample` too")
    drop.set_ylabel("drop of plasticity")
    for ax in (signal, taxonomy, drop):
        ax.set_xticks(
            range(len(groups)),
            names,
            rotation=30 if len(groups) > 3 else 0,
            ha="right" if len(groups) > 3 else "center",
        )
        ax.set_xlim(-0.6, len(groups) - 0.4)
    for ax in (signal, depth, drop):
        ax.grid(axis="y")
    return figure


def _name(group: Group, lines: int = 2) -> str:
    """The name of a family on a few short lines."""
    wrapped = textwrap.wrap(shortened(group.name, 16 * lines), 16, max_lines=lines, placeholder="…")
    return plain("\n".join(wrapped))


def _dot(colour: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker="o", linestyle="none", markersize=4.5, label=label)


def _quartiles(ax: Any, columns: list["pd.Series[float]"], shift: float, colour: str, name: str) -> None:
    for index, column in enumerate(columns):
        values = column.dropna().to_numpy(dtype=float)
        if len(values):
            low, middle, high = np.percentile(values, (25, 50, 75))
            ax.vlines(index + shift, low, high, color=colour, linewidth=6, alpha=0.35, gid=f"{name} quartiles")
            ax.plot([index + shift], [middle], "o", color=colour, markersize=4.5, gid=f"{name} median")


def _mean(values: Any) -> float:
    known_values = values[np.isfinite(values)]
    return float(known_values.mean()) if len(known_values) else np.nan


def _shares(ax: Any, view: View, groups: list[Group]) -> None:
    bottom = np.zeros(len(groups))
    for category in CATEGORIES:
        values = view.track(f"share_{category}").values
        shares = np.nan_to_num([_mean(values[group.start : group.stop]) for group in groups])
        ax.bar(
            range(len(groups)),
            shares,
            0.75,
            bottom,
            color=CATEGORY_COLOURS[category],
            edgecolor="white",
            linewidth=0.6,
            label=category,
        )
        bottom += shares
    ax.set_ylim(0, 1)
    ax.set_ylabel("share of heads")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=6.8, columnspacing=0.8, handlelength=1.0)


def _depth(ax: Any, view: View, groups: list[Group]) -> None:
    colours = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, len(groups)))
    x = np.arange(DEPTH_BINS)
    for column, line in (("r_q", "-"), ("r_k", (0, (3, 2)))):
        cells = np.stack([track.values for track in depth_tracks(view, column)], axis=1)
        for number, group in enumerate(groups):
            means = [_mean(cells[group.start : group.stop, depth]) for depth in x]
            ax.plot(
                x,
                means,
                color=colours[number],
                linestyle=line,
                marker=MARKS[number % len(MARKS)],
                markersize=3,
                linewidth=1.2,
                gid=f"{column} {group.name}",
            )
    ax.set_xticks(x[::3], [bin_label(depth) for depth in x[::3]])
    ax.set_xlabel("depth bin (layer / last layer)")
    ax.set_ylabel("mean $r_q$ (line), $r_k$ (dashed)")
    handles = [
        Line2D(
            [],
            [],
            color=colours[number],
            marker=MARKS[number % len(MARKS)],
            markersize=3.5,
            label=_name(group),
        )
        for number, group in enumerate(groups)
    ]
    ax.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize=6.8)


def caption(view: View, source: str) -> Caption:
    """Which families have most and least of each quantity, where all their models stand apart."""
    return Caption(
        titled("Families of Models", view),
        choose(
            (
                *(_apart(view, QUANTITIES[name]) or differing(view, QUANTITIES[name]) for name in MEASURES),
                dropping(view) if known(view, "mean_ap_drop") else None,
            ),
            unclaimed(view, "families of models"),
        ),
        tabulated(view, *MEASURES),
        "By family of models: r_q and r_k (top left; dots are medians over the heads of all its models, bars their "
        "middle half), shares of categories (top right; means over its models), mean r_q (lines) and r_k (dashed) by "
        "depth (bottom left), and how far attention plasticity drops from the first fifth of the context to the last "
        "(bottom right; above 0, queries late in the context decide less).",
        steps(
            view,
            source,
            FIGURE.name,
            classification_step(),
            drawing="quartiles over the heads of a family; means over its models, each counted once.",
        ),
    )


def _apart(view: View, quantity: Quantity) -> Candidate:
    """The two families farthest apart, where every model of the one is beyond errors above every model of the other.

    Families of one model each say no more than the models do.
    """
    track, groups = view.track(quantity.measure), families(view)
    if all(group.stop - group.start == 1 for group in groups):
        return None
    best: Candidate = None
    pairs = sum(
        (one.stop - one.start) * (other.stop - other.start)
        for index, one in enumerate(groups)
        for other in groups[index + 1 :]
    )
    for above in groups:
        for below in groups:
            if above == below:
                continue
            least = min(range(above.start, above.stop), key=lambda index: track.values[index])
            most = max(range(below.start, below.stop), key=lambda index: track.values[index])
            change = track.change(most, least)
            size = certain(change, quantity.unit, pairs) / scale(quantity.measure, view.samples[least])
            if change.value > 0 and size > 0 and (best is None or size > best.size):
                name = capitalised(quantity.name)
                best = Finding(
                    f"{name} is higher in every {above.name} model than in any {below.name} model",
                    f"at least {value(track.at(least), quantity.unit)} against at most "
                    f"{value(track.at(most), quantity.unit)}",
                    frozenset({quantity.topic}),
                    size,
                )
    return best


FIGURE = FigureSpec(
    "families",
    "Families of models",
    draw,
    caption,
    applies=applies,
    unless="models of several families (`family` of the checkpoints)",
)
