"""Distance kernels: what constant parts of queries and keys make of the score by distance, and what was measured."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption, Table
from ropewalk.figures.contrasts import CHANCE_STEP, contrast
from ropewalk.figures.courses import courses
from ropewalk.figures.findings import Candidate, Finding, certain, choose, scale, sign
from ropewalk.figures.head_panels import (
    COUNT,
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
from ropewalk.figures.phrases import CORRELATION, NATS, Unit
from ropewalk.figures.production import steps
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import SIGNAL, TEXT, style
from ropewalk.figures.wording import (
    NO_VALUE,
    titled,
    value,
)
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
    """How well K predicts the measured curve over all heads of the checkpoint, where it does not, and how that goes."""
    index, shown = chosen(view, heads, checkpoint, default_heads)
    one = view.select([index])
    return Caption(
        titled("Distance Kernels", one),
        choose(
            (
                _accounting(one),
                _where_strong(one),
                *(courses(view, "mean_kernel_r") if len(view.lineup) > 1 else ()),
            ),
            _nothing(one),
        ),
        _table(one),
        f"Panels show single heads at {one.lineup.labels[0]} over distance (logarithmic in distance + 1). The line is "
        "the kernel K: the score of a key so many tokens back that the constant parts of queries and keys make by "
        "themselves. Dots are the measured mean score, with errors. Each is less its own mean, as a constant does not "
        "change attention; a difference of 1 nat is a factor e. Where dots lie on the line, K is all that distance "
        "does.",
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `distance.csv` beside it, a row per head and bin of distances (one by one up to 8, then four "
            "per octave).",
            selection_step(view, index, shown, heads, RULE),
            "**Misfit**: the share of the measured curve's variation over distance that K misses; 0 where K predicts "
            "it, above 1 where a constant would be nearer.",
            CHANCE_STEP,
            drawing="panels share their distances; the range of scores is each panel's own.",
            options={"heads": heads, "checkpoint": checkpoint},
        ),
    )


def _known(one: View) -> pd.DataFrame:
    return one.parts[0].dropna(subset=["kernel_r", "kernel_misfit"])


def _nothing(one: View) -> str:
    if _known(one).empty:
        return f"At {one.lineup.labels[0]} no head has both a kernel and a measured curve"
    return "K and the measured score by distance do not go together beyond the error"


def _accounting(one: View) -> Candidate:
    """Whether K predicts how scores depend on distance, and in how many heads it misses more than it predicts."""
    known, mean = _known(one), one.track("mean_kernel_r").at(0)
    if known.empty or sign(mean, CORRELATION) <= 0:
        return None
    near, total = int((known["kernel_misfit"] < HALF).sum()), len(known)
    words = "K predicts most of how scores depend on distance"
    if 2 * near <= total:
        words = "K goes with the measured scores by distance but misses most of how they vary"
    return Finding(
        f"{words} at {one.lineup.labels[0]}",
        f"it misses less than half in {near} of {total} RoPE heads; mean correlation {value(mean, CORRELATION)}",
        frozenset({"K"}),
        certain(mean, CORRELATION) / scale("mean_kernel_r", one.samples[0]),
    )


def _where_strong(one: View) -> Candidate:
    """Whether K does better in the half of the heads where its range is larger."""
    ranges = one.parts[0]["kernel_range"]
    # The halves stay as they are whichever group of documents is left out.
    middle = ranges.dropna().median()
    strong, weak = (ranges >= middle).to_numpy(), (ranges < middle).to_numpy()
    if not strong.any() or not weak.any():
        return None
    found = contrast(one.samples[0], "kernel_r", lambda _: strong, lambda _: weak)
    way = found.way(CORRELATION)
    if not way:
        return None
    means = [value(mean, CORRELATION) for mean in found.means]
    return Finding(
        f"K predicts {'better' if way > 0 else 'worse'} in heads where it is strong",
        f"correlation {means[0]} in the half of the heads with the larger range of K, {means[1]} in the other",
        frozenset({"where K is strong"}),
        found.certain(CORRELATION) / found.scale,
    )


def _table(one: View) -> Table | None:
    """RoPE and NoPE heads beside each other."""
    known, rows = _known(one), []
    for name, rope in (("RoPE heads", True), ("NoPE heads", False)):
        ranges = _score_ranges(one, 0, rope=rope)["score_range"].dropna()
        if ranges.empty:
            continue
        own = known if rope else known.iloc[:0]
        medians = [own[column].dropna().median() for column in ("kernel_range", "kernel_misfit", "kernel_r")]
        texts = [
            NO_VALUE if np.isnan(median) else unit.number(median)
            for median, unit in zip(medians, (NATS, MISFIT, CORRELATION), strict=True)
        ]
        rows.append((name, str(len(ranges)), NATS.number(float(ranges.median())), *texts))
    header = ("", "heads", "range of scores (nats)", "range of K (nats)", "misfit", "correlation with K")
    return Table(header, tuple(rows), "Medians over heads.") if rows else None


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
