"""The figures of a results folder: which there are, and writing each with its caption."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ropewalk.captions import Caption, depth, heads, signal, to_markdown
from ropewalk.figures.bars import taxonomy_evolution
from ropewalk.figures.flows import category_flows
from ropewalk.figures.heatmaps import depth_heatmap_r_k, depth_heatmap_r_q
from ropewalk.figures.lines import concordance, explained_variance, position_signal
from ropewalk.figures.portraits import phase_portraits
from ropewalk.figures.style import style
from ropewalk.files import atomic_path, write_text
from ropewalk.tables import read_qk, read_replicates


@dataclass(frozen=True)
class FigureSpec:
    """A figure: its folder, a title, the function that draws it and the one that describes it.

    `draw(table, replicates)` returns a figure, `caption(table, replicates, source)` a caption, where source names the
    file of the table. Those of `phase_portraits` also take `checkpoints`.
    """

    folder: str
    title: str
    draw: Callable[..., Figure]
    caption: Callable[..., Caption]


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec("01_position_signal", "Position signal", position_signal, signal.position_signal),
    FigureSpec("03_taxonomy_evolution", "Head taxonomy", taxonomy_evolution, heads.taxonomy_evolution),
    FigureSpec("04_explained_variance", "Explained variance of PC0", explained_variance, signal.explained_variance),
    FigureSpec("05_depth_heatmap_r_q", "r_q by depth", depth_heatmap_r_q, depth.depth_heatmap_r_q),
    FigureSpec("06_depth_heatmap_r_k", "r_k by depth", depth_heatmap_r_k, depth.depth_heatmap_r_k),
    FigureSpec("07_phase_portraits", "Phase portraits", phase_portraits, heads.phase_portraits),
    FigureSpec("08_concordance", "Concordance", concordance, signal.concordance),
    FigureSpec("09_category_flows", "Category flows", category_flows, heads.category_flows),
)
"""In the numbering of the published study, whose second figure compares models and has no counterpart here."""

PNG_METADATA: dict[str, str | None] = {"Software": None}
PDF_METADATA: dict[str, str | None] = {"Creator": None, "Producer": None, "CreationDate": None}
"""Without times and versions, so that the same table gives the same bytes."""


def write_figures(
    results: Path, *, portraits: Sequence[str] | None = None, log: Callable[[str], None] | None = None
) -> list[Path]:
    """Write `figures/NN_name/{figure.png, figure.pdf, README.md}` of a results folder; returns the folders.

    `portraits` names the checkpoints of the phase portraits, `log` is called with each folder when it is done.
    """
    results = Path(results)
    table, replicates = read_qk(results), read_replicates(results)
    source = f"{results.resolve().name}/qk.csv"
    folders = []
    for spec in FIGURES:
        options = {"checkpoints": portraits} if portraits and spec.draw is phase_portraits else {}
        folder = results / "figures" / spec.folder
        save(spec.draw(table, replicates, **options), folder)
        write_text(folder / "README.md", to_markdown(spec.caption(table, replicates, source, **options)))
        folders.append(folder)
        if log:
            log(str(folder))
    return folders


def save(figure: Figure, folder: Path) -> None:
    """Write `figure.png` at 300 dpi and `figure.pdf` with embedded fonts into a folder."""
    with style():
        for suffix, metadata in (("png", PNG_METADATA), ("pdf", PDF_METADATA)):
            with atomic_path(folder / f"figure.{suffix}") as temporary:
                figure.savefig(temporary, format=suffix, metadata=metadata)
