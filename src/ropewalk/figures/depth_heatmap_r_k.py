"""Where in the model keys carry position: mean r_k by checkpoint and depth."""

from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption
from ropewalk.figures.heatmap import describe_heatmap, draw_heatmap
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.wording import known, takeaway_of
from ropewalk.geometry.taxonomy import DEPTH_BINS, bin_label
from ropewalk.summary.view import View

COLUMN, COLOUR_MAP, BELOW = "r_k", "Reds", "#cfe2f3"


def draw(view: View) -> Figure:
    """Mean r_k on PC0 per (checkpoint, depth bin), from 0 to 1; cells below 0 have a colour of their own."""
    return draw_heatmap(view, COLUMN, COLOUR_MAP, BELOW)


def caption(view: View, source: str) -> Caption:
    """As that of r_q, with |r_k|, discordant heads, and which bins hold heads of NoPE layers (docs/method.md §4)."""
    sides = known(view, "mean_r_k_rope", "mean_r_k_nope")
    extra = [takeaway_of(view, "mean_abs_r_k", "discordant", *sides)]
    first = view.parts[0]
    nope = first.loc[(~first["rope"]).fillna(False).astype(bool), "bin"]
    if len(nope):
        counts = ", ".join(f"{bin_label(depth)}: {(nope == depth).sum()}" for depth in range(DEPTH_BINS))
        extra.append(f"Heads in NoPE layers per depth bin at {view.lineup.labels[0]}: {counts}.")
    return describe_heatmap(view, source, FIGURE.name, COLUMN, COLOUR_MAP, *extra)


FIGURE = FigureSpec("depth_heatmap_r_k", "r_k by depth", draw, caption)
