"""Measured numbers against published ones: difference, standard error, and whether they agree within error."""

from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pandas as pd

from ropewalk.errors import RopewalkError
from ropewalk.files import write_text
from ropewalk.geometry.taxonomy import CATEGORIES, DEPTH_BINS, bin_label
from ropewalk.summary.measures import MEASURES, Mean, Measure, in_bins
from ropewalk.summary.view import View, summarise
from ropewalk.text import some
from ropewalk.text import table as text_table

PRECISION = 0.005
"""How far a published number may be from the one behind it: printed to 0.01, or read off a chart that well."""

HEADERS = ("", "published", "measured", "difference", "se", "agrees")
"""Of the comparison on a terminal."""

COLUMNS = ["checkpoint", "label", "quantity", "published", "measured", "difference", "se", "agrees"]

_MEANS = ("mean_r_q", "mean_r_k", "mean_explained_variance")
_DEPTH = ("r_q", "r_k")


def _cell(column: str, depth: int) -> str:
    return f"depth_{column}_{bin_label(depth)}"


_HEADLINE: tuple[str, ...] = (*_MEANS, *(f"share_{category}" for category in CATEGORIES))
QUANTITIES: Mapping[str, Measure] = {
    **{quantity: MEASURES[quantity] for quantity in _HEADLINE},
    **{_cell(column, depth): Mean(column, among=in_bins(depth)) for column in _DEPTH for depth in range(DEPTH_BINS)},
}
"""What is compared: three means, the five category shares, and mean r_q and r_k of every depth bin."""


def published_sets() -> list[str]:
    """Names of the published sets of numbers that the package carries."""
    return sorted(entry.name for entry in (files("ropewalk") / "data" / "published").iterdir() if entry.is_dir())


def compare(view: View, published: str = "smollm3") -> pd.DataFrame:
    """One row per (checkpoint, quantity) that both sides have: columns `COLUMNS`, checkpoints in the view's order.

    difference = measured - published. `agrees` is that the published number lies within the 95% interval of the
    measured one, PRECISION wider, and missing without a measured number or its standard error. Checkpoints are matched
    by name, else by label. `attrs` holds `absent` (published checkpoints the view lacks) and `left_out` (published
    quantities that are not compared).
    """
    numbers, labels, left_out = _published(published)
    matches = _match(view, labels, published)
    frame = summarise(view.select(view.lineup.find(list(matches))), QUANTITIES).rename(columns={"value": "measured"})
    keys = zip(frame["checkpoint"].map(matches), frame["quantity"], strict=True)
    frame["published"] = [numbers[checkpoint][quantity] for checkpoint, quantity in keys]
    frame["difference"] = frame["measured"] - frame["published"]
    # The margin is a hair wider than the rule, so that 0.465 against 0.46 does not hang on the last bit of a float.
    agrees = (frame["difference"].abs() <= frame["high"] - frame["measured"] + PRECISION + 1e-9).astype("boolean")
    frame["agrees"] = agrees.mask(frame["difference"].isna() | frame["se"].isna())
    frame = frame[COLUMNS]
    frame.attrs = {"absent": [name for name in labels.index if name not in matches.values()], "left_out": left_out}
    return frame


def _match(view: View, labels: "pd.Series[str]", published: str) -> dict[str, str]:
    """Published checkpoint of each checkpoint of the view that has one, by name or else by label."""
    by_label = {label: name for name, label in labels.items()}
    matches = {}
    for name, label in zip(view.lineup.names, view.lineup.labels, strict=True):
        found = name if name in labels.index else by_label.get(label)
        if found is not None:
            matches[name] = str(found)
    if not matches:
        raise RopewalkError(
            f"none of the table's checkpoints ({some(view.lineup.names)}) is among the published "
            f"{published} ones ({some(labels.index)}): give the study's checkpoints the published names or labels"
        )
    return matches


def _published(name: str) -> tuple[Mapping[str, Mapping[str, float]], "pd.Series[str]", list[str]]:
    """Published numbers by checkpoint and quantity, labels by checkpoint, and the names of what is not compared."""
    if name not in published_sets():
        raise RopewalkError(f"no published numbers called {name!r}: there are {', '.join(published_sets())}")
    with as_file(files("ropewalk") / "data" / "published" / name) as folder:
        sheets = {file.stem: pd.read_csv(file, index_col="checkpoint") for file in sorted(folder.glob("*.csv"))}
    checkpoints = sheets["checkpoints"]
    numbers = checkpoints[list(_MEANS)].copy()
    for category in CATEGORIES:
        numbers[f"share_{category}"] = sheets["taxonomy"][category.lower().replace("-", "_")]
    for column in _DEPTH:
        for depth in range(DEPTH_BINS):
            numbers[_cell(column, depth)] = sheets[f"depth_{column}"][bin_label(depth)]
    by_checkpoint = {
        str(name): {str(key): float(row[key]) for key in numbers.columns} for name, row in numbers.iterrows()
    }
    return by_checkpoint, checkpoints["label"], list(sheets["rotation_plasticity"].columns)


def format_table(frame: pd.DataFrame) -> str:
    """The comparison for a terminal: means and shares in full, each depth profile as one line."""
    lines = []
    for (checkpoint, label), group in frame.groupby(["checkpoint", "label"], sort=False):
        lines.append(str(checkpoint) if checkpoint == label else f"{checkpoint} ({label})")
        rows = [
            [
                str(row.quantity),
                _number(row.published),
                _number(row.measured),
                _number(row.difference, "+"),
                _number(row.se),
                _verdict(row.agrees),
            ]
            for row in group[group["quantity"].isin(_HEADLINE)].itertuples()
        ]
        for column in _DEPTH:
            rows.append([f"depth {column}", _profile(group[group["quantity"].str.startswith(f"depth_{column}_")])])
        lines += [f"  {line}" for line in text_table(HEADERS, rows, right=range(1, 5))]
        lines.append("")
    known = frame["agrees"].dropna()
    lines.append(
        f"{int(known.sum())} of {len(frame)} numbers agree: within the 95% interval plus {PRECISION:g}, "
        f"the published precision{_unsaid(len(frame) - len(known))}."
    )
    if absent := frame.attrs.get("absent"):
        lines.append(f"Published checkpoints that these results lack: {', '.join(absent)}.")
    if left_out := frame.attrs.get("left_out"):
        lines.append(f"Published and not compared: {', '.join(left_out)}.")
    return "\n".join(lines)


def _unsaid(count: int) -> str:
    return f"; of {count} it cannot be said, for want of a measured number or its standard error" if count else ""


def _number(value: Any, sign: str = "") -> str:
    return "-" if pd.isna(value) else f"{value:{sign}.3f}"


def _verdict(agrees: Any) -> str:
    return "-" if pd.isna(agrees) else "yes" if agrees else "no"


def _profile(cells: pd.DataFrame) -> str:
    known = cells["agrees"].dropna()
    unknown = len(cells) - len(known)
    said = f"{int(known.sum())} of {len(cells)} bins agree" + (f" ({unknown} unknown)" if unknown else "")
    measured = cells.dropna(subset=["difference"])
    if measured.empty:
        return said
    row = measured.iloc[int(measured["difference"].abs().argmax())]
    largest = f"{row['difference']:+.3f} (se {_number(row['se'])}) in bin {row['quantity'][-3:]}"
    return f"{said}; largest difference {largest}"


def write_compare(folder: Path, rows: pd.DataFrame, published: str) -> Path:
    """Write a comparison to `compare_<published>.csv` in a folder and return its path."""
    path = folder / f"compare_{published}.csv"
    write_text(path, rows.to_csv(index=False))
    return path
