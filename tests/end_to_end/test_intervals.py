"""Coverage: over simulated documents, intervals hold the truth as often as they say, and are no wider than need be."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.signal import lfilter

from ropewalk.geometry.jackknife import jackknife_error
from ropewalk.geometry.taxonomy import CATEGORIES
from ropewalk.summary.measures import MEASURES, Share
from ropewalk.summary.sample import Sample
from ropewalk.summary.tracks import Estimate

HEADS, RUNS, MORE = 96, 200, 600
"""Runs of everything, and of the means alone, which are quick."""
RHO = 0.6
"""Correlation of neighbouring tokens of a document."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """True slopes of queries and keys before and after, and how documents scatter about them."""

    slopes: dict[str, Floats]
    tokens: int
    scatter: float


def world(generator: np.random.Generator, tokens: int, scatter: float) -> World:
    """Heads of two kinds, many of them near the thresholds; after, queries carry more position, some keys turn."""
    half = HEADS // 2
    q = np.concatenate([generator.normal(0.72, 0.12, half), generator.normal(0.3, 0.2, HEADS - half)])
    k = np.concatenate([generator.normal(0.7, 0.15, half), generator.normal(0.25, 0.25, HEADS - half)])
    k *= np.where(generator.random(HEADS) < 0.3, -1, 1)
    later = np.where(generator.random(HEADS) < 0.1, -k, k)
    correlations = {"q": q, "k": k, "q later": q + 0.08, "k later": later}
    clipped = {name: np.clip(r, 0.02 if name[0] == "q" else -0.97, 0.97) for name, r in correlations.items()}
    return World({name: r / np.sqrt(1 - r**2) for name, r in clipped.items()}, tokens, scatter)


def centred(tokens: int) -> Floats:
    t = np.arange(tokens) - (tokens - 1) / 2
    return np.asarray(t / np.sqrt((t**2).mean()))


@cache
def noise_variance(tokens: int) -> float:
    """Expected sum of squares of one document's noise about its mean."""
    covariance = RHO ** np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens)))
    return float(np.trace(covariance) - covariance.sum() / tokens)


def truth(of: World, name: str) -> Floats:
    """The correlation that infinitely many documents would give."""
    slope = of.slopes[name]
    total = (slope**2 + of.scatter**2) * of.tokens + noise_variance(of.tokens)
    return np.asarray(slope * np.sqrt(of.tokens) / np.sqrt(total))


def measured(of: World, name: str, groups: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """r [heads], r without each document [groups, heads], and the error that takes tokens as independent.

    The slopes of a document scatter about the true ones, partly for all heads alike, and its noise is correlated from
    token to token. The same seed gives the same documents.
    """
    generator = np.random.default_rng(seed)
    common = generator.normal(size=(groups, 1, 1))
    slope = of.slopes[name][None, :, None] + of.scatter * (
        np.sqrt(0.3) * common + np.sqrt(0.7) * generator.normal(size=(groups, HEADS, 1))
    )
    noise = generator.normal(size=(groups, HEADS, of.tokens))
    noise[..., 1:] *= np.sqrt(1 - RHO**2)
    t = centred(of.tokens)
    x = slope * t + lfilter([1], [1, -RHO], noise)
    x -= x.mean(axis=2, keepdims=True)
    sxt, sxx = x @ t, (x**2).sum(axis=2)

    def r(sxt: Floats, sxx: Floats, count: int) -> Floats:
        return np.asarray(sxt / np.sqrt(sxx * count * of.tokens))

    whole = r(sxt.sum(axis=0), sxx.sum(axis=0), groups)
    left = r(sxt.sum(axis=0) - sxt, sxx.sum(axis=0) - sxx, groups - 1)
    return whole, left, (1 - whole**2) / np.sqrt(groups * of.tokens)


def sample(r_q: Floats, r_k: Floats, left_q: Floats | None = None, left_k: Floats | None = None) -> Sample:
    table = pd.DataFrame({"layer": 0, "head": range(HEADS), "rope": pd.array([True] * HEADS, dtype="boolean")})
    table = table.assign(bin=0, r_q=r_q, r_k=r_k)
    if left_q is None or left_k is None:
        return Sample.of(table, {}, ())
    return Sample.of(table, {"r_q": left_q, "r_k": left_k}, tuple(range(len(left_q))))


MEANS = ("mean_r_q", "mean_abs_r_k")
SHARES = ("share_position-dominated", "share_content-focused", "share_mixed", "discordant")
assert {f"share_{category}" for category in CATEGORIES} > set(SHARES[:3])


@dataclass
class Tally:
    """Errors that were made, half widths of the intervals, and those of other ways to make them."""

    made: list[float] = field(default_factory=list)
    half: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)

    def covered(self, half: list[float] | None = None) -> float:
        return float(np.mean(np.abs(self.made) <= np.array(half or self.half) + 1e-12))


@cache
def simulated(groups: int, noise: str) -> dict[str, Tally]:
    """Tallies over repeated experiments, each with new heads and documents, of values and of their changes."""
    tokens, scatter = {"little": (256, 0.01), "much": (48, 0.4)}[noise]
    found: dict[str, Tally] = {}
    for run in range(MORE):
        of = world(np.random.default_rng(run), tokens, scatter)
        results = {name: measured(of, name, groups, 1000 * run + (name[0] == "k")) for name in of.slopes}
        samples, truths, plain = [], [], []
        for ending in ("", " later"):
            (q, q_left, q_plain), (k, k_left, _) = results[f"q{ending}"], results[f"k{ending}"]
            samples.append(sample(q, k, q_left, k_left))
            # What the rule of decided heads would find at the truth: the same limits.
            exact = sample(truth(of, f"q{ending}"), truth(of, f"k{ending}"))
            limits = {name: samples[-1].columns[name] for name in ("limit_q", "limit_k")}
            truths.append({**exact.columns, **limits})
            plain.append(float(np.sqrt((q_plain**2).sum()) / HEADS))
        for name in (*MEANS, *SHARES) if run < RUNS else MEANS:
            measure = MEASURES[name]
            readings = [one.read(measure) for one in samples]
            wanted = [float(measure(one)) for one in truths]
            other = 1.96 * plain[0] if name in MEANS else _old_share(samples[0], measure)
            _add(found, name, readings[0].estimate, wanted[0], other)
            _add(found, f"change of {name}", readings[1].since(readings[0]), wanted[1] - wanted[0], float("nan"))
    return found


def _old_share(of: Sample, measure: Callable[..., object]) -> float:
    """Twice the jackknife error of a share, as if it were no step function."""
    assert isinstance(measure, Share)
    return 2 * float(jackknife_error(np.asarray(measure({**of.columns, **of.replicates}))))


def _add(found: dict[str, Tally], name: str, estimate: Estimate, wanted: float, other: float) -> None:
    tally = found.setdefault(name, Tally())
    tally.made.append(estimate.value - wanted)
    tally.half.append(estimate.reach())
    tally.other.append(other)


CASES = [(groups, noise) for groups in (8, 16) for noise in ("little", "much")]


@pytest.mark.parametrize(("groups", "noise"), CASES)
@pytest.mark.parametrize("name", [*MEANS, *(f"change of {name}" for name in MEANS)])
def test_intervals_of_means_cover(groups: int, noise: str, name: str) -> None:
    assert 0.92 <= simulated(groups, noise)[name].covered() <= 0.98


@pytest.mark.parametrize(("groups", "noise"), CASES)
@pytest.mark.parametrize("name", [*SHARES, *(f"change of {name}" for name in SHARES)])
def test_intervals_of_shares_cover_and_are_no_wider_than_need_be(groups: int, noise: str, name: str) -> None:
    tally = simulated(groups, noise)[name]
    assert tally.covered() >= 0.92
    needed = float(np.quantile(np.abs(tally.made), 0.95))
    assert np.mean(tally.half) <= 1.5 * needed + 1 / HEADS


def test_tokens_taken_as_independent_would_not_cover() -> None:
    tally = simulated(16, "much")["mean_r_q"]
    assert tally.covered(tally.other) < 0.6


def test_the_jackknife_of_a_share_would_not_cover() -> None:
    shares = [tally for name in SHARES for tally in [simulated(16, "little")[name]]]
    assert min(tally.covered(tally.other) for tally in shares) < 0.92
