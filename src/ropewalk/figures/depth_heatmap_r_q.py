"""Where in the model queries carry position: mean r_q by checkpoint and depth."""

from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption
from ropewalk.figures.heatmap import describe_heatmap, draw_heatmap
from ropewalk.figures.spec import FigureSpec
from ropewalk.summary.view import View

COLUMN, COLOUR_MAP, BELOW = "r_q", "Blues", "#fde3c8"


def draw(view: View) -> Figure:
    """Mean r_q on PC0 per (checkpoint, depth bin), from 0 to 1; bins as in docs/method.md §4."""
    return draw_heatmap(view, COLUMN, COLOUR_MAP, BELOW)


def caption(view: View, source: str) -> Caption:
    """Whether depth makes a difference, and how it changes."""
    return describe_heatmap(view, source, FIGURE.name, COLUMN, COLOUR_MAP)


FIGURE = FigureSpec("depth_heatmap_r_q", "r_q by depth", draw, caption)
