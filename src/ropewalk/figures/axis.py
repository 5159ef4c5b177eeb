"""The axis on which checkpoints or models stand: labels that never overlap, lines and names of their groups."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure

from ropewalk.figures.style import RULE, WIDTH, extent, lay_out, plain, shortened
from ropewalk.summary.lineup import Lineup

ANGLE = 45
GAP = 1.15
"""Room that a label takes, in its own height."""
NAME_SIZE = 8.0
LOW_PANEL = 2.2
"""Inches that a single panel is high at least; one of several, half of it."""


def width(lineup: Lineup) -> float:
    """Width in inches of a figure with checkpoints along x: models keep all their names as long as that is bearable."""
    if lineup.training:
        return WIDTH if len(lineup) <= 14 else 7.0
    return min(max(WIDTH, 0.24 * len(lineup) + 1.0), 12.0)


def along_x(figure: Figure, axes: Sequence[Any], lineup: Lineup) -> None:
    """Put the checkpoints along the x axis of axes stacked on top of each other (the last one carries the labels)."""
    count = len(lineup)
    margin = max(0.1, (4 - count) / 2)
    for ax in axes[:-1]:
        _marked(ax, lineup, margin)
    spacing = labels_along_x(figure, axes[-1], lineup, margin)
    _names_above(figure, axes[0], lineup, spacing)
    # Long names take room from the panels, which the page gives back.
    lay_out(figure)
    lowest = LOW_PANEL if len(axes) == 1 else LOW_PANEL / 2
    missing = [max(0.0, lowest - ax.bbox.height / figure.dpi) for ax in axes]
    if any(missing):
        figure.set_figheight(figure.get_figheight() + max(missing) * len(axes))
        lay_out(figure)


def labels_along_x(figure: Figure, ax: Any, lineup: Lineup, margin: float) -> float:
    """Put the checkpoints along the x axis of one panel, with labels that never overlap; returns pixels between two."""
    count = len(lineup)
    _marked(ax, lineup, margin)
    ax.set_xlabel(lineup.noun)
    labels = [plain(shortened(label)) for label in lineup.labels]
    ax.set_xticks(range(count), labels)
    lay_out(figure)
    spacing = float(ax.bbox.width / (count + 2 * margin))
    boxes = [extent(figure, label) for label in ax.get_xticklabels()]
    fits = all((a.width + b.width) / 2 + 4 < spacing for a, b in pairwise(boxes))
    if not fits:
        # Neighbouring slanted lines of text are `distance · sin(angle)` apart.
        room = GAP * max(box.height for box in boxes) / math.sin(math.radians(ANGLE))
        stride = max(1, math.ceil(1.05 * room / spacing))
        ax.set_xticks(range(0, count, stride), labels[::stride])
        for label in ax.get_xticklabels():
            label.set(rotation=ANGLE, ha="right", va="top", rotation_mode="anchor")
        ax.tick_params(axis="x", pad=2)
    return spacing


def _marked(ax: Any, lineup: Lineup, margin: float) -> None:
    """Room for the checkpoints along x, and lines between their groups."""
    ax.set_xlim(-0.5 - margin, len(lineup) - 0.5 + margin)
    ax.set_xticks([])
    for group in lineup.groups[1:]:
        ax.axvline(
            group.start - 0.5,
            color=RULE,
            linestyle=(0, (4, 3)),
            linewidth=0.8,
            zorder=1.5,
            gid="group line",
            in_layout=False,
        )


def title_above(figure: Figure, ax: Any, text: str) -> None:
    """The title of a panel with checkpoints `along_x`, above the names of groups where they stand over it."""
    tops = [extent(figure, name).y1 for name in ax.texts if name.get_gid() == "group name"]
    ax.set_title(text, pad=4 + (max([ax.bbox.y1, *tops]) - ax.bbox.y1) * 72 / figure.dpi)


def along_y(figure: Figure, ax: Any, lineup: Lineup) -> None:
    """Put the checkpoints along the y axis, the first on top, row i between i and i + 1; group names at the right."""
    count = len(lineup)
    ax.set_ylim(count, 0)
    labels = [plain(shortened(label)) for label in lineup.labels]
    ax.set_yticks([row + 0.5 for row in range(count)], labels)
    lay_out(figure)
    spacing = ax.bbox.height / count
    room = GAP * max(extent(figure, label).height for label in ax.get_yticklabels())
    stride = max(1, math.ceil(1.05 * room / spacing))
    ax.set_yticks([row + 0.5 for row in range(0, count, stride)], labels[::stride])
    for group in lineup.groups[1:]:
        ax.axhline(
            group.start, color="#333333", linestyle=(0, (4, 3)), linewidth=0.9, gid="group line", in_layout=False
        )
    free = -math.inf
    for group in lineup.groups:
        centre = (group.start + group.stop) / 2 * spacing
        if group.name and centre - room / 2 >= free:
            ax.text(
                1.015,
                (group.start + group.stop) / 2,
                plain(shortened(group.name)),
                transform=ax.get_yaxis_transform(),
                va="center",
                fontsize=NAME_SIZE,
                gid="group name",
            )
            free = centre + room / 2


def _names_above(figure: Figure, ax: Any, lineup: Lineup, spacing: float) -> None:
    """Group names over their groups: in one line, else wrapped, else upright and as many as there is room for."""
    named = [group for group in lineup.groups if group.name]
    if len(lineup) == 1:
        spacing *= 3
    for wrapped in (False, True):
        texts = [_name(ax, group, re.sub(r"[ _]+", "\n", group.name) if wrapped else group.name) for group in named]
        widths = [extent(figure, text).width for text in texts]
        if all(w <= (group.stop - group.start) * spacing for w, group in zip(widths, named, strict=True)):
            return
        for text in texts:
            text.remove()
    free = -math.inf
    for group in named:
        text = _name(ax, group, shortened(group.name, 18))
        text.set(rotation=90)
        half = GAP * extent(figure, text).width / 2
        centre = (group.start + group.stop) / 2 * spacing
        if centre - half < free:
            text.remove()
        else:
            free = centre + half


def _name(ax: Any, group: Any, name: str) -> Any:
    return ax.annotate(
        plain(name),
        ((group.start + group.stop - 1) / 2, 1.0),
        (0, 4),
        xycoords=ax.get_xaxis_transform(),
        textcoords="offset points",
        annotation_clip=False,
        ha="center",
        va="bottom",
        fontsize=NAME_SIZE,
        linespacing=1.05,
        gid="group name",
    )
