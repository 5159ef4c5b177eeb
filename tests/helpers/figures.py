"""Figures straight from tables."""

import math
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.figures import FIGURES, find
from ropewalk.summary.view import View

NAMES = [figure.name for figure in FIGURES if not (figure.columns or figure.tables)]
"""Figures of what every table has."""


def draw(name: str, table: pd.DataFrame, replicates: pd.DataFrame | None = None, **options: Any) -> Any:
    """A figure by its name, of a table."""
    return find(name).draw(View.of(table, replicates), **options)


def corners(figure, text) -> np.ndarray:
    """The rectangle of a text, turned with it: [4, 2] in pixels."""
    angle = text.get_rotation()
    centre = text.get_window_extent(figure.canvas.get_renderer())
    middle = np.array([(centre.x0 + centre.x1) / 2, (centre.y0 + centre.y1) / 2])
    text.set_rotation(0)
    flat = text.get_window_extent(figure.canvas.get_renderer())
    text.set_rotation(angle)
    turn = math.radians(angle)
    along, across = np.array([math.cos(turn), math.sin(turn)]), np.array([-math.sin(turn), math.cos(turn)])
    return np.array(
        [middle + a * along * flat.width / 2 + b * across * flat.height / 2 for a in (-1, 1) for b in (-1, 1)]
    )


def apart(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two rectangles are disjoint (separating axis theorem)."""
    for shape in (first, second):
        for direction in (shape[1] - shape[0], shape[2] - shape[0]):
            a, b = first @ direction, second @ direction
            if a.max() <= b.min() + 1e-6 or b.max() <= a.min() + 1e-6:
                return True
    return False


def visible_texts(figure) -> list:
    figure.draw_without_rendering()
    texts = [text for ax in figure.axes if ax.get_visible() for text in ax.texts]
    for ax in figure.axes:
        if ax.get_visible():
            for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
                ticks = [t for t in axis.get_major_ticks() if min(limits) - 1e-9 <= t.get_loc() <= max(limits) + 1e-9]
                texts += [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]
            texts += [ax.xaxis.label, ax.yaxis.label, ax.title]
            legend = ax.get_legend()
            texts += legend.get_texts() if legend else []
    for legend in figure.legends:
        texts += legend.get_texts()
    return [text for text in texts if text.get_text().strip()]


def check_layout(figure) -> None:
    """No text overlaps another one, and none leaves the page."""
    texts = visible_texts(figure)
    shapes = [corners(figure, text) for text in texts]
    width, height = figure.bbox.width, figure.bbox.height
    for text, shape in zip(texts, shapes, strict=True):
        assert shape.min() >= -1, f"{text.get_text()!r} leaves the page"
        assert shape[:, 0].max() <= width + 1, f"{text.get_text()!r} leaves the page"
        assert shape[:, 1].max() <= height + 1, f"{text.get_text()!r} leaves the page"
    lows, highs = np.array([shape.min(axis=0) for shape in shapes]), np.array([shape.max(axis=0) for shape in shapes])
    near = ((lows[:, None] < highs[None]) & (lows[None] < highs[:, None])).all(axis=2)
    for i, j in np.argwhere(np.triu(near, 1)):
        a, first, b, second = texts[i], shapes[i], texts[j], shapes[j]
        assert apart(first, second), f"{a.get_text()!r} lies on {b.get_text()!r}"
