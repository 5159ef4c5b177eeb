"""What captions say besides the numbers: which axis they are on, and how far they are above their nulls."""

import math

from ropewalk.figures.phrases import CORRELATION, PHRASES, SHARE
from ropewalk.figures.wording import MOSTLY, amount, capitalised, known, lowered, sign, takeaway_of, value, where
from ropewalk.summary.view import COMMON, View


def about_axis(view: View) -> list[str]:
    """What has to be said of the axis: that PC0 mostly tells queries from keys, or that it is not PC0 at all."""
    if view.axis != "pooled":
        return [f"r_q and r_k are measured {where(view)}, not on PC0 of queries and keys together as published."]
    shares = view.track("mean_separation_share")
    most = [index for index, share in enumerate(shares.values) if share > MOSTLY]
    if not most:
        return []
    last, total = most[-1], len(view.lineup)
    some = f" at {'all' if len(most) == total else f'{len(most)} of'} {total} {view.lineup.noun}s" if total > 1 else ""
    return [
        f"**PC0 is mostly the axis between queries and keys**{some}: at {view.lineup.labels[last]} "
        f"{value(shares.at(last), SHARE)} of its variance, as a mean over heads, is their offset. r_q and r_k there "
        "belong to a direction that was chosen for something else; the centred and the drift axis are beside it in the "
        "figure on the choice of axis."
    ]


def at_one_context(view: View, *measures: str) -> list[str]:
    """What is left of a course when contexts differ and every document is cut to the shortest of them."""
    if view.axis != "pooled" or not view.has_columns(COMMON) or not view.lineup.connected:
        return []
    contexts = [int(part["context"].iloc[0]) for part in view.parts]
    cut = view.with_columns(COMMON)
    return [
        f"**Contexts differ** ({min(contexts):,} to {max(contexts):,} tokens), and a correlation with position depends "
        f"on how far positions reach. With every document cut to {min(contexts):,} tokens, the same checkpoints say: "
        f"{lowered(takeaway_of(cut, *measures))}"
    ]


def against_nulls(view: View, *measures: str) -> list[str]:
    """What the last checkpoint is held against: the same with shuffled positions, and the untrained model."""
    last = len(view.lineup) - 1
    label, found = view.lineup.labels[last], []
    shuffled = known(view, "above_permuted_q", "above_permuted_k")
    if shuffled:
        texts = [f"{PHRASES[name].name} is {value(view.track(name).at(last), SHARE)}" for name in shuffled]
        found.append(f"With positions shuffled within documents {_shuffled_means(view, last)}; {' and '.join(texts)}")
    above = [(measure, view.above_untrained(measure, last)) for measure in measures]
    texts = []
    for measure, change in above:
        if change is not None and not math.isnan(change.value):
            name, unit = PHRASES[measure]
            way = sign(change, unit)
            words = (
                f"{amount(change, unit)} {'above' if way > 0 else 'below'}" if way else "no more than its error from"
            )
            texts.append(f"{name} is {words} that of the same model untrained")
    if texts:
        found.append("; ".join(texts))
    return [f"**Nulls** at {label}: {'. '.join(capitalised(text) for text in found)}."] if found else []


def _shuffled_means(view: View, index: int) -> str:
    means = [value(view.track(f"mean_{name}_permuted").at(index), CORRELATION) for name in ("r_q", "abs_r_k")]
    return f"mean r_q is {means[0]} and mean |r_k| {means[1]}"
