"""Candidate findings on one quantity: its course over training, how models differ in it, or what it is at one."""

from collections.abc import Callable
from itertools import combinations

import numpy as np

from ropewalk.figures.findings import Candidate, Finding, certain, scale, sign
from ropewalk.figures.phrases import CORRELATION, QUANTITIES, Quantity, Unit
from ropewalk.figures.wording import capitalised, listed, signed, value
from ropewalk.summary.measures import deviation
from ropewalk.summary.tracks import Estimate, Track
from ropewalk.summary.view import COMMON, View

EARLY = 3
"""What has happened by the first of so many parts of the checkpoints is early."""
MOST = 0.5
"""A part of a change is most of it where it is more than this share, beyond its error."""
TURN = 0.25
"""A quantity turns where it loses again more than this share of what it gained, or gains of what it lost."""
VERBS = {1: "rises", -1: "falls"}
NOUNS = {1: "rise", -1: "fall"}


def courses(view: View, *quantities: "Quantity | str", candidates: int = 1) -> list[Candidate]:
    """What can be claimed of each quantity: its course over training, or how models differ; at one checkpoint, all.

    `candidates` are the quantities that these are the largest of, where there are more than are named.
    """
    own = [QUANTITIES[one] if isinstance(one, str) else one for one in quantities]
    if len(view.lineup) == 1:
        return [level(view, *own)]
    return [(course if view.lineup.training else differing)(view, one, candidates) for one in own]


def level(view: View, *quantities: Quantity, index: int = -1) -> Candidate:
    """What quantities are at one checkpoint, those that are beyond 0."""
    index %= len(view.lineup)
    found = {one: view.track(one.measure).at(index) for one in quantities}
    sizes = {one: certain(found[one], one.unit) / scale(one.measure, view.samples[index]) for one in quantities}
    there = [one for one in quantities if sizes[one] > 0]
    if not there:
        return None
    texts = [f"{one.name} is {value(found[one], one.unit)}" for one in there[:1]]
    texts += [f"{one.name} {value(found[one], one.unit)}" for one in there[1:]]
    return Finding(
        f"{capitalised(listed(texts))} at {view.lineup.labels[index]}",
        topics=frozenset(one.topic for one in there),
        size=max(sizes.values()),
    )


def differing(view: View, quantity: Quantity, candidates: int = 1) -> Candidate:
    """Which two models differ most in a quantity, where they do as the farthest of all pairs."""
    track, labels = view.track(quantity.measure), view.lineup.labels
    there = [index for index in range(len(labels)) if np.isfinite(track.values[index])]
    if len(there) < 2:
        return None
    low, high = (pick(there, key=lambda index: track.values[index]) for pick in (min, max))
    size = certain(track.change(low, high), quantity.unit, candidates * len(list(combinations(there, 2))))
    return _finding(
        view,
        quantity,
        # Not `highest` and `lowest`: only these two are held against each other, and a third may be as high.
        f"{capitalised(quantity.name)} is higher in {labels[high]} than in {labels[low]}",
        f"{value(track.at(high), quantity.unit)} against {value(track.at(low), quantity.unit)}",
        size,
        (low, high),
    )


def course(view: View, quantity: Quantity, candidates: int = 1) -> Candidate:
    """How a quantity goes over training, in the most telling way that holds: see `SHAPES`."""
    track = view.track(quantity.measure)
    if np.isnan(track.values[[0, -1]]).any():
        return None
    found = (shape(view, quantity, track, candidates) for shape in SHAPES)
    return next((one for one in found if one is not None), None)


Shape = Callable[[View, Quantity, Track, int], Candidate]


def _turning(view: View, quantity: Quantity, track: Track, candidates: int) -> Candidate:
    """Up to a checkpoint in between and down again, or the other way round."""
    last, unit = len(view.lineup) - 1, quantity.unit
    inner = [index for index in range(1, last) if np.isfinite(track.values[index])]
    if not inner:
        return None
    tried = candidates * len(inner)
    for way, pick in ((1, max), (-1, min)):
        top = pick(inner, key=lambda index: track.values[index])
        there, back = track.change(0, top), track.change(top, last)
        if sign(there, unit, tried) != way or sign(back, unit, tried) != -way:
            continue
        if min(abs(there.value), abs(back.value)) < TURN * max(abs(there.value), abs(back.value)):
            continue
        return _finding(
            view,
            quantity,
            f"{capitalised(quantity.name)} {VERBS[way]} until {view.lineup.labels[top]}, then {VERBS[-way]}",
            _points(view, quantity, track, 0, top, last),
            min(certain(there, unit, tried), certain(back, unit, tried)),
            (0, last),
        )
    return None


def _early(view: View, quantity: Quantity, track: Track, candidates: int) -> Candidate:
    """Most of the change lies before the first third of the checkpoints is over."""
    last = len(view.lineup) - 1
    whole = track.change(0, last)
    way = sign(whole, quantity.unit, candidates)
    for index in range(1, last // EARLY + 1) if way else ():
        rest = track.change(index, last)
        if sign(track.change(0, index), quantity.unit, candidates) == way and _at_most(rest, (1 - MOST) * whole.value):
            return _finding(
                view,
                quantity,
                f"{capitalised(quantity.name)} {VERBS[way]} early: most of its {NOUNS[way]} is over by "
                f"{view.lineup.labels[index]}",
                _points(view, quantity, track, 0, index, last),
                certain(whole, quantity.unit, candidates),
                (0, last),
                _at_one_context(view, quantity, way, index),
            )
    return None


def _extended(view: View, quantity: Quantity, track: Track, candidates: int) -> Candidate:
    """Most of the change lies in the phases with longer contexts."""
    last, before = len(view.lineup) - 1, before_extension(view)
    if before is None or before == 0 or np.isnan(track.values[before]):
        return None
    whole, grown = track.change(0, last), track.change(before, last)
    way = sign(whole, quantity.unit, candidates)
    if not way or sign(grown, quantity.unit, candidates) != way:
        return None
    if _at_most(track.change(0, before), (1 - MOST) * whole.value):
        contexts = [int(view.parts[index]["context"].iloc[0]) for index in (before, last)]
        return _finding(
            view,
            quantity,
            f"{capitalised(quantity.name)} {VERBS[way]} mostly when the context grows from {contexts[0]:,} to "
            f"{contexts[1]:,} tokens",
            _points(view, quantity, track, 0, before, last),
            certain(whole, quantity.unit, candidates),
            (0, last),
            _at_one_context(view, quantity, way),
        )
    return None


def _plain(view: View, quantity: Quantity, track: Track, candidates: int) -> Candidate:
    """From the first checkpoint to the last."""
    last = len(view.lineup) - 1
    whole = track.change(0, last)
    way = sign(whole, quantity.unit, candidates)
    if way:
        return _finding(
            view,
            quantity,
            f"{capitalised(quantity.name)} {VERBS[way]} over training",
            _points(view, quantity, track, 0, last),
            certain(whole, quantity.unit, candidates),
            (0, last),
            _at_one_context(view, quantity, way),
        )
    return None


SHAPES: tuple[Shape, ...] = (_turning, _early, _extended, _plain)
"""Ways in which a course is told, the most telling first."""


def before_extension(view: View) -> int | None:
    """The last checkpoint before the context grows for the first time; None where it does not."""
    if any("context" not in part for part in view.parts):
        return None
    contexts = [int(part["context"].iloc[0]) for part in view.parts]
    longer = [index for index, context in enumerate(contexts) if context > contexts[0]]
    return longer[0] - 1 if longer and contexts[-1] > contexts[0] else None


def _at_one_context(view: View, quantity: Quantity, way: int, first: int = 0) -> tuple[str, str]:
    """What is left of a change over growing contexts with every document cut to the shortest: words, and numbers.

    A correlation with position depends on how far positions reach. Nothing is added where the change stays, or, since
    a later checkpoint than the first, where it is not undone.
    """
    if view.axis != "pooled" or not view.has_columns(COMMON) or quantity.measure not in ON_POSITIONS:
        return "", ""
    change = view.track_common(quantity.measure).change(first, len(view.lineup) - 1)
    left = sign(change, quantity.unit)
    if np.isnan(change.value) or (left != -way if first else left == way):
        return "", ""
    shortest = min(int(part["context"].iloc[0]) for part in view.parts)
    words = f"{VERBS[left]} again later" if first else VERBS[left] if left else f"does not {NOUNS[way]}"
    since = f"from {view.lineup.labels[first]} on" if first else "over training"
    return (
        f"; within the first {shortest:,} tokens alone it {words}",
        f"; {signed(change, quantity.unit)} {since}, within {shortest:,} tokens",
    )


ON_POSITIONS = ("mean_r_q", "mean_r_k", "mean_abs_r_k")
"""Quantities that depend on how far positions reach."""


def tightening(view: View, column: str, name: str = "", unit: Unit = CORRELATION) -> Candidate:
    """Whether heads become more alike or less over training, by the standard deviation of a column over them."""
    quantity = Quantity(f"the spread of {column}", unit, deviation(column), "", f"sd {column}")
    last, track = len(view.lineup) - 1, view.track(quantity.measure)
    if not view.lineup.connected or np.isnan(track.values[[0, last]]).any():
        return None
    change = track.change(0, last)
    words = "come to agree" if change.value < 0 else "come to differ more"
    return _finding(
        view,
        quantity,
        f"Heads {words} in {name or column}",
        f"standard deviation over heads {_points(view, quantity, track, 0, last)}",
        certain(change, unit),
        (0, last),
    )


def _at_most(part: Estimate, limit: float) -> bool:
    """Whether a part is smaller than a limit for certain; without errors, as it stands."""
    reach = 0.0 if np.isnan(part.se) else part.reach()
    return bool(abs(part.value) + reach < abs(limit))


def _points(view: View, quantity: Quantity, track: Track, *indices: int) -> str:
    return ", ".join(f"{value(track.at(index), quantity.unit)} at {view.lineup.labels[index]}" for index in indices)


def _finding(
    view: View,
    quantity: Quantity,
    sentence: str,
    evidence: str,
    size: float,
    indices: tuple[int, ...],
    added: tuple[str, str] = ("", ""),
) -> Candidate:
    """The finding where its size is above 0."""
    if not size > 0:
        return None
    effect = size / scale(quantity.measure, *(view.samples[index] for index in indices))
    return Finding(sentence + added[0], evidence + added[1], frozenset({quantity.topic}), effect)
