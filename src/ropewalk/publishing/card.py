"""The card of a dataset of results, computed from them."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
import yaml

from ropewalk._version import __version__
from ropewalk.results import Results
from ropewalk.text import count, cut, printable

SHOWN = ("mean_r_q", "mean_r_k", "mean_abs_r_k", "share_position_dominated", "share_content_focused")
"""Quantities of the summary that the card shows, as far as they are there."""
LONGEST = 200
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>&~$:@])")


def plain(text: object) -> str:
    """A text from elsewhere as it may stand in Markdown: one line in which nothing is markup, a link or a tag."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[1])};", cut(printable(str(text)), LONGEST))


def card(results: Results, repo: str, names: Sequence[str]) -> str:
    """The card of results that are pushed to `repo` with these files, as Markdown with its header."""
    lineup, layouts = results.view.lineup, results.layouts
    header = {
        "license": "other",
        "pretty_name": printable(f"{results.name}: position in attention heads"),
        "tags": ["ropewalk", "attention", "interpretability", "rope"],
        # The viewer would take every table for a part of one.
        "configs": [
            {"config_name": name.removesuffix(".csv"), "data_files": name}
            for name in ("heads.csv", "qk.csv")
            if name in names
        ],
    }
    shapes = {f"{plain(one.model_type)}, {count(one.depth, 'layer')}" for one in layouts.values()}
    about = f" of {'; '.join(sorted(shapes))}" if shapes else ""
    lines = [
        "---",
        yaml.safe_dump(header, sort_keys=False, allow_unicode=False).rstrip(),
        "---",
        f"# {plain(results.name)}",
        "",
        f"Where and how strongly the attention heads{about} carry token position, at "
        f"{count(len(lineup), 'checkpoint')}: measured with ropewalk {__version__}.",
        "",
        "```python",
        "import ropewalk",
        "",
        f"r = ropewalk.load({repo!r})",
        "```",
        "",
        *_summary(results),
        *_origins(results),
        "## Files",
        "",
        "| file | |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in _FILES.items() if any(one.startswith(name) for one in names)),
        "",
    ]
    pictures = [name for name in names if name.startswith("figures/") and name.endswith("figure.png")]
    if pictures:
        lines += ["## Figures", "", *(f"![{name.split('/')[1]}]({name})\n" for name in pictures)]
    return "\n".join(lines).rstrip() + "\n"


_FILES = {
    "report.html": "figures, captions, tables and how they were made, in one page",
    "heads.csv": "one row per checkpoint and head",
    "qk.csv": "one row per checkpoint, head and component",
    "replicates.parquet": "the same with each group of documents left out: where errors come from",
    "captures/": "sums of queries and keys: `ropewalk export` makes statistics for other tools of them",
    "figures/": "each figure with its caption",
    "study.yaml": "the study as it was run, with versions and commits",
}


def _summary(results: Results) -> list[str]:
    table = results.summary()
    shown = [name for name in SHOWN if name in set(table["quantity"])]
    if not shown:
        return []
    rows = []
    for label, own in table.groupby("label", sort=False):
        cells = [_number(own[own["quantity"] == name]) for name in shown]
        rows.append(f"| {plain(label)} | {' | '.join(cells)} |")
    head = f"| checkpoint | {' | '.join(f'`{name}`' for name in shown)} |"
    return ["## Numbers", "", head, "|---" * (len(shown) + 1) + "|", *rows, "", "± is one standard error.", ""]


def _number(row: pd.DataFrame) -> str:
    if row.empty or pd.isna(row["value"].iloc[0]):
        return "-"
    error: Any = row["se"].iloc[0]
    return f"{row['value'].iloc[0]:.3f}" + ("" if pd.isna(error) else f" ± {error:.3f}")


def _origins(results: Results) -> list[str]:
    known = {} if results.record is None else results.record.data
    rows = [
        f"| {plain(one.get('checkpoint', ''))} | {plain(one.get('model', one.get('vectors', '')))} |"
        for one in known.get("origins", ())
    ]
    return ["## Models", "", "| checkpoint | came from |", "|---|---|", *rows, ""] if rows else []
