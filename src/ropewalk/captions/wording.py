"""Sentences about numbers: values with errors, and directions only where they exceed their error."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.summary.tracks import Estimate, Track
from ropewalk.summary.view import View


@dataclass(frozen=True)
class Unit:
    """How a quantity is written: digits after the point, a factor, and what follows a value and a change."""

    digits: int
    factor: float
    value: str
    change: str

    def number(self, value: float) -> str:
        """The number alone, rounded; a rounded -0 is 0."""
        return f"{round(value * self.factor, self.digits) + 0.0:.{self.digits}f}"

    def error(self, se: float) -> str:
        """` ± se`, or nothing where there is none."""
        if math.isnan(se):
            return ""
        smallest = 10.0**-self.digits
        return (
            f" ± {self.number(se)}" if round(se * self.factor, self.digits) > 0 else f" ± <{smallest:.{self.digits}f}"
        )


CORRELATION = Unit(3, 1.0, "", "")
SHARE = Unit(1, 100.0, "%", " percentage points")


def value(estimate: Estimate, unit: Unit) -> str:
    """A value with its error, such as `0.671 ± 0.004` or `34.0% ± 1.2`."""
    if math.isnan(estimate.value):
        return "no value"
    return f"{unit.number(estimate.value)}{unit.value}{unit.error(estimate.se)}"


def amount(change: Estimate, unit: Unit) -> str:
    """The size of a change without its sign."""
    return f"{unit.number(abs(change.value))}{unit.error(change.se)}{unit.change}"


def sign(change: Estimate, unit: Unit) -> int:
    """1 or -1 where the change exceeds twice its error (or, without one, the digits shown), else 0."""
    limit = 2 * change.se if not math.isnan(change.se) else 10.0**-unit.digits / 2 / unit.factor
    return 0 if math.isnan(change.value) or abs(change.value) <= limit else int(math.copysign(1, change.value))


def direction(change: Estimate, unit: Unit) -> str:
    """`rises by ...`, `falls by ...`, or that no change can be claimed."""
    if math.isnan(change.value):
        return "cannot be compared"
    if change.value == 0:
        return "does not change"
    way = sign(change, unit)
    if way:
        return f"{'rises' if way > 0 else 'falls'} by {amount(change, unit)}"
    if math.isnan(change.se):
        return "does not change at this precision"
    return f"shows no change beyond its error ({unit.number(change.value)}{unit.error(change.se)}{unit.change})"


def story(look: View, name: str, track: Track, unit: Unit) -> list[str]:
    """A paragraph and bullets on one quantity: over training its changes by phase, over models its range by family."""
    if len(look.lineup) == 1:
        return [f"**{name}** is {value(track.at(0), unit)} at {look.lineup.labels[0]}."]
    return _course(look, name, track, unit) if look.lineup.training else _range(look, name, track, unit)


def overall(look: View, name: str, track: Track, unit: Unit) -> str:
    """One clause on the whole study: from the first checkpoint to the last, or from the lowest model to the highest."""
    labels, last = look.lineup.labels, len(look.lineup) - 1
    if last == 0:
        return f"{name} is {value(track.at(0), unit)}"
    if look.lineup.training:
        ends = f"from {value(track.at(0), unit)} at {labels[0]} to {value(track.at(last), unit)} at {labels[last]}"
        return f"{name} {direction(track.change(0, last), unit)} ({ends})"
    return f"{name} {_extremes(look, track, unit, range(last + 1))}"


def takeaway(look: View, quantities: Sequence[tuple[str, Track, Unit]]) -> str:
    """A sentence on the whole study: each quantity's change and where it ends, or its range over models."""
    labels, last = look.lineup.labels, len(look.lineup) - 1
    if look.lineup.training and last:
        texts = [_ending(name, track.change(0, last), track.at(last), unit) for name, track, unit in quantities]
        return f"From {labels[0]} to {labels[last]}, {'; '.join(texts)}."
    texts = [overall(look, name, track, unit) for name, track, unit in quantities]
    return f"{f'At {labels[0]}' if last == 0 else f'Over the {look.lineup.kind}s'}, {'; '.join(texts)}."


def _ending(name: str, change: Estimate, end: Estimate, unit: Unit) -> str:
    reached = "" if math.isnan(change.value) else f", to {value(end, unit)}"
    return f"{name} {direction(change, unit)}{reached}"


def _course(look: View, name: str, track: Track, unit: Unit) -> list[str]:
    labels, groups = look.lineup.labels, look.lineup.groups
    lines = [f"{_bold(overall(look, name, track, unit), name)}."]
    for group in groups if any(group.name for group in groups) else ():
        first, last = group.start, group.stop - 1
        text = f"{value(track.at(first), unit)} ({labels[first]})"
        if first < last:
            way = direction(track.change(first, last), unit)
            text += f" to {value(track.at(last), unit)} ({labels[last]}), {way} within the phase"
        if first:
            way = direction(track.change(first - 1, first), unit)
            text += f"; {way} on entering it (from {labels[first - 1]})"
        lines.append(f"- **{group.name or 'no phase'}**: {text}.")
    return [*lines, f"- {largest_steps(look, track, unit)}"]


def largest_steps(look: View, track: Track, unit: Unit) -> str:
    """The largest rise and the largest fall between consecutive checkpoints, where there are any."""
    labels = look.lineup.labels
    steps = [(track.change(index, index + 1), index) for index in range(len(labels) - 1)]
    found = []
    for way, word in ((1, "rise"), (-1, "fall")):
        moving = [step for step in steps if sign(step[0], unit) == way]
        if moving:
            change, index = max(moving, key=lambda step: abs(step[0].value))
            found.append(f"largest {word} {amount(change, unit)} ({labels[index]} to {labels[index + 1]})")
        else:
            found.append(f"no {word}" + (" beyond its error" if look.has_errors else ""))
    return f"Between consecutive checkpoints: {', '.join(found)}."


def largest_change(look: View, tracks: Mapping[str, Track], unit: Unit, what: str) -> str:
    """Which of several quantities (categories, cells) changes most between two consecutive checkpoints."""
    labels = look.lineup.labels
    changes = [
        (track.change(index, index + 1), name, index)
        for name, track in tracks.items()
        for index in range(len(labels) - 1)
    ]
    moving = [item for item in changes if sign(item[0], unit)]
    if not moving:
        return f"No {what} changes between consecutive checkpoints{' beyond its error' if look.has_errors else ''}."
    change, name, index = max(moving, key=lambda item: abs(item[0].value))
    return (
        f"The largest change of a {what} between consecutive checkpoints is the "
        f"{'rise' if change.value > 0 else 'fall'} of {name} by {amount(change, unit)} ({labels[index]} to "
        f"{labels[index + 1]})."
    )


def _range(look: View, name: str, track: Track, unit: Unit) -> list[str]:
    lines = [f"{_bold(overall(look, name, track, unit), name)}."]
    for group in look.lineup.groups:
        if group.name:
            lines.append(f"- **{group.name}**: {_extremes(look, track, unit, range(group.start, group.stop))}.")
    return lines


def _extremes(look: View, track: Track, unit: Unit, members: Sequence[int]) -> str:
    known = [index for index in members if np.isfinite(track.values[index])]
    if not known:
        return "has no value"
    low, high = min(known, key=lambda i: track.values[i]), max(known, key=lambda i: track.values[i])
    if len(known) > 1 and track.values[low] == track.values[high]:
        return f"is {unit.number(track.values[low])}{unit.value} throughout"
    if low == high:
        return f"is {value(track.at(low), unit)} at {look.lineup.labels[low]}"
    return (
        f"lies between {value(track.at(low), unit)} ({look.lineup.labels[low]}) and {value(track.at(high), unit)} "
        f"({look.lineup.labels[high]})"
    )


def _bold(sentence: str, name: str) -> str:
    return sentence.replace(name, f"**{name}**", 1)


def span(counts: Sequence[int]) -> str:
    """Counts per checkpoint: the one number, or the range of them."""
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
