"""Spectrum: which wavelengths of RoPE carry the energy of queries and keys, its fixed part, and the kernel."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.figures.caption import Caption
from ropewalk.figures.head_panels import nothing
from ropewalk.figures.phrases import OCTAVES, SHARE
from ropewalk.figures.production import steps
from ropewalk.figures.quartiles import tones
from ropewalk.figures.selection import COUNT, OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import RULE, page, plain, shortened, style
from ropewalk.figures.wording import capitalised, direction, overall, sign, takeaway, titled, value
from ropewalk.summary.measures import Columns, Mean, Measure
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View


class Panel(NamedTuple):
    """A column of the table, and what it is called."""

    column: str
    name: str


PANELS = (
    Panel("energy_q", "energy of queries"),
    Panel("energy_k", "energy of keys"),
    Panel("fixed_q", "fixed part of queries"),
    Panel("fixed_k", "fixed part of keys"),
    Panel("kernel_share", "kernel"),
)
PER_OCTAVE = 2
"""Bins of wavelength / context per octave, where layers do not share their frequencies."""
SAME = 1e-3
"""Wavelengths of a pair that differ by less over layers are one."""
WAVELENGTH = "the kernel's wavelength in octaves above the context, as a mean over heads,"
MARKS = ("o", "s", "^", "D", "v", "P")


def shown_checkpoints(view: View) -> int:
    """How many are shown where none are named: the first and the last of each phase, or a few models."""
    return min(len(view.lineup.groups) + 1, COUNT) if view.lineup.training else COUNT


@style()
def draw(view: View, *, checkpoints: Sequence[str] | None = None) -> Figure:
    """Share per pair of dimensions over wavelength / context: energy and its fixed part per kind, and the kernel.

    A curve is the mean over the heads of a checkpoint, its band their middle half. `checkpoints` are names or labels;
    without them the first and the last of each phase (of many phases a few), or a few models.
    """
    view = selected(view, checkpoints, shown_checkpoints(view))
    colours = tones(len(view.lineup))
    figure = page(7.0, 6.4)
    grid = figure.subplots(3, 2, sharex=True, sharey="row")
    for ax, panel in zip(grid.flat, PANELS, strict=False):
        ax.grid(axis="y")
        ax.set_title(panel.name)
        for index, colour in enumerate(colours):
            curve = profile(view.rows("spectrum", index), panel.column)
            if len(curve):
                _draw_curve(ax, curve, colour, MARKS[index % len(MARKS)])
        if not ax.lines:
            nothing(ax, "no numbers")
        ax.axvline(1.0, color=RULE, linestyle="--", linewidth=0.9, zorder=1, gid="context")
    # Only now: a limit that is set fixes the scale that the panels of a row share.
    for ax in grid[:, 0]:
        ax.set_ylim(bottom=0)
    grid[0, 0].set_xscale("log")
    grid[0, 0].xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    for ax in grid[:, 0]:
        ax.set_ylabel("share per pair")
    corner = grid[2, 1]
    corner.set_axis_off()
    for ax in (grid[2, 0], grid[1, 1]):
        ax.set_xlabel("wavelength / context")
        ax.tick_params(labelbottom=True)
    handles = [
        Line2D([], [], color=colour, marker=MARKS[index % len(MARKS)], markersize=3.5, label=plain(shortened(label)))
        for index, (colour, label) in enumerate(zip(colours, view.lineup.labels, strict=True))
    ]
    handles.append(Line2D([], [], color=RULE, linestyle="--", linewidth=0.9, label="wavelength = context"))
    corner.legend(handles=handles, loc="center")
    return figure


def _draw_curve(ax: Any, curve: pd.DataFrame, colour: Any, mark: str) -> None:
    ax.fill_between(curve["x"], curve["low"], curve["high"], color=colour, alpha=0.12, linewidth=0, gid="spread")
    ax.plot(curve["x"], curve["mean"], color=colour, marker=mark, markersize=2.6, linewidth=1.3, gid="mean")


def profile(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """A column over wavelength / context: x, and over heads the mean and the quartiles low and high.

    A point per pair of dimensions where it has the same wavelength in all layers, else per bin, of the mean over the
    pairs of each head in it.
    """
    rows = rows[np.isfinite(rows["wavelength"]) & rows[column].notna()]
    lengths = rows.groupby("pair")["wavelength"]
    logs = np.log2((rows["wavelength"] / rows["context"]).to_numpy(dtype=float))
    same = bool((lengths.max() <= (1 + SAME) * lengths.min()).all())
    place = rows["pair"].to_numpy() if same else np.floor(PER_OCTAVE * logs)
    # In the order of wavelengths, whatever the order of pairs.
    x = 2 ** pd.Series(logs).groupby(place).mean().sort_values()
    heads = rows.groupby([place, rows["layer"], rows["head"]])[column].mean().groupby(level=0)
    found = {"x": x, "mean": heads.mean(), "low": heads.quantile(0.25), "high": heads.quantile(0.75)}
    return pd.DataFrame({name: series.reindex(x.index) for name, series in found.items()})


def beyond(view: View, index: int, column: str) -> Estimate:
    """Mean over heads of what a column holds at wavelengths longer than the context.

    Its error is the largest that those of the rows allow: as if all heads and pairs erred together.
    """
    rows = view.rows("spectrum", index)
    rows = rows[rows[column].notna()]
    heads = len(rows[["layer", "head"]].drop_duplicates())
    longer = rows[rows["wavelength"] > rows["context"]]
    if not heads:
        return Estimate(float("nan"), float("nan"))
    error = f"se_{column}"
    missing = error not in rows or rows[error].isna().all()
    return Estimate(
        float(longer[column].sum() / heads),
        float("nan") if missing else float(longer[error].sum() / heads),
        view.groups[index],
    )


def octaves(column: str, over_context: bool = True) -> Measure:
    """Mean over heads of log2 of a wavelength, over that of the context or of one token."""

    def measure(heads: Columns) -> Any:
        return Mean("octaves")({**heads, "octaves": np.log2(heads[column] / (heads["context"] if over_context else 1))})

    return measure


def caption(view: View, source: str, *, checkpoints: Sequence[str] | None = None) -> Caption:
    """Which wavelengths carry the energy and which the kernel, and how much of both lies beyond the context."""
    shown = selected(view, checkpoints, shown_checkpoints(view))
    whole, last = shown if checkpoints else view, len(shown.lineup) - 1
    return Caption(
        titled("Spectrum", shown),
        (
            " ".join([*_finding(shown, last), *_wavelength(whole)]),
            *_peaks(shown, last),
            "Each point is the share that one pair of dimensions has, over its wavelength as a part of the context "
            "(dashed: the two are equal; pairs to the right of it do not turn once within the context), as a mean over "
            f"heads at {', '.join(shown.lineup.labels)}; bands are the middle half of the heads. The fixed part is the "
            "energy of the mean vector before the rotation, as a share of all energy; the kernel is what the fixed "
            "parts of queries and keys make together.",
        ),
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `spectrum.csv` beside it, a row per head and pair of dimensions, in RoPE layers.",
            selection_step(view, checkpoints, shown_checkpoints(view)),
            "**Bounds**: shares beyond the context are sums over rows of the table, whose errors are given as if all "
            "heads and pairs erred together: they are at most that large.",
            aggregation="mean and quartiles over heads, per pair where all layers share their frequencies, else in "
            f"{PER_OCTAVE} bins of wavelength / context per octave.",
            drawing="five panels with the same wavelengths, those of queries and keys with the same range.",
            checkpoints=checkpoints,
        ),
        takeaway(whole, [(WAVELENGTH, whole.track(octaves("kernel_wavelength")), OCTAVES)]),
    )


def _finding(view: View, index: int) -> list[str]:
    """How much of the kernel and of the energy lies at wavelengths beyond the context."""
    label = view.lineup.labels[index]
    kernel, queries, keys = (beyond(view, index, name) for name in ("kernel_share", "energy_q", "energy_k"))
    if np.isnan(kernel.value):
        return [f"At {label} no head has a kernel."]
    energy = (queries.value + keys.value) / 2
    difference = Estimate(kernel.value - energy, kernel.se + (queries.se + keys.se) / 2, kernel.groups)
    verdict = {
        1: "The kernel sits at longer wavelengths than the energy",
        -1: "The kernel sits at shorter wavelengths than the energy",
        0: "The kernel sits where the energy does, as far as errors tell",
    }[sign(difference, SHARE)]
    longest = int(view.parts[index]["context"].iloc[0])
    return [
        f"**{verdict}**: at {label}, wavelengths beyond the context ({longest:,} tokens) hold {value(kernel, SHARE)} "
        f"of the kernel, against {value(queries, SHARE)} of the energy of queries and {value(keys, SHARE)} of that of "
        "keys."
    ]


def _wavelength(view: View) -> list[str]:
    """The kernel's mean wavelength against the context and in tokens, and how both change."""
    texts = [f"{capitalised(overall(view, WAVELENGTH, view.track(octaves('kernel_wavelength')), OCTAVES))}."]
    if view.lineup.connected and len({int(part["context"].iloc[0]) for part in view.parts}) > 1:
        tokens, last = view.track(octaves("kernel_wavelength", over_context=False)), len(view.lineup) - 1
        ends = " to ".join(f"{2.0 ** tokens.values[end]:,.0f}" for end in (0, last))
        texts.append(
            f"Contexts differ: in tokens the wavelength {direction(tokens.change(0, last), OCTAVES)} ({ends} tokens)."
        )
    return texts


def _peaks(view: View, index: int) -> list[str]:
    """Where energy and kernel are largest, and in how many heads most of the kernel is beyond the context."""
    rows, part = view.rows("spectrum", index), view.parts[index]
    texts = []
    for column, name in (PANELS[0], PANELS[1], PANELS[4]):
        curve = profile(rows, column)
        if len(curve):
            texts.append(f"{name} at {curve['x'].iloc[int(curve['mean'].argmax())]:.2g}")
    if not texts:
        return []
    text = (
        f"As a mean over heads at {view.lineup.labels[index]}, shares per pair are largest at these multiples of the "
        f"context: {', '.join(texts)}."
    )
    dominant = part["dominant_wavelength"].dropna()
    if len(dominant):
        longer = int((dominant > part.loc[dominant.index, "context"]).sum())
        text += (
            f" In {longer} of {len(dominant)} heads the pair with the largest part of the kernel does not turn once "
            "within the context."
        )
    return [text]


FIGURE = FigureSpec(
    "spectrum",
    "Spectrum",
    draw,
    caption,
    own_options=OPTIONS,
    on_axis=False,
    columns=("kernel_wavelength", "dominant_wavelength"),
    tables=("spectrum",),
    statistic="frame",
)
