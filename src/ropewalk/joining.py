"""Several results as one."""

from collections.abc import Sequence

from ropewalk.analysis import Tables
from ropewalk.errors import RopewalkError
from ropewalk.results import Results


def concat(parts: Sequence[Results]) -> Results:
    """Several results as one: models beside each other, or checkpoints of one training.

    >>> r = concat([measure(model, texts, tokenizer, context=512, label=str(step), step=step)])  # doctest: +SKIP
    """
    if not parts:
        raise RopewalkError("concat() needs at least one result")
    for field in ("checkpoint", "label"):
        names = [name for part in parts for name in part.table[field].unique()]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise RopewalkError(f"two of the results have the {field} {twice!r}: give each its own label")
    studies = [part.study for part in parts]
    study = None
    known = [one for one in studies if one is not None]
    if len(known) == len(parts):
        if any(one.capture != known[0].capture for one in known):
            raise RopewalkError("the results were captured with different settings: measure them alike to join them")
        study = known[0].model_copy(update={"checkpoints": tuple(c for one in known for c in one.checkpoints)})
    captures = {name: captured for part in parts for name, captured in part.captures.items()}
    return Results(Tables.concat([part.tables for part in parts]), captures, study)
