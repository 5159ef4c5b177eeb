"""Write the figures of a results folder, or draw one of them from its `qk.csv`.

python scripts/generate_report_figures.py results/smollm3_training_progress
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ropewalk import figures
from ropewalk.errors import RopewalkError
from ropewalk.tables import read_qk, read_replicates

DEFAULT = Path("results/smollm3_training_progress")

Source = Path | str | pd.DataFrame
"""A `qk.csv` (its replicates are found beside it), or a table."""


def _drawn(draw: Callable[..., Figure], source: Source) -> Figure:
    if isinstance(source, pd.DataFrame):
        return draw(source)
    return draw(read_qk(source), read_replicates(source))


def smollm_fig01_position_signal_over_training(qk: Source = DEFAULT) -> Figure:
    """Mean r_q and r_k per checkpoint."""
    return _drawn(figures.position_signal, qk)


def smollm_fig03_taxonomy_evolution(qk: Source = DEFAULT) -> Figure:
    """Share of heads per category and checkpoint."""
    return _drawn(figures.taxonomy_evolution, qk)


def smollm_fig04_explained_variance_evolution(qk: Source = DEFAULT) -> Figure:
    """Share of variance on PC0 per checkpoint."""
    return _drawn(figures.explained_variance, qk)


def smollm_fig05_layer_heatmap_rq(qk: Source = DEFAULT) -> Figure:
    """Mean r_q per checkpoint and depth bin."""
    return _drawn(figures.depth_heatmap_r_q, qk)


def smollm_fig06_layer_heatmap_rk(qk: Source = DEFAULT) -> Figure:
    """Mean r_k per checkpoint and depth bin."""
    return _drawn(figures.depth_heatmap_r_k, qk)


def smollm_fig07_rq_rk_scatter_grid(qk: Source = DEFAULT) -> Figure:
    """r_q against r_k at six checkpoints."""
    return _drawn(figures.phase_portraits, qk)


def main(arguments: list[str] | None = None) -> int:
    """Write all figures of a results folder and print where they are."""
    parser = argparse.ArgumentParser(description="Write the figures of a results folder.")
    parser.add_argument(
        "results", nargs="?", type=Path, default=DEFAULT, help="folder with a qk.csv (default: %(default)s)"
    )
    results: Path = parser.parse_args(arguments).results
    try:
        if not results.is_dir():
            raise RopewalkError(
                f"no results folder {results}: run the study first, or give the folder of a finished one"
            )
        figures.write_figures(results, log=print)
    except RopewalkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
