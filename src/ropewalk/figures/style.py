"""Colours, sizes and the temporary style that every figure is drawn and saved in."""

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager, get_font
from PIL import Image

from ropewalk.figures.embedding import bare_fonts
from ropewalk.geometry.taxonomy import CATEGORIES, MIXED
from ropewalk.summary.view import NO_CATEGORY
from ropewalk.text import is_control

WIDTH = 5.2
"""Inches. Printed in a 3.4 inch column, 9 point text is still 6 points high."""

MANY = 40
"""Up to this many checkpoints there is room for full markers and for edges of cells."""


class Colour(str):
    """A colour as matplotlib takes it, with the word that captions call it by."""

    name: str

    def __new__(cls, code: str, name: str) -> "Colour":
        """The colour `#rrggbb` under a name."""
        colour = super().__new__(cls, code)
        colour.name = name
        return colour


QUERY, KEY, KEY_SIZE = Colour("#2166ac", "blue"), Colour("#c51b29", "red"), "#e58a75"
SIGNAL, RULE, TEXT = "#2b5c7d", "#8a8a8a", "#222222"

CATEGORY_COLOURS: Mapping[str, Colour] = {
    **dict(
        zip(
            CATEGORIES,
            (
                Colour("#5f9eef", "blue"),
                Colour("#381472", "indigo"),
                Colour("#e04c99", "pink"),
                Colour("#176045", "green"),
                Colour("#dadada", "gray"),
            ),
            strict=True,
        )
    ),
    NO_CATEGORY: Colour("#ffffff", "white"),
}
"""Apart in lightness too, so that they stay apart for colour-blind readers."""

CATEGORY_LINES: Mapping[str, Colour] = {
    **{category: CATEGORY_COLOURS[category] for category in CATEGORIES},
    MIXED: Colour("#c4c4c4", "gray"),
}
"""Of lines and markers, which are too thin for the pale gray of areas; darker, it would be pink to some readers."""
CATEGORY_MARKERS: Mapping[str, str] = dict(zip(CATEGORIES, ("o", "^", "v", "s", "D"), strict=True))


def category_look(category: str) -> dict[str, Any]:
    """How the curve of a category is drawn."""
    edge = {"markeredgecolor": "#555555", "markeredgewidth": 0.5}
    return {"color": CATEGORY_LINES[category], "marker": CATEGORY_MARKERS[category], "linewidth": 1.3, **edge}


MARKERS = {"o": "circles", "s": "squares", "^": "triangles", "v": "triangles on their tip", "D": "diamonds"}
"""What captions call the markers of the figures."""


class LayerType(NamedTuple):
    """How heads of layers with RoPE, without it, or not known to be either are told apart."""

    rope: bool | None
    label: str
    colour: str
    marker: str


class AxisStyle(NamedTuple):
    """How a choice of axis is told from the others."""

    colour: str
    marker: str


AXIS_STYLES = {
    "pooled": AxisStyle("#2b5c7d", "o"),
    "centred": AxisStyle("#e0821a", "s"),
    "drift": AxisStyle("#5b9e4d", "^"),
}

LAYER_TYPES = (
    LayerType(True, "RoPE layers", "#2b5c7d", "o"),
    LayerType(False, "NoPE layers", "#e0821a", "^"),
    LayerType(None, "unknown whether RoPE", "#777777", "D"),
)
NOPE = next(layers for layers in LAYER_TYPES if layers.rope is False)
BESIDE_ROW = "<"
"""Marker that points at a row of a heat map: a layer without RoPE."""

HATCHED: Mapping[str, Any] = {"facecolor": "#ededed", "edgecolor": "#b0b0b0", "hatch": "/////"}
"""What lies behind the cells of a heat map, and is seen where there are none."""

FONT = "DejaVu Sans"
OTHER_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Microsoft YaHei", "Yu Gothic", "Hiragino Sans"),
    *("Malgun Gothic", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS"),
)
"""Looked for on the machine; none comes with matplotlib."""

STYLE: dict[str, Any] = {
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
        matplotlib.rcParams.update(STYLE | {"font.family": list(fonts())})
        yield


class Page(Figure):
    """A figure that looks the same wherever it is drawn: saved, or shown by a notebook."""

    def draw(self, renderer: Any) -> None:
        """Draw everything in `style`: hatches and fonts are looked up while drawing, not when the figure is made."""
        with style():
            super().draw(renderer)

    def savefig(self, *arguments: Any, **options: Any) -> None:
        """Save in `style`, which says the resolution and how fonts are embedded."""
        with style():
            super().savefig(*arguments, **options)

    def _repr_png_(self) -> bytes:
        return png(self)


def page(width: float, height: float) -> Page:
    """An empty figure of this size in inches, outside pyplot's list of figures, that can measure its own text."""
    figure = Page(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


PNG_COMPRESSION = {"compress_level": 4, "compress_type": zlib.Z_DEFAULT_STRATEGY}
"""Files as small as with Pillow's own choice, in half the time."""
PDF_METADATA: dict[str, str | None] = {"Creator": None, "Producer": None, "CreationDate": None}
"""Without times and versions, so that the same view gives the same bytes."""


def png(figure: Figure) -> bytes:
    """The bytes of `figure.png`."""
    buffer = io.BytesIO()
    with style(), _canvas(figure, FigureCanvasAgg) as canvas:
        canvas.draw()
        picture = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba())
        # Opaque on every pixel, as pages are, it is the same picture without saying so on every pixel.
        opaque = picture.getchannel("A").getextrema() == (255, 255)
        dots = (figure.dpi, figure.dpi)
        (picture.convert("RGB") if opaque else picture).save(buffer, "png", dpi=dots, **PNG_COMPRESSION)
    return buffer.getvalue()


def png_and_pdf(figure: Figure) -> tuple[bytes, bytes]:
    """The bytes of `figure.png` and of `figure.pdf`, which has embedded fonts and everything in the same places."""
    picture, buffer = png(figure), io.BytesIO()
    with style(), bare_fonts(), _canvas(figure, FigureCanvasPdf) as canvas:
        # Finding the places takes as long as drawing.
        figure.set_layout_engine("none")
        canvas.print_pdf(buffer, metadata=PDF_METADATA)
    return picture, buffer.getvalue()


@contextmanager
def _canvas(figure: Figure, kind: Callable[[Figure], Any]) -> Iterator[Any]:
    """Another canvas for a figure, at the resolution of `style`; afterwards it is as it was.

    `savefig` does the same, and draws everything once more before, to no end but its layout.
    """
    canvas, dpi, layout = figure.canvas, figure.dpi, figure.get_layout_engine()
    try:
        figure.dpi = matplotlib.rcParams["savefig.dpi"]
        yield kind(figure)
    finally:
        figure.dpi = dpi
        figure.set_canvas(canvas)
        figure.set_layout_engine(layout)


def lay_out(figure: Figure) -> None:
    """Give panels their places, so that what is in them can be measured."""
    layout = figure.get_layout_engine()
    assert layout is not None, "figures are pages, which have one"
    layout.execute(figure)


def extent(figure: Figure, artist: Any) -> Any:
    """Bounding box of an artist in pixels."""
    canvas: Any = figure.canvas
    return artist.get_window_extent(canvas.get_renderer())


def below_title(ax: Any, text: str, gid: str) -> None:
    """Small lines of text between a panel and its title, which leaves room for them."""
    above = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center", "va": "bottom"}
    ax.annotate(text, (0.5, 1.0), (0, 3), fontsize=7, gid=gid, **above)


def plain(text: str) -> str:
    """User text as it stands: a dollar sign starts no formula, `->` becomes an arrow.

    Characters that no font at hand can draw are written as their numbers, where matplotlib would draw empty boxes. What
    begins with an underscore would be left out of legends, and begins with a space.
    """
    known = _characters()
    shown = "".join(
        one if one == "\n" or (ord(one) in known and not is_control(one)) else f"\\u{{{ord(one):x}}}" for one in text
    )
    return ("\u00a0" if shown.startswith("_") else "") + shown.replace("$", r"\$").replace("->", "→")


@lru_cache
def fonts() -> tuple[str, ...]:
    """The font of all figures, and those installed for scripts that it does not have."""
    installed = {font.name for font in fontManager.ttflist}
    return (FONT, *(name for name in OTHER_FONTS if name in installed))


@lru_cache
def _characters() -> frozenset[int]:
    """Code points that the fonts have."""
    files = [fontManager.findfont(name) for name in fonts()]
    return frozenset(code for file in files for code in get_font(file).get_charmap())


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
