"""Figures with a panel per head: which heads, of which checkpoint, and the grid that their panels stand in."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ropewalk.errors import RopewalkError
from ropewalk.figures.style import below_title, page
from ropewalk.summary.view import View

OPTIONS = ("heads", "checkpoint")
"""(layer, head) pairs to show, in that order; name or label of the checkpoint that they are shown at."""
COUNT = 6
"""Heads that are chosen where none are named."""

Head = tuple[int, int]
"""(layer, head)."""
Rule = Callable[[View, int], list[Head]]
"""The heads to show of a checkpoint where none are named."""


def chosen(view: View, heads: Sequence[Head] | None, checkpoint: str | None, rule: Rule) -> tuple[int, list[Head]]:
    """Index of the checkpoint (the last one where none is named), and the heads to show of it."""
    index = len(view.lineup) - 1 if checkpoint is None else view.lineup.find([checkpoint])[0]
    return index, rule(view, index) if heads is None else [_found(view, index, pair) for pair in heads]


def _found(view: View, index: int, pair: Any) -> Head:
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise RopewalkError(f"heads are pairs of a layer and a head, such as ((0, 1), (2, 0)): {pair!r} is not one")
    layer, head = pair
    known = sorted(view.samples[index].heads)
    if (layer, head) in known:
        return int(layer), int(head)
    beside = [str(other) for where, other in known if where == layer]
    layers = dict.fromkeys(str(where) for where, _ in known)
    choice = f"heads {', '.join(beside)} of that layer" if beside else f"heads of the layers {', '.join(layers)}"
    raise RopewalkError(f"no head {head} of layer {layer} at {view.lineup.labels[index]}: there are {choice}")


def evenly(ordered: Sequence[Head], count: int = COUNT) -> list[Head]:
    """At most so many of the heads, evenly over their order, with both ends."""
    places = np.linspace(0, len(ordered) - 1, min(count, len(ordered)))
    return [ordered[round(place)] for place in places]


def by_column(part: pd.DataFrame, column: str) -> list[Head]:
    """The heads that have a value in a column, from its lowest to its highest."""
    ordered = part.dropna(subset=[column]).sort_values([column, "layer", "head"])
    return list(zip(ordered["layer"].tolist(), ordered["head"].tolist(), strict=True))


def of_head(rows: pd.DataFrame, head: Head) -> pd.DataFrame:
    """Those rows of a table that belong to one head."""
    return rows[(rows["layer"] == head[0]) & (rows["head"] == head[1])]


def named(head: Head) -> str:
    """The head in words."""
    return f"layer {head[0]}, head {head[1]}"


def selection_step(view: View, index: int, shown: Sequence[Head], heads: Sequence[Head] | None, rule: str) -> str:
    """The step of a caption that says which heads are shown, and why these."""
    texts = "; ".join(named(head) for head in shown) or "no head"
    return f"**Selection**: {texts}, at {view.lineup.labels[index]} ({rule if heads is None else 'chosen by name'})."


def panels(count: int, x_label: str, y_label: str) -> tuple[Figure, list[Any]]:
    """A figure with a panel per head, which share the axis along x; one empty panel where there is no head."""
    count = max(count, 1)
    columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows = -(-count // columns)
    figure = page({1: 3.4, 2: 5.2, 3: 7.0}[columns], 0.75 + 1.95 * rows)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    for ax in grid.flat[count:]:
        ax.set_visible(False)
    for place, ax in enumerate(grid.flat[:count]):
        # A panel with no other below it is the lowest of its column.
        lowest = place + columns >= count
        ax.tick_params(labelbottom=lowest)
        ax.set_xlabel(x_label if lowest else "")
        ax.set_ylabel(y_label if place % columns == 0 else "")
        ax.grid(axis="y")
    return figure, list(grid.flat[:count])


def title(ax: Any, head: Head, *facts: str) -> None:
    """The head in bold over its panel, and lines of facts between the two."""
    ax.set_title(named(head), fontweight="bold", pad=5 + 13.5 * len(facts))
    below_title(ax, "\n".join(facts), "facts")


def nothing(ax: Any, text: str) -> None:
    """A sentence in place of what a panel has no numbers for."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", fontsize=7.5, gid="nothing")


def number(value: Any) -> str:
    """A number of a panel's title; a dash where there is none."""
    return "–" if pd.isna(value) else f"{value:.2f}".replace("-", "−")


def centres(start: Any, stop: Any) -> Any:
    """Where a bin `start <= x < stop` of whole numbers stands on the axis of `log_axis`."""
    return np.expm1((np.log1p(start) + np.log1p(stop - 1)) / 2)


def log_axis(ax: Any, stop: float, most: int = 6) -> None:
    """Distances or positions 0 <= x < stop along x, logarithmic in x + 1 so that 0 has its place; few round ticks."""
    step = 4
    while len(ticks := _powers(step, stop)) > most:
        step *= 4
    # Margins that reach below -1 stay inside the domain of the logarithm.
    ax.set_xscale("function", functions=(lambda x: np.log1p(np.maximum(x, -0.9)), np.expm1))
    ax.set_xlim(-0.5, max(stop, 2))
    ax.set_xticks(ticks, [f"{tick >> 10}K" if tick >= 1024 else str(tick) for tick in ticks])
    ax.minorticks_off()


def _powers(step: int, stop: float) -> list[int]:
    ticks = [0, 1]
    while ticks[-1] * step <= stop:
        ticks.append(ticks[-1] * step)
    return ticks
