"""How a figure was made: the numbered steps that every caption ends with."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ropewalk.figures.findings import AT_MOST
from ropewalk.figures.wording import span
from ropewalk.geometry.jackknife import MIXED, critical
from ropewalk.geometry.taxonomy import rule_conditions
from ropewalk.summary.view import View


def steps(
    view: View,
    source: str,
    figure: str,
    *extra: str,
    drawing: str,
    checkpoints: Sequence[str] | None = None,
    options: Mapping[str, Any] = {},
) -> tuple[str, ...]:
    """Source, the heads it holds, `extra` steps, drawing, errors, how findings are chosen, and how to draw it again.

    `checkpoints` are those the figure was asked for, `options` others that it was drawn with (None where they were not
    given). A figure without a name is none of the gallery.
    """
    chosen = f", checkpoints={json.dumps(list(checkpoints), ensure_ascii=False)}" if checkpoints else ""
    chosen += "".join(f", {name}={value!r}" for name, value in options.items() if value is not None)
    chosen += f', axis="{view.axis}"' if view.axis != "pooled" else ""
    turned = f" --axis {view.axis}" if view.axis != "pooled" else ""
    code = (
        f'**Code**: `ropewalk.load(RESULTS).figure("{figure}"{chosen})` in Python, '
        f"`ropewalk figures RESULTS{turned}` on the command line."
    )
    return (
        f"**Data**: `{source}`, {_rows(source)}: {population(view)}.",
        *extra,
        f"**Drawing**: {drawing}",
        f"**Errors**: {_errors(view)}",
        *([code] if figure else []),
    )


def _rows(source: str) -> str:
    return "PC0 only (`pc == 0`)" if source.endswith("qk.csv") else "a row per head"


def classification_step() -> str:
    """The step that says how heads are put into categories."""
    rules = [
        f"{category} {' and '.join(conditions) or 'everything else'}" for category, conditions in rule_conditions()
    ]
    return f"**Classification**: {'; '.join(rules)}."


def population(view: View) -> str:
    """How many checkpoints, heads and layers there are, and how many heads have no correlation."""
    count = len(view.lineup)
    what = view.lineup.noun + ("s" if count > 1 else "")
    heads, layers = span([len(part) for part in view.parts]), span([int(part["layers"].iloc[0]) for part in view.parts])
    text = f"{count} {what}, {heads} head{'' if heads == '1' else 's'}{' each' if count > 1 else ''}, {layers} layers"
    if all(part["rope"].notna().all() for part in view.parts):
        rope = span([int(part["rope"].sum()) for part in view.parts])
        nope = span([int((~part["rope"]).sum()) for part in view.parts])
        text += f" ({rope} heads in RoPE layers, {nope} in NoPE layers)"
    else:
        text += " (which of them have RoPE is not known for all)"
    missing = [int(part[["r_q", "r_k"]].isna().any(axis=1).sum()) for part in view.parts]
    if any(missing):
        worst = int(np.argmax(missing))
        text += (
            f"; {sum(missing)} rows lack a correlation and are left out of means and categories (most at "
            f"{view.lineup.labels[worst]}: {missing[worst]})"
        )
    mixing = [int((part["overlap"] < MIXED).sum()) if "overlap" in part else 0 for part in view.parts]
    if any(mixing) and view.axis == "pooled":
        worst = int(np.argmax(mixing))
        text += (
            f"; in {sum(mixing)} rows PC0 mixes with other components when a shard is left out, and its errors are "
            f"those of a mixture (most at {view.lineup.labels[worst]}: {mixing[worst]})"
        )
    return text


def _errors(view: View) -> str:
    if not view.has_errors:
        return (
            "none, as the table comes without replicates: findings take the numbers as they stand, the largest "
            f"{AT_MOST} at most."
        )
    limits = sorted({f"{critical(count):.2f}" for count in view.groups if count > 1})
    return (
        f"± is one standard error over {span(view.groups)} shards of documents, each left out in turn (for shares of "
        f"heads, their correlations moved by their errors). Claimed is what exceeds {' to '.join(limits)} of them "
        f"(95%, Student's t), and more where it is the largest of several. Findings are at most the {AT_MOST} largest, "
        "by what is certain of them in standard deviations over heads."
    )
