"""Distance kernels: what constant parts of queries and keys make of the score by distance, and what was measured."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption
from ropewalk.figures.head_panels import (
    COUNT,
    OPTIONS,
    Head,
    by_column,
    centres,
    chosen,
    evenly,
    log_axis,
    named,
    nothing,
    number,
    of_head,
    panels,
    selection_step,
    title,
)
from ropewalk.figures.phrases import CORRELATION, NATS, Unit
from ropewalk.figures.production import steps
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import SIGNAL, TEXT, style
from ropewalk.figures.wording import sign, takeaway_of, titled, value
from ropewalk.summary.measures import Mean
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View

HALF = 0.5
"""Misfit above which K misses more of a head's curve than it accounts for."""
MISFIT = Unit(2, 1.0, "", "")
RULE = (
    "evenly over the order of misfit among RoPE heads whose K has at least the median range, then the NoPE head whose "
    "measured curve has the median range, where there is one"
)
KERNEL, MEASURED = "kernel $K$", "measured mean score"


def default_heads(view: View, index: int) -> list[Head]:
    """Heads from the best to the worst prediction, of those whose K is strong; last a NoPE head, a middling one."""
    part = view.parts[index]
    known = part[part["kernel_range"].notna()]
    limit = known["kernel_range"].median() if len(known) else 0.0
    strong = by_column(known[known["kernel_range"] >= limit], "kernel_misfit")
    without = by_column(_score_ranges(view, index, rope=False), "score_range")
    middle = without[(len(without) - 1) // 2 :][:1]
    return evenly(strong, COUNT - len(middle)) + middle


def _score_ranges(view: View, index: int, rope: bool) -> pd.DataFrame:
    """The heads of layers with RoPE, or of those without, and how far apart their measured scores by distance are."""
    scores = view.rows("distance", index).groupby(["layer", "head"])["score"]
    ranges = (scores.max() - scores.min()).rename("score_range").reset_index()
    part = view.parts[index]
    return part.loc[part["rope"].eq(rope).fillna(False), ["layer", "head"]].merge(ranges, on=["layer", "head"])


@style()
def draw(view: View, *, heads: Sequence[Head] | None = None, checkpoint: str | None = None) -> Figure:
    """K(Δ) as a line and the measured mean score as dots with errors, over the distance Δ, a panel per head.

    Each is centred on its mean over the bins of distances, as a constant does not change attention. `heads` are
    (layer, head) pairs, `checkpoint` a name or label (the last by default); without heads a few are chosen, from the
    best to the worst predicted.
    """
    index, shown = chosen(view, heads, checkpoint, default_heads)
    rows, part = view.rows("distance", index), view.parts[index]
    figure, axes = panels(len(shown), "distance (tokens)", "score − its mean")
    drawn: dict[str, Any] = {}
    for ax, head in zip(axes, shown, strict=False):
        drawn |= _panel(ax, head, of_head(rows, head), of_head(part, head).iloc[0])
    if not shown:
        nothing(axes[0], "no head with a measured score")
    log_axis(axes[0], float(rows["distance_stop"].max()) if len(rows) else 1.0)
    if drawn:
        figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=2)
    return figure


def _panel(ax: Any, head: Head, curve: pd.DataFrame, facts: pd.Series) -> dict[str, Any]:
    """Both curves of one head; returns what was drawn, for the legend."""
    no_kernel = bool(curve["kernel"].isna().all())
    without = pd.notna(facts["rope"]) and not facts["rope"]
    misfit = "no $K$" if no_kernel else f"misfit {number(facts['kernel_misfit'])}"
    title(ax, head, f"$r_q$ {number(facts['r_q'])}, {'NoPE: ' if without else ''}{misfit}")
    x = centres(curve["distance"], curve["distance_stop"])
    drawn: dict[str, Any] = {}
    if not no_kernel:
        (drawn[KERNEL],) = ax.plot(x, centred(curve, "kernel"), color=SIGNAL, linewidth=1.5, zorder=2, gid="kernel")
    if curve["score"].notna().any():
        errors = curve["se_score"] if "se_score" in curve and curve["se_score"].notna().any() else None
        dots = {
            "markersize": 3.0,
            "elinewidth": 0.8,
            "capsize": 1.2,
            "markeredgewidth": 0.6,
            "markerfacecolor": "white",
        }
        drawn[MEASURED] = ax.errorbar(
            x, centred(curve, "score"), yerr=errors, fmt="o", color=TEXT, zorder=3, gid="measured", **dots
        )
    if not drawn:
        nothing(ax, "no scores")
    return drawn


def centred(curve: pd.DataFrame, column: str) -> "pd.Series[float]":
    """A column of one head's bins less its mean over them; over those that have K and score where both are there."""
    known = curve[["kernel", "score"]].dropna(axis=1, how="all").notna().all(axis=1)
    return curve[column] - curve.loc[known, column].mean()


def caption(view: View, source: str, *, heads: Sequence[Head] | None = None, checkpoint: str | None = None) -> Caption:
    """How well K predicts the measured curve over all heads of the checkpoint, and where it does not."""
    index, shown = chosen(view, heads, checkpoint, default_heads)
    one = view.select([index])
    return Caption(
        titled("Distance Kernels", one),
        (
            " ".join([*_finding(one), *_failing(one)]),
            *_without_rope(one),
            f"Panels show single heads at {one.lineup.labels[0]}: the kernel K (line), which is the score of a key so "
            "many tokens back that the constant parts of queries and keys before the rotation make, and the measured "
            "mean score (dots, with the errors of the mean score) over distance, on an axis that is logarithmic in "
            "distance + 1. Each is drawn less its own mean over the bins, as a constant does not change attention; a "
            "difference of 1 is a factor e in attention. Where dots lie on the line, K is all that distance does.",
        ),
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `distance.csv` beside it, a row per head and bin of distances (one by one up to 8, then four "
            "per octave).",
            selection_step(view, index, shown, heads, RULE),
            "**Misfit**: the share of the measured curve's variation over distance that K misses: 0 where K predicts "
            "it, above 1 where a constant would be nearer.",
            aggregation="none in the panels; means and medians over the RoPE heads of the checkpoint in the text.",
            drawing="a grid of panels with the same distances; the range of scores is each panel's own.",
            options={"heads": heads, "checkpoint": checkpoint},
        ),
        takeaway_of(view, "mean_kernel_r"),
    )


def _finding(one: View) -> list[str]:
    """How near K comes to the measured curves of the only checkpoint of a view."""
    known = one.parts[0].dropna(subset=["kernel_r", "kernel_misfit"])
    mean, label, total = one.track("mean_kernel_r").at(0), one.lineup.labels[0], len(known)
    if not total:
        return [f"At {label} no head has both a kernel and a measured curve."]
    near = int((known["kernel_misfit"] < HALF).sum())
    if sign(mean, CORRELATION) <= 0:
        verdict = "**K and the measured score by distance do not go together beyond the error**"
    elif near > total / 2:
        verdict = "**K accounts for most of how the score depends on distance**"
    else:
        verdict = "**K goes with the measured score by distance but misses most of it**"
    return [
        f"{verdict} at {label}: it misses less than half of the variation in {near} of {total} RoPE heads (median "
        f"misfit {MISFIT.number(known['kernel_misfit'].median())}).",
        f"Over distances the two correlate {value(mean, CORRELATION)} as a mean over heads (median "
        f"{CORRELATION.number(known['kernel_r'].median())}).",
    ]


def _failing(one: View) -> list[str]:
    """Which heads K misses: the worst one, and whether it is those whose K is weak."""
    known = one.parts[0].dropna(subset=["kernel_r", "kernel_misfit", "kernel_range"])
    if len(known) < 2:
        return []
    worst = known.iloc[int(known["kernel_misfit"].argmax())]
    misfit = Estimate(float(worst["kernel_misfit"]), float(worst.get("se_kernel_misfit", np.nan)))
    text = (
        f"It misses most in {named((int(worst['layer']), int(worst['head'])))} (misfit {value(misfit, MISFIT)}; K "
        f"spans {NATS.number(worst['kernel_range'])} nats there)"
    )
    ranges = one.parts[0]["kernel_range"]
    # The halves stay as they are whichever group of documents is left out.
    strong, weak = (ranges >= ranges.median()).to_numpy(), (ranges < ranges.median()).to_numpy()
    upper, lower = Mean("kernel_r", among=lambda _: strong), Mean("kernel_r", among=lambda _: weak)
    gap = one.track(lambda heads: upper(heads) - lower(heads)).at(0)
    return [f"{text}; {_halves(one.track(upper).at(0), one.track(lower).at(0), gap)}."]


def _halves(stronger: Estimate, weaker: Estimate, difference: Estimate) -> str:
    """Whether K does better in the half of the heads where its range is larger."""
    if np.isnan(difference.value):
        return "all heads have a K of the same range"
    way = sign(difference, CORRELATION)
    texts = (
        f"{value(stronger, CORRELATION)} in the half of the heads with the stronger K, {value(weaker, CORRELATION)} in"
    )
    if way == 0:
        return f"whether K is strong makes no difference beyond its error (the correlation is {texts} the other)"
    return f"it does {'worse' if way > 0 else 'better'} where it is weak (the correlation is {texts} the other)"


def _without_rope(one: View) -> list[str]:
    """How far measured scores of NoPE heads depend on distance, which K has nothing to say of."""
    without, rope = (_score_ranges(one, 0, rope=side)["score_range"].dropna() for side in (False, True))
    if without.empty:
        return []
    beside = f", against {NATS.number(rope.median())} in the {len(rope)} RoPE heads" if len(rope) else ""
    return [
        f"The {len(without)} NoPE heads have no K; from bin to bin their mean score spans "
        f"{NATS.number(without.median())} nats in the median{beside}."
    ]


FIGURE = FigureSpec(
    "distance_kernels",
    "Distance kernels",
    draw,
    caption,
    own_options=OPTIONS,
    on_axis=False,
    columns=("kernel_range", "kernel_misfit", "kernel_r"),
    tables=("distance",),
    statistic="behaviour",
)
