"""Spectrum: which wavelengths of RoPE carry the energy of queries and keys, its fixed part, and the kernel."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ropewalk.figures.caption import Caption, Table
from ropewalk.figures.courses import before_extension, differing
from ropewalk.figures.findings import YES_OR_NO, Candidate, Finding, certain, choose, sign
from ropewalk.figures.head_panels import nothing
from ropewalk.figures.phrases import OCTAVES, SHARE, Quantity
from ropewalk.figures.production import steps
from ropewalk.figures.quartiles import tones
from ropewalk.figures.remarks import VERBS
from ropewalk.figures.selection import COUNT, OPTIONS, selected, selection_step
from ropewalk.figures.spec import FigureSpec
from ropewalk.figures.style import RULE, page, plain, shortened, style
from ropewalk.figures.wording import (
    NO_VALUE,
    cell,
    signed,
    titled,
    value,
)
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
    """Whether the kernel sits at other wavelengths than the energy, and how its wavelength goes."""
    shown = selected(view, checkpoints, shown_checkpoints(view))
    whole = shown if checkpoints else view
    length = Quantity(
        "the kernel's wavelength against the context", OCTAVES, octaves("kernel_wavelength"), "", "wavelength"
    )
    tokens = Quantity(
        "the kernel's wavelength in tokens", OCTAVES, octaves("kernel_wavelength", over_context=False), "", "wavelength"
    )
    last = len(shown.lineup) - 1
    none = np.isnan(beyond(shown, last, "kernel_share").value)
    return Caption(
        titled("Spectrum", shown),
        choose(
            (_apart(shown, last), _slow(shown, last), *(_lengths(whole, length, tokens))),
            f"At {shown.lineup.labels[last]} no head has a kernel"
            if none
            else "The kernel sits where the energy does, as far as errors tell",
        ),
        _table(shown),
        "Each point is the share that one pair of dimensions has, over its wavelength as a part of the context "
        "(dashed: the two are equal; pairs to the right of it do not turn once within the context), as a mean over "
        "heads; bands are the middle half of the heads. The fixed part is the energy of the mean vector before "
        "the rotation; the kernel is what the fixed parts of queries and keys make together.",
        steps(
            view,
            source,
            FIGURE.name,
            "**Table**: `spectrum.csv` beside it, a row per head and pair of dimensions, in RoPE layers.",
            selection_step(view, checkpoints, shown_checkpoints(view)),
            "**Bounds**: errors of shares beyond the context are as if all heads and pairs erred together: they are at "
            "most that large.",
            drawing="mean and quartiles over heads, per pair where all layers share their frequencies, else in "
            f"{PER_OCTAVE} bins of wavelength / context per octave.",
            checkpoints=checkpoints,
        ),
    )


def _apart(view: View, index: int) -> Candidate:
    """Whether more of the kernel than of the energy lies at wavelengths beyond the context."""
    kernel, queries, keys = (beyond(view, index, name) for name in ("kernel_share", "energy_q", "energy_k"))
    energy = (queries.value + keys.value) / 2
    difference = Estimate(kernel.value - energy, kernel.se + (queries.se + keys.se) / 2, kernel.groups)
    way = sign(difference, SHARE)
    if not way:
        return None
    longest = int(view.parts[index]["context"].iloc[0])
    return Finding(
        f"The kernel sits at {'longer' if way > 0 else 'shorter'} wavelengths than the energy",
        f"beyond the context of {longest:,} tokens lie {value(kernel, SHARE)} of the kernel, {value(queries, SHARE)} "
        f"of the energy of queries and {value(keys, SHARE)} of that of keys, at {view.lineup.labels[index]}",
        frozenset({"beyond"}),
        certain(difference, SHARE) / YES_OR_NO,
    )


def _slow(view: View, index: int) -> Candidate:
    """Whether most of the kernel lies in pairs that do not turn once within the context, or in those that do."""
    kernel = beyond(view, index, "kernel_share")
    away = Estimate(kernel.value - YES_OR_NO, kernel.se, kernel.groups)
    way = sign(away, SHARE)
    if not way:
        return None
    words = "do not turn once" if way > 0 else "turn at least once"
    share = value(kernel if way > 0 else kernel._replace(value=1 - kernel.value), SHARE)
    return Finding(
        f"Most of the kernel is made by pairs that {words} within the context",
        f"{share}, at {view.lineup.labels[index]}",
        frozenset({"beyond"}),
        certain(away, SHARE) / YES_OR_NO,
    )


def _lengths(view: View, length: Quantity, tokens: Quantity) -> list[Candidate]:
    """How the kernel's wavelength goes against the context and in tokens; a growing context can part the two."""
    last, tracks = len(view.lineup) - 1, [view.track(one.measure) for one in (length, tokens)]
    if not view.lineup.connected or any(np.isnan(track.values[[0, last]]).any() for track in tracks):
        return [_longest(view, tokens)] if view.lineup.side_by_side else []
    changes = [track.change(0, last) for track in tracks]
    ways = [sign(change, OCTAVES) for change in changes]
    ends = " to ".join(f"{2.0 ** tracks[1].values[end]:,.0f}" for end in (0, last))
    if ways[0] == ways[1] == 0:
        return []
    if ways[0] == ways[1]:
        more = ", and more than the context does" if before_extension(view) is not None else ""
        words = f"The kernel's wavelength {VERBS[ways[1]]} over training{more if ways[0] > 0 else ''}"
    elif ways[1] and not ways[0]:
        words = f"The kernel's wavelength {VERBS[ways[1]]} just as the context does"
    else:
        words = f"The kernel's wavelength {VERBS[ways[1]]} in tokens and {VERBS[ways[0]]} as a part of the context"
    size = max(certain(change, OCTAVES) for change in changes)
    evidence = f"{ends} tokens, {signed(changes[1], OCTAVES)}; against the context {signed(changes[0], OCTAVES)}"
    return [Finding(words, evidence, frozenset({"wavelength"}), size / _octaves_apart(view, last))]


def _longest(view: View, tokens: Quantity) -> Candidate:
    """Which models have the longest and the shortest kernels; what is compared in octaves is said in tokens."""
    found, lengths = differing(view, tokens), view.track(tokens.measure).values
    if found is None:
        return None
    ends = [f"{2.0**length:,.0f}" for length in (np.nanmax(lengths), np.nanmin(lengths))]
    return replace(found, evidence=f"{ends[0]} against {ends[1]} tokens")


def _octaves_apart(view: View, index: int) -> float:
    """Standard deviation over heads of the kernel's wavelength in octaves."""
    lengths = np.log2(view.parts[index]["kernel_wavelength"].dropna().to_numpy(dtype=float))
    return (float(np.std(lengths, ddof=1)) if len(lengths) > 1 else 0.0) or YES_OR_NO


def _table(view: View) -> Table | None:
    """What lies beyond the context, and the kernel's wavelength, at the checkpoints shown."""
    columns = ("energy_q", "energy_k", "kernel_share")
    lengths = view.track(octaves("kernel_wavelength", over_context=False))
    rows = []
    for index, label in enumerate(view.lineup.labels):
        shares = [beyond(view, index, name) for name in columns]
        length = f"{2.0 ** lengths.values[index]:,.0f}" if np.isfinite(lengths.values[index]) else NO_VALUE
        context = f"{int(view.parts[index]['context'].iloc[0]):,}"
        rows.append((label, context, length, *(cell(share, SHARE) for share in shares)))
    header = (view.lineup.noun, "context", "kernel's wavelength", "queries beyond", "keys beyond", "kernel beyond")
    return Table(header, tuple(rows), "Wavelengths in tokens; beyond: the share at wavelengths beyond the context.")


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
