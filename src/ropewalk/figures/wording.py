"""Words and numbers as captions write them: values with errors, titles, lists, and where correlations are measured."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ropewalk.figures.phrases import Unit
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View

WHERE: Mapping[str, str] = {
    "pooled": "on PC0",
    "centred": "on PC0 of queries and keys centred apart",
    "drift": "along the drift axis",
}
"""Where r_q and r_k are measured, by axis."""
AXIS_NAMES: Mapping[str, str] = {"pooled": "PC0", "centred": "PC0, centred apart", "drift": "drift axis"}
"""The same in few words, for axes and legends."""
NO_VALUE = "–"


def titled(title: str, view: View) -> str:
    """The title of a caption with what the figure runs over."""
    if len(view.lineup) == 1:
        return f"{title} at {view.lineup.labels[0]}"
    return f"{title} {'During Training' if view.lineup.training else f'Across {view.lineup.noun.title()}s'}"


def over(view: View) -> str:
    """What the sentence of a figure runs over, such as `over training`."""
    if len(view.lineup) == 1:
        return f"at {view.lineup.labels[0]}"
    return "over training" if view.lineup.training else f"over the {view.lineup.noun}s"


def clearest(view: View, index: int) -> str:
    """Where numbers are from: the checkpoint, or of several models the one that shows most."""
    return f"{'clearest in' if view.lineup.side_by_side else 'at'} {view.lineup.labels[index]}"


def known(view: View, *measures: str) -> list[str]:
    """The measures that have a value at some checkpoint (a model can have no NoPE layers)."""
    return [measure for measure in measures if not np.isnan(view.track(measure).values).all()]


def value(estimate: Estimate, unit: Unit) -> str:
    """A value with its error, such as `0.671 ± 0.004`, `34.0% ± 1.2` or `2.10 ± 0.03 nats`."""
    if math.isnan(estimate.value):
        return "no value"
    return f"{cell(estimate, unit)}{'' if unit.value == '%' else unit.value}"


def cell(estimate: Estimate, unit: Unit) -> str:
    """The same in a table, whose header says the unit."""
    if math.isnan(estimate.value):
        return NO_VALUE
    return f"{unit.number(estimate.value)}{'%' if unit.value == '%' else ''}{unit.error(estimate.se)}"


def amount(change: Estimate, unit: Unit) -> str:
    """The size of a change without its sign."""
    return f"{unit.number(abs(change.value))}{unit.error(change.se)}{unit.change}"


def signed(change: Estimate, unit: Unit) -> str:
    """A change with its sign; what rounds to 0 has none."""
    number = unit.number(change.value)
    return f"{'+' if float(number) > 0 else ''}{number}{unit.error(change.se)}{unit.change}"


def where(view: View) -> str:
    """Where r_q and r_k of a view are measured."""
    return WHERE[view.axis]


def capitalised(text: str) -> str:
    """The text as the beginning of a sentence; names such as r_q stay as they are."""
    return text if text.startswith("r_") else text[:1].upper() + text[1:]


def listed(texts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def span(counts: Sequence[int]) -> str:
    """Counts per checkpoint: the one number, or the range of them."""
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def unclaimed(view: View, what: str) -> str:
    """The one sentence where nothing can be claimed of something."""
    beyond = "is beyond its error" if view.has_errors else "shows in the digits that are given"
    return f"Nothing can be claimed of {what}: no change or difference {beyond}"


def missing(view: View, what: str) -> str:
    """The one sentence where there are no numbers."""
    return f"There is no {what} {over(view)}"
