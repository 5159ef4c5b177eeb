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
ROTATION: Mapping[str, tuple[str, float]] = {
    "mean_bias_strength": ("bias_strength", 5e-5),
    "mean_abs_alpha_k": ("abs_alpha_k", 5e-6),
    "mean_abs_r_k_a": ("abs_r_k_a", 5e-4),
    "mean_ap_overall": ("ap_overall", 5e-4),
    "mean_ap_first_20": ("ap_first_20", 5e-4),
    "mean_ap_drop": ("ap_drop", 5e-4),
}
"""Quantities of planar rotation and plasticity: the published column, and how far it may be off as printed."""
PER_CONTEXT: Mapping[str, str] = {
    "mean_bias_strength_context": "mean_bias_strength",
    "mean_abs_alpha_k_context": "mean_abs_alpha_k",
}
"""Slopes per context and the published ones per token that they come from: times the published context."""

HEADERS = ("", "published", "measured", "difference", "se", "agrees")
"""Of the comparison on a terminal."""

COLUMNS = ["checkpoint", "label", "quantity", "published", "measured", "difference", "se", "agrees"]

_Numbers = Mapping[str, Mapping[str, float]]
_MEANS = ("mean_r_q", "mean_r_k", "mean_explained_variance")
_DEPTH = ("r_q", "r_k")


def _cell(column: str, depth: int) -> str:
    return f"depth_{column}_{bin_label(depth)}"


_HEADLINE: tuple[str, ...] = (*_MEANS, *(f"share_{category}" for category in CATEGORIES), *ROTATION, *PER_CONTEXT)
QUANTITIES: Mapping[str, Measure] = {
    **{quantity: MEASURES[quantity] for quantity in _HEADLINE},
    **{_cell(column, depth): Mean(column, among=in_bins(depth)) for column in _DEPTH for depth in range(DEPTH_BINS)},
}
"""What is compared: three means, the five category shares, planar rotation and plasticity, r_q and r_k by depth."""


def published_sets() -> list[str]:
    """Names of the published sets of numbers that the package carries."""
    return sorted(entry.name for entry in (files("ropewalk") / "data" / "published").iterdir() if entry.is_dir())


def compare(view: View, published: str = "smollm3") -> pd.DataFrame:
    """One row per (checkpoint, quantity) that both sides have: columns `COLUMNS`, checkpoints in the view's order.

    difference = measured - published. `agrees` is that the published number lies within the 95% interval of the
    measured one, wider by how far it may be off as printed, and missing without a measured number or its standard
    error. Checkpoints are matched by name, else by label. `attrs` holds `absent` (published checkpoints that the view
    lacks) and `left_out` (published quantities that it lacks at all of them).
    """
    numbers, precisions, labels = _published(published)
    matches = _match(view, labels, published)
    frame = summarise(view.select(view.lineup.find(list(matches))), QUANTITIES).rename(columns={"value": "measured"})
    keys = zip(frame["checkpoint"].map(matches), frame["quantity"], strict=True)
    known = list(keys)
    frame["published"] = [numbers[checkpoint][quantity] for checkpoint, quantity in known]
    precision = [precisions[checkpoint].get(quantity, PRECISION) for checkpoint, quantity in known]
    frame["difference"] = frame["measured"] - frame["published"]
    # The margin is a hair wider than the rule, so that 0.465 against 0.46 does not hang on the last bit of a float.
    margin = frame["high"] - frame["measured"] + pd.Series(precision, index=frame.index) * (1 + 1e-6)
    agrees = (frame["difference"].abs() <= margin).astype("boolean")
    frame["agrees"] = agrees.mask(frame["difference"].isna() | frame["se"].isna())
    lacking = [
        name for name in (*ROTATION, *PER_CONTEXT) if frame.loc[frame["quantity"] == name, "measured"].isna().all()
    ]
    frame = frame.loc[~frame["quantity"].isin(lacking), COLUMNS].reset_index(drop=True)
    frame.attrs = {
        "absent": [name for name in labels.index if name not in matches.values()],
        "left_out": [ROTATION[name][0] for name in lacking if name in ROTATION],
    }
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


def _published(name: str) -> tuple[_Numbers, _Numbers, "pd.Series[str]"]:
    """Published numbers by checkpoint and quantity, how far they may be off where it is not PRECISION, and labels."""
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
    precisions = pd.DataFrame(index=numbers.index)
    for quantity, (column, precision) in ROTATION.items():
        numbers[quantity], precisions[quantity] = sheets["rotation_plasticity"][column], precision
    for quantity, slope in PER_CONTEXT.items():
        numbers[quantity] = numbers[slope] * checkpoints["context"]
        precisions[quantity] = precisions[slope] * checkpoints["context"]
    return _by_checkpoint(numbers), _by_checkpoint(precisions), checkpoints["label"]


def _by_checkpoint(frame: pd.DataFrame) -> _Numbers:
    return {str(name): {str(key): float(row[key]) for key in frame.columns} for name, row in frame.iterrows()}


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
        f"{int(known.sum())} of {len(frame)} numbers agree: within the 95% interval and the published precision "
        f"({PRECISION:g} for means, shares and depth bins){_unsaid(len(frame) - len(known))}."
    )
    lines += _units(frame)
    if absent := frame.attrs.get("absent"):
        lines.append(f"Published checkpoints that these results lack: {', '.join(absent)}.")
    if left_out := frame.attrs.get("left_out"):
        lines.append(f"Published, and not compared because these results lack it: {', '.join(left_out)}.")
    return "\n".join(lines)


def _unsaid(count: int) -> str:
    return f"; of {count} it cannot be said, for want of a measured number or its standard error" if count else ""


def _units(frame: pd.DataFrame) -> list[str]:
    """How slopes go per token and per context: where contexts grow, the one can fall while the other rises."""
    lines = []
    for context, token in PER_CONTEXT.items():
        for quantity, unit in ((token, "per token"), (context, "per context")):
            rows = frame[frame["quantity"] == quantity]
            ends = [
                f"{side} from {_number(rows[side].iloc[0])} to {_number(rows[side].iloc[-1])}"
                for side in ("published", "measured")
                if len(rows) > 1 and rows[side].iloc[[0, -1]].notna().all()
            ]
            if ends:
                name = token.removeprefix("mean_")
                lines.append(f"{name} {unit}, first to last checkpoint here: {'; '.join(ends)}.")
    return lines


def _number(value: Any, sign: str = "") -> str:
    if pd.isna(value):
        return "-"
    return f"{value:{sign}.3f}" if value == 0 or abs(value) >= 0.02 else f"{value:{sign}.3g}"


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
    header = ",".join(COLUMNS).encode()
    if path.exists() and not (path.is_file() and path.read_bytes()[: len(header)] == header):
        raise RopewalkError(f"{path} is there already and is no comparison: move it away, or give another folder")
    write_text(path, rows.to_csv(index=False))
    return path
