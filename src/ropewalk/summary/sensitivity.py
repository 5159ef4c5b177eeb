"""What the numbers hang on: the same heads without the first tokens, at one context, with other thresholds, sampled."""

import random
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from ropewalk.geometry.taxonomy import CATEGORIES, HIGH, LOW
from ropewalk.summary.measures import MEASURES, Mean, Measure, of_category
from ropewalk.summary.sample import Sample
from ropewalk.summary.tracks import Estimate, Reading
from ropewalk.summary.view import COMMON, View

SHARES = {f"share_{category}": category for category in CATEGORIES}
QUANTITIES = ("mean_r_q", "mean_r_k", "mean_abs_r_k", "discordant", *SHARES)
THRESHOLDS = ((0.2, 0.6), (0.4, 0.8))
SAMPLE = 300
"""Heads of a sample, as published; half of all where there are fewer than twice as many."""

SKIPPED = "_skip4"
"""Ending of the columns of r_q and r_k without the first tokens of every document."""
FIRST, AT_ONE_CONTEXT = "without the first 4 tokens", "all cut to {} tokens, the shortest context"
ENDINGS: Mapping[str, str] = {SKIPPED: FIRST, COMMON: AT_ONE_CONTEXT}
COLUMNS: Mapping[str, str] = {
    "checkpoint": "name of the checkpoint",
    "label": "short name of the checkpoint",
    "change": "what is done otherwise",
    "quantity": "mean or share over heads, on PC0",
    "value": "the number as it is given elsewhere",
    "changed": "what it becomes; empty where that was not captured",
    "difference": "changed - value",
    "se": "standard error of the difference, paired by head and shard; for a sample of heads, of drawing them",
    "low": "lower end of the 95% interval of the difference",
    "high": "upper end of it",
}
"""Columns of `sensitivity.csv`, one row per (checkpoint, change, quantity)."""


def sensitivity(view: View, available: Mapping[str, int] = {}, label: str | None = None) -> pd.DataFrame:
    """One row per (checkpoint, change, quantity), of all checkpoints or of those with a label: columns `COLUMNS`.

    `value` is the number as it is given elsewhere, `changed` what it becomes, `difference` with its standard error and
    95% interval (paired by head and by group of documents). For a sample of heads the error is that of drawing them:
    how far a sample of that size lies from all. `available` says how many heads there are to sample from, by
    checkpoint; where that is more than were captured, only the error is known.
    """
    rows = [
        {
            "checkpoint": name,
            "label": view.lineup.labels[index],
            "change": change,
            "quantity": quantity,
            "value": before,
            "changed": before + difference.value,
            "difference": difference.value,
            "se": difference.se,
            "low": difference.value - difference.reach(),
            "high": difference.value + difference.reach(),
        }
        for index, name in enumerate(view.lineup.names)
        if label in (None, view.lineup.labels[index])
        for change, quantity, before, difference in _changes(view, index, available.get(name))
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _changes(view: View, index: int, available: int | None) -> Iterator[tuple[str, str, float, Estimate]]:
    sample = view.samples[index]
    # Each is compared with several others.
    readings = {name: sample.read(MEASURES[name]) for name in QUANTITIES}
    shortest = min(int(part["context"].iloc[0]) for part in view.parts) if "context" in view.parts[0] else 0
    for ending, words in ENDINGS.items():
        if f"r_q{ending}" in sample.table:
            other = sample.on(ending)
            for name in QUANTITIES:
                yield words.format(shortest), name, *_paired(readings[name], other.read(MEASURES[name]))
    for low, high in THRESHOLDS:
        for name, category in SHARES.items():
            moved = of_category(category, low=low, high=high)
            words = f"thresholds {low:g} and {high:g}, not {LOW:g} and {HIGH:g}"
            yield words, name, *_paired(readings[name], sample.read(moved))
    if available is not None and available > len(sample) > 1:
        for name in QUANTITIES:
            error = _drawing_error(sample, MEASURES[name], len(sample), available)
            words = f"all {available} heads, not {len(sample)} of them"
            yield words, name, float(MEASURES[name](sample.columns)), Estimate(float("nan"), error, len(sample))
        return
    count = min(SAMPLE, len(sample) // 2)
    if count > 1:
        chosen = sorted(random.Random(0).sample(range(len(sample)), count))
        part = {name: column[chosen] for name, column in sample.columns.items()}
        for name in QUANTITIES:
            value = float(MEASURES[name](sample.columns))
            error = _drawing_error(sample, MEASURES[name], count, len(sample))
            difference = Estimate(float(MEASURES[name](part)) - value, error, len(sample))
            yield f"{count} of {len(sample)} heads at random", name, value, difference


def _paired(before: Reading, after: Reading) -> tuple[float, Estimate]:
    return before.value, after.since(before)


def _drawing_error(sample: Sample, measure: Measure, drawn: int, available: int) -> float:
    """How far the measure of so many heads drawn at random lies from that of all: `s sqrt((1 - n/N) / n)`."""
    parts = _contributions(sample, measure)
    parts = parts[~np.isnan(parts)]
    spread = parts.std(ddof=1) if len(parts) > 1 else np.nan
    return float(spread * np.sqrt((1 - drawn / available) / drawn))


def _contributions(sample: Sample, measure: Measure) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """What each head adds to a mean or a share."""
    if isinstance(measure, Mean):
        column = sample.columns[measure.column]
        return np.asarray(np.abs(column) if measure.size else column)
    hits, counted = measure.parts(sample.columns)  # type: ignore[attr-defined]
    return np.where(counted, hits, np.nan).astype(float)
