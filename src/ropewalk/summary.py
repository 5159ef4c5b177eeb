"""Numbers that sum up a checkpoint, each with its standard error from leaving one shard out."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ropewalk.errors import RopewalkError
from ropewalk.geometry.jackknife import jackknife_error
from ropewalk.geometry.taxonomy import CATEGORIES, DEPTH_BINS, classify, depth_bin
from ropewalk.tables import REPLICATE_COLUMNS, check_qk

Measure = Callable[[pd.DataFrame], float]
"""A number from the PC0 rows of one checkpoint (columns r_q, r_k, explained_variance, category, rope, bin, ...)."""


def _mean(column: str) -> Measure:
    return lambda heads: float(heads[column].mean())


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
        dominated = (known["category"] == CATEGORIES[0]) & (np.sign(known["r_q"] * known["r_k"]) == sign)
        return float(dominated.mean()) if len(known) else float("nan")

    return share


MEASURES: Mapping[str, Measure] = {
    "mean_r_q": _mean("r_q"),
    "mean_r_k": _mean("r_k"),
    "mean_abs_r_k": lambda heads: float(heads["r_k"].abs().mean()),
    "discordant": _discordant,
    "mean_explained_variance": _mean("explained_variance"),
    **{f"share_{category}": _share(category) for category in CATEGORIES},
    "concordant_position-dominated": _both(1),
    "discordant_position-dominated": _both(-1),
    "mean_r_q_rope": _where(True, _mean("r_q")),
    "mean_r_q_nope": _where(False, _mean("r_q")),
    "mean_r_k_rope": _where(True, _mean("r_k")),
    "mean_r_k_nope": _where(False, _mean("r_k")),
    "mean_abs_r_k_rope": _where(True, lambda heads: float(heads["r_k"].abs().mean())),
    "mean_abs_r_k_nope": _where(False, lambda heads: float(heads["r_k"].abs().mean())),
    "discordant_rope": _where(True, _discordant),
    "discordant_nope": _where(False, _discordant),
}


NO_CATEGORY = "no correlation"
"""Stands for the category of a head without one (a missing correlation) where every head must be counted."""


class Estimate(NamedTuple):
    """A number and its standard error (NaN where there is none)."""

    value: float
    se: float


class Group(NamedTuple):
    """Neighbouring checkpoints `start <= i < stop` of one phase (training) or one family (models); may have no name."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Lineup:
    """The checkpoints of a table in the order in which they are shown, and the groups they stand in.

    `training` is false in a study over models (no step and no phase): its checkpoints are ordered by family, and going
    from one to the next is no change over time.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    groups: tuple[Group, ...]
    training: bool

    def __len__(self) -> int:
        return len(self.names)

    @property
    def kind(self) -> str:
        """What stands in the lineup."""
        return "checkpoint" if self.training or not any(group.name for group in self.groups) else "model"

    def group_of(self, index: int) -> Group:
        """The group that a checkpoint stands in."""
        return next(group for group in self.groups if group.start <= index < group.stop)

    def select(self, indices: list[int]) -> "Lineup":
        """Some of the checkpoints, as a lineup of their own."""
        return Lineup(
            tuple(self.names[index] for index in indices),
            tuple(self.labels[index] for index in indices),
            _grouped([self.group_of(index).name for index in indices]),
            self.training,
        )

    def find(self, names: list[str]) -> list[int]:
        """Indices of checkpoints given by name or label."""
        found = []
        for name in names:
            known = self.names if name in self.names else self.labels
            if name not in known:
                raise RopewalkError(f"no checkpoint {name!r} in the table: choose from {', '.join(self.names)}")
            found.append(known.index(name))
        return found

    def representative(self, count: int) -> list[int]:
        """At most `count` indices: the first, the ends of groups, the last; thinned out or filled up evenly."""
        last = len(self) - 1
        count = min(count, len(self))
        inner = sorted({group.stop - 1 for group in self.groups} - {0, last})
        if not inner or count <= 2:
            return sorted({round(i) for i in np.linspace(0, last, count)})
        if len(inner) > count - 2:
            inner = [inner[round(i)] for i in np.linspace(0, len(inner) - 1, count - 2)]
        chosen = sorted({0, last, *inner})
        while len(chosen) < count:
            before, after = max(pairwise(chosen), key=lambda gap: gap[1] - gap[0])
            chosen = sorted([*chosen, (before + after) // 2])
        return chosen


@dataclass(frozen=True)
class Track:
    """One measure over the checkpoints of a lineup.

    `values` is [checkpoints]; `left_out` holds, per checkpoint, the value with each shard left out.
    """

    values: NDArray[np.float64]
    left_out: tuple[dict[int, float], ...]

    @cached_property
    def errors(self) -> NDArray[np.float64]:
        """Jackknife standard errors [checkpoints]; NaN without replicates."""
        return np.array([float(jackknife_error(np.array([*parts.values()]))) for parts in self.left_out])

    def at(self, index: int) -> Estimate:
        """The value at one checkpoint."""
        return Estimate(float(self.values[index]), float(self.errors[index]))

    def change(self, first: int, last: int) -> Estimate:
        """`values[last] - values[first]`, its error from leaving the same shard out of both.

        Shards that hold other documents in the two checkpoints only add cross terms of mean zero; with different shards
        the two errors are taken as independent.
        """
        before, after = self.left_out[first], self.left_out[last]
        if before.keys() == after.keys():
            error = float(jackknife_error(np.array([after[shard] - before[shard] for shard in before])))
        else:
            error = float(np.hypot(self.errors[first], self.errors[last]))
        return Estimate(float(self.values[last] - self.values[first]), error)


@dataclass(frozen=True)
class View:
    """The PC0 rows of a table, cut up by checkpoint: what figures and captions look at.

    `parts` holds the heads of each checkpoint, `left_out` the same heads with each shard left out (empty without
    replicates), both in the order of `lineup`.
    """

    lineup: Lineup
    parts: tuple[pd.DataFrame, ...]
    left_out: tuple[dict[int, pd.DataFrame], ...]
    _tracks: dict[str, Track] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def has_errors(self) -> bool:
        """Whether any checkpoint has the two replicates that a standard error needs."""
        return any(len(parts) > 1 for parts in self.left_out)

    def select(self, indices: list[int]) -> "View":
        """Some of the checkpoints, as a view of their own."""
        return View(
            self.lineup.select(indices),
            tuple(self.parts[index] for index in indices),
            tuple(self.left_out[index] for index in indices),
        )

    def track(self, measure: str | Measure) -> Track:
        """A measure (or the name of one of `MEASURES`) at every checkpoint."""
        if not isinstance(measure, str):
            return self._measured(measure)
        if measure not in self._tracks:
            self._tracks[measure] = self._measured(MEASURES[measure])
        return self._tracks[measure]

    def _measured(self, measure: Measure) -> Track:
        return Track(
            np.array([measure(part) for part in self.parts]),
            tuple({shard: measure(part) for shard, part in parts.items()} for parts in self.left_out),
        )


def pc0(table: pd.DataFrame) -> pd.DataFrame:
    """The PC0 rows of a checked table, with `category` and depth `bin` (0..9) computed afresh."""
    heads = table[table["pc"] == 0].copy()
    if heads.empty:
        raise RopewalkError("the table has no row with pc 0: PC0 is what figures and summaries are made of")
    heads["category"] = classify(heads["r_q"], heads["r_k"])
    heads["bin"] = depth_bin(heads["layer"], heads["layers"] - 1)
    return heads


def replicated(heads: pd.DataFrame, replicates: pd.DataFrame | None) -> pd.DataFrame | None:
    """Replicates with each head's own facts (rope, bin) from `pc0(table)` and their category computed afresh."""
    if replicates is None or replicates.empty:
        return None
    missing = [column for column in REPLICATE_COLUMNS if column not in replicates.columns]
    if missing:
        raise RopewalkError(f"the replicates have no column {missing[0]!r}: they need {', '.join(REPLICATE_COLUMNS)}")
    facts = heads[["checkpoint", "layer", "head", "rope", "bin"]]
    joined = replicates.assign(checkpoint=replicates["checkpoint"].astype(str)).merge(
        facts, on=["checkpoint", "layer", "head"], how="inner"
    )
    joined["category"] = classify(joined["r_q"], joined["r_k"])
    return joined


def lineup(heads: pd.DataFrame) -> Lineup:
    """Order and groups of the checkpoints of a checked table: as they come, models of a family brought together."""
    rows = heads.drop_duplicates("checkpoint")
    training = bool((rows["phase"] != "").any() or rows["step"].notna().any())
    if not training:
        rows = rows.iloc[np.argsort(pd.factorize(rows["family"])[0], kind="stable")]
    groups = _grouped(rows["phase" if training else "family"])
    return Lineup(tuple(rows["checkpoint"]), tuple(rows["label"]), groups, training)


def _grouped(names: Iterable[str]) -> tuple[Group, ...]:
    groups, start = [], 0
    for name, members in groupby(names):
        stop = start + len(list(members))
        groups.append(Group(name, start, stop))
        start = stop
    return tuple(groups)


def view(table: pd.DataFrame, replicates: pd.DataFrame | None = None) -> View:
    """Check a qk table and cut its PC0 rows up by checkpoint."""
    heads = pc0(check_qk(table))
    order = lineup(heads)
    parts = dict(tuple(heads.groupby("checkpoint", sort=False)))
    samples = replicated(heads, replicates)
    left_out = {} if samples is None else dict(tuple(samples.groupby("checkpoint", sort=False)))
    return View(
        order,
        tuple(parts[name] for name in order.names),
        tuple(_by_shard(left_out[name]) if name in left_out else {} for name in order.names),
    )


def _by_shard(samples: pd.DataFrame) -> dict[int, pd.DataFrame]:
    return {int(str(shard)): part for shard, part in samples.groupby("left_out")}


def depth_tracks(look: View, column: str) -> tuple[Track, ...]:
    """Mean of a column over the heads of each of the 10 depth bins, as tracks; NaN where no head has a value."""

    def means(heads: pd.DataFrame) -> NDArray[np.float64]:
        return heads.groupby("bin")[column].mean().reindex(range(DEPTH_BINS)).to_numpy(dtype=float)

    values = [means(part) for part in look.parts]
    left_out = [{shard: means(part) for shard, part in parts.items()} for parts in look.left_out]
    return tuple(
        Track(
            np.array([row[bin_] for row in values]),
            tuple({shard: float(row[bin_]) for shard, row in rows.items()} for rows in left_out),
        )
        for bin_ in range(DEPTH_BINS)
    )


def moves(look: View, first: int, last: int) -> pd.DataFrame:
    """The heads that two checkpoints share, paired by (layer, head): columns layer, head, before, after, stable.

    `before` and `after` are categories (or `NO_CATEGORY`). `stable` says that leaving out any one shard gives the same
    two categories; it is missing without replicates. Models of another family or depth share no heads.
    """
    pair = [look.parts[index] for index in (first, last)]
    kin = all(pair[0][fact].iloc[0] == pair[1][fact].iloc[0] for fact in ("family", "layers"))
    before, after = (
        part[["layer", "head", "category"]].assign(
            category=part["category"].fillna(NO_CATEGORY).astype(str), stable=_stable(part, look.left_out[index])
        )
        for part, index in zip(pair, (first, last), strict=True)
    )
    both = before.merge(after if kin else after.iloc[:0], on=["layer", "head"], suffixes=("_before", "_after"))
    both["stable"] = both["stable_before"] & both["stable_after"]
    both = both.rename(columns={"category_before": "before", "category_after": "after"})
    return both[["layer", "head", "before", "after", "stable"]]


def _stable(part: pd.DataFrame, left_out: Mapping[int, pd.DataFrame]) -> pd.Series:
    if not left_out:
        return pd.Series(pd.NA, index=part.index, dtype="boolean")
    own = part[["layer", "head", "category"]]
    samples = pd.concat(left_out.values())[["layer", "head", "category"]].merge(
        own, on=["layer", "head"], suffixes=("", "_own")
    )
    same = samples["category"].fillna(NO_CATEGORY) == samples["category_own"].fillna(NO_CATEGORY)
    by_head = same.groupby([samples["layer"], samples["head"]]).all()
    keys = pd.MultiIndex.from_frame(part[["layer", "head"]])
    return pd.Series(by_head.reindex(keys).to_numpy(), index=part.index).astype("boolean")


def summarise(
    table: pd.DataFrame, replicates: pd.DataFrame | None = None, measures: Mapping[str, Measure] = MEASURES
) -> pd.DataFrame:
    """One row per (checkpoint, quantity): columns checkpoint, label, phase, quantity, value, se, in the lineup's order.

    `table` is a qk table. The standard error recomputes the measure over all heads with each shard left out, so
    that heads which share keys or documents are not counted as independent; it is NaN without replicates.
    """
    look = view(table, replicates)
    tracks = {quantity: look.track(measure) for quantity, measure in measures.items()}
    errors = {quantity: track.errors for quantity, track in tracks.items()}
    return pd.DataFrame(
        [
            {
                "checkpoint": name,
                "label": look.lineup.labels[index],
                "phase": look.parts[index]["phase"].iloc[0],
                "quantity": quantity,
                "value": float(track.values[index]),
                "se": float(errors[quantity][index]),
            }
            for index, name in enumerate(look.lineup.names)
            for quantity, track in tracks.items()
        ]
    )
