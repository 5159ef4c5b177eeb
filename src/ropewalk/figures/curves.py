"""Measures along the checkpoints: curves with errors, bands, and the axis of a correlation."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray

from ropewalk.figures.style import KEY_SIZE, MANY, extent
from ropewalk.summary.lineup import Lineup
from ropewalk.summary.measures import deviation
from ropewalk.summary.tracks import Gap, Track
from ropewalk.summary.view import View

HOLLOW: dict[str, Any] = {"color": KEY_SIZE, "marker": "s", "markerfacecolor": "white", "linestyle": (0, (3, 2))}
"""The curve of |r_k|, beside that of r_k."""


class Null(NamedTuple):
    """A null and how its line is drawn."""

    label: str
    linestyle: Any

    def handle(self) -> Line2D:
        """Its entry in a legend."""
        return Line2D([], [], color="#777777", linewidth=1.1, linestyle=self.linestyle, label=self.label)


PERMUTED = Null("positions shuffled", (0, (1, 1.6)))
UNTRAINED = Null("untrained", (0, (5, 1.5, 1, 1.5)))


def reference(ax: Any, lineup: Lineup, track: Track | None, null: Null, colour: str) -> bool:
    """A null's measure as a thin line without errors (a dash at each model); says whether there is one."""
    if track is None or np.isnan(track.values).all():
        return False
    x, drawn = np.arange(len(lineup)), {"color": colour, "linewidth": 1.0, "linestyle": null.linestyle, "zorder": 2.2}
    if lineup.connected:
        ax.plot(x, track.values, gid=null.label, **drawn)
    else:
        ax.hlines(track.values, x - 0.35, x + 0.35, gid=null.label, **drawn)
    return True


def curve(ax: Any, lineup: Lineup, track: Track | Gap, shift: float = 0.0, **options: Any) -> None:
    """A measure as markers, joined only where one checkpoint grew out of the other, with its standard errors.

    Markers that are not joined stand `shift` to the right of their checkpoint, beside those of other curves.
    """
    size = 4.5 if len(lineup) <= MANY else 2.2
    errors = track.errors
    drawn = {"linewidth": 1.5, "markersize": size, "capsize": 2.0, "elinewidth": 0.9, "zorder": 3, **options}
    drawn["linestyle"] = drawn.get("linestyle", "-") if lineup.connected else "none"
    x = np.arange(len(lineup)) + (0.0 if lineup.connected else shift)
    ax.errorbar(x, track.values, yerr=errors if np.isfinite(errors).any() else None, **drawn)


def spread(
    ax: Any, lineup: Lineup, centre: NDArray[np.float64], half: NDArray[np.float64], colour: str, shift: float = 0.0
) -> None:
    """`centre ± half`, both [checkpoints]: a band over training, one bar per model."""
    x = np.arange(len(lineup))
    if lineup.connected:
        ax.fill_between(x, centre - half, centre + half, color=colour, alpha=0.16, linewidth=0, gid="spread")
    else:
        bars = {"color": colour, "alpha": 0.22, "linewidth": 5.0 if len(lineup) <= MANY else 2.0, "gid": "spread"}
        ax.vlines(x + shift, centre - half, centre + half, **bars)


def half_width(view: View, column: str) -> NDArray[np.float64]:
    """Standard deviation of a column over heads [checkpoints]; one head has none, and its band no width."""
    return np.nan_to_num(view.track(deviation(column)).values)


def correlation_limits(ax: Any, *values: NDArray[np.float64]) -> None:
    """A y axis from 0 (or from below it, where values go there) to 1."""
    lowest = min((float(v[np.isfinite(v)].min()) for v in values if np.isfinite(v).any()), default=0.0)
    bottom = -1.05 if lowest < -0.55 else -0.55 if lowest < -0.05 else -0.05
    ax.set_ylim(bottom, 1.05)
    ax.set_yticks(np.arange(np.ceil(bottom * 4) / 4, 1.01, 0.25))
    if bottom < -0.05:
        ax.axhline(0, color="#b5b5b5", linewidth=0.8, zorder=1)


def from_zero(ax: Any) -> None:
    """A y axis from 0 on, with room for the markers above."""
    ax.set_ylim(0, 1.06 * ax.get_ylim()[1])


def logarithmic(ax: Any) -> None:
    """A logarithmic y axis with plain numbers, over a factor of two at least."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high < 2 * low:
        ax.set_ylim(low / 1.5, high * 1.5)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter("{x:g}")


def legend_above(figure: Figure, ax: Any, ncols: int = 4) -> None:
    """A legend above its panel, and above the names of the groups where they stand there too."""
    if not ax.get_legend_handles_labels()[0]:
        return
    tops = [extent(figure, text).y1 for text in ax.texts if text.get_gid() == "group name"]
    above = ScaledTranslation(0, (max([ax.bbox.y1, *tops]) - ax.bbox.y1) / figure.dpi, figure.dpi_scale_trans)
    corner = {"bbox_to_anchor": (1.0, 1.0), "bbox_transform": ax.transAxes + above, "borderaxespad": 0.2}
    ax.legend(loc="lower right", ncols=ncols, **corner)
