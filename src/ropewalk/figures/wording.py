"""Sentences about numbers: values with errors, and directions only where they exceed their error."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ropewalk.figures.phrases import PHRASES, Unit
from ropewalk.summary.tracks import Estimate, Track
from ropewalk.summary.view import View

WHERE: Mapping[str, str] = {
    "pooled": "on PC0",
    "centred": "on PC0 of queries and keys centred apart",
    "drift": "along the drift axis",
}
"""Where r_q and r_k are measured, by axis."""
AXIS_NAMES: Mapping[str, str] = {"pooled": "PC0", "centred": "PC0, centred apart", "drift": "drift axis"}
"""The same in few words, for axes and legends."""

MOSTLY = 0.5
"""Separation share from which on PC0 is rather the axis between queries and keys."""


def titled(title: str, view: View) -> str:
    """The title of a caption with what the figure runs over."""
    if len(view.lineup) == 1:
        return f"{title} at {view.lineup.labels[0]}"
    return f"{title} {'During Training' if view.lineup.training else f'Across {view.lineup.noun.title()}s'}"


def checkpoints_shown(view: View) -> str:
    """What stands on the checkpoint axis, and what its dashed lines separate."""
    named = [group.name for group in view.lineup.groups if group.name]
    text = f"{len(view.lineup)} {view.lineup.noun}{'s' if len(view.lineup) > 1 else ''}"
    if len(named) > 1:
        groups = "phases" if view.lineup.training else "families"
        text += f" in {len(named)} {groups} ({', '.join(named)}), separated by dashed lines"
    return text


def known(view: View, *measures: str) -> list[str]:
    """The measures that have a value at some checkpoint (a model can have no NoPE layers)."""
    return [measure for measure in measures if not np.isnan(view.track(measure).values).all()]


def value(estimate: Estimate, unit: Unit) -> str:
    """A value with its error, such as `0.671 ± 0.004` or `34.0% ± 1.2`."""
    if math.isnan(estimate.value):
        return "no value"
    return f"{unit.number(estimate.value)}{unit.value}{unit.error(estimate.se)}"


def amount(change: Estimate, unit: Unit) -> str:
    """The size of a change without its sign."""
    return f"{unit.number(abs(change.value))}{unit.error(change.se)}{unit.change}"


def sign(change: Estimate, unit: Unit, candidates: int = 1) -> int:
    """1 or -1 where the change lies outside its 95% interval (or, without one, exceeds the digits shown), else 0.

    The largest of several candidates is held against the interval that holds for all of them.
    """
    limit = change.reach(candidates) if not math.isnan(change.se) else 10.0**-unit.digits / 2 / unit.factor
    return int(math.copysign(1, change.value)) if abs(change.value) > limit else 0


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


def where(view: View) -> str:
    """Where r_q and r_k of a view are measured."""
    return WHERE[view.axis]


def story(view: View, name: str, track: Track, unit: Unit) -> list[str]:
    """A paragraph and bullets on one quantity: over training its changes by phase, over models its range by family."""
    if len(view.lineup) == 1:
        return [f"**{name}** is {value(track.at(0), unit)} at {view.lineup.labels[0]}."]
    return _course(view, name, track, unit) if view.lineup.training else _range(view, name, track, unit)


def story_of(view: View, measure: str) -> list[str]:
    """The story of a measure that has a phrase."""
    name, unit = PHRASES[measure]
    return story(view, capitalised(name), view.track(measure), unit)


def overall(view: View, name: str, track: Track, unit: Unit) -> str:
    """One clause on the whole study: from the first checkpoint to the last, or from the lowest model to the highest."""
    labels, last = view.lineup.labels, len(view.lineup) - 1
    if last == 0:
        return f"{name} is {value(track.at(0), unit)}"
    if view.lineup.training:
        ends = f"from {value(track.at(0), unit)} at {labels[0]} to {value(track.at(last), unit)} at {labels[last]}"
        return f"{name} {direction(track.change(0, last), unit)} ({ends})"
    return f"{name} {_extremes(view, track, unit, range(last + 1))}"


def takeaway(view: View, quantities: Sequence[tuple[str, Track, Unit]]) -> str:
    """A sentence on the whole study: each quantity's change and where it ends, or its range over models."""
    labels, last = view.lineup.labels, len(view.lineup) - 1
    if view.lineup.connected:
        texts = [_ending(name, track.change(0, last), track.at(last), unit) for name, track, unit in quantities]
        return f"From {labels[0]} to {labels[last]}, {'; '.join(texts)}."
    texts = [overall(view, name, track, unit) for name, track, unit in quantities]
    return f"{f'At {labels[0]}' if last == 0 else f'Over the {view.lineup.noun}s'}, {'; '.join(texts)}."


def told(view: View, *measures: str) -> str:
    """A sentence for each measure that has a value: from the first checkpoint to the last, or its range over models."""
    phrases = [
        (PHRASES[measure].name, view.track(measure), PHRASES[measure].unit) for measure in known(view, *measures)
    ]
    return " ".join(f"{capitalised(overall(view, *phrase))}." for phrase in phrases)


def takeaway_of(view: View, *measures: str) -> str:
    """The takeaway of measures that have a phrase."""
    return takeaway(view, [(PHRASES[measure].name, view.track(measure), PHRASES[measure].unit) for measure in measures])


def _ending(name: str, change: Estimate, end: Estimate, unit: Unit) -> str:
    reached = "" if math.isnan(change.value) else f", to {value(end, unit)}"
    return f"{name} {direction(change, unit)}{reached}"


def _course(view: View, name: str, track: Track, unit: Unit) -> list[str]:
    labels, groups = view.lineup.labels, view.lineup.groups
    lines = [f"{_bold(overall(view, name, track, unit), name)}."]
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
    return [*lines, f"- {largest_steps(view, track, unit)}"]


def largest_steps(view: View, track: Track, unit: Unit) -> str:
    """The largest rise and the largest fall between consecutive checkpoints, where there are any."""
    labels = view.lineup.labels
    steps = [(track.change(index, index + 1), index) for index in range(len(labels) - 1)]
    found = []
    for way, word in ((1, "rise"), (-1, "fall")):
        moving = [step for step in steps if sign(step[0], unit, len(steps)) == way]
        if moving:
            change, index = max(moving, key=lambda step: abs(step[0].value))
            found.append(f"largest {word} {amount(change, unit)} ({labels[index]} to {labels[index + 1]})")
        else:
            found.append(
                f"no {word}" + (f" beyond its error as the largest of {len(steps)}" if view.has_errors else "")
            )
    return f"Between consecutive checkpoints: {', '.join(found)}."


def largest_change(view: View, tracks: Mapping[str, Track], unit: Unit, what: str) -> str:
    """Which of several quantities (categories, cells) changes most between two consecutive checkpoints."""
    labels = view.lineup.labels
    changes = [
        (track.change(index, index + 1), name, index)
        for name, track in tracks.items()
        for index in range(len(labels) - 1)
    ]
    changes = [item for item in changes if not math.isnan(item[0].value)]
    moving = [item for item in changes if sign(item[0], unit, len(changes))]
    if not moving:
        beyond = f" beyond its error as the largest of {len(changes)}" if view.has_errors else ""
        return f"No {what} changes between consecutive checkpoints{beyond}."
    change, name, index = max(moving, key=lambda item: abs(item[0].value))
    return (
        f"The largest change of a {what} between consecutive checkpoints is the "
        f"{'rise' if change.value > 0 else 'fall'} of {name} by {amount(change, unit)} ({labels[index]} to "
        f"{labels[index + 1]})."
    )


def _range(view: View, name: str, track: Track, unit: Unit) -> list[str]:
    lines = [f"{_bold(overall(view, name, track, unit), name)}."]
    for group in view.lineup.groups:
        if group.name:
            lines.append(f"- **{group.name}**: {_extremes(view, track, unit, range(group.start, group.stop))}.")
    return lines


def _extremes(view: View, track: Track, unit: Unit, members: Sequence[int]) -> str:
    known = [index for index in members if np.isfinite(track.values[index])]
    if not known:
        return "has no value"
    low, high = min(known, key=lambda i: track.values[i]), max(known, key=lambda i: track.values[i])
    if len(known) > 1 and track.values[low] == track.values[high]:
        return f"is {unit.number(track.values[low])}{unit.value} throughout"
    if low == high:
        return f"is {value(track.at(low), unit)} at {view.lineup.labels[low]}"
    return (
        f"lies between {value(track.at(low), unit)} ({view.lineup.labels[low]}) and {value(track.at(high), unit)} "
        f"({view.lineup.labels[high]})"
    )


def _bold(sentence: str, name: str) -> str:
    return sentence.replace(name, f"**{name}**", 1)


def capitalised(text: str) -> str:
    """The text as the beginning of a sentence; what follows its first letter stays as it is."""
    return text[:1].upper() + text[1:]


def lowered(text: str) -> str:
    """The sentence as one that follows a colon."""
    return text[:1].lower() + text[1:]


def span(counts: Sequence[int]) -> str:
    """Counts per checkpoint: the one number, or the range of them."""
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
