"""Phase portraits: r_q against r_k, a point per head."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ropewalk.figures.style import NOPE, ROPE, RULE, UNKNOWN, page, plain, shortened, style
from ropewalk.geometry.taxonomy import CATEGORIES, HIGH, LOW
from ropewalk.summary.measures import MEASURES
from ropewalk.summary.view import view

COUNT = 6
R_Q_LIMITS = (-0.05, 1.05)
R_K_LIMITS = (-1.05, 1.05)
KINDS = (
    ("RoPE layers", True, ROPE, "o"),
    ("NoPE layers", False, NOPE, "^"),
    ("unknown whether RoPE", None, UNKNOWN, "D"),
)


@style()
def phase_portraits(
    table: pd.DataFrame, replicates: pd.DataFrame | None = None, *, checkpoints: Sequence[str] | None = None
) -> Figure:
    """Scatter of r_q against r_k on PC0 at some checkpoints, heads of RoPE and NoPE layers told apart.

    `checkpoints` are names or labels; without them six are chosen: the first, ends of phases, the last. Dashed lines
    are the thresholds of the taxonomy. Heads without a correlation have no point.
    """
    look = view(table, replicates)
    chosen = look.lineup.find(list(checkpoints)) if checkpoints else look.lineup.representative(COUNT)
    columns = {1: 1, 2: 2, 4: 2}.get(len(chosen), 3)
    rows = -(-len(chosen) // columns)
    figure = page(0.9 + 2.0 * columns, 0.75 + 2.3 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    shown: dict[str, Any] = {}
    for ax, index in zip(grid.flat, chosen, strict=False):
        part = look.parts[index].dropna(subset=["r_q", "r_k"])
        for threshold in (LOW, HIGH):
            ax.axvline(threshold, color=RULE, linestyle="--", linewidth=0.7, zorder=1)
            for sign in (1, -1):
                ax.axhline(sign * threshold, color=RULE, linestyle="--", linewidth=0.7, zorder=1)
        for name, rope, colour, marker in KINDS:
            inside = part["rope"].isna() if rope is None else (part["rope"] == rope).fillna(False).astype(bool)
            if inside.any():
                shown[name] = ax.scatter(
                    part.loc[inside, "r_q"],
                    part.loc[inside, "r_k"],
                    s=15,
                    color=colour,
                    marker=marker,
                    alpha=0.7,
                    edgecolors="white",
                    linewidths=0.35,
                    zorder=2 if rope else 3,
                    gid=name,
                )
        ax.set_xlim(*R_Q_LIMITS)
        ax.set_ylim(*R_K_LIMITS)
        ax.set_xticks([0, LOW, HIGH, 1])
        ax.set_yticks([-1, -HIGH, -LOW, 0, LOW, HIGH, 1])
        dominated = int((part["category"] == CATEGORIES[0]).sum())
        discordant = round(MEASURES[f"discordant_{CATEGORIES[0]}"](part) * len(part)) if len(part) else 0
        ax.set_title(plain(shortened(look.lineup.labels[index], 18)), fontweight="bold", pad=24)
        ax.annotate(
            f"{dominated} of {len(part)} position-dominated\n({discordant} discordant)",
            (0.5, 1.0),
            (0, 3),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7,
            gid="counts",
        )
        outside = ~(part["r_q"].between(*R_Q_LIMITS) & part["r_k"].between(*R_K_LIMITS))
        if outside.any():
            ax.text(0.03, 0.03, f"{outside.sum()} outside", transform=ax.transAxes, fontsize=7, gid="outside")
    for ax in grid.flat[len(chosen) :]:
        ax.set_visible(False)
    for position, ax in enumerate(grid.flat[: len(chosen)]):
        # A panel above an empty place is the lowest of its column.
        lowest = position + columns >= len(chosen)
        ax.tick_params(labelbottom=lowest)
        ax.set_xlabel("$r_q$ (queries)" if lowest else "")
        ax.set_ylabel("$r_k$ (keys)" if position % columns == 0 else "")
    if shown:
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3, markerscale=1.4)
    return figure
