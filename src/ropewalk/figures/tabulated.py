"""The small table of a caption: quantities at the first and the last checkpoint of each phase, or at every model."""

from collections.abc import Mapping, Sequence

import numpy as np

from ropewalk.figures.caption import Table
from ropewalk.figures.phrases import QUANTITIES, Quantity, Unit
from ropewalk.figures.wording import NO_VALUE, cell
from ropewalk.summary.tracks import Gap, Track
from ropewalk.summary.view import View

ALL = 6
"""Checkpoints up to which all are in the table."""
MOST = 12
"""Rows that a table has at most."""


def shown_rows(view: View) -> list[int]:
    """Checkpoints of the table: all of a few, else the first and the last of each phase, or some of many."""
    lineup = view.lineup
    if len(lineup) <= (ALL if lineup.training else MOST):
        return list(range(len(lineup)))
    ends = sorted({index for group in lineup.groups for index in (group.start, group.stop - 1)})
    return ends if lineup.training and len(ends) <= MOST else lineup.representative(MOST)


def tabulated(
    view: View,
    *quantities: "Quantity | str",
    rows: Sequence[int] | None = None,
    beside: Mapping[str, tuple[Track | Gap, Unit]] = {},
) -> Table | None:
    """Quantities, those that have a value somewhere, by checkpoint; None where none has.

    `rows` are the checkpoints, where they are others than `shown_rows`; `beside` are further columns by header.
    """
    own = [QUANTITIES[one] if isinstance(one, str) else one for one in quantities]
    columns = {one.header: (view.track(one.measure), one.unit) for one in own} | dict(beside)
    there = {name: column for name, column in columns.items() if not np.isnan(column[0].values).all()}
    if not there:
        return None
    shown = shown_rows(view) if rows is None else rows
    lineup = view.lineup
    grouped = len({group.name for group in lineup.groups}) > 1
    header = [*(["phase" if lineup.training else "family"] if grouped else []), lineup.noun]
    return Table(
        (*header, *there),
        tuple(
            (
                *([lineup.group_of(index).name or NO_VALUE] if grouped else []),
                lineup.labels[index],
                *(cell(track.at(index), unit) for track, unit in there.values()),
            )
            for index in shown
        ),
        _note(view, shown),
    )


def _note(view: View, shown: Sequence[int]) -> str:
    if len(shown) == len(view.lineup):
        return ""
    ends = {index for group in view.lineup.groups for index in (group.start, group.stop - 1)}
    return f"{len(shown)} of {len(view.lineup)} {view.lineup.noun}s" + (
        ", the first and the last of each phase." if view.lineup.training and set(shown) == ends else "."
    )
