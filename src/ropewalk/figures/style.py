"""Colours, sizes and the temporary style that every figure is drawn and saved in."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.summary.view import NO_CATEGORY

WIDTH = 5.2
"""Inches. Printed in a 3.4 inch column, 9 point text is still 6 points high."""

QUERY, KEY, KEY_SIZE = "#2166ac", "#c51b29", "#e58a75"
ROPE, NOPE, UNKNOWN = "#2b5c7d", "#e0821a", "#777777"
SIGNAL, RULE, TEXT = "#2b5c7d", "#8a8a8a", "#222222"

CATEGORY_COLOURS = {
    **dict(zip(CATEGORIES, ("#5f9eef", "#381472", "#e04c99", "#176045", "#dadada"), strict=True)),
    NO_CATEGORY: "#ffffff",
}
"""Blue, indigo, pink, green, gray: apart in lightness too, so that they stay apart for colour-blind readers."""

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.titlesize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": "#555555",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "savefig.dpi": 300,
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's defaults with `STYLE` on top, and afterwards whatever was set before."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def page(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, outside pyplot's list of figures, that can measure its own text."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def extent(figure: Figure, artist: Any) -> Any:
    """Bounding box of an artist in pixels."""
    canvas: Any = figure.canvas
    return artist.get_window_extent(canvas.get_renderer())


def plain(text: str) -> str:
    """User text as it stands: a dollar sign starts no formula, `->` becomes an arrow."""
    return text.replace("$", r"\$").replace("->", "→")


def shortened(text: str, limit: int = 24) -> str:
    """The text with its middle cut out where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head = limit * 3 // 5
    return f"{text[:head]}…{text[head + 1 - limit :]}"


def contrasting(colour: Any) -> str:
    """Black or white, whichever is easier to read on a colour (WCAG relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in matplotlib.colors.to_rgb(colour)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if luminance > 0.18 else "white"
