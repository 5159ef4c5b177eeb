"""Mean paths: where queries and keys stand on PC0 as position goes on, and the straight line that r assumes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption, Table
from ropewalk.figures.courses import courses
from ropewalk.figures.findings import YES_OR_NO, Candidate, Finding, certain, choose, scale, sign
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
from ropewalk.figures.phrases import QUANTITIES, SHARE
from ropewalk.figures.production import steps
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import KEY, QUERY, style
from ropewalk.figures.wording import (
    amount,
    cell,
    titled,
    value,
)
from ropewalk.geometry.jackknife import critical
from ropewalk.geometry.pca import ratio
from ropewalk.summary.measures import Columns, Mean, Measure
from ropewalk.summary.tracks import Gap
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
    """How much of the position signal a straight line misses over all heads, and how that goes."""
    index, shown = chosen(view, heads, checkpoint, default_heads)
    one = view.select([index])
    return Caption(
        titled("Mean Paths on PC0", one),
        choose(
            (
                *(_bent(one, kind) for kind in KINDS),
                _bent_more(one),
                *(courses(view, *COURSES) if len(view.lineup) > 1 else ()),
            ),
            _nothing(one),
        ),
        _table(one),
        f"Panels show single heads at {one.lineup.labels[0]}: the mean projection on PC0 of queries ({QUERY.name}) and "
        f"keys ({KEY.name}) by position (logarithmic in position + 1), with errors, each less its mean. Dashed is the "
        "straight line in position that r_q and r_k assume, which curves on this axis; where dots leave it, position "
        "is there but r does not see it. r² is the share of the variance on PC0 along the line, η² the share between "
        "positions whatever their path.",
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `profiles.csv` beside it, a row per head and bucket of positions (powers of two up to a 64th "
            "of the context, then every 64th of it).",
            selection_step(view, index, shown, heads, RULE),
            "**Missed** is η² − r², η² from products of bucket means across shards, so that noise in them does not "
            "count; it can come out slightly below 0.",
            drawing="panels share their positions; the range of PC0 is each panel's own.",
            options={"heads": heads, "checkpoint": checkpoint},
        ),
    )


COURSES = [QUANTITIES[f"mean_bend_{kind}"]._replace(topic="over training") for kind in KINDS]
"""What is followed over the checkpoints: of queries or of keys, whichever changes more."""


def _nothing(one: View) -> str:
    label = one.lineup.labels[0]
    if all(np.isnan(one.track(f"mean_bend_{kind}").at(0).value) for kind in KINDS):
        return f"At {label} no head has a path along PC0"
    return f"A straight line misses nothing of the position signal beyond its error at {label}"


def _bent(one: View, kind: str) -> Candidate:
    """How much of what position explains on PC0 is not along a straight line."""
    bend, signal = one.track(f"mean_bend_{kind}").at(0), one.track(Mean(f"eta2_pc0_{kind}")).at(0)
    if sign(bend, SHARE) <= 0 or sign(signal, SHARE) <= 0:
        return None
    part, name = one.track(missed(kind)).at(0), KINDS[kind][0]
    return Finding(
        f"A straight line misses a part of what position does to {name}",
        f"{value(part, SHARE)} of it, which is {value(bend, SHARE)} of their variance on PC0{_count(one, kind)}",
        frozenset({f"bend_{kind}"}),
        certain(part, SHARE) / YES_OR_NO,
    )


def _bent_more(one: View) -> Candidate:
    """Whether a straight line misses more of queries or of keys."""
    gap = Gap(one.track("mean_bend_k"), one.track("mean_bend_q")).at(0)
    way = sign(gap, SHARE)
    if not way:
        return None
    nouns = [KINDS[kind][0] for kind in "qk"[::way]]
    return Finding(
        f"Paths of {nouns[0]} are bent more than those of {nouns[1]}",
        f"a line misses {amount(gap, SHARE)} more of the variance on PC0",
        frozenset({"bent more"}),
        certain(gap, SHARE) / scale("mean_bend_q", one.samples[0]),
    )


def _count(one: View, kind: str) -> str:
    """In how many heads η² exceeds r² beyond its error."""
    part, limit = one.parts[0], critical(one.groups[0])
    known = part.dropna(subset=[f"bend_{kind}"])
    if f"se_bend_{kind}" not in known or np.isnan(limit) or known.empty:
        return ""
    beyond = int((known[f"bend_{kind}"] > limit * known[f"se_bend_{kind}"]).sum())
    return f"; beyond its error in {beyond} of {len(known)} heads"


def _table(one: View) -> Table:
    """Queries and keys beside each other."""
    rows = []
    for kind, (name, _, _) in KINDS.items():
        found = [one.track(measure).at(0) for measure in (Mean(f"eta2_pc0_{kind}"), f"mean_bend_{kind}", missed(kind))]
        rows.append((name, *(cell(estimate, SHARE) for estimate in found)))
    header = ("", "explained by position (η²)", "missed by a line (η² − r²)", "missed, of what is explained")
    return Table(header, tuple(rows), "Shares of the variance on PC0, means over heads.")


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
