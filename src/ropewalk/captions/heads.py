"""Captions of the figures that look at heads one by one: taxonomy, phase portraits, category flows."""

from collections.abc import Sequence

import pandas as pd

from ropewalk.captions import Caption
from ropewalk.captions.production import steps
from ropewalk.captions.signal import places, titled
from ropewalk.captions.wording import CORRELATION, SHARE, Unit, largest_change, overall, story, takeaway, value
from ropewalk.geometry.taxonomy import CATEGORIES, HIGH, LOW, MIXED
from ropewalk.summary.measures import Measure
from ropewalk.summary.view import View, moves, view

RULES = (
    f"**Classification**: position-dominated r_q > {HIGH} and |r_k| > {HIGH}; Q-positional r_q > {HIGH} and |r_k| < "
    f"{LOW}; K-positional r_q < {LOW} and |r_k| > {HIGH}; content-focused r_q < {LOW} and |r_k| < {LOW}; mixed "
    "everything else."
)
DOMINATED = CATEGORIES[0]


def taxonomy_evolution(table: pd.DataFrame, replicates: pd.DataFrame | None, source: str) -> Caption:
    """Caption of `figures.taxonomy_evolution`."""
    look = view(table, replicates)
    shares = {category: look.track(f"share_{category}") for category in CATEGORIES}
    discordant = look.track(f"discordant_{DOMINATED}")
    others = [f"- {overall(look, category, shares[category], SHARE)}." for category in CATEGORIES[1:]]
    largest = [largest_change(look, shares, SHARE, "category")] if look.lineup.training and len(look.lineup) > 1 else []
    return Caption(
        titled("Head Taxonomy", look),
        (
            f"Stacked bars of the share of heads in each category of the taxonomy at {places(look)}. A hatched part "
            "of the position-dominated heads is discordant: r_q and r_k differ in sign.",
            *story(look, "The share of position-dominated heads", shares[DOMINATED], SHARE),
            "The other categories:",
            *others,
            *largest,
            f"{overall(look, 'The share of heads that are position-dominated and discordant', discordant, SHARE)}.",
        ),
        steps(
            look,
            source,
            "heads per category and checkpoint over the heads that have both correlations.",
            "stacked bars: blue position-dominated, indigo Q-positional, pink K-positional, green content-focused, "
            "gray mixed.",
            "taxonomy_evolution",
            "smollm_fig03_taxonomy_evolution",
            RULES,
        ),
        takeaway(
            look,
            [
                ("the share of position-dominated heads", shares[DOMINATED], SHARE),
                ("the share that is position-dominated and discordant", discordant, SHARE),
                ("the share of mixed heads", shares[MIXED], SHARE),
            ],
        ),
    )


def _deviation(column: str) -> Measure:
    return lambda heads: float(heads[column].std())


def phase_portraits(
    table: pd.DataFrame, replicates: pd.DataFrame | None, source: str, *, checkpoints: Sequence[str] | None = None
) -> Caption:
    """Caption of `figures.phase_portraits` with the same `checkpoints`."""
    whole = view(table, replicates)
    look = whole.select(whole.lineup.find(list(checkpoints)) if checkpoints else whole.lineup.representative(6))
    quantities: tuple[tuple[str, str | Measure, Unit], ...] = (
        ("position-dominated", f"share_{DOMINATED}", SHARE),
        ("position-dominated and discordant", f"discordant_{DOMINATED}", SHARE),
        ("mean r_q", "mean_r_q", CORRELATION),
        ("standard deviation of r_q over heads", _deviation("r_q"), CORRELATION),
        ("mean r_k", "mean_r_k", CORRELATION),
        ("in RoPE layers", "mean_r_k_rope", CORRELATION),
        ("in NoPE layers", "mean_r_k_nope", CORRELATION),
        ("standard deviation of r_k over heads", _deviation("r_k"), CORRELATION),
    )
    tracks = [(name, look.track(measure), unit) for name, measure, unit in quantities]
    panels = []
    for index, (label, part) in enumerate(zip(look.lineup.labels, look.parts, strict=True)):
        points = len(part.dropna(subset=["r_q", "r_k"]))
        facts = [
            f"{name} {value(track.at(index), unit)}" for name, track, unit in tracks if not pd.isna(track.values[index])
        ]
        panels.append(f"- **{label}**: {points} heads; {', '.join(facts) or 'no correlations'}.")
    chosen = (
        "named in the study"
        if checkpoints
        else f"the first, ends of {'phases' if whole.lineup.training else 'families'}, the last"
    )
    ends = [
        (f"the share of {name} heads" if unit is SHARE else f"the {name}", track, unit) for name, track, unit in tracks
    ]
    return Caption(
        titled("Phase Portraits of r_q and r_k", look),
        (
            f"r_q (x) against r_k (y) on PC0, a point per head, at {', '.join(look.lineup.labels)}. Circles are heads "
            "of layers with RoPE, triangles of layers without, diamonds of layers not known to be either. Dashed lines "
            f"are the thresholds of the taxonomy (± {LOW} and ± {HIGH}).",
            *panels,
        ),
        steps(
            whole,
            source,
            "none; each head is a point, counts in the titles are heads with both correlations.",
            "a grid of scatter plots with the same limits, r_q in [-0.05, 1.05] and r_k in [-1.05, 1.05].",
            "phase_portraits",
            "smollm_fig07_rq_rk_scatter_grid",
            f"**Selection**: {', '.join(look.lineup.labels)} ({chosen}).",
        ),
        takeaway(look, [ends[0], ends[1], ends[3], ends[7]]),
    )


def category_flows(table: pd.DataFrame, replicates: pd.DataFrame | None, source: str) -> Caption:
    """Caption of `figures.category_flows`."""
    whole = view(table, replicates)
    look = whole.select(whole.lineup.representative(6))
    last = len(look.lineup) - 1
    shares = [(f"the share of {category} heads", look.track(f"share_{category}"), SHARE) for category in CATEGORIES]
    pairs = [f"- {_flow(look, index, index + 1, '**{} to {}**: ')}" for index in range(last)]
    if not pairs:
        pairs = [f"With one {look.lineup.kind} there is nothing to compare; the column shows its heads by category."]
    return Caption(
        titled("Flows Between Categories", look),
        (
            f"Each column shows the heads of one {look.lineup.kind} by category ({', '.join(look.lineup.labels)}); "
            "ribbons are the heads that two neighbouring columns share, from the category they had to the category "
            "they have, in the colour of the former. Pale ribbons are heads that stay.",
            *pairs,
        ),
        steps(
            whole,
            source,
            "heads are paired by (layer, head) and counted per pair of categories; models of another family or depth "
            "share no heads.",
            "alluvial drawing; numbers in the nodes are heads, numbers at the start of ribbons those that take that "
            "way.",
            "category_flows",
            None,
            RULES,
            errors="a change of category holds where leaving out any one shard of documents gives the same two "
            "categories.",
        ),
        _flow(look, 0, last, "From {} to {}, ") if last and look.lineup.training else takeaway(look, shares),
    )


def _flow(look: View, first: int, last: int, opening: str) -> str:
    """How many heads change category between two checkpoints, and the largest of these flows."""
    pairs = moves(look, first, last)
    start = opening.format(look.lineup.labels[first], look.lineup.labels[last])
    if pairs.empty:
        return f"{start}there are no shared heads to compare."
    moved = pairs[pairs["before"] != pairs["after"]]
    text = f"{start}{len(moved)} of {len(pairs)} shared heads change category"
    if moved.empty:
        return f"{text}."
    if moved["stable"].notna().all():
        text += f" ({int(moved['stable'].sum())} of these changes hold whichever shard is left out)"
    sizes = (
        moved.groupby(["before", "after"], as_index=False).size().sort_values("size", ascending=False, kind="stable")
    )
    ways = [f"{size} from {before} to {after}" for before, after, size in sizes.to_numpy()]
    gained, lost = (int((moved[side] == DOMINATED).sum()) for side in ("after", "before"))
    others = f", and {len(ways) - 5} smaller flows" if len(ways) > 5 else ""
    return f"{text}: {', '.join(ways[:5])}{others}; position-dominated gains {gained} and loses {lost}."
