"""Numbers that sum up the heads of a checkpoint."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.errors import RopewalkError
from ropewalk.geometry.pca import ratio
from ropewalk.geometry.taxonomy import CATEGORIES, CERTAIN, DOMINATED, category_numbers

Columns = Mapping[str, NDArray[Any]]
"""Columns of the heads of a checkpoint, [heads] or [..., heads] where they come with groups left out, or in draws.

Beside those of `heads.csv`: `rope` (1, 0, NaN where not known), `bin` (depth bin), `category` (the number of the one
that the heads are in, whichever group is left out), and by kind `limit_q`, `limit_k` (how large a correlation must be
to be beyond its error) and `null_q`, `null_k` (to be beyond that of shuffled positions too).
"""

Measure = Callable[[Columns], Any]
"""A number [...] from columns [..., heads]."""

Among = Callable[[Columns], Any]
"""Which heads count [..., heads]."""

CONSTANT = 1e-13
"""Smaller differences, as a share of the largest value, are rounding."""


def everywhere(heads: Columns) -> Any:
    """All heads."""
    return np.ones(heads["r_q"].shape[-1], dtype=bool)


def in_layers(rope: bool | None) -> Among:
    """Heads of layers with RoPE (True), without (False), or not known to be either (None)."""
    if rope is None:
        return lambda heads: np.isnan(heads["rope"])
    return lambda heads: heads["rope"] == rope


def in_bins(*bins: int) -> Among:
    """Heads of these depth bins."""
    return lambda heads: np.isin(heads["bin"], bins)


def in_layer(layer: int) -> Among:
    """Heads of one layer."""
    return lambda heads: heads["layer"] == layer


def in_category(category: str, among: Among = everywhere) -> Among:
    """Heads that are in a category, whichever group is left out; of these, those among others."""
    number = CATEGORIES.index(category)
    return lambda heads: (heads["category"] == number) & among(heads)


@dataclass(frozen=True)
class Mean:
    """Mean of a column, or of its size, over the heads that have one."""

    column: str
    size: bool = False
    among: Among = everywhere

    def __call__(self, heads: Columns) -> Any:
        """The mean [...] of columns [..., heads]."""
        values = self.of_heads(heads)
        counted = ~np.isnan(values)
        return ratio(np.where(counted, values, 0).sum(axis=-1), counted.sum(axis=-1))

    def of_heads(self, heads: Columns) -> Any:
        """What the mean is of, [..., heads]; NaN for heads that do not count."""
        values = heads.get(self.column, np.full(heads["r_q"].shape, np.nan))
        return np.where(self.among(heads), np.abs(values) if self.size else values, np.nan)


@dataclass(frozen=True)
class Difference:
    """One measure less another, of the same heads; neither of them a share, whose error is another one."""

    measure: Measure
    other: Measure

    def __call__(self, heads: Columns) -> Any:
        """The difference [...] of columns [..., heads]."""
        return self.measure(heads) - self.other(heads)


@dataclass(frozen=True)
class Correlation:
    """Pearson correlation of two columns over the heads that have both; of the other's size, where `size` says so.

    `Σ (x - x̄)(y - ȳ) / sqrt(Σ (x - x̄)² Σ (y - ȳ)²)`; NaN for fewer than three heads (two always lie on a line) and
    where a column is constant.
    """

    column: str
    other: str
    size: bool = False
    among: Among = everywhere

    def __call__(self, heads: Columns) -> Any:
        """The correlation [...] of columns [..., heads]."""
        if self.column not in heads or self.other not in heads:
            return np.full(heads["r_q"].shape[:-1], np.nan)
        pair = np.broadcast_arrays(heads[self.column], np.abs(heads[self.other]) if self.size else heads[self.other])
        counted = self.among(heads) & ~np.isnan(pair[0] + pair[1])
        x, y = (_about_mean(values, counted) for values in pair)
        scale = np.sqrt((x**2).sum(axis=-1) * (y**2).sum(axis=-1))
        return ratio((x * y).sum(axis=-1), np.where(counted.sum(axis=-1) > 2, scale, 0))


def _about_mean(values: NDArray[Any], counted: NDArray[np.bool_]) -> NDArray[Any]:
    """`x - x̄` [..., heads] of the heads that count, 0 of the others; of a constant column exactly 0."""
    known = np.where(counted, values, 0)
    mean = ratio(known.sum(axis=-1, keepdims=True), counted.sum(axis=-1, keepdims=True))
    away = np.where(counted, values - mean, 0)
    # What rounding leaves of a constant would correlate with anything.
    return np.where(np.abs(away) > CONSTANT * np.abs(known).max(axis=-1, keepdims=True, initial=0), away, 0)


def deviation(column: str) -> Measure:
    """Standard deviation (n - 1) of a column over the heads of a checkpoint; one head has none (NaN)."""

    def measure(heads: Columns) -> Any:
        values = heads[column]
        known = ~np.isnan(values)
        count = known.sum(axis=-1)
        mean = ratio(np.where(known, values, 0).sum(axis=-1), count)
        squares = np.where(known, (values - np.asarray(mean)[..., None]) ** 2, 0).sum(axis=-1)
        return np.sqrt(ratio(squares, count - 1))

    return measure


@dataclass(frozen=True)
class Share:
    """Share of heads: those that are `hits` among those that are `counted`, each [..., heads].

    A step function of the correlations, for which leaving groups out gives no error: see `ropewalk.summary.tracks`.
    """

    hits: Among
    counted: Among

    def __call__(self, heads: Columns) -> Any:
        """The share [...] of columns [..., heads]; NaN where no head counts."""
        hits, counted = self.parts(heads)
        return ratio(hits.sum(axis=-1), counted.sum(axis=-1))

    def parts(self, heads: Columns) -> tuple[Any, Any]:
        """Hits and counted heads; a head that does not count is no hit."""
        counted = self.counted(heads)
        return self.hits(heads) & counted, counted


@dataclass(frozen=True)
class Tally:
    """Share of heads for which something could not be decided: a statement on the measurement, without an error."""

    hits: Among

    def __call__(self, heads: Columns) -> Any:
        """The share of heads with both correlations."""
        counted = known(heads)
        return ratio((self.hits(heads) & counted).sum(axis=-1), counted.sum(axis=-1))


def known(heads: Columns) -> Any:
    """Heads with both correlations."""
    return ~np.isnan(heads["r_q"] + heads["r_k"])


def decided(heads: Columns) -> Any:
    """Heads whose r_q and r_k are both beyond their errors; without errors, all that have both."""
    beyond_q, beyond_k = (
        (np.abs(heads[f"r_{kind}"]) > limit) | np.isnan(limit)
        for kind, limit in ((kind, heads[f"limit_{kind}"]) for kind in ("q", "k"))
    )
    return known(heads) & beyond_q & beyond_k


def _opposed(heads: Columns) -> Any:
    return heads["r_q"] * heads["r_k"] < 0


def of_category(category: str, **thresholds: float) -> Share:
    """Share of heads in a category, among those with both correlations; `low` and `high` move its thresholds."""
    number = CATEGORIES.index(category)
    return Share(lambda heads: category_numbers(heads["r_q"], heads["r_k"], **thresholds) == number, known)


def discordant(among: Among = everywhere) -> Share:
    """Share of decided heads with r_q · r_k < 0."""
    return Share(_opposed, lambda heads: decided(heads) & among(heads))


def _dominated(hits: Among) -> Share:
    """Share of heads that are position-dominated, and hits."""
    return Share(lambda heads: of_category(DOMINATED).hits(heads) & hits(heads), known)


def _above_null(kind: str) -> Share:
    def hits(heads: Columns) -> Any:
        return np.abs(heads[f"r_{kind}"]) > heads[f"null_{kind}"]

    return Share(hits, lambda heads: ~np.isnan(heads[f"r_{kind}"]) & ~np.isnan(heads[f"null_{kind}"]))


BEHAVIOUR = (
    "score_r2_distance",
    "mass_first",
    "mass_first4",
    "mass_sink",
    "mass_self",
    "mass_previous",
    "mass_induction",
    "lift_induction",
    "mass_duplicate",
    "lift_duplicate",
    "effective_keys",
)
"""Columns that say what heads do (docs/method.md §10) and whose means over heads are measures."""

ROTATION = (
    *("mu_q_a", "bias_strength", "bias_strength_context", "separation_strength", "var_frac_a", "var_frac_b"),
    *("plane_var_fraction", "drift_slow", "pc0_slow"),
)
SIZES = ("alpha_q", "alpha_k", "alpha_q_context", "alpha_k_context", "r_q_a", "r_k_a")
"""Columns of the planar rotation (docs/method.md §5) whose means, or the means of whose sizes, are measures."""
PLASTICITY = (
    *(f"ap_{part}{form}" for form in ("", "_gaussian", "_sums") for part in ("overall", "first_20", "last_20", "drop")),
    "ap_gap",
)
"""Columns of attention plasticity (§6) whose means are measures."""

MEASURES: Mapping[str, Measure] = {
    "mean_r_q": Mean("r_q"),
    "mean_r_k": Mean("r_k"),
    "mean_abs_r_k": Mean("r_k", size=True),
    "discordant": discordant(),
    "undecided": Tally(lambda heads: ~decided(heads)),
    "mean_explained_variance": Mean("explained_variance"),
    "mean_separation_share": Mean("separation_share"),
    "mean_readout_q": Mean("readout_q"),
    "mean_readout_k": Mean("readout_k"),
    **{f"share_{category}": of_category(category) for category in CATEGORIES},
    "undecided_category": Tally(lambda heads: heads["certainty"] < CERTAIN),
    f"concordant_{DOMINATED}": _dominated(lambda heads: ~_opposed(heads)),
    f"discordant_{DOMINATED}": _dominated(_opposed),
    "share_negative_r_k": Share(lambda heads: heads["r_k"] < 0, lambda heads: ~np.isnan(heads["r_k"])),
    "above_permuted_q": _above_null("q"),
    "above_permuted_k": _above_null("k"),
    "mean_r_q_permuted": Mean("r_q_permuted"),
    "mean_r_k_permuted": Mean("r_k_permuted"),
    "mean_abs_r_k_permuted": Mean("r_k_permuted", size=True),
    **{f"mean_{column}": Mean(column) for column in ("fixed_share_q", "fixed_share_k", *BEHAVIOUR)},
    **{
        f"correlation_{column}_{'abs_' if size else ''}{other}": Correlation(column, other, size)
        for column, other, size in (
            ("fixed_share_q", "r_q", False),
            ("fixed_share_k", "r_k", True),
            ("score_r2_distance", "r_q", False),
            ("score_r2_distance", "r_k", True),
        )
    },
    **{
        f"{name}_{layers}": measure
        for layers, among in (("rope", in_layers(True)), ("nope", in_layers(False)))
        for name, measure in (
            ("mean_r_q", Mean("r_q", among=among)),
            ("mean_r_k", Mean("r_k", among=among)),
            ("mean_abs_r_k", Mean("r_k", size=True, among=among)),
            ("discordant", discordant(among)),
        )
    },
    "mean_kernel_r": Mean("kernel_r"),
    **{f"mean_{column}": Mean(column) for column in (*ROTATION, *PLASTICITY)},
    **{f"mean_abs_{column}": Mean(column, size=True) for column in SIZES},
    "mean_bend_q": Mean("bend_q"),
    "mean_bend_k": Mean("bend_k"),
}


def find_measure(name: str) -> Measure:
    """A measure by its name, or a sentence with the nearest ones."""
    if name not in MEASURES:
        near = get_close_matches(name, MEASURES, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(MEASURES)}"
        raise RopewalkError(f"no quantity is called {name!r}: {hint}")
    return MEASURES[name]
