"""The heads of one checkpoint as arrays, with groups of documents left out, and moved by as much as their errors."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ropewalk.errors import RopewalkError
from ropewalk.geometry.jackknife import critical, deviations, jackknife_error
from ropewalk.geometry.pca import ratio
from ropewalk.geometry.taxonomy import category_numbers, classify, concordance
from ropewalk.summary.measures import Columns, Mean, Measure, Share, Tally, decided
from ropewalk.summary.tracks import Reading

DRAWS = 1000
"""Enough for the error of a share to be known to 2%."""
CORRELATIONS = ("r_q", "r_k")


@dataclass(frozen=True, eq=False)
class Sample:
    """The heads of a checkpoint: `table` with a row for each, and replicates [groups, heads] of its columns."""

    table: pd.DataFrame
    replicates: dict[str, NDArray[np.float64]]
    groups: tuple[int, ...]

    @classmethod
    def of(cls, table: pd.DataFrame, replicates: dict[str, NDArray[np.float64]], groups: tuple[int, ...]) -> "Sample":
        """The heads with their category and concordance computed from r_q and r_k."""
        return cls(table, replicates, groups)._classified()

    def _classified(self) -> "Sample":
        r_q, r_k = (self.columns[name] for name in CORRELATIONS)
        words = concordance(r_q, r_k, decided(self.columns))
        return replace(self, table=self.table.assign(category=classify(r_q, r_k), concordance=words))

    def on(self, ending: str) -> "Sample":
        """The same heads with r_q and r_k, and what belongs to them, from the columns that end so."""
        if f"r_q{ending}" not in self.table:
            raise RopewalkError(
                f"the table has no column r_q{ending}: run `ropewalk analyze` on the folder of a capture to have it"
            )
        sources = {"certainty": f"certainty{ending}"}
        for r in CORRELATIONS:
            sources |= {r: f"{r}{ending}", f"se_{r}": f"se_{r}{ending}", f"{r}_permuted": f"{r}{ending}_permuted"}
        # What the other columns have no counterpart of goes: it would belong to another r_q and r_k.
        # Copied, because what is left lies in many pieces, which pandas is slow with.
        table = self.table.drop(columns=list(sources), errors="ignore").copy()
        kept = {name: values for name, values in self.replicates.items() if name not in sources}
        bare = Sample(
            table.assign(**{name: self.table[source] for name, source in sources.items() if source in self.table}),
            kept | {name: self.replicates[source] for name, source in sources.items() if source in self.replicates},
            self.groups,
        )
        turned = bare._classified()
        # Words are none of the numbers, which are read next: these are the same.
        vars(turned)["columns"] = bare.columns
        return turned

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """(layer, head) of each row."""
        return tuple(zip(self.table["layer"].tolist(), self.table["head"].tolist(), strict=True))

    @cached_property
    def columns(self) -> Columns:
        """The columns that measures take, [heads]."""
        names = [name for name, dtype in self.table.dtypes.items() if _is_number(dtype)]
        # Together, because taking columns out one by one is slow.
        values = np.ascontiguousarray(self.table[names].to_numpy(dtype=float, na_value=np.nan).T)
        numbers = dict(zip(map(str, names), values, strict=True))
        numbers["rope"] = self.table["rope"].to_numpy(dtype=float, na_value=np.nan)
        limit = critical(len(self.groups))
        for kind in ("q", "k"):
            name = f"r_{kind}"
            numbers[f"limit_{kind}"] = limit * self._error(name)
            numbers[f"null_{kind}"] = self._null_limit(name, limit)
        numbers["category"] = category_numbers(numbers["r_q"], numbers["r_k"]).astype(float)
        numbers.setdefault("certainty", np.full(len(self), np.nan))
        return numbers

    def _numbers(self, name: str) -> NDArray[np.float64]:
        return self.table[name].to_numpy(dtype=float, na_value=np.nan)

    def _error(self, name: str) -> NDArray[np.float64]:
        if name not in self.replicates:
            return np.full(len(self), np.nan)
        return np.asarray(jackknife_error(self.replicates[name]))

    def _null_limit(self, name: str, limit: float) -> NDArray[np.float64]:
        """What |r| must exceed to be more than that of shuffled positions, beyond the error of their difference."""
        null = f"{name}_permuted"
        if null not in self.table or null not in self.replicates or name not in self.replicates:
            return np.full(len(self), np.nan)
        difference = np.abs(self.replicates[name]) - np.abs(self.replicates[null])
        return np.asarray(np.abs(self._numbers(null)) + limit * jackknife_error(difference))

    @cached_property
    def _left_out(self) -> Columns:
        return {**self.columns, **self.replicates}

    @cached_property
    def _draws(self) -> Columns:
        """The heads with r_q and r_k moved jointly, as the groups of documents moved them: normal, with the covariance
        of the jackknife. The same numbers weigh the groups at every checkpoint, so that changes are paired.
        """
        weights = np.random.default_rng(0).standard_normal((DRAWS, len(self.groups)))
        moved = {name: self.columns[name] + weights @ deviations(self.replicates[name]) for name in CORRELATIONS}
        return {**self.columns, **moved}

    def _shift(self, measure: Measure) -> float:
        """How far as much noise again would move a mean of sizes; nothing for other measures."""
        if not isinstance(measure, Mean) or not measure.size or measure.column not in CORRELATIONS:
            return 0.0
        return float(np.nan_to_num(np.mean(measure(self._draws)) - measure(self.columns)))

    def read(self, measure: Measure) -> Reading:
        """A measure of these heads, with what its error comes from."""
        value = float(measure(self.columns))
        if isinstance(measure, Tally) or len(self.groups) < 2:
            return Reading(value)
        if not isinstance(measure, Share):
            left_out = np.asarray(measure(self._left_out))
            return Reading(value, self.groups, self.heads, left_out=left_out, shift=self._shift(measure))
        hits, counted = measure.parts(self.columns)
        drawn_hits, drawn_counted = measure.parts(self._draws)
        count = max(int(counted.sum()), 1)
        # A head's part of a ratio: its hit less the share of its place among the counted.
        own = hits - value * counted
        bias = (drawn_hits - value * drawn_counted).mean(axis=0) - own
        draws = np.asarray(ratio(drawn_hits.sum(axis=-1), drawn_counted.sum(axis=-1)))
        draws = np.where(np.isnan(draws), value, draws)
        return Reading(value, self.groups, self.heads, draws=draws, bias=bias / count, step=1 / count)


def _is_number(dtype: Any) -> bool:
    return bool(pd.api.types.is_numeric_dtype(dtype)) and not pd.api.types.is_bool_dtype(dtype)
