"""What figures, captions and the report look at: the heads of every checkpoint, and the same with shards left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ropewalk.errors import RopewalkError
from ropewalk.geometry.taxonomy import DEPTH_BINS, classify, depth_bin
from ropewalk.summary.lineup import Lineup, lineup
from ropewalk.summary.measures import MEASURES, Measure, find_measure
from ropewalk.summary.tracks import Track
from ropewalk.tables import REPLICATE_COLUMNS, check_qk

NO_CATEGORY = "no correlation"
"""Stands for the category of a head without one (a missing correlation) where every head must be counted."""


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

    @classmethod
    def of(cls, table: pd.DataFrame, replicates: pd.DataFrame | None = None) -> "View":
        """Check a qk table and cut its PC0 rows up by checkpoint; without replicates there are no standard errors."""
        heads = pc0(check_qk(table))
        order = lineup(heads)
        parts = dict(tuple(heads.groupby("checkpoint", sort=False)))
        samples = replicated(heads, replicates)
        left_out = {} if samples is None else dict(tuple(samples.groupby("checkpoint", sort=False)))
        return cls(
            order,
            tuple(parts[name] for name in order.names),
            tuple(_by_shard(left_out[name]) if name in left_out else {} for name in order.names),
        )

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
            self._tracks[measure] = self._measured(find_measure(measure))
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


def _by_shard(samples: pd.DataFrame) -> dict[int, pd.DataFrame]:
    return {int(str(shard)): part for shard, part in samples.groupby("left_out")}


def depth_tracks(view: View, column: str) -> tuple[Track, ...]:
    """Mean of a column over the heads of each depth bin, as a track per bin; NaN where no head has a value."""

    def means(heads: pd.DataFrame) -> NDArray[np.float64]:
        return heads.groupby("bin")[column].mean().reindex(range(DEPTH_BINS)).to_numpy(dtype=float)

    values = [means(part) for part in view.parts]
    left_out = [{shard: means(part) for shard, part in parts.items()} for parts in view.left_out]
    return tuple(
        Track(
            np.array([row[bin_] for row in values]),
            tuple({shard: float(row[bin_]) for shard, row in rows.items()} for rows in left_out),
        )
        for bin_ in range(DEPTH_BINS)
    )


def transitions(view: View, first: int, last: int) -> pd.DataFrame:
    """The heads that two checkpoints share, paired by (layer, head): columns layer, head, before, after, stable.

    `before` and `after` are categories (or `NO_CATEGORY`). `stable` says that leaving out any one shard gives the same
    two categories; it is missing without replicates. Models of another family or depth share no heads.
    """
    pair = [view.parts[index] for index in (first, last)]
    kin = all(pair[0][fact].iloc[0] == pair[1][fact].iloc[0] for fact in ("family", "layers"))
    before, after = (
        part[["layer", "head", "category"]].assign(
            category=part["category"].fillna(NO_CATEGORY).astype(str), stable=_stable(part, view.left_out[index])
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


def summarise(view: View, measures: Mapping[str, Measure] = MEASURES) -> pd.DataFrame:
    """One row per (checkpoint, quantity): columns checkpoint, label, phase, quantity, value, se, in the lineup's order.

    The standard error recomputes the measure over all heads with each shard left out, so that heads which share keys
    or documents are not counted as independent; it is NaN without replicates.
    """
    tracks = {quantity: view.track(measure) for quantity, measure in measures.items()}
    return pd.DataFrame(
        [
            {
                "checkpoint": name,
                "label": view.lineup.labels[index],
                "phase": view.parts[index]["phase"].iloc[0],
                "quantity": quantity,
                **track.at(index)._asdict(),
            }
            for index, name in enumerate(view.lineup.names)
            for quantity, track in tracks.items()
        ]
    )
