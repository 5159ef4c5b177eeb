"""Write docs/heads.md: where position comes from in the miniature and in SmolLM2-135M, and what heads do with it.

Every number and every direction word comes from the two folders of results, which are read and not written.

    python scripts/generate_heads_doc.py [results/miniature] [results/smollm2_135m]
"""

import argparse
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd

import ropewalk
from ropewalk.figures.contrasts import Contrast, contrast, heads_with, related
from ropewalk.figures.distance_kernels import HALF
from ropewalk.figures.findings import sign
from ropewalk.figures.kernels import BOTH, FAR, FLAT, NEAR, kernels
from ropewalk.figures.mean_paths import missed
from ropewalk.figures.phrases import CORRELATION, KEYS, NATS, QUANTITIES, SHARE, Unit
from ropewalk.figures.sinks import without_first
from ropewalk.figures.spectrum import beyond, octaves
from ropewalk.figures.wording import WHERE, amount, capitalised, listed, value
from ropewalk.files import write_text
from ropewalk.geometry.axes import AXES
from ropewalk.geometry.jackknife import critical
from ropewalk.geometry.taxonomy import CATEGORIES, DOMINATED
from ropewalk.summary.chance import correlation_by_chance
from ropewalk.summary.measures import (
    Among,
    Columns,
    Correlation,
    Mean,
    Measure,
    everywhere,
    in_bins,
    in_category,
    in_layer,
    in_layers,
)
from ropewalk.summary.sample import Sample
from ropewalk.summary.tracks import Estimate, Track
from ropewalk.summary.view import COMMON, View

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "heads.md"
FIGURES = {
    "miniature": ("category_behaviour", "fixed_share", "distance_kernels", "kernel_map"),
    "smollm2": ("distance_kernels", "sinks"),
}
SOURCES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "Is position a constant vector that RoPE turns?": (
        ("fixed_share_q", "fixed_share_k", "concentration_q", "concentration_k", "eta2_q", "eta2_k"),
        ("fixed_share", "axis_choice"),
    ),
    "Does the kernel predict the score by distance?": (
        ("kernel_r", "kernel_misfit", "kernel_range", "mass_induction"),
        ("distance_kernels", "kernel_map"),
    ),
    "Does the taxonomy say what heads do?": (
        ("score_r2_distance", "category", "category_drift", "eta2_q", "eta2_k"),
        ("category_behaviour",),
    ),
    "Which wavelengths?": (("kernel_wavelength", "dominant_wavelength"), ("spectrum",)),
    "What do heads without RoPE do?": (
        ("mass_induction", "lift_induction", "effective_keys", "mass_first", "mass_previous", "mass_duplicate"),
        ("category_behaviour", "attention_by_distance"),
    ),
    "Where are the sinks, and what hangs on them?": (
        ("mass_first", "mass_first4", "r_q_skip4", "r_k_skip4"),
        ("sinks", "attention_by_distance"),
    ),
    "Is position a straight line?": (
        ("eta2_q", "eta2_k", "eta2_pc0_q", "eta2_pc0_k", "bend_q", "bend_k"),
        ("mean_paths",),
    ),
    "How many dimensions?": (("rank_q", "rank_k", "rank90_q", "rank90_k"), ("explained_variance",)),
    "When does it appear?": (
        ("fixed_share_q", "kernel_range", "kernel_r", "score_r2_distance", "mass_previous", "mass_induction"),
        ("category_behaviour", "kernel_map"),
    ),
}
"""By heading, the columns that a section is computed from and the figures that show more of it."""
DPI = 150
WIDTH = 120
BOUND = "\x00"
PLAIN = Unit(2, 1.0, "", "")
TIMES = Unit(1, 1.0, "", "")
ONE_NAT = 1.0
"""A kernel that spans more makes one key e times as likely as another, all else equal."""
SINK = 0.01
"""Mean attention on the first token from which on a model is said to have sinks."""
ROPE, NOPE = in_layers(True), in_layers(False)
NOUNS = {"q": "queries", "k": "keys"}


@dataclass(frozen=True)
class Model:
    """One checkpoint, as a view of it alone, with the whole study that it is of."""

    name: str
    view: View
    head_dim: int

    @property
    def sample(self) -> Sample:
        """Its heads."""
        return self.view.samples[0]

    def read(self, measure: str | Measure, axis: str = "pooled") -> Estimate:
        """A measure with its error; r_q and r_k on a choice of axis."""
        return self.view.on(axis).track(measure).at(0)

    def count(self, column: str, limit: float, among: Among = everywhere) -> str:
        """How many heads of those with a value have more than a limit, and for how many the error reaches across it."""
        table = self.view.parts[0][among(self.sample.columns)].dropna(subset=[column])
        reach = critical(self.view.groups[0]) * table[f"se_{column}"]
        undecided = int((np.abs(table[column] - limit) <= reach).sum())
        return f"{int((table[column] > limit).sum())} of {len(table)} ({undecided} undecided)"


@dataclass(frozen=True)
class Row:
    """A row of a table: what it is, and its cell for each model."""

    name: str
    cell: Callable[[Model], str]


def row(name: str, measure: str | Measure, unit: Unit, axis: str = "pooled") -> Row:
    """A row of a measure with its error; empty where a model has no value."""

    def cell(model: Model) -> str:
        found = model.read(measure, axis)
        return "" if np.isnan(found.value) else value(found, unit)

    return Row(name, cell)


def table(models: Sequence[Model], rows: Sequence[Row], corner: str = "") -> str:
    """Rows of models, as Markdown; rows that no model has a value in are left out."""
    lines = [f"| {corner} | {' | '.join(model.name for model in models)} |", "|---|" + "---|" * len(models)]
    for one in rows:
        cells = [one.cell(model) for model in models]
        if any(cells):
            lines.append(f"| {one.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of texts."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def wrapped(*sentences: str) -> str:
    """A paragraph of the sentences that are there."""
    text = " ".join(sentence for sentence in sentences if sentence)
    # Commands, and values with their errors, stay on one line.
    bound = re.sub(r"`[^`]*`| ± ", lambda found: found[0].replace(" ", BOUND), text)
    return textwrap.fill(bound, WIDTH, break_long_words=False, break_on_hyphens=False).replace(BOUND, " ")


def section(heading: str, numbers: str, *paragraphs: str) -> str:
    """A section: a question, its numbers, what they say."""
    columns, names = SOURCES[heading]
    quoted = [", ".join(f"`{name}`" for name in some) for some in (columns, names)]
    source = f"Columns of `heads.csv`: {quoted[0]}. Figures: {quoted[1]}."
    return "\n\n".join([f"## {heading}", numbers, *(text for text in paragraphs if text), wrapped(source)])


def median(column: str) -> Measure:
    """Median of a column over the heads that have a value."""

    def measure(heads: Columns) -> Any:
        return np.nanmedian(heads[column], axis=-1)

    return measure


def mean_square(column: str) -> Measure:
    """Mean of a column's square over heads."""

    def measure(heads: Columns) -> Any:
        return Mean("square")({**heads, "square": heads[column] ** 2})

    return measure


def square(measure: Measure) -> Measure:
    """The square of a measure."""
    return lambda heads: measure(heads) ** 2


def in_contexts(heads: Columns) -> Any:
    """Wavelength of the kernel as a multiple of the context, geometric mean over heads."""
    return 2 ** octaves("kernel_wavelength")(heads)


def fixed(mask: Any) -> Among:
    """These heads, whichever group of documents is left out."""
    return lambda _: mask


def direction(change: Estimate, unit: Unit) -> str:
    """`rises by ...`, `falls by ...`, or that no change can be claimed."""
    if math.isnan(change.value):
        return "cannot be compared"
    if change.value == 0:
        return "does not change"
    way = sign(change, unit)
    if way:
        return f"{'rises' if way > 0 else 'falls'} by {amount(change, unit)}"
    if math.isnan(change.se):
        return "does not change at this precision"
    return f"shows no change beyond its error ({unit.number(change.value)}{unit.error(change.se)}{unit.change})"


def largest_steps(view: View, track: Track, unit: Unit) -> str:
    """The largest rise and the largest fall between consecutive checkpoints, where there are any."""
    labels = view.lineup.labels
    steps = [(track.change(index, index + 1), index) for index in range(len(labels) - 1)]
    found = []
    for way, word in ((1, "rise"), (-1, "fall")):
        moving = [step for step in steps if sign(step[0], unit, len(steps)) == way]
        if moving:
            change, index = max(moving, key=lambda step: abs(step[0].value))
            found.append(f"largest {word} {amount(change, unit)} ({labels[index]} to {labels[index + 1]})")
        else:
            found.append(
                f"no {word}" + (f" beyond its error as the largest of {len(steps)}" if view.has_errors else "")
            )
    return f"Between consecutive checkpoints: {', '.join(found)}."


def difference(found: Contrast, unit: Unit) -> str:
    """How much more or less the first group of a contrast has."""
    way = found.way(unit)
    if not way:
        size = f"{unit.number(found.difference.value)}{unit.error(found.difference.se)}{unit.change}"
        return f"{size}, not beyond error and chance"
    return f"{amount(found.difference, unit)} {'more' if way > 0 else 'less'}"


def correlations(found: Mapping[str, tuple[Estimate, int]]) -> str:
    """Correlations, each with the heads it is over, by what follows them, such as `0.910 ± 0.004 with r_q`.

    It is said which of them are no more than errors or unrelated heads would make.
    """
    texts = [f"{value(estimate, CORRELATION)} {words}" for words, (estimate, _) in found.items()]
    remarks = [_remark(*pair) for pair in found.values()]
    if len(set(remarks)) == 1 and remarks[0]:
        return f"{listed(texts)} ({'each ' if len(found) > 1 else ''}{remarks[0]})"
    return listed([f"{text} ({remark})" if remark else text for text, remark in zip(texts, remarks, strict=True)])


def _remark(correlation: Estimate, count: int) -> str:
    if np.isnan(correlation.value) or related(correlation, count):
        return ""
    small = not abs(correlation.value) > correlation_by_chance(count)
    return f"no more than {count} unrelated heads show" if small else "not beyond its error"


def grouped(said: Mapping[str, Sequence[str]]) -> str:
    """What is said of which names: `a in x and y, b in z`."""
    texts = [f"{words} in {listed(list(names))}" for words, names in said.items() if names]
    return ", and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def by_verdict(models: Sequence[Model], verdict: Callable[[Model], str]) -> str:
    """The verdicts, each with the models that it holds for."""
    found: dict[str, list[str]] = {}
    for model in models:
        found.setdefault(verdict(model), []).append(model.name)
    return grouped(found)


def against(estimate: Estimate, limit: float, unit: Unit) -> int:
    """1 above a limit beyond the error, -1 below it, else 0."""
    return sign(Estimate(estimate.value - limit, estimate.se, estimate.groups), unit)


def said(ways: Sequence[int], above: str, below: str, between: str) -> str:
    """One word for several signs: that of all, or neither."""
    return above if set(ways) == {1} else below if set(ways) == {-1} else between


def over_null(trained: Model, null: Model, measure: str | Measure) -> Estimate:
    """Trained less untrained, paired by head and documents."""
    readings = [model.view.track(measure).readings[0] for model in (trained, null)]
    return readings[0].since(readings[1])


def halves(model: Model) -> tuple[Any, Any]:
    """The heads whose K has the larger range, and the others."""
    ranges = model.view.parts[0]["kernel_range"]
    return (ranges >= ranges.median()).to_numpy(), (ranges < ranges.median()).to_numpy()


def missing(model: Model) -> tuple[Any, Any]:
    """The heads of whose measured curve K misses at least half, and the others that have a K."""
    misfit = model.view.parts[0]["kernel_misfit"].to_numpy(dtype=float)
    return misfit >= HALF, misfit < HALF


# (a)


def fixed_correlation(kind: str, axis: str) -> Row:
    """Fixed share against the size of r, with how it stands to chance."""
    size = "abs " if kind == "k" else ""
    return row(
        f"correlation of the fixed share of {NOUNS[kind]} with {size}r_{kind} {WHERE[axis]}",
        Correlation(f"fixed_share_{kind}", f"r_{kind}", size=kind == "k"),
        CORRELATION,
        axis,
    )


def constant_section(models: Sequence[Model], study: View) -> str:
    """Whether position is a constant vector that RoPE turns."""
    rows = [
        *(row(f"fixed share of {noun}", f"mean_fixed_share_{kind}", SHARE) for kind, noun in NOUNS.items()),
        *(row(f"concentration of {noun}", Mean(f"concentration_{kind}"), CORRELATION) for kind, noun in NOUNS.items()),
        *(
            row(
                f"correlation of the fixed share of {noun} with their η²",
                Correlation(f"fixed_share_{kind}", f"eta2_{kind}"),
                CORRELATION,
            )
            for kind, noun in NOUNS.items()
        ),
        *(fixed_correlation(kind, axis) for kind in NOUNS for axis in AXES),
    ]

    def half(model: Model) -> str:
        ways = [against(model.read(f"mean_fixed_share_{kind}"), 0.5, SHARE) for kind in NOUNS]
        return said(ways, "more than half", "less than half", "about half")

    def axis_free(model: Model) -> str:
        ways = [
            related(
                model.read(Correlation(f"fixed_share_{kind}", f"eta2_{kind}")),
                heads_with(model.sample, f"fixed_share_{kind}", f"eta2_{kind}"),
            )
            for kind in NOUNS
        ]
        return said(
            ways,
            "a larger fixed share goes with more variance between positions",
            "a larger fixed share goes with less variance between positions",
            "the fixed share does not clearly go with the variance between positions",
        )

    start, end = (study.track("mean_fixed_share_q").at(index) for index in (0, len(study.lineup) - 1))
    span = study.track(Mean("kernel_range")).at(0)
    alike = (
        f"A large fixed share alone is not position. Of queries it is {value(start, SHARE)} at "
        f"{study.lineup.labels[0]} "
        f"of the miniature, more than at the end, while K spans no more than {value(span, NATS)}: early in training "
        "tokens still look alike. It also counts pairs that hardly turn within the context."
        if start.value > end.value
        else ""
    )
    return section(
        "Is position a constant vector that RoPE turns?",
        table(models, rows, "mean over RoPE heads"),
        wrapped(
            "Turned back by the angle of its position, a vector loses what RoPE did to it ([method](method.md) §8). "
            "The "
            f"part of its energy that is then the same for all tokens, the fixed share, is {by_verdict(models, half)}.",
            f"{capitalised(by_verdict(models, axis_free))} (η², which needs no axis).",
            *(axes_sentence(model) for model in models[:2]),
        ),
        wrapped(alike),
    )


def axes_sentence(model: Model) -> str:
    """On which axes the fixed share goes with r_q and with |r_k|."""
    yes: list[str] = []
    no: list[str] = []
    for kind, name in (("q", "r_q"), ("k", "abs r_k")):
        for axis in AXES:
            found = model.read(Correlation(f"fixed_share_{kind}", f"r_{kind}", size=kind == "k"), axis)
            goes = related(found, heads_with(model.view.on(axis).samples[0], f"fixed_share_{kind}", f"r_{kind}")) > 0
            (yes if goes else no).append(f"{name} {WHERE[axis]}")
    if len(no) < len(yes):
        but = f", except for {listed(no)}" if no else ""
        return f"In {model.name} it goes with r_q and abs r_k on all three axes{but}."
    return f"In {model.name} it goes with {listed(yes) or 'neither r_q nor abs r_k'}, and not with {listed(no)}."


# (b)


def kernel_section(models: Sequence[Model]) -> str:
    """How well K predicts the measured score, and where not."""

    def of(groups: Callable[[Model], tuple[Any, Any]], which: int, column: str, unit: Unit) -> Callable[[Model], str]:
        def cell(model: Model) -> str:
            mask = groups(model)[which]
            return value(model.read(Mean(column, among=fixed(mask))), unit) if mask.any() else "no such heads"

        return cell

    rows = [
        row("correlation of K with the measured score, mean", "mean_kernel_r", CORRELATION),
        row("the same, median", median("kernel_r"), CORRELATION),
        row("misfit, mean", Mean("kernel_misfit"), CORRELATION),
        row("misfit, median", median("kernel_misfit"), CORRELATION),
        Row(f"heads whose misfit is above {HALF:g}", lambda model: model.count("kernel_misfit", HALF)),
        row("range of K, mean", Mean("kernel_range"), NATS),
        Row(f"heads whose K spans more than {ONE_NAT:g} nat", lambda model: model.count("kernel_range", ONE_NAT)),
        Row("correlation where K is stronger (half of the heads)", of(halves, 0, "kernel_r", CORRELATION)),
        Row("correlation where K is weaker", of(halves, 1, "kernel_r", CORRELATION)),
        Row("induction mass of heads that K misses", of(missing, 0, "mass_induction", SHARE)),
        Row("induction mass of the others", of(missing, 1, "mass_induction", SHARE)),
        Row("which way K goes", ways),
    ]

    def weak(model: Model) -> str:
        strong, other = (fixed(mask) for mask in halves(model))
        way = contrast(model.sample, "kernel_r", strong, other).way(CORRELATION)
        return {1: "worse where it is weak", 0: "no worse where it is weak", -1: "better where it is weak"}[way]

    def most(model: Model) -> str:
        way = against(model.read(median("kernel_misfit")), HALF, CORRELATION)
        return {-1: "most", 1: "less than half", 0: "half as far as errors tell"}[way]

    fails = []
    for model in models[:2]:
        lost, kept = missing(model)
        if min(lost.sum(), kept.sum()) > 1:
            found = contrast(model.sample, "mass_induction", fixed(lost), fixed(kept))
            word = {1: "have more induction mass than the others", -1: "have less induction mass than the others"}.get(
                found.way(SHARE), "do not differ in induction mass beyond error and chance"
            )
            layers = [str(layer) for layer in sorted(set(model.view.parts[0].loc[lost, "layer"].tolist()))]
            spans = value(model.read(Mean("kernel_range", among=fixed(lost))), NATS)
            fails.append(
                f"The {lost.sum()} heads of {model.name} that K misses (layer{'s' * (len(layers) > 1)} "
                f"{listed(layers)}, "
                f"where K spans {spans} on average) {word}."
            )
    trained, null = models[1], models[2]
    gain = over_null(trained, null, Mean("kernel_range"))
    return section(
        "Does the kernel predict the score by distance?",
        table(models, rows, "RoPE heads"),
        wrapped(
            "K comes from the mean query and the mean key before the rotation alone, the measured curve from the "
            "scores "
            "of sampled queries (§10). Both are taken less their means over distances; the misfit is the "
            "share of the measured variation that K misses.",
            f"Of how the score of the median head depends on distance, K accounts for {by_verdict(models, most)}. It "
            "does "
            f"{by_verdict(models, weak)}.",
            *fails,
            f"Training makes K {'wider' if sign(gain, NATS) > 0 else 'no wider beyond its error'}: its range in "
            f"{trained.name} less that in {null.name} is {NATS.number(gain.value)}{NATS.error(gain.se)} nats.",
        ),
    )


def ways(model: Model) -> str:
    """How many kernels fall, rise, go both ways or are flat."""
    found = kernels(model.view, 0).tally()
    named = {"falls": NEAR, "rises": FAR, BOTH: BOTH, FLAT: FLAT}
    texts = [f"{word} in {found.ways[way]}" for word, way in named.items()]
    return f"{', '.join(texts)} ({found.undecided} undecided)"


# (c)


def rival(model: Model, axis: str) -> str | None:
    """The category that position-dominated heads are set against: the first of these that has heads."""
    numbers = model.view.on(axis).samples[0].columns["category"]
    counts = {name: int((numbers == CATEGORIES.index(name)).sum()) for name in CATEGORIES}
    if counts[DOMINATED] < 2:
        return None
    return next((name for name in ("content-focused", "mixed") if counts[name] > 1), None)


def category_contrast(model: Model, axis: str) -> tuple[str, Contrast] | None:
    """Scores by distance of position-dominated heads against others."""
    other = rival(model, axis)
    if other is None:
        return None
    sample = model.view.on(axis).samples[0]
    return other, contrast(sample, "score_r2_distance", in_category(DOMINATED), in_category(other))


def taxonomy_section(models: Sequence[Model]) -> str:
    """Whether the taxonomy says which heads score by distance."""

    def of_category(category: str, axis: str) -> Callable[[Model], str]:
        def cell(model: Model) -> str:
            mask = in_category(category)(model.view.on(axis).samples[0].columns)
            found = model.read(Mean("score_r2_distance", among=in_category(category)), axis)
            return f"{value(found, SHARE)} ({mask.sum()})" if mask.any() else "(0)"

        return cell

    rows = [
        row("all heads", "mean_score_r2_distance", SHARE),
        *(Row(f"{category} {WHERE['pooled']} (heads)", of_category(category, "pooled")) for category in CATEGORIES),
        *(
            Row(f"{category} {WHERE['drift']} (heads)", of_category(category, "drift"))
            for category in (DOMINATED, "mixed", "content-focused")
        ),
        *(
            row(
                f"correlation with {'abs ' if size else ''}{other} {WHERE[axis]}",
                Correlation("score_r2_distance", other, size),
                CORRELATION,
                axis,
            )
            for other, size in (("r_q", False), ("r_k", True))
            for axis in AXES
        ),
        *(
            row(
                f"correlation with {'abs ' if size else ''}{other} {WHERE['pooled']}, RoPE heads alone",
                Correlation("score_r2_distance", other, size, ROPE),
                CORRELATION,
            )
            for other, size in (("r_q", False), ("r_k", True))
        ),
        *(
            row(f"correlation with η² of {noun}", Correlation("score_r2_distance", f"eta2_{kind}"), CORRELATION)
            for kind, noun in NOUNS.items()
        ),
    ]
    sentences = []
    for model in models[:2]:
        found = {axis: numbers for axis in AXES if (numbers := category_contrast(model, axis)) is not None}
        texts = [
            f"{SHARE.number(one.difference.value)}{SHARE.error(one.difference.se)} against {other} ones {WHERE[axis]}"
            for axis, (other, one) in found.items()
        ]
        ways = [one.way(SHARE) for _, one in found.values()]
        sentences.append(
            f"In {model.name}, distance explains {said(ways, 'more', 'less', 'not on every axis more')} of the "
            "scores of "
            f"position-dominated heads than of others (in percentage points, {listed(texts)})."
        )
    sentences += [extremes(model) for model in models[:2]]
    trained, null = models[1], models[2]
    shares, spans = ([model.read(one) for model in (trained, null)] for one in (DISTANCE, Mean("kernel_range")))
    return section(
        "Does the taxonomy say what heads do?",
        table(models, rows, "variance of scores that distance explains"),
        wrapped(*sentences),
        wrapped(
            "The number has limits. It is a share, blind to how much scores vary: it is "
            f"{value(shares[1], SHARE)} in {null.name}, where K spans {value(spans[1], NATS)}, and "
            f"{value(shares[0], SHARE)} in {trained.name}, where K spans {value(spans[0], NATS)}. And for one query "
            "the distance of a key and its position are the same thing, so keys that change with position, for "
            "whatever "
            "reason, count too."
        ),
    )


DISTANCE = "mean_score_r2_distance"


def extremes(model: Model) -> str:
    """The highest and the lowest correlation of scores by distance with r_q, |r_k| and η²."""
    found = {
        **{f"r_q {WHERE[axis]}": model.read(Correlation("score_r2_distance", "r_q"), axis) for axis in AXES},
        **{f"abs r_k {WHERE[axis]}": model.read(Correlation("score_r2_distance", "r_k", True), axis) for axis in AXES},
        **{
            f"η² of {noun}": model.read(Correlation("score_r2_distance", f"eta2_{kind}"))
            for kind, noun in NOUNS.items()
        },
    }
    order = sorted(found, key=lambda name: -found[name].value)
    first, last = found[order[0]], found[order[-1]]
    return (
        f"Over the heads of {model.name} the highest of these correlations is that with {order[0]} "
        f"({value(first, CORRELATION)}), the lowest that with {order[-1]} ({value(last, CORRELATION)})."
    )


# (d)


def slow(model: Model) -> str:
    """In how many heads the pair with the largest part of K does not turn once within the context."""
    return model.count("dominant_wavelength", float(model.view.parts[0]["context"].iloc[0]))


def far(column: str) -> Callable[[Model], str]:
    """The cell of what a column holds at wavelengths longer than the context."""
    return lambda model: value(beyond(model.view, 0, column), SHARE)


def wavelength_section(models: Sequence[Model]) -> str:
    """Which wavelengths the kernel is made of."""
    rows = [
        row("kernel's wavelength over the context, geometric mean", in_contexts, PLAIN),
        Row(
            "heads whose largest part of K is a pair that does not turn once",
            slow,
        ),
        *(
            Row(f"{name} beyond the context", far(column))
            for column, name in (
                ("kernel_share", "kernel"),
                ("energy_q", "energy of queries"),
                ("energy_k", "energy of keys"),
                ("fixed_q", "constant part of queries, of all energy,"),
                ("fixed_k", "constant part of keys, of all energy,"),
            )
        ),
    ]

    def longer(model: Model) -> str:
        ways = [against(model.read(in_contexts), 1.0, PLAIN)]
        return said(ways, "longer than the context", "shorter than the context", "about as long as the context")

    def shifted(model: Model) -> str:
        kernel, *energies = (beyond(model.view, 0, name) for name in ("kernel_share", "energy_q", "energy_k"))
        energy = sum(one.value for one in energies) / 2
        reach = Estimate(kernel.value - energy, kernel.se + sum(one.se for one in energies) / 2, kernel.groups)
        return {
            1: "at longer wavelengths than the energy",
            -1: "at shorter wavelengths than the energy",
            0: "where the energy is as far as errors tell",
        }[sign(reach, SHARE)]

    return section(
        "Which wavelengths?",
        table(models, rows, "RoPE heads"),
        wrapped(
            f"As a mean over heads the kernel's wavelength is {by_verdict(models, longer)}.",
            "A pair that does not turn once within the context is the largest part of K in "
            f"{listed([f'{slow(model)} heads of {model.name}' for model in models])}: there K is a slope or an arch, "
            "not a "
            "wave.",
            f"The kernel sits {by_verdict(models, shifted)}. Errors of these shares are upper bounds, as if all heads "
            "and pairs erred together.",
        ),
    )


# (e)


def nope_section(model: Model) -> str:
    """What heads without RoPE do, beside those with it."""
    quantities = (
        ("mass_induction", "induction mass", SHARE),
        ("lift_induction", "induction, over chance", TIMES),
        ("effective_keys", "effective keys", KEYS),
        ("mass_first", "first token", SHARE),
        ("mass_previous", "previous token", SHARE),
        ("mass_duplicate", "earlier copies of the token", SHARE),
        ("score_r2_distance", "scores explained by distance", SHARE),
        ("eta2_q", "variance of queries between positions", SHARE),
        ("eta2_k", "variance of keys between positions", SHARE),
    )
    rows, found = [], {}
    for column, name, unit in quantities:
        one = found[column] = contrast(model.sample, column, NOPE, ROPE)
        rows.append([name, *(value(mean, unit) for mean in one.means), difference(one, unit)])
    more = [name for column, name, unit in quantities if found[column].way(unit) > 0]
    less = [name for column, name, unit in quantities if found[column].way(unit) < 0]
    even = [name for column, name, unit in quantities if found[column].way(unit) == 0]
    counts = found["mass_induction"].counts
    carried = found["eta2_k"].means[0]
    return section(
        "What do heads without RoPE do?",
        grid([model.name, f"NoPE ({counts[0]} heads)", f"RoPE ({counts[1]} heads)", "NoPE less RoPE"], rows),
        wrapped(
            f"NoPE heads have more of these: {listed(more)}." if more else "",
            f"They have less of these: {listed(less)}." if less else "",
            f"No difference beyond error and chance: {listed(even)}." if even else "",
            f"Position makes {value(carried, SHARE)} of the variance of their keys.",
        ),
    )


# (f)


def sink_section(models: Sequence[Model]) -> str:
    """Attention on the first token, and what hangs on the first four."""

    def layers(model: Model) -> list[tuple[Estimate, int]]:
        numbers = sorted(set(model.view.parts[0]["layer"].tolist()))
        found = [(model.read(Mean("mass_first", among=in_layer(layer))), layer) for layer in numbers]
        return sorted(found, key=lambda pair: -pair[0].value)

    def place(rank: int) -> Callable[[Model], str]:
        return lambda model: (
            f"{value(layers(model)[rank][0], SHARE)} (layer {layers(model)[rank][1]} of {len(layers(model))})"
        )

    def moved(measure: str) -> Callable[[Model], str]:
        def cell(model: Model) -> str:
            change, unit = without_first(model.view)[measure].at(0), QUANTITIES[measure].unit
            return f"{'+' if change.value >= 0 else ''}{unit.number(change.value)}{unit.error(change.se)}"

        return cell

    rows = [
        row("first token", "mean_mass_first", SHARE),
        row("first four tokens", "mean_mass_first4", SHARE),
        *(Row(f"first token, {word} layer", place(rank)) for rank, word in enumerate(("highest", "second", "third"))),
        Row("first token, lowest layer", place(-1)),
        Row("heads with more than half of it there", lambda model: model.count("mass_first", 0.5)),
        Row("without the first four: mean r_q", moved("mean_r_q")),
        Row("without the first four: mean abs r_k", moved("mean_abs_r_k")),
        Row("without the first four: position-dominated, points", moved(f"share_{DOMINATED}")),
        Row("without the first four: content-focused, points", moved("share_content-focused")),
    ]
    null = models[2].read("mean_mass_first")

    def sinks(model: Model) -> str:
        return said(
            [against(model.read("mean_mass_first"), SINK, SHARE)],
            "sinks",
            "no sinks",
            "sinks or none, which errors do not tell,",
        )

    def shares(model: Model) -> str:
        gaps = without_first(model.view)
        names = [f"share_{category}" for category in CATEGORIES]
        moving = [name for name in names if sign(gaps[name].at(0), SHARE, len(names))]
        return "some share of a category moves" if moving else "no share of a category moves"

    return section(
        "Where are the sinks, and what hangs on them?",
        table(models, rows, "attention of sampled queries"),
        wrapped(
            f"By more than {SHARE.number(SINK)}% on the first token as a mean over heads, there are "
            f"{by_verdict(models, sinks)}; nearly even attention, that of the untrained model, puts "
            f"{value(null, SHARE)} "
            "there.",
            f"In {models[1].name} it is {deeper(models[1])}."
            if against(models[1].read("mean_mass_first"), SINK, SHARE) > 0
            else "",
            f"Without the first four tokens of every document {by_verdict(models[:2], shares)} beyond its error; "
            f"{listed([moved_size(model) for model in models[:2]])}.",
        ),
    )


def moved_size(model: Model) -> str:
    """What leaving the first tokens out does to mean |r_k|."""
    change = without_first(model.view)["mean_abs_r_k"].at(0)
    if not sign(change, CORRELATION) or not float(CORRELATION.number(change.value)):
        return f"mean abs r_k of {model.name} moves by less than {10.0**-CORRELATION.digits:g}"
    return f"mean abs r_k of {model.name} is {amount(change, CORRELATION)} {'higher' if change.value > 0 else 'lower'}"


def deeper(model: Model) -> str:
    """First-token attention of the first and the last third of the depth."""
    found = contrast(model.sample, "mass_first", in_bins(7, 8, 9), in_bins(0, 1, 2))
    word = {1: "more", -1: "less", 0: "no more beyond error and chance"}[found.way(SHARE)]
    return (
        f"{value(found.means[0], SHARE)} in the last three tenths of the depth, {word} than the "
        f"{value(found.means[1], SHARE)} in the first three"
    )


# (g)


def line_section(models: Sequence[Model]) -> str:
    """How much of the position signal is a straight line."""
    rows = []
    for kind, noun in NOUNS.items():
        rows += [
            row(f"{noun}: η², all dimensions", Mean(f"eta2_{kind}"), SHARE),
            row(f"{noun}: η² on PC0", Mean(f"eta2_pc0_{kind}"), SHARE),
            row(f"{noun}: r² on PC0", mean_square(f"r_{kind}"), SHARE),
            row(f"{noun}: bend, η² - r² on PC0", f"mean_bend_{kind}", SHARE),
            row(f"{noun}: bend, of what position explains there", missed(kind), SHARE),
            Row(f"{noun}: heads with a bend above 0", partial(Model.count, column=f"bend_{kind}", limit=0.0)),
        ]

    def bent(model: Model) -> str:
        ways = [sign(model.read(f"mean_bend_{kind}"), SHARE) for kind in NOUNS]
        return said(ways, "misses something", "overstates it", "misses nothing beyond its error")

    def mostly(model: Model) -> str:
        ways = [against(model.read(missed(kind)), 0.5, SHARE) for kind in NOUNS]
        return said(ways, "most bends", "most is a line", "neither part is the larger beyond its error")

    return section(
        "Is position a straight line?",
        table(models, rows, "mean over all heads"),
        wrapped(
            f"A straight line {by_verdict(models, bent)}. Of what position explains on PC0, "
            f"{by_verdict(models, mostly)}.",
            "η² over all dimensions needs no axis, and products across shards keep noise out of it.",
        ),
    )


# (h)


def rank_section(models: Sequence[Model]) -> str:
    """In how many dimensions queries and keys spread."""
    rows = [Row("head_dim", lambda model: str(model.head_dim))]
    for name, text in (("rank", "participation ratio"), ("rank90", "components for 90% of the variance")):
        for kind, noun in NOUNS.items():
            for layers, among in (("RoPE", ROPE), ("NoPE", NOPE)):
                rows.append(row(f"{text}, {noun}, {layers} heads", Mean(f"{name}_{kind}", among=among), TIMES))

    def wide(model: Model) -> str:
        ways = [against(model.read(Mean(f"rank_{kind}")), model.head_dim / 2, TIMES) for kind in NOUNS]
        return said(ways, "in more than half of the dimensions", "in less than half of them", "in about half of them")

    trained, null = models[1], models[2]
    change = [over_null(trained, null, Mean(f"rank_{kind}")) for kind in NOUNS]
    word = said([sign(one, TIMES) for one in change], "more", "fewer", "no other number beyond errors")
    texts = [f"{signed(one, TIMES)} for {noun}" for noun, one in zip(NOUNS.values(), change, strict=True)]
    return section(
        "How many dimensions?",
        table(models, rows),
        wrapped(
            f"By the participation ratio vectors spread {by_verdict(models, wide)}. {trained.name} has {word} than the "
            f"same architecture untrained: {listed(texts)}.",
        ),
    )


def signed(change: Estimate, unit: Unit) -> str:
    """A change with its sign and error."""
    return f"{'+' if change.value >= 0 else ''}{unit.number(change.value)}{unit.error(change.se)}"


# (i)


class Course(NamedTuple):
    """A quantity over training: the head of its column, what sentences call it, and how its numbers are written."""

    head: str
    name: str
    measure: Measure
    unit: Unit
    appears: bool = False


COURSES = (
    Course("fixed share, queries", "the fixed share of queries", Mean("fixed_share_q"), SHARE),
    Course("range of K", "the range of K", Mean("kernel_range"), NATS, appears=True),
    Course("correlation of K with the score", "the correlation of K with the score", Mean("kernel_r"), CORRELATION),
    Course("scores by distance, RoPE", "scores by distance", Mean("score_r2_distance", among=ROPE), SHARE),
    Course("scores by distance, NoPE", "scores by distance", Mean("score_r2_distance", among=NOPE), SHARE),
    Course(
        "previous token, RoPE",
        "attention of RoPE heads on the previous token",
        Mean("mass_previous", among=ROPE),
        SHARE,
        appears=True,
    ),
    Course("induction mass, RoPE", "the induction mass of RoPE heads", Mean("mass_induction", among=ROPE), SHARE),
    Course(
        "induction mass, NoPE",
        "the induction mass of NoPE heads",
        Mean("mass_induction", among=NOPE),
        SHARE,
        appears=True,
    ),
    Course("induction over chance, NoPE", "induction over chance", Mean("lift_induction", among=NOPE), TIMES),
)


def training_section(study: View) -> str:
    """When kernels, the previous token and induction appear over the checkpoints of the miniature."""
    contexts = [int(part["context"].iloc[0]) for part in study.parts]
    rows = [
        [label, f"{contexts[index]:,}", *(value(study.track(one.measure).at(index), one.unit) for one in COURSES)]
        for index, label in enumerate(study.lineup.labels)
    ]
    same = [index for index, context in enumerate(contexts) if context == contexts[0]]
    short = study.select(same)
    appearing = [one for one in COURSES if one.appears]
    sentences = [
        f"{capitalised(one.name)} {half_way(short, one)}. {largest_steps(short, short.track(one.measure), one.unit)}"
        for one in appearing
    ]
    whole = [
        f"{one.name} {direction(study.track(one.measure).change(same[-1], len(contexts) - 1), one.unit)}"
        for one in (COURSES[0], *appearing)
    ]
    return section(
        "When does it appear?",
        grid(["checkpoint", "context", *(one.head for one in COURSES)], rows),
        wrapped(f"At the first context ({contexts[0]:,} tokens):"),
        "\n".join(f"- {sentence}" for sentence in sentences),
        wrapped(
            f"With the extensions, from {study.lineup.labels[same[-1]]} to {study.lineup.labels[-1]}, "
            f"{listed(whole)}. Masses there are over more keys, and the base of RoPE is another one: a change is of "
            "context, base and weights together.",
            course_of_fixed(study),
        ),
    )


def course_of_fixed(study: View) -> str:
    """Where the fixed share is lowest on its way, if that is neither the first nor the last checkpoint."""
    track = study.track("mean_fixed_share_q")
    low = int(np.argmin(track.values))
    last = len(study.lineup) - 1
    if not 0 < low < last or sign(track.change(0, low), SHARE) >= 0 or sign(track.change(low, last), SHARE) <= 0:
        return ""
    return (
        f"The fixed share of queries does not simply grow: it falls to {value(track.at(low), SHARE)} at "
        f"{study.lineup.labels[low]}, as tokens come apart, and rises from there to {value(track.at(last), SHARE)}."
    )


def half_way(study: View, course: Course) -> str:
    """At which checkpoint a quantity has made half of its way."""
    unit = course.unit
    track, last = study.track(course.measure), len(study.lineup) - 1
    change = track.change(0, last)
    way = sign(change, unit)
    if not way:
        return f"does not change beyond its error from {study.lineup.labels[0]} to {study.lineup.labels[last]}"
    done = (track.values - track.values[0]) / change.value
    first = int(np.argmax(done >= 0.5))
    verb = "rises" if way > 0 else "falls"
    return (
        f"{verb} by {amount(change, unit)} from {study.lineup.labels[0]} to {study.lineup.labels[last]} and has made "
        f"half of that way at {study.lineup.labels[first]}"
    )


# The published study.


def questions(models: Sequence[Model], study: View) -> str:
    """What these two models say of the published study's open questions, and what they cannot say."""
    miniature, pretrained = (model.view.parts[0] for model in models[:2])
    published = files("ropewalk") / "data" / "published" / "smollm3" / "checkpoints.csv"
    longest = int(pd.read_csv(str(published))["context"].max())
    return "\n\n".join(
        [
            "## What this says of the published study",
            wrapped(
                "The published study reports r_q, r_k and the taxonomy on PC0 of SmolLM3-3B and reads them as how "
                "heads use "
                "position. SmolLM3-3B itself was not run here: what follows is of a miniature of its architecture "
                "and of "
                "a smaller relative, and says what to look for, not what is there."
            ),
            *(wrapped(f"**{question}**", *sentences) for question, sentences in answers(models, study)),
            wrapped(
                f"**What they cannot say.** The miniature has {int(miniature['layers'].iloc[0])} layers, heads of "
                f"{models[0].head_dim} dimensions and contexts up to {int(miniature['context'].iloc[0]):,} tokens; "
                "SmolLM2-135M "
                f"has no NoPE layers, is one checkpoint of {int(pretrained['layers'].iloc[0])} layers, and read "
                "source code. "
                f"Neither is evidence on SmolLM3-3B at {longest:,} tokens. Attention plasticity (§6), by which the "
                "published "
                "study explains why keys might let go of position, is not computed. And all of it is correlation over "
                "heads: no head was changed to see what it does."
            ),
        ]
    )


def answers(models: Sequence[Model], study: View) -> list[tuple[str, list[str]]]:
    """The questions with their answers."""
    miniature, pretrained, null = models
    return [
        ("Are r_q and r_k about what heads do?", [about_r(miniature), about_r(pretrained)]),
        (
            "Do most heads have a position-dependent bias, as the share of position-dominated heads suggests?",
            [biased(model) for model in models[:2]],
        ),
        (
            "Is the position signal RoPE or content?",
            [rope_or_content(miniature), with_training(pretrained, null)],
        ),
        ("Do keys let go of position when the context is extended?", [letting_go(study)]),
        ("Are early layers the positional ones?", [early(model) for model in models[:2]]),
        ("What are NoPE layers for?", [purpose(miniature)]),
    ]


def about_r(model: Model) -> str:
    """How far r_q and |r_k| on PC0 go with scores by distance."""
    found = {
        f"with {'abs ' if size else ''}{name}": (
            model.read(Correlation("score_r2_distance", name, size)),
            heads_with(model.sample, "score_r2_distance", name),
        )
        for name, size in (("r_q", False), ("r_k", True))
    }
    squares = [model.read(square(Correlation("score_r2_distance", name, name == "r_k"))) for name in ("r_q", "r_k")]
    shared = max(squares)
    inner = [
        value(model.read(Correlation("score_r2_distance", name, size, ROPE)), CORRELATION)
        for name, size in (("r_q", False), ("r_k", True))
    ]
    alone = f" ({' and '.join(inner)} over RoPE heads alone)" if NOPE(model.sample.columns).any() else ""
    word = "Largely" if shared.value > 0.5 else "Little" if shared.value < 0.25 else "In part"
    return (
        f"{word} in {model.name}: on PC0, what distance explains of a head's scores correlates "
        f"{correlations(found)}{alone}, "
        f"and so shares at most {value(shared, SHARE)} of its variance over heads with either."
    )


def biased(model: Model) -> str:
    """How many kernels are strong, beside how many heads are position-dominated."""
    dominated = model.read(f"share_{DOMINATED}")
    return (
        f"In {model.name}, K spans more than {ONE_NAT:g} nat in {model.count('kernel_range', ONE_NAT)} RoPE heads, "
        f"while {value(dominated, SHARE)} of all heads are position-dominated on PC0."
    )


def rope_or_content(model: Model) -> str:
    """Position in layers with and without RoPE."""
    found = {kind: contrast(model.sample, f"eta2_{kind}", ROPE, NOPE) for kind in NOUNS}
    ways = [one.way(SHARE) for one in found.values()]
    word = said(
        ways,
        "RoPE, by far" if all(one.means[0].value > 5 * one.means[1].value for one in found.values()) else "RoPE, more",
        "Content, more",
        "Not decided",
    )
    texts = [
        f"{value(one.means[0], SHARE)} of the variance of {NOUNS[kind]} in RoPE layers against "
        f"{value(one.means[1], SHARE)} in NoPE layers"
        for kind, one in found.items()
    ]
    return f"{word}, in {model.name}: position makes {', and '.join(texts)}."


def with_training(trained: Model, null: Model) -> str:
    """What of it the architecture gives without training."""
    texts = []
    for kind, noun in NOUNS.items():
        change = over_null(trained, null, Mean(f"eta2_{kind}"))
        texts.append(
            f"{value(trained.read(Mean(f'eta2_{kind}')), SHARE)} of the variance of {noun}, "
            f"{amount(change, SHARE)} {'more' if sign(change, SHARE) > 0 else 'less or no more'} than untrained"
        )
    return f"In {trained.name}, where every layer has RoPE, it makes {'; and '.join(texts)}."


def letting_go(study: View) -> str:
    """Changes of keys from the last checkpoint at the first context to the last of all."""
    contexts = [int(part["context"].iloc[0]) for part in study.parts]
    before, last = sum(context == contexts[0] for context in contexts) - 1, len(contexts) - 1
    quantities: tuple[tuple[str, View, str | Measure, Unit], ...] = (
        ("mean abs r_k in RoPE layers", study, "mean_abs_r_k_rope", CORRELATION),
        ("η² of their keys", study, Mean("eta2_k", among=ROPE), SHARE),
        ("their fixed share", study, "mean_fixed_share_k", SHARE),
        ("the readout of keys", study, "mean_readout_k", CORRELATION),
    )
    changes = [(name, view.track(measure).change(before, last), unit) for name, view, measure, unit in quantities]
    texts = [f"{name} {direction(change, unit)}" for name, change, unit in changes]
    falling = [name for name, change, unit in changes if sign(change, unit) < 0]
    start = "Not in the miniature" if not falling else "By some measures" if len(falling) < len(changes) else "Yes"
    cut = study.with_columns(COMMON).track("mean_abs_r_k").change(before, last)
    return (
        f"{start}, from {study.lineup.labels[before]} to {study.lineup.labels[last]}: {'; '.join(texts)}. Within the "
        f"first {contexts[0]:,} tokens alone mean abs r_k {direction(cut, CORRELATION)}. A slower RoPE turns less in "
        "so short a range: a comparison at one context is not one of training alone either."
    )


def early(model: Model) -> str:
    """Scores by distance in the first and the last layers that have RoPE."""

    def ends(*bins: int) -> Among:
        return lambda heads: in_bins(*bins)(heads) & ROPE(heads)

    found = contrast(model.sample, "score_r2_distance", ends(0, 1, 2), ends(7, 8, 9))
    word = {
        1: "Yes",
        -1: "No, rather the late ones",
        0: "Not beyond error and chance",
    }[found.way(SHARE)]
    first, last = (value(mean, SHARE) for mean in found.means)
    return (
        f"{word} in {model.name}: distance explains {first} of scores in the RoPE heads of the first three tenths of "
        f"the depth ({found.counts[0]} heads) and {last} in those of the last three ({found.counts[1]})."
    )


def purpose(model: Model) -> str:
    """What NoPE heads of the miniature do, in a sentence."""
    found = contrast(model.sample, "mass_induction", NOPE, ROPE)
    nope, rope = (value(mean, SHARE) for mean in found.means)
    if found.way(SHARE) <= 0:
        return f"Not for induction, in {model.name}: its induction mass is {nope} in NoPE and {rope} in RoPE heads."
    mean = model.read("mean_r_k_nope")
    side = {1: "above 0", -1: "below 0 too", 0: "not beyond its error from 0"}[sign(mean, CORRELATION)]
    cluster = (
        "A fit to published depth cells (§4) has their mean r_k on PC0 below 0; here it is "
        f"{value(mean, CORRELATION)}, {side}."
    )
    return f"For induction, in {model.name}: its mass is {nope} in NoPE heads and {rope} in RoPE heads. {cluster}"


def document(miniature: ropewalk.Results, smollm2: ropewalk.Results) -> str:
    """The whole page."""
    study = miniature.view
    models = [last_model("the miniature", miniature), last_model(smollm2.view.lineup.labels[-1], smollm2)]
    models.append(untrained_model(f"untrained {models[1].name}", smollm2))
    first, second = models[0], models[1]

    def images(model: str, *names: str) -> str:
        titles = {spec.name: spec.title for spec in ropewalk.figures.FIGURES}
        of = {"miniature": "the miniature", "smollm2": second.name}[model]
        return "\n\n".join(f"![{titles[name]}: {of}](images/heads_{model}_{name}.png)" for name in names)

    counts = [int(among(first.sample.columns).sum()) for among in (ROPE, NOPE)]
    contexts = [int(model.view.parts[0]["context"].iloc[0]) for model in (first, second)]
    intro = wrapped(
        "Where the correlations with position that the [miniature](miniature.md) and [SmolLM2-135M](smollm2.md) show "
        "come from, and whether they are about what heads do. The miniature is at its last checkpoint, "
        f"{study.lineup.labels[-1]} ({counts[0]} heads with RoPE and {counts[1]} without, context {contexts[0]:,}), "
        f"{second.name} is one pretrained checkpoint ({len(second.sample)} heads, all with RoPE, context "
        f"{contexts[1]:,}), beside the same architecture untrained. Definitions are in the [method](method.md), §8 to "
        "§10."
    )
    errors = wrapped(
        f"± is one standard error over groups of documents ({first.view.groups[0]} and {second.view.groups[0]}). A "
        "correlation over heads or a difference between groups of heads is called one where it is beyond its error and "
        "beyond what as many unrelated heads would show (95%). Undecided, in counts of heads, are those "
        "whose error reaches across the limit. The page is written by `python scripts/generate_heads_doc.py`, "
        "numbers and directions alike."
    )
    return (
        "\n\n".join(
            [
                "# Where position comes from, and what heads do with it",
                intro,
                errors,
                constant_section(models, study),
                images("miniature", "fixed_share"),
                kernel_section(models),
                images("miniature", "distance_kernels", "kernel_map"),
                images("smollm2", "distance_kernels"),
                taxonomy_section(models),
                images("miniature", "category_behaviour"),
                wavelength_section(models),
                nope_section(first),
                sink_section(models),
                images("smollm2", "sinks"),
                line_section(models),
                rank_section(models),
                training_section(study),
                questions(models, study),
            ]
        )
        + "\n"
    )


def last_model(name: str, results: ropewalk.Results) -> Model:
    """The last checkpoint of a study."""
    view = results.view
    last = len(view.lineup) - 1
    return Model(name, view.select([last]), results.layouts[view.lineup.names[last]].layers[0].head_dim)


def untrained_model(name: str, results: ropewalk.Results) -> Model:
    """The untrained null of the last checkpoint, as a study of its own."""
    last = results.view.lineup.names[-1]
    heads, replicates = results.heads, results.replicates
    assert replicates is not None
    null = str(heads.loc[heads["checkpoint"] == last, "untrained"].iloc[0])
    table, left_out = (one[one["checkpoint"] == null] for one in (heads, replicates))
    return Model(name, View.of(table, left_out, tables=results.view.tables), results.layouts[last].layers[0].head_dim)


def draw(results: Mapping[str, ropewalk.Results]) -> None:
    """The figures that the page shows, small enough to keep."""
    matplotlib.use("agg")
    for model, names in FIGURES.items():
        for name in names:
            target = DOCUMENT.parent / "images" / f"heads_{model}_{name}.png"
            results[model].figure(name).savefig(target, dpi=DPI)


def main() -> None:
    """Read both folders, write the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("miniature", type=Path, nargs="?", default=Path("results/miniature"))
    parser.add_argument("smollm2", type=Path, nargs="?", default=Path("results/smollm2_135m"))
    options = parser.parse_args()
    results = {name: ropewalk.load(getattr(options, name)) for name in FIGURES}
    draw(results)
    write_text(DOCUMENT, document(results["miniature"], results["smollm2"]))


if __name__ == "__main__":
    main()
