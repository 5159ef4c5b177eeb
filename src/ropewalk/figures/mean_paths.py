"""Mean paths: where queries and keys stand on PC0 as position goes on, and the straight line that r assumes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption
from ropewalk.figures.head_panels import (
    OPTIONS,
    Head,
    by_column,
    centres,
    chosen,
    evenly,
    log_axis,
    nothing,
    number,
    of_head,
    panels,
    selection_step,
    title,
)
from ropewalk.figures.phrases import SHARE
from ropewalk.figures.production import steps
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import KEY, QUERY, style
from ropewalk.figures.wording import sign, takeaway_of, titled, value
from ropewalk.geometry.jackknife import critical
from ropewalk.geometry.pca import ratio
from ropewalk.summary.measures import Columns, Mean, Measure
from ropewalk.summary.view import View

KINDS = {"q": ("queries", QUERY, "o"), "k": ("keys", KEY, "s")}
"""What the kinds of vectors are called, their colours and their markers."""
RULE = "evenly over the order of bend, the mean of η² − r² of queries and keys, from the straightest to the most bent"


def default_heads(view: View, index: int) -> list[Head]:
    """Heads from the straightest path to the most bent one."""
    part = view.parts[index]
    return evenly(by_column(part.assign(bend=(part["bend_q"] + part["bend_k"]) / 2), "bend"))


@style()
def draw(view: View, *, heads: Sequence[Head] | None = None, checkpoint: str | None = None) -> Figure:
    """Mean projection of queries and keys on PC0 by bucket of positions, and their straight lines, a panel per head.

    Each kind is centred on its mean over tokens. `heads` are (layer, head) pairs, `checkpoint` a name or label (the
    last by default); without heads a few are chosen, from the straightest to the most bent.
    """
    index, shown = chosen(view, heads, checkpoint, default_heads)
    rows, part = view.rows("profiles", index), view.parts[index]
    figure, axes = panels(len(shown), "position (tokens)", "PC0 − its mean")
    drawn: dict[str, Any] = {}
    for ax, head in zip(axes, shown, strict=False):
        path, facts = of_head(rows, head), of_head(part, head).iloc[0]
        title(ax, head, *(_fit(kind, facts) for kind in KINDS))
        for kind in KINDS:
            drawn |= _path(ax, path, kind)
        if not ax.lines:
            nothing(ax, "no path")
    if not shown:
        nothing(axes[0], "no head with a path")
    log_axis(axes[0], float(rows["stop"].max()) if len(rows) else 1.0)
    if drawn:
        figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=4 if len(axes) > 1 else 2)
    return figure


def _fit(kind: str, facts: pd.Series) -> str:
    return f"{KINDS[kind][0]}: $r^2$ {number(facts[f'r_{kind}'] ** 2)}, $\\eta^2$ {number(facts[f'eta2_pc0_{kind}'])}"


def _path(ax: Any, path: pd.DataFrame, kind: str) -> dict[str, Any]:
    """The path of one kind and its straight line; returns them, for the legend."""
    name, colour, marker = KINDS[kind]
    known = path.dropna(subset=[kind])
    if known.empty:
        return {}
    x = centres(known["start"], known["stop"])
    middle = np.average(known[kind], weights=known["tokens"])
    error = f"se_{kind}"
    errors = known[error] if error in known and known[error].notna().any() else None
    dots = {"markersize": 2.0, "linewidth": 0.9, "elinewidth": 0.7, "zorder": 3}
    points = ax.errorbar(x, known[kind] - middle, yerr=errors, marker=marker, color=colour, gid=f"path {kind}", **dots)
    (line,) = ax.plot(
        x,
        known[f"line_{kind}"] - middle,
        color=colour,
        linestyle=(0, (4, 2)),
        linewidth=1.1,
        alpha=0.75,
        zorder=2,
        gid=f"line {kind}",
    )
    return {name: points, f"{name}, straight": line}


def missed(kind: str) -> Measure:
    """Mean η² - r² over mean η² on PC0: the share of the position signal that a straight line misses."""

    def measure(heads: Columns) -> Any:
        return ratio(Mean(f"bend_{kind}")(heads), Mean(f"eta2_pc0_{kind}")(heads))

    return measure


def caption(view: View, source: str, *, heads: Sequence[Head] | None = None, checkpoint: str | None = None) -> Caption:
    """How much of the position signal a straight line misses over all heads, and in how many heads it misses any."""
    index, shown = chosen(view, heads, checkpoint, default_heads)
    one = view.select([index])
    return Caption(
        titled("Mean Paths on PC0", one),
        (
            " ".join([*_finding(one), *_counts(one)]),
            f"Panels show single heads at {one.lineup.labels[0]}: the mean projection on PC0 of queries "
            f"({QUERY.name}) and keys ({KEY.name}) by position, with errors, each less its mean over tokens, on an "
            "axis that is logarithmic in position + 1. Dashed is the straight line in position that r_q and r_k "
            "assume, which curves on this axis; where dots leave it, position is there but r does not see it. r² is "
            "the share of the variance on PC0 along the line, η² the share between positions whatever their path.",
        ),
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `profiles.csv` beside it, a row per head and bucket of positions (powers of two up to a 64th "
            "of the context, then every 64th of it).",
            selection_step(view, index, shown, heads, RULE),
            "**Bend**: η² − r² on PC0 of each head, η² from products of bucket means across shards, so that noise in "
            "them does not count; it can come out slightly below 0.",
            aggregation="none in the panels; means over all heads of the checkpoint in the text.",
            drawing="a grid of panels with the same positions; the range of PC0 is each panel's own.",
            options={"heads": heads, "checkpoint": checkpoint},
        ),
        takeaway_of(view, "mean_bend_q", "mean_bend_k"),
    )


def _finding(one: View) -> list[str]:
    """What share of the variance and of the position signal on PC0 is not along the line."""
    bends = {kind: one.track(f"mean_bend_{kind}").at(0) for kind in KINDS}
    signals = {kind: one.track(Mean(f"eta2_pc0_{kind}")).at(0) for kind in KINDS}
    bent = [kind for kind in KINDS if sign(bends[kind], SHARE) > 0]
    label = one.lineup.labels[0]
    if all(np.isnan(bend.value) for bend in bends.values()):
        return [f"At {label} no head has a path along PC0."]
    texts = []
    for kind, (name, _, _) in KINDS.items():
        text = f"{value(bends[kind], SHARE)} of the variance of {name} on PC0"
        if kind in bent and sign(signals[kind], SHARE) > 0:
            text += f", which is {value(one.track(missed(kind)).at(0), SHARE)} of what position explains"
        texts.append(text)
    if not bent:
        return [
            f"**A straight line misses nothing of the position signal beyond its error** at {label}: as a mean over "
            f"heads η² − r² is {' and '.join(texts)}."
        ]
    which = " and ".join(KINDS[kind][0] for kind in bent)
    return [
        f"**Position bends the mean path of {which}** at {label}: as a mean over heads a straight line misses "
        f"{'; and '.join(texts)}."
    ]


def _counts(one: View) -> list[str]:
    """In how many heads η² exceeds r² beyond its error."""
    part, limit = one.parts[0], critical(one.groups[0])
    texts = []
    for kind, (name, _, _) in KINDS.items():
        known = part.dropna(subset=[f"bend_{kind}"])
        if f"se_bend_{kind}" in known and not np.isnan(limit) and len(known):
            beyond = int((known[f"bend_{kind}"] > limit * known[f"se_bend_{kind}"]).sum())
            texts.append(f"{beyond} of {len(known)} heads for {name}")
    if not texts:
        return []
    return [
        f"The bend is above 0 beyond its error in {' and '.join(texts)}; of heads with straight paths 2.5% would be, "
        "by chance."
    ]


FIGURE = FigureSpec(
    "mean_paths",
    "Mean paths",
    draw,
    caption,
    own_options=OPTIONS,
    on_axis=False,
    columns=("eta2_pc0_q", "eta2_pc0_k", "bend_q", "bend_k"),
    tables=("profiles",),
    statistic="profile",
)
