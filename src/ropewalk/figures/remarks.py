"""Candidate findings on what several quantities say together: keys that turn, layers that part, nulls, the axis."""

import numpy as np

from ropewalk.figures.contrasts import LAYERS, NOPE, ROPE, contrast, opposed
from ropewalk.figures.findings import YES_OR_NO, Candidate, Finding, agreed, certain, certainly, compared, scale, sign
from ropewalk.figures.phrases import CORRELATION, QUANTITIES, SHARE
from ropewalk.figures.wording import capitalised, clearest, known, listed, value, where
from ropewalk.summary.measures import Difference, Mean
from ropewalk.summary.tracks import Estimate, Gap
from ropewalk.summary.view import View

MOSTLY = 0.5
"""Separation share from which on PC0 is rather the axis between queries and keys."""
EXPECTED = 0.5
"""What being above a null counts, against other findings: it is what every trained model shows."""
VERBS = {1: "rises", 0: "does not change", -1: "falls"}


def queries_and_keys(view: View) -> Candidate:
    """Whether queries or keys follow position more closely: mean r_q against mean |r_k|."""
    gap, shown = Gap(view.track("mean_abs_r_k"), view.track("mean_r_q")), compared(view)
    claim = agreed(
        view,
        {
            index: certainly(gap.at(index), CORRELATION, len(shown)) / scale("mean_r_q", view.samples[index])
            for index in shown
        },
    )
    if claim is None:
        return None
    nouns = ("queries", "keys")[:: claim.way]
    means = [value(view.track(name).at(claim.at), CORRELATION) for name in ("mean_r_q", "mean_abs_r_k")]
    return Finding(
        capitalised(f"{claim.begin}{nouns[0]} follow position more closely than {nouns[1]}"),
        f"mean r_q {means[0]}, mean |r_k| {means[1]}, {clearest(view, claim.at)}",
        frozenset({"queries and keys"}),
        claim.size,
    )


def turning_keys(view: View) -> Candidate:
    """Where mean r_k falls over training: whether keys lose position, or turn against that of queries."""
    if not view.lineup.connected:
        return None
    last = len(view.lineup) - 1
    tracks = {name: view.track(name) for name in ("mean_r_k", "mean_abs_r_k", "discordant")}
    if any(np.isnan(track.values[[0, last]]).any() for track in tracks.values()):
        return None
    changes = {name: track.change(0, last) for name, track in tracks.items()}
    ways = {name: sign(change, QUANTITIES[name].unit) for name, change in changes.items()}
    if ways["mean_r_k"] >= 0:
        return None
    if ways["mean_abs_r_k"] >= 0 and ways["discordant"] > 0:
        words = "Keys do not lose position, they turn against it: mean r_k falls, but its size does not"
    elif ways["mean_abs_r_k"] < 0 and ways["discordant"] <= 0:
        words = "Keys lose position: mean r_k falls, and so does its size"
    else:
        return None
    texts = [
        f"{QUANTITIES[name].header} {value(tracks[name].at(0), QUANTITIES[name].unit)} to "
        f"{value(tracks[name].at(last), QUANTITIES[name].unit)}"
        for name in tracks
    ]
    # As large as the largest of the changes that it puts together: it says more than any of them.
    size = max(
        certain(changes[name], QUANTITIES[name].unit) / scale(name, view.samples[0], view.samples[last])
        for name in changes
    )
    return Finding(words, f"{_between(view)}: {'; '.join(texts)}", frozenset({"keys", "discordant"}), size)


def _between(view: View) -> str:
    return f"from {view.lineup.labels[0]} to {view.lineup.labels[-1]}"


def by_layers(view: View, column: str) -> Candidate:
    """How RoPE and NoPE layers differ in a correlation: that they part over training, or else which has more."""
    parted = parted_layers(view, column)
    return parted or opposed(view, column, LAYERS, f"have a higher mean {column}", CORRELATION, "layers")


def parted_layers(view: View, column: str) -> Candidate:
    """Whether a correlation goes another way in NoPE layers than in RoPE layers over training."""
    if not view.lineup.connected:
        return None
    last = len(view.lineup) - 1
    sides = Mean(column, among=ROPE), Mean(column, among=NOPE)
    tracks = [view.track(side) for side in sides]
    if any(np.isnan(track.values[[0, last]]).any() for track in tracks):
        return None
    apart = view.track(Difference(*sides)).change(0, last)
    ways = [sign(track.change(0, last), CORRELATION) for track in tracks]
    if not sign(apart, CORRELATION) or ways[0] == ways[1]:
        return None
    texts = [
        f"{noun} {value(track.at(0), CORRELATION)} to {value(track.at(last), CORRELATION)}"
        for noun, track in zip(("RoPE", "NoPE"), tracks, strict=True)
    ]
    return Finding(
        f"Mean {column} {VERBS[ways[0]]} in RoPE layers and {VERBS[ways[1]]} in NoPE layers",
        f"{_between(view)}: {'; '.join(texts)}",
        frozenset({"layers"}),
        certain(apart, CORRELATION) / contrast(view.samples[last], column, ROPE, NOPE).scale,
    )


def above_nulls(view: View, *measures: str) -> list[Candidate]:
    """Whether the last checkpoint has more than the same model untrained; that it has not must be said."""
    last = len(view.lineup) - 1
    found: list[Candidate] = []
    for measure in measures:
        change, track = view.above_untrained(measure, last), view.track_untrained(measure)
        if view.lineup.side_by_side or change is None or track is None or np.isnan(change.value):
            continue
        name, unit = QUANTITIES[measure].name, QUANTITIES[measure].unit
        way = sign(change, unit)
        words = f"is {'higher' if way > 0 else 'no higher'} than in the same model untrained"
        found.append(
            Finding(
                f"{capitalised(name)} {words}",
                f"{value(view.track(measure).at(last), unit)} at {view.lineup.labels[last]} against "
                f"{value(track.at(last), unit)}",
                frozenset({"untrained"}),
                EXPECTED * certain(change, unit) / scale(measure, view.samples[last]),
                needed=way <= 0,
            )
        )
    return found


def above_shuffled(view: View) -> Candidate:
    """How many heads carry more position than the same vectors with shuffled positions; that few do must be said."""
    last = len(view.lineup) - 1
    shares = {name: view.track(name).at(last) for name in known(view, "above_permuted_q", "above_permuted_k")}
    shares = {name: share for name, share in shares.items() if not np.isnan(share.value)}
    if not shares or view.lineup.side_by_side:
        return None
    away = [Estimate(share.value - YES_OR_NO, share.se, share.groups) for share in shares.values()]
    ways = {sign(one, SHARE) for one in away}
    if ways not in ({1}, {-1}):
        return None
    nouns = {"above_permuted_q": "for queries", "above_permuted_k": "for keys"}
    words = {1: "Most heads carry more position", -1: "Only few heads carry more position"}[ways.pop()]
    texts = [f"{value(share, SHARE)} {nouns[name]}" for name, share in shares.items()]
    return Finding(
        f"{words} than with positions shuffled within documents",
        f"{listed(texts)}, at {view.lineup.labels[last]}",
        frozenset({"shuffled"}),
        EXPECTED * min(certain(one, SHARE) for one in away) / YES_OR_NO,
        needed=words.startswith("Only"),
    )


def separating(view: View) -> Candidate:
    """That PC0 is rather the axis between queries and keys, at the last checkpoint or in most models."""
    if view.axis != "pooled":
        return None
    shares, shown = view.track("mean_separation_share"), compared(view)
    found = {index: shares.at(index) for index in shown}
    away = {index: Estimate(one.value - MOSTLY, one.se, one.groups) for index, one in found.items()}
    most = [index for index in shown if sign(away[index], SHARE) > 0]
    if not most:
        return None
    top = max(most, key=lambda index: found[index].value)
    some = f" in {len(most)} of {len(shown)} {view.lineup.noun}s" if len(shown) > 1 else ""
    return Finding(
        f"Mind that PC0 mostly tells queries from keys, and not positions{some}",
        f"{value(found[top], SHARE)} of its variance is their offset, {clearest(view, top)}",
        frozenset({"mean_separation_share"}),
        certain(away[top], SHARE) / YES_OR_NO,
        needed=True,
    )


def about_axis(view: View) -> str:
    """What has to be said where r_q and r_k are not on PC0, or where PC0 is hardly about position."""
    if view.axis != "pooled":
        return f" Here r_q and r_k are measured {where(view)}, not on PC0 of queries and keys together as published."
    found = separating(view)
    return f" {found.text}" if found is not None else ""
