"""Write into docs/export.md what bases of lower rank lose of the scores of a model, and draw it.

python scripts/write_bases.py results/smollm2_statistics
"""

import argparse
import tempfile
from pathlib import Path

import pandas as pd

from marks import write_between
from ropewalk.export.bases import PRE_KEY, RANK
from ropewalk.files import write_bytes
from ropewalk.geometry.lowrank import TITLES
from ropewalk.results import Results, load

DOCS = Path(__file__).resolve().parent.parent / "docs"
TOLERANCE = 1e-9
"""Rounding, in comparing errors of all ranks."""


def main() -> None:
    """Export bases of the last checkpoint of a results folder, as they are and with keys centred, and write them up."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("results", type=Path)
    results = load(parser.parse_args().results)
    with tempfile.TemporaryDirectory() as scratch:
        tables = {}
        for name, centred in (("", False), (", `--centred`", True)):
            folder = Path(scratch) / f"bases{centred}"
            results.export(folder, to="bases", centred=centred)
            tables[name] = pd.read_csv(folder / "errors.csv")
            if not centred:
                write_bytes(DOCS / "images" / "smollm2_score_errors.png", (folder / "figure.png").read_bytes())
    write_between(DOCS / "export.md", "bases", "\n".join([_about(results), "", *_rows(tables), "", _best(tables)]))


def _about(results: Results) -> str:
    captured = list(results.captures.values())[-1]
    scope, label = captured.scope, results.view.lineup.labels[-1]
    return (
        f"{label}, {len(captured.heads)} heads, {scope.documents} x {scope.context:,} tokens of Python's standard "
        f"library, medians over heads at rank {RANK}:"
    )


def _rows(tables: dict[str, pd.DataFrame]) -> list[str]:
    names = [*TITLES, PRE_KEY]
    lines = ["| | " + " | ".join(f"`{name}`" for name in names) + " |", "|---" * (1 + len(names)) + "|"]
    for ending, table in tables.items():
        at = table[table["rank"] == RANK].groupby("basis")[["error", "held_out"]].median()
        for column, title in (("error", "error"), ("held_out", "held out")):
            found = at[column].to_dict()
            cells = [f"{found[name]:.3f}" if name in found else "" for name in names]
            lines.append(f"| {title}{ending} | {' | '.join(cells)} |")
    return lines


def _best(tables: dict[str, pd.DataFrame]) -> str:
    """Whether the optimal pair has the least error of all that are one matrix for all positions."""
    worse = tried = 0
    for table in tables.values():
        wide = table.pivot(index=["layer", "head", "rank"], columns="basis", values="error")[list(TITLES)]
        others = wide.drop(columns="optimal").min(axis=1)
        tried += len(wide)
        worse += int((wide["optimal"] > others + TOLERANCE).sum())
    return (
        f"Of {tried:,} heads and ranks, as they are and centred, the optimal pair is above the best of the other "
        f"{len(TITLES) - 1} in {worse or 'none'}."
    )


if __name__ == "__main__":
    main()
