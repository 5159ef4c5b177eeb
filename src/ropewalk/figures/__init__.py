"""The figures of a study: each is a function of its table, and returns a matplotlib figure."""

from ropewalk.figures.bars import taxonomy_evolution
from ropewalk.figures.flows import category_flows
from ropewalk.figures.heatmaps import depth_heatmap_r_k, depth_heatmap_r_q
from ropewalk.figures.lines import concordance, explained_variance, position_signal
from ropewalk.figures.portraits import phase_portraits
from ropewalk.figures.writing import FIGURES, FigureSpec, write_figures

__all__ = [
    "FIGURES",
    "FigureSpec",
    "category_flows",
    "concordance",
    "depth_heatmap_r_k",
    "depth_heatmap_r_q",
    "explained_variance",
    "phase_portraits",
    "position_signal",
    "taxonomy_evolution",
    "write_figures",
]
