"""Numbers that sum up the heads of a checkpoint."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

import numpy as np
import pandas as pd

from ropewalk.errors import RopewalkError
from ropewalk.geometry.taxonomy import CATEGORIES, DOMINATED

Measure = Callable[[pd.DataFrame], float]
"""A number from the PC0 rows of one checkpoint (columns r_q, r_k, explained_variance, category, rope, bin, ...)."""


def _mean(column: str) -> Measure:
    return lambda heads: float(heads[column].mean())


def deviation(column: str) -> Measure:
    """Standard deviation (n - 1) of a column over the heads of a checkpoint; one head has none (NaN)."""
    return lambda heads: float(heads[column].std())


def _share(category: str) -> Measure:
    def share(heads: pd.DataFrame) -> float:
        categories = heads["category"].to_numpy(dtype=object)
        known = np.count_nonzero(pd.notna(categories))
        return np.count_nonzero(categories == category) / known if known else float("nan")

    return share


def _discordant(heads: pd.DataFrame) -> float:
    known = heads["r_k"].dropna()
    return float((known < 0).mean()) if len(known) else float("nan")


def _where(rope: bool, measure: Measure) -> Measure:
    return lambda heads: measure(heads[heads["rope"].to_numpy(dtype=float, na_value=np.nan) == rope])


def _both(sign: int) -> Measure:
    """Share of heads that are position-dominated with r_q·r_k of this sign, which no sign convention can change."""

    def share(heads: pd.DataFrame) -> float:
        known = heads.dropna(subset=["category"])
        dominated = (known["category"] == DOMINATED) & (np.sign(known["r_q"] * known["r_k"]) == sign)
        return float(dominated.mean()) if len(known) else float("nan")

    return share


MEASURES: Mapping[str, Measure] = {
    "mean_r_q": _mean("r_q"),
    "mean_r_k": _mean("r_k"),
    "mean_abs_r_k": lambda heads: float(heads["r_k"].abs().mean()),
    "discordant": _discordant,
    "mean_explained_variance": _mean("explained_variance"),
    **{f"share_{category}": _share(category) for category in CATEGORIES},
    f"concordant_{DOMINATED}": _both(1),
    f"discordant_{DOMINATED}": _both(-1),
    "mean_r_q_rope": _where(True, _mean("r_q")),
    "mean_r_q_nope": _where(False, _mean("r_q")),
    "mean_r_k_rope": _where(True, _mean("r_k")),
    "mean_r_k_nope": _where(False, _mean("r_k")),
    "mean_abs_r_k_rope": _where(True, lambda heads: float(heads["r_k"].abs().mean())),
    "mean_abs_r_k_nope": _where(False, lambda heads: float(heads["r_k"].abs().mean())),
    "discordant_rope": _where(True, _discordant),
    "discordant_nope": _where(False, _discordant),
}


def find_measure(name: str) -> Measure:
    """A measure by its name, or a sentence with the nearest ones."""
    if name not in MEASURES:
        near = get_close_matches(name, MEASURES, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(MEASURES)}"
        raise RopewalkError(f"no quantity is called {name!r}: {hint}")
    return MEASURES[name]
