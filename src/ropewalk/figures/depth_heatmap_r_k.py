"""Where in the model keys carry position: mean r_k by checkpoint and depth."""

from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption
from ropewalk.figures.heatmap import describe_heatmap, draw_heatmap
from ropewalk.figures.remarks import turning_keys
from ropewalk.figures.spec import FigureSpec
from ropewalk.summary.view import View

COLUMN, COLOUR_MAP, BELOW = "r_k", "Reds", "#cfe2f3"


def draw(view: View) -> Figure:
    """Mean r_k on PC0 per (checkpoint, depth bin), from 0 to 1; cells below 0 have a colour of their own."""
    return draw_heatmap(view, COLUMN, COLOUR_MAP, BELOW)


def caption(view: View, source: str) -> Caption:
    """As that of r_q, and whether keys turn, or layers without RoPE go another way (docs/method.md §4)."""
    return describe_heatmap(view, source, FIGURE.name, COLUMN, COLOUR_MAP, turning_keys(view))


FIGURE = FigureSpec("depth_heatmap_r_k", "r_k by depth", draw, caption)
