"""How a figure was made: the numbered steps that every caption ends with."""

import numpy as np

from ropewalk.captions.wording import span
from ropewalk.summary.view import View

SCRIPT = "scripts/generate_report_figures.py"


def steps(
    look: View,
    source: str,
    aggregation: str,
    drawing: str,
    function: str,
    script: str | None = None,
    *extra: str,
    errors: str | None = None,
) -> tuple[str, ...]:
    """Source, the heads it holds, aggregation, errors, drawing, and the functions that did it."""
    by_script = f"`{SCRIPT}`" + (f", function `{script}()`" if script else "")
    return (
        f"**Data source**: `{source}`, filtered to PC0 (`pc == 0`): {population(look)}.",
        *extra,
        f"**Aggregation**: {aggregation}",
        f"**Errors**: {errors if errors and look.has_errors else _errors(look)}",
        f"**Visualization**: {drawing}",
        f"**Function**: `ropewalk.figures.{function}(table)`; script {by_script}.",
    )


def population(look: View) -> str:
    """How many checkpoints, heads and layers there are, and how many heads have no correlation."""
    count = len(look.lineup)
    what = look.lineup.kind + ("s" if count > 1 else "")
    heads, layers = span([len(part) for part in look.parts]), span([int(part["layers"].iloc[0]) for part in look.parts])
    text = f"{count} {what}, {heads} head{'' if heads == '1' else 's'}{' each' if count > 1 else ''}, {layers} layers"
    if all(part["rope"].notna().all() for part in look.parts):
        rope = span([int(part["rope"].sum()) for part in look.parts])
        nope = span([int((~part["rope"]).sum()) for part in look.parts])
        text += f" ({rope} heads in RoPE layers, {nope} in NoPE layers)"
    else:
        text += " (which of them have RoPE is not known for all)"
    missing = [int(part[["r_q", "r_k"]].isna().any(axis=1).sum()) for part in look.parts]
    if any(missing):
        worst = int(np.argmax(missing))
        text += (
            f"; {sum(missing)} rows lack a correlation and are left out of means and categories (most at "
            f"{look.lineup.labels[worst]}: {missing[worst]})"
        )
    return text


def _errors(look: View) -> str:
    if not look.has_errors:
        return "none; the table comes without replicates, so directions are those of the numbers as they stand."
    shards = span([len(parts) for parts in look.left_out])
    return (
        f"± is one jackknife standard error: each of the {shards} shards of documents is left out in turn and "
        "everything is computed again; a change is called one where it exceeds twice its error."
    )
