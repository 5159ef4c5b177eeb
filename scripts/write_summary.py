"""Write the summary table of a results folder into a Markdown file, between its marks.

python scripts/write_summary.py results/smollm2_135m docs/smollm2.md
"""

import argparse
import math
import re
from pathlib import Path

from ropewalk.files import write_text
from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.results import load
from ropewalk.summary.tracks import Estimate

MARKS = ("<!-- summary -->", "<!-- /summary -->")
ROWS = {
    "mean_r_q": "mean r_q",
    "mean_r_k": "mean r_k",
    "mean_abs_r_k": "mean abs(r_k)",
    "discordant": "heads with r_k < 0",
    "mean_explained_variance": "variance explained by PC0",
    **{f"share_{category}": category for category in CATEGORIES},
}
SHARES = ("discordant", "mean_explained_variance", *(f"share_{category}" for category in CATEGORIES))


def summary_table(results: Path) -> str:
    """A Markdown table: one row per quantity, one column per checkpoint, standard errors after ±."""
    view = load(results).view
    labels = view.lineup.labels
    lines = [
        f"| {len(view.parts[0])} heads | {' | '.join(labels)} |",
        "|---|" + "---|" * len(labels),
        *(
            f"| {name} | {' | '.join(_cell(quantity, view.track(quantity).at(i)) for i in range(len(labels)))} |"
            for quantity, name in ROWS.items()
        ),
    ]
    return "\n".join(lines)


def _cell(quantity: str, estimate: Estimate) -> str:
    value, error = estimate
    if quantity in SHARES:
        return f"{value:.1%}" + ("" if math.isnan(error) else f" ± {error:.1%}")
    return f"{value:.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}")


def main() -> None:
    """Replace what stands between the marks of a Markdown file by the summary of a results folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("document", type=Path)
    options = parser.parse_args()
    text = options.document.read_text(encoding="utf-8")
    between = re.compile(f"(?<={re.escape(MARKS[0])}\n).*?(?={re.escape(MARKS[1])})", re.DOTALL)
    if not between.search(text):
        raise SystemExit(f"{options.document} has no marks for a summary: it needs the lines {MARKS[0]} and {MARKS[1]}")
    table = summary_table(options.results)
    write_text(options.document, between.sub(lambda _: f"\n{table}\n\n", text))


if __name__ == "__main__":
    main()
