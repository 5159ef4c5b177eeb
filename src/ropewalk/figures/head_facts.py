"""What is said of one head: its numbers, and what it stands out in among the heads of its checkpoint."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from ropewalk.figures.caption import Table
from ropewalk.figures.findings import Candidate, Finding, certain
from ropewalk.figures.phrases import CORRELATION, PLAIN, SHARE, Unit
from ropewalk.figures.wording import cell, value
from ropewalk.head import HeadDetail
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View


class Fact(NamedTuple):
    """A column of heads, what it is called, and how it is written."""

    column: str
    name: str
    unit: Unit


FACTS = (
    Fact("r_q", "r_q", CORRELATION),
    Fact("r_k", "r_k", CORRELATION),
    Fact("fixed_share_q", "fixed share of queries", SHARE),
    Fact("fixed_share_k", "fixed share of keys", SHARE),
    Fact("score_r2_distance", "share of scores that distance explains", SHARE),
    Fact("mass_first", "attention on the first token", SHARE),
    Fact("bias_strength_context", "bias over the context", PLAIN),
    Fact("ap_overall", "plasticity", CORRELATION),
    Fact("ap_drop", "drop of plasticity", CORRELATION),
)
EXTREME = 0.1
"""A head stands out where no more than this share of the heads lies beyond it."""


def estimate(view: View, head: HeadDetail, fact: Fact) -> Estimate | None:
    """The head's own number with its error; None where it has none."""
    if fact.column not in head.row or pd.isna(head.row[fact.column]):
        return None
    se = head.row.get(f"se_{fact.column}", np.nan)
    groups = view.groups[view.lineup.names.index(head.checkpoint)]
    return Estimate(float(head.row[fact.column]), float(se) if pd.notna(se) else float("nan"), groups)


def _all_heads(view: View, head: HeadDetail, fact: Fact) -> "pd.Series[float]":
    return view.parts[view.lineup.names.index(head.checkpoint)][fact.column].dropna()


def standing_out(view: View, head: HeadDetail, fact: Fact) -> Candidate:
    """That a head is among the highest or lowest of its checkpoint in a column, and beyond the median by its error."""
    own = estimate(view, head, fact)
    if own is None:
        return None
    column = _all_heads(view, head, fact)
    away = own._replace(value=own.value - float(column.median()))
    above, below = int((column > own.value).sum()), int((column < own.value).sum())
    beyond, word = min((above, "highest"), (below, "lowest"))
    size, spread = certain(away, fact.unit), float(column.std())
    if beyond + 1 > EXTREME * len(column) or not size > 0 or not spread > 0:
        return None
    rank = f"the {word}" if not beyond else f"number {beyond + 1} from the {'top' if word == 'highest' else 'bottom'}"
    return Finding(
        f"Its {fact.name} is among the {word}",
        f"{value(own, fact.unit)}, {rank} of {len(column)} heads",
        frozenset({fact.column}),
        size / spread,
    )


def facts_table(view: View, head: HeadDetail) -> Table | None:
    """The head's numbers beside the quartiles of all heads of its checkpoint."""
    rows = []
    for fact in FACTS:
        own = estimate(view, head, fact)
        if own is not None:
            parts = [_all_heads(view, head, fact).quantile(part) for part in (0.25, 0.5, 0.75)]
            quartiles = [cell(Estimate(float(part), float("nan")), fact.unit) for part in parts]
            rows.append((fact.name, cell(own, fact.unit), *quartiles))
    header = ("", "this head", "lower quartile", "median of all", "upper quartile")
    return Table(header, tuple(rows)) if rows else None
