"""One head on one page: its vectors in two planes, what distance does to its scores, its way through training."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from ropewalk.figures import axis
from ropewalk.figures.caption import Caption
from ropewalk.figures.curves import correlation_limits
from ropewalk.figures.distance_kernels import centred
from ropewalk.figures.files import FILES, write_figure
from ropewalk.figures.findings import Finding, choose
from ropewalk.figures.head_facts import EXTREME, FACTS, estimate, facts_table, standing_out
from ropewalk.figures.head_panels import centres, log_axis, named, nothing
from ropewalk.figures.production import steps
from ropewalk.figures.style import KEY, QUERY, SIGNAL, TEXT, page, plain, shortened, style
from ropewalk.figures.wording import value
from ropewalk.head import HeadDetail
from ropewalk.ownership import is_marked
from ropewalk.seals import Ledger
from ropewalk.summary.view import View
from ropewalk.text import slug

COLLAGES = "heads"
"""Folder of the pages about single heads in a results folder."""
SHADES = {"q": "Blues", "k": "Reds"}
LIGHTEST = 0.3
"""Where the colour maps of positions begin: what is lighter is not seen on white."""
MOST = 1500
"""Vectors of each kind that are drawn: more would hide each other."""


@style()
def draw(view: View, head: HeadDetail) -> Figure:
    """A page about one head at one checkpoint of a view.

    Top: kept queries (blue) and keys (red), shaded by position, on PC0 and PC1 and in the plane of drift and
    separation; plasticity by the position of the query. Bottom: kernel and measured score by distance, attention by
    distance, and r_q and r_k over the checkpoints.
    """
    figure = page(9.6, 6.0)
    (first, plane, plastic), (scores, attention, training) = figure.subplots(2, 3)
    context = int(head.row["context"])
    for ax, (x, y), names in (
        (first, ("pc0", "pc1"), ("PC0", "PC1")),
        (plane, ("a", "b"), ("drift axis a", "separation axis b")),
    ):
        _vectors(ax, head, x, y, context)
        ax.set_xlabel(names[0])
        ax.set_ylabel(names[1])
    _shades(figure, plane, context)
    _plasticity(plastic, view, head, context)
    _scores(scores, head)
    _attention(attention, head)
    _training(figure, training, view, head)
    label = view.lineup.labels[view.lineup.names.index(head.checkpoint)]
    figure.suptitle(
        f"{named((head.layer, head.head))} at {plain(shortened(label))}: {head.category or 'no category'}, "
        f"$r_q$ {head.row['r_q']:.2f}, $r_k$ {head.row['r_k']:.2f}",
        fontsize=10,
        fontweight="bold",
    )
    return figure


def _colours(kind: str) -> ListedColormap:
    return ListedColormap(matplotlib.colormaps[SHADES[kind]](np.linspace(LIGHTEST, 1.0, 256)))


def _vectors(ax: Any, head: HeadDetail, x: str, y: str, context: int) -> None:
    """Kept queries and keys on two axes, shaded by position."""
    drawn = False
    for kind, vectors, marker in (("q", head.vectors_q, "o"), ("k", head.vectors_k, "s")):
        if vectors is None or y not in vectors or vectors[[x, y]].isna().all(axis=None):
            continue
        rows = vectors.iloc[:: max(1, -(-len(vectors) // MOST))]
        look = {
            "s": 5,
            "marker": marker,
            "linewidths": 0,
            "alpha": 0.75,
            "cmap": _colours(kind),
            "vmin": 0,
            "vmax": context,
        }
        ax.scatter(rows[x], rows[y], c=rows["position"], gid=f"{kind} {x} {y}", rasterized=True, **look)
        drawn = True
    if not drawn:
        nothing(ax, "no vectors: capture `sample` too")


def _shades(figure: Figure, ax: Any, context: int) -> None:
    for kind, label in (("q", "queries"), ("k", "keys")):
        scale = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(0, context), _colours(kind))
        bar = figure.colorbar(scale, ax=ax, location="top", aspect=32, pad=0.01, fraction=0.05)
        # Both run over the same positions: one of them says which.
        bar.set_ticks([0, context] if kind == "k" else [])
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=6.5, length=0, pad=1)
        bar.ax.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=7)


def _plasticity(ax: Any, view: View, head: HeadDetail, context: int) -> None:
    rows = _rows(view, "plasticity_profile", head)
    ax.set_xlabel("query position / context")
    ax.set_ylabel("plasticity")
    if rows is None or "empirical" not in rows or rows["empirical"].isna().all():
        nothing(ax, "no plasticity: capture `sample` too")
        return
    ax.grid(axis="y")
    x = (rows["start"] + rows["stop"] - 1) / 2 / context
    errors = rows["se_empirical"] if rows["se_empirical"].notna().any() else None
    ax.errorbar(x, rows["empirical"], yerr=errors, marker="o", markersize=3, color=TEXT, linewidth=1.2, gid="empirical")
    ax.plot(x, rows["gaussian"], color="#b5408a", linewidth=1.0, linestyle=(0, (3, 2)), gid="gaussian")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.08)


def _rows(view: View, table: str, head: HeadDetail) -> pd.DataFrame | None:
    if table not in view.tables:
        return None
    rows = view.rows(table, view.lineup.names.index(head.checkpoint))
    own = rows[(rows["layer"] == head.layer) & (rows["head"] == head.head)]
    return own if len(own) else None


def _scores(ax: Any, head: HeadDetail) -> None:
    """The kernel as a line, the measured score by distance as dots, each less its mean."""
    ax.set_xlabel("distance (tokens)")
    ax.set_ylabel("score − its mean")
    curve = head.distance
    if curve is None or "score" not in curve:
        nothing(ax, "no scores: capture `behaviour` too")
        return
    ax.grid(axis="y")
    curve = curve.assign(kernel=curve.get("kernel", np.nan))
    x = centres(curve["distance"], curve["distance_stop"])
    if curve["kernel"].notna().any():
        ax.plot(x, centred(curve, "kernel"), color=SIGNAL, linewidth=1.5, gid="kernel")
    errors = curve["se_score"] if curve["se_score"].notna().any() else None
    dots = {"markersize": 3.0, "markerfacecolor": "white", "elinewidth": 0.8}
    ax.errorbar(x, centred(curve, "score"), yerr=errors, fmt="o", color=TEXT, gid="score", **dots)
    log_axis(ax, float(curve["distance_stop"].max()))


def _attention(ax: Any, head: HeadDetail) -> None:
    """How attention is spread over distances, bin by bin of `distance.csv`."""
    ax.set_xlabel("distance (tokens)")
    ax.set_ylabel("attention in the bin")
    curve = head.distance
    if curve is None or "mass" not in curve or curve["mass"].isna().all():
        nothing(ax, "no attention: capture `behaviour` too")
        return
    ax.grid(axis="y")
    x = centres(curve["distance"], curve["distance_stop"])
    ax.fill_between(x, 0, curve["mass"], color=SIGNAL, alpha=0.25, linewidth=0)
    ax.plot(x, curve["mass"], color=SIGNAL, marker="o", markersize=2.5, linewidth=1.2, gid="mass")
    ax.set_ylim(bottom=0)
    log_axis(ax, float(curve["distance_stop"].max()))


def _training(figure: Figure, ax: Any, view: View, head: HeadDetail) -> None:
    """r_q and r_k of the head at every checkpoint that has it, with errors."""
    tracks = trajectory(view, head)
    x = np.arange(len(view.lineup))
    for column, colour, marker in (("r_q", QUERY, "o"), ("r_k", KEY, "s")):
        values, errors = tracks[column], tracks[f"se_{column}"]
        look = {"color": colour, "marker": marker, "markersize": 4, "capsize": 2.0, "linewidth": 1.3}
        look["linestyle"] = "-" if view.lineup.connected else "none"
        yerr = errors if np.isfinite(errors).any() else None
        ax.errorbar(x, values, yerr=yerr, label=f"${column}$", gid=column, **look)
    here = view.lineup.names.index(head.checkpoint)
    ax.axvspan(here - 0.3, here + 0.3, color="#cccccc", alpha=0.5, linewidth=0, zorder=0.5, gid="here")
    correlation_limits(ax, *(tracks[column] for column in ("r_q", "r_k")))
    ax.set_ylabel("correlation with position")
    ax.grid(axis="y")
    ax.legend(loc="best", ncols=2)
    axis.labels_along_x(figure, ax, view.lineup, 0.1)


def trajectory(view: View, head: HeadDetail) -> Mapping[str, Any]:
    """r_q and r_k of a head and their errors [checkpoints]; NaN where a checkpoint does not have it."""
    columns = ("r_q", "r_k", "se_r_q", "se_r_k")
    found = {column: np.full(len(view.lineup), np.nan) for column in columns}
    for index, part in enumerate(view.parts):
        own = part[(part["layer"] == head.layer) & (part["head"] == head.head)]
        for column in columns:
            if len(own) and column in own:
                found[column][index] = own[column].iloc[0]
    return found


def caption(view: View, source: str, head: HeadDetail) -> Caption:
    """What the head is, what it stands out in among the heads of its checkpoint, and what the panels are."""
    label = view.lineup.labels[view.lineup.names.index(head.checkpoint)]
    name = named((head.layer, head.head)).capitalize()
    numbers = [
        f"{fact.name} {value(own, fact.unit)}" for fact in FACTS[:2] if (own := estimate(view, head, fact)) is not None
    ]
    numbers += [] if np.isnan(head.certainty) else [f"certainty {head.certainty:.0%}"]
    # Whatever a head stands out in, what it is comes first.
    kind = Finding(f"{name} is {head.category or 'in no category'} at {label}", ", ".join(numbers), size=math.inf)
    return Caption(
        f"{name} at {label}",
        choose((kind, *(standing_out(view, head, fact) for fact in FACTS)), kind.sentence),
        facts_table(view, head),
        "Top, from left: kept queries (blue) and keys (red), darker later in the document, on the first two components "
        "of both together; in the plane of the drift axis a and the separation axis b; plasticity by the position of "
        "the query (line), and with scores taken as Gaussian (dashed). Bottom: the distance kernel (line) and the "
        "measured score (dots) by distance, each less its mean; attention by distance; r_q and r_k at every "
        "checkpoint, this one shaded.",
        steps(
            view,
            source,
            "",
            "**Vectors**: the sample that the statistic `sample` keeps; of many, evenly spaced ones are drawn.",
            f"**Among the highest or lowest** is a head of the {EXTREME:.0%} at either end, beyond the median by more "
            "than its error.",
            drawing="everything is of this head.",
        ),
    )


def write(folder: Path, view: View, source: str, head: HeadDetail, made_from: Mapping[str, Any] = {}) -> Path:
    """Write the collage of a head into a folder of its own below `folder`, beside others; returns it.

    The ledger says for each of these folders what it was `made_from`.
    """
    name = f"{slug(head.checkpoint)}_l{head.layer:02d}h{head.head:02d}"
    known = Ledger.read(folder) or Ledger({})
    names = [f"{name}/{file}" for file in FILES]
    Ledger.begin(folder, names, replace=is_marked(folder.parent))
    write_figure(folder / name, draw(view, head), caption(view, source, head))
    written = Ledger.of(folder, names, {name: dict(made_from)})
    Ledger({**known.files, **written.files}, {**known.made_from, **written.made_from}).write(folder)
    return folder / name
