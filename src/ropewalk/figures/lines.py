"""Means over heads along the checkpoints: the position signal, the variance of PC0, and concordance."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from ropewalk.figures import axis
from ropewalk.figures.style import KEY, KEY_SIZE, NOPE, QUERY, ROPE, SIGNAL, TEXT, extent, page, style
from ropewalk.summary.lineup import Lineup
from ropewalk.summary.tracks import Track
from ropewalk.summary.view import View, view


def _connected(lineup: Lineup) -> bool:
    return lineup.training and len(lineup) > 1


def _curve(ax: Any, lineup: Lineup, track: Track, shift: float = 0.0, **look: Any) -> None:
    """A measure as markers, joined only where one checkpoint grew out of the other, with its standard errors."""
    size = 4.5 if len(lineup) <= 40 else 2.2
    errors = track.errors
    options = {"linewidth": 1.5, "markersize": size, "capsize": 2.0, "elinewidth": 0.9, "zorder": 3, **look}
    options["linestyle"] = options.get("linestyle", "-") if _connected(lineup) else "none"
    x = np.arange(len(lineup)) + (0.0 if _connected(lineup) else shift)
    ax.errorbar(x, track.values, yerr=errors if np.isfinite(errors).any() else None, **options)


def _spread(
    ax: Any, lineup: Lineup, centre: NDArray[np.float64], half: NDArray[np.float64], colour: str, shift: float = 0.0
) -> None:
    """`centre ± half`: a band over training, one bar per model."""
    x = np.arange(len(lineup))
    if _connected(lineup):
        ax.fill_between(x, centre - half, centre + half, color=colour, alpha=0.16, linewidth=0, gid="spread")
    else:
        bars = {"color": colour, "alpha": 0.22, "linewidth": 5.0 if len(lineup) <= 40 else 2.0, "gid": "spread"}
        ax.vlines(x + shift, centre - half, centre + half, **bars)


def _deviation(look: View, column: str) -> NDArray[np.float64]:
    """Standard deviation over heads; one head has none, and its band no width."""
    return look.track(lambda heads: float(heads[column].std())).values


def _correlation_limits(ax: Any, lowest: float) -> None:
    """From 0 (or -1, where values or bands go below 0) to 1."""
    bottom = -1.05 if lowest < -0.55 else -0.55 if lowest < -0.05 else -0.05
    ax.set_ylim(bottom, 1.05)
    ax.set_yticks(np.arange(np.ceil(bottom * 4) / 4, 1.01, 0.25))
    if bottom < -0.05:
        ax.axhline(0, color="#b5b5b5", linewidth=0.8, zorder=1)


def _lowest(*values: NDArray[np.float64]) -> float:
    finite = np.concatenate([v[np.isfinite(v)] for v in values])
    return float(finite.min()) if finite.size else 0.0


@style()
def position_signal(table: pd.DataFrame, replicates: pd.DataFrame | None = None) -> Figure:
    """Mean r_q and r_k on PC0 per checkpoint, with bands of one standard deviation over heads, and mean |r_k|.

    Markers carry jackknife standard errors where there are replicates. The dashed line of |r_k| tells keys that lose
    position from keys that turn discordant (docs/method.md §4).
    """
    look = view(table, replicates)
    lineup = look.lineup
    figure = page(axis.width(lineup), 3.5)
    ax = figure.subplots()
    ax.grid(axis="y")
    curves = (
        ("r_q", "mean_r_q", QUERY, "o", "mean $r_q$ (queries)", -0.14),
        ("r_k", "mean_r_k", KEY, "s", "mean $r_k$ (keys)", 0.14),
    )
    lows = []
    for column, measure, colour, marker, label, shift in curves:
        track, deviation = look.track(measure), _deviation(look, column)
        band = np.where(np.isfinite(deviation), deviation, 0.0)
        _spread(ax, lineup, track.values, band, colour, shift)
        _curve(ax, lineup, track, shift, color=colour, marker=marker, label=label)
        lows.append(track.values - band)
    sizes = look.track("mean_abs_r_k")
    hollow = {"color": KEY_SIZE, "marker": "s", "markerfacecolor": "white", "linestyle": (0, (3, 2)), "linewidth": 1.1}
    _curve(ax, lineup, sizes, 0.32, label="mean $|r_k|$", zorder=2.5, **hollow)
    _correlation_limits(ax, _lowest(*lows))
    ax.set_ylabel("correlation with position, PC0")
    figure.legend(loc="outside lower center", ncols=3)
    axis.along_x(figure, [ax], lineup)
    return figure


@style()
def explained_variance(table: pd.DataFrame, replicates: pd.DataFrame | None = None) -> Figure:
    """Mean share of the variance on PC0 per checkpoint, with a band of one standard deviation over heads."""
    look = view(table, replicates)
    figure = page(axis.width(look.lineup), 3.0)
    ax = figure.subplots()
    ax.grid(axis="y")
    track, deviation = look.track("mean_explained_variance"), _deviation(look, "explained_variance")
    band = np.where(np.isfinite(deviation), deviation, 0.0)
    _spread(ax, look.lineup, track.values, band, SIGNAL)
    _curve(ax, look.lineup, track, color=SIGNAL, marker="o")
    top = np.nanmax(track.values + band) if np.isfinite(track.values).any() else 1.0
    ax.set_ylim(0, min(max(1.1 * top, 0.1), 1.0))
    ax.set_ylabel("share of variance on PC0")
    axis.along_x(figure, [ax], look.lineup)
    return figure


@style()
def concordance(table: pd.DataFrame, replicates: pd.DataFrame | None = None) -> Figure:
    """Whether keys lose position or turn against it: three panels over the checkpoints (docs/method.md §4).

    Top: mean r_k and mean |r_k|. Middle: the share of discordant heads (r_k < 0), all and by RoPE and NoPE layers.
    Bottom: mean r_k of the heads of RoPE and of NoPE layers. Error bars are jackknife standard errors.
    """
    look = view(table, replicates)
    lineup = look.lineup
    figure = page(axis.width(lineup), 6.4)
    axes = figure.subplots(3, 1, sharex=True)
    for ax in axes:
        ax.grid(axis="y")
    signed, size = look.track("mean_r_k"), look.track("mean_abs_r_k")
    _curve(axes[0], lineup, signed, -0.1, color=KEY, marker="s", label="mean $r_k$")
    hollow = {"color": KEY_SIZE, "marker": "s", "markerfacecolor": "white", "linestyle": (0, (3, 2))}
    _curve(axes[0], lineup, size, 0.1, label="mean $|r_k|$", **hollow)
    _correlation_limits(axes[0], _lowest(signed.values))
    axes[0].set_ylabel("$r_k$, all heads")

    _curve(axes[1], lineup, look.track("discordant"), color=TEXT, marker="D", label="all heads")
    axes[1].set_ylabel("share with $r_k < 0$")
    axes[1].set_ylim(-0.03, 1.03)
    axes[2].set_ylabel("$r_k$ by layer kind")
    sides = (
        (True, "rope", ROPE, "o", "RoPE layers", -0.16),
        (False, "nope", NOPE, "^", "NoPE layers", 0.16),
    )
    rope = pd.concat([part["rope"] for part in look.parts])
    known = [side for side in sides if (rope == side[0]).fillna(False).any()]
    lows = []
    for _, name, colour, marker, label, shift in known:
        _curve(axes[1], lineup, look.track(f"discordant_{name}"), shift, color=colour, marker=marker, label=label)
        track = look.track(f"mean_r_k_{name}")
        _curve(axes[2], lineup, track, shift, color=colour, marker=marker, label=label)
        lows.append(track.values)
    _correlation_limits(axes[2], _lowest(*lows) if lows else 0.0)
    if not known:
        note = "the table does not say which layers have RoPE"
        back = {"facecolor": "white", "edgecolor": "none"}
        axes[2].text(0.5, 0.5, note, transform=axes[2].transAxes, ha="center", va="center", bbox=back)
    axis.along_x(figure, list(axes), lineup)
    for ax in axes:
        # Above the panel, and above the names of the groups where they stand there too.
        tops = [extent(figure, text).y1 for text in ax.texts if text.get_gid() == "group name"]
        above = ScaledTranslation(0, (max([ax.bbox.y1, *tops]) - ax.bbox.y1) / figure.dpi, figure.dpi_scale_trans)
        if ax.get_legend_handles_labels()[0]:
            place = {"bbox_to_anchor": (1.0, 1.0), "bbox_transform": ax.transAxes + above, "borderaxespad": 0.2}
            ax.legend(loc="lower right", ncols=3, **place)
    return figure
