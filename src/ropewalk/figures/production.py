"""How a figure was made: the numbered steps that every caption ends with."""

import json
from collections.abc import Sequence

import numpy as np

from ropewalk.figures.wording import BEYOND, span
from ropewalk.geometry.taxonomy import rule_conditions
from ropewalk.summary.view import View


def steps(
    view: View,
    source: str,
    figure: str,
    *extra: str,
    aggregation: str,
    drawing: str,
    errors: str = "",
    checkpoints: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Source, the heads it holds, `extra` steps, aggregation, errors, drawing, and how to draw the figure again.

    `errors` says what an error is where that is not the usual ±; `checkpoints` are those the figure was asked for.
    """
    chosen = f", checkpoints={json.dumps(list(checkpoints), ensure_ascii=False)}" if checkpoints else ""
    return (
        f"**Data source**: `{source}`, filtered to PC0 (`pc == 0`): {population(view)}.",
        *extra,
        f"**Aggregation**: {aggregation}",
        f"**Errors**: {errors if errors and view.has_errors else _errors(view)}",
        f"**Visualization**: {drawing}",
        f'**Code**: `ropewalk.load(RESULTS).figure("{figure}"{chosen})` in Python, `ropewalk figures RESULTS` on the '
        "command line.",
    )


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
    return text


def _errors(view: View) -> str:
    if not view.has_errors:
        return "none; the table comes without replicates, so directions are those of the numbers as they stand."
    shards = span([len(parts) for parts in view.left_out])
    return (
        f"± is one jackknife standard error: each of the {shards} shards of documents is left out in turn and "
        f"everything is computed again; a change is called one where it exceeds {BEYOND} standard errors."
    )
