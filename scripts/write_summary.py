"""Write the summary of a results folder into a Markdown file, between its marks.

python scripts/write_summary.py results/smollm2_135m docs/smollm2.md
"""

import argparse
from pathlib import Path

from marks import write_between
from ropewalk.figures.phrases import CORRELATION, SHARE, Unit
from ropewalk.figures.wording import AXIS_NAMES, value
from ropewalk.geometry.axes import AXES
from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.results import load
from ropewalk.summary.view import View

ON_AXES: dict[str, tuple[str, Unit]] = {
    "mean_r_q": ("mean r_q", CORRELATION),
    "mean_r_k": ("mean r_k", CORRELATION),
    "mean_abs_r_k": ("mean abs(r_k)", CORRELATION),
    "discordant": ("discordant, among the decided", SHARE),
    "undecided": ("undecided", SHARE),
    **{f"share_{category}": (category, SHARE) for category in CATEGORIES},
    "undecided_category": ("category less than 95% certain", SHARE),
}
"""Quantities that depend on the choice of axis."""
ALONE: dict[str, tuple[str, Unit]] = {
    "mean_separation_share": ("PC0's variance that is the offset between queries and keys", SHARE),
    "mean_explained_variance": ("variance explained by PC0", SHARE),
    "mean_readout_q": ("readout of queries", CORRELATION),
    "mean_readout_k": ("readout of keys", CORRELATION),
    "share_negative_r_k": ("heads with r_k < 0 on PC0, decided or not", SHARE),
}


def summary(results: Path) -> str:
    """Two Markdown tables of the last checkpoint and its untrained null, standard errors after ±."""
    view = load(results).view
    last = len(view.lineup) - 1
    label, count = view.lineup.labels[last], len(view.parts[last])
    header = [f"{count} heads of {label}", *(AXIS_NAMES[axis] for axis in AXES)]
    header += [f"untrained, {AXIS_NAMES[axis]}" for axis in AXES]
    rows = [
        [name, *(_at(view.on(axis), measure, last, unit) for axis in AXES)]
        + [_untrained(view.on(axis), measure, last, unit) for axis in AXES]
        for measure, (name, unit) in ON_AXES.items()
    ]
    alone = [
        [name, _at(view, measure, last, unit), _untrained(view, measure, last, unit)]
        for measure, (name, unit) in ALONE.items()
    ]
    return "\n\n".join([_table(header, rows), _table([f"{count} heads", label, "untrained"], alone)])


def _at(view: View, measure: str, index: int, unit: Unit) -> str:
    return value(view.track(measure).at(index), unit)


def _untrained(view: View, measure: str, index: int, unit: Unit) -> str:
    track = view.track_untrained(measure)
    return "" if track is None else value(track.at(index), unit)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Replace what stands between the marks of a Markdown file by the summary of a results folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("document", type=Path)
    options = parser.parse_args()
    write_between(options.document, "summary", summary(options.results))


if __name__ == "__main__":
    main()
