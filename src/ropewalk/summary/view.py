"""What figures, captions and the report look at: the heads of every checkpoint, and the same with shards left out."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import pandas as pd

from ropewalk.errors import RopewalkError
from ropewalk.geometry.axes import AXES
from ropewalk.geometry.taxonomy import CERTAIN, DEPTH_BINS, depth_bin
from ropewalk.summary.lineup import Lineup, lineup
from ropewalk.summary.measures import MEASURES, Mean, Measure, find_measure, in_bins
from ropewalk.summary.sample import Sample
from ropewalk.summary.tracks import Estimate, Track
from ropewalk.tables import REPLICATE_COLUMNS, REPLICATE_KEY, check_heads

NULLS = ("permuted", "untrained")
COMMON = "_common"
"""Ending of the columns of r_q and r_k within the shortest context of the study."""
NO_CATEGORY = "no correlation"
"""Stands for the category of a head without one (a missing correlation) where every head must be counted."""


@dataclass(frozen=True, eq=False)
class View:
    """The heads of every checkpoint, in the order of `lineup`: what figures and captions look at.

    r_q and r_k are those on one choice of `axis`. `untrained` holds, where the study has them, the heads of the same
    architecture with random weights, by the name of the checkpoint whose null they are. `tables` are those with several
    rows per head, such as `spectrum`, of all checkpoints.
    """

    lineup: Lineup
    samples: tuple[Sample, ...]
    untrained: Mapping[str, Sample] = field(default_factory=dict)
    axis: str = "pooled"
    origin: "View | None" = None
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    _tracks: dict[str, Track] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        table: pd.DataFrame,
        replicates: pd.DataFrame | None = None,
        nulls: Collection[str] = NULLS,
        tables: Mapping[str, pd.DataFrame] = {},
    ) -> "View":
        """Check a table of heads (or a qk table, of which PC0 counts) and cut it up by checkpoint.

        Without replicates there are no standard errors. `nulls` are those to show, as far as the table has them.
        """
        heads = check_heads(table)
        if "permuted" not in nulls:
            # Copied, because what is left of the columns lies in as many pieces, which pandas is slow with.
            heads = heads.drop(columns=[name for name in heads if str(name).endswith("_permuted")]).copy()
        heads["bin"] = depth_bin(heads["layer"], heads["layers"] - 1)
        left_out = _by_checkpoint(replicates)
        samples = {
            str(name): _sample(part, left_out.get(str(name))) for name, part in heads.groupby("checkpoint", sort=False)
        }
        null_of = heads.drop_duplicates("checkpoint").set_index("checkpoint")["untrained"]
        measured = [name for name in samples if null_of[name] != name] or list(samples)
        order = lineup(heads[heads["checkpoint"].isin(measured)])
        return cls(
            order,
            tuple(samples[name] for name in order.names),
            {name: samples[null_of[name]] for name in order.names if null_of[name] in samples and "untrained" in nulls},
            tables=tables,
        )

    @property
    def parts(self) -> tuple[pd.DataFrame, ...]:
        """The table of heads of each checkpoint."""
        return tuple(sample.table for sample in self.samples)

    @property
    def groups(self) -> list[int]:
        """How many groups of documents each checkpoint's errors are from."""
        return [len(sample.groups) for sample in self.samples]

    @property
    def has_errors(self) -> bool:
        """Whether any checkpoint has the two replicates that a standard error needs."""
        return any(count > 1 for count in self.groups)

    @property
    def has_permuted(self) -> bool:
        """Whether the numbers of shuffled positions are at hand."""
        return any("r_q_permuted" in part for part in self.parts)

    @property
    def axes(self) -> list[str]:
        """The choices of axis that every checkpoint has columns of."""
        return [name for name, ending in AXES.items() if self.has_columns(ending)]

    def on(self, axis: str) -> "View":
        """The same heads with r_q and r_k, and what follows from them, on another axis (docs/method.md §3)."""
        if axis not in AXES:
            raise RopewalkError(f"no axis is called {axis!r}: choose from {', '.join(AXES)}")
        whole = self.origin or self
        return whole if axis == "pooled" else replace(whole.with_columns(AXES[axis]), axis=axis)

    def with_columns(self, ending: str) -> "View":
        """The same heads with r_q and r_k from the columns that end so."""
        whole = self.origin or self
        return replace(
            whole,
            samples=tuple(sample.on(ending) for sample in whole.samples),
            untrained={
                name: sample.on(ending) for name, sample in whole.untrained.items() if f"r_q{ending}" in sample.table
            },
            origin=whole,
        )

    def has_columns(self, ending: str) -> bool:
        """Whether every checkpoint has r_q and r_k in columns that end so."""
        return all(f"r_q{ending}" in sample.table for sample in (self.origin or self).samples)

    def rows(self, table: str, index: int) -> pd.DataFrame:
        """The rows of a table with several rows per head, of one checkpoint."""
        whole = self.tables[table]
        return whole[whole["checkpoint"] == self.lineup.names[index]]

    def lacks(self, columns: Collection[str] = (), tables: Collection[str] = ()) -> str | None:
        """The first of these columns of heads and tables that is not at hand, in words; None where all are."""
        for name in columns:
            if not any(name in part and part[name].notna().any() for part in (self.origin or self).parts):
                return f"the column {name}"
        return next((f"the table {name}" for name in tables if name not in self.tables), None)

    def select(self, indices: list[int]) -> "View":
        """Some of the checkpoints, as a view of their own."""
        return replace(
            self,
            lineup=self.lineup.select(indices),
            samples=tuple(self.samples[index] for index in indices),
            origin=None if self.origin is None else self.origin.select(indices),
        )

    def bare(self) -> "View":
        """The same view without what was read of it: as it is given to another process."""
        return replace(
            self,
            samples=tuple(map(replace, self.samples)),
            untrained={name: replace(sample) for name, sample in self.untrained.items()},
            origin=None if self.origin is None else self.origin.bare(),
        )

    def track(self, measure: str | Measure) -> Track:
        """A measure (or the name of one of `MEASURES`) at every checkpoint."""
        if not isinstance(measure, str):
            return Track([sample.read(measure) for sample in self.samples])
        if measure not in self._tracks:
            self._tracks[measure] = self.track(find_measure(measure))
        return self._tracks[measure]

    def track_common(self, measure: str) -> Track:
        """A measure within the shortest context of the study, where there are columns of that."""
        name = measure + COMMON
        if name not in self._tracks:
            # Only what is read of them is kept: the heads once more would take as much room as all others.
            self._tracks[name] = self.with_columns(COMMON).track(measure)
        return self._tracks[name]

    def track_untrained(self, measure: str) -> Track | None:
        """A measure of each checkpoint's untrained null; None where some checkpoint has none."""
        if not all(name in self.untrained for name in self.lineup.names):
            return None
        return Track([self.untrained[name].read(find_measure(measure)) for name in self.lineup.names])

    def above_untrained(self, measure: str, index: int) -> Estimate | None:
        """How much more a measure is at a checkpoint than untrained, paired by documents and heads."""
        name = self.lineup.names[index]
        if name not in self.untrained:
            return None
        own = find_measure(measure)
        return self.samples[index].read(own).since(self.untrained[name].read(own))


def _by_checkpoint(replicates: pd.DataFrame | None) -> dict[str, pd.DataFrame]:
    if replicates is None or replicates.empty:
        return {}
    missing = [column for column in REPLICATE_COLUMNS if column not in replicates.columns]
    if missing:
        raise RopewalkError(f"the replicates have no column {missing[0]!r}: they need {', '.join(REPLICATE_COLUMNS)}")
    return {str(name): part for name, part in replicates.groupby(replicates["checkpoint"].astype(str), sort=False)}


def _sample(part: pd.DataFrame, left_out: pd.DataFrame | None) -> Sample:
    """The heads of a checkpoint, their replicates brought into the same order."""
    if left_out is None:
        return Sample.of(part, {}, ())
    heads = pd.MultiIndex.from_frame(part[["layer", "head"]])
    groups = tuple(sorted(left_out["left_out"].unique().tolist()))
    ordered = left_out.set_index(["left_out", "layer", "head"])
    if not ordered.index.is_unique:
        raise RopewalkError("the replicates hold a head twice: run `ropewalk analyze` again")
    rows = pd.MultiIndex.from_tuples([(group, *head) for group in groups for head in heads], names=ordered.index.names)
    values = ordered.drop(columns="checkpoint").reindex(rows)
    return Sample.of(
        part,
        {
            str(name): values[name].to_numpy(dtype=float).reshape(len(groups), len(part))
            for name in values
            if name not in REPLICATE_KEY
        },
        groups,
    )


def depth_tracks(view: View, column: str) -> tuple[Track, ...]:
    """Mean of a column over the heads of each depth bin, as a track per bin; NaN where no head has a value."""
    return tuple(view.track(Mean(column, among=in_bins(bin_))) for bin_ in range(DEPTH_BINS))


def transitions(view: View, first: int, last: int) -> pd.DataFrame:
    """The heads that two checkpoints share, paired by (layer, head): columns layer, head, before, after, certain.

    `before` and `after` are categories (or `NO_CATEGORY`). `certain` says that both are as probable as `CERTAIN`; it is
    missing without errors. Models of another family or depth share no heads.
    """
    pair = [view.parts[index] for index in (first, last)]
    kin = all(pair[0][fact].iloc[0] == pair[1][fact].iloc[0] for fact in ("family", "layers"))
    before, after = (
        part[["layer", "head"]].assign(
            category=part["category"].fillna(NO_CATEGORY).astype(str), certain=_certain(part)
        )
        for part in pair
    )
    both = before.merge(after if kin else after.iloc[:0], on=["layer", "head"], suffixes=("_before", "_after"))
    both["certain"] = both["certain_before"] & both["certain_after"]
    both = both.rename(columns={"category_before": "before", "category_after": "after"})
    return both[["layer", "head", "before", "after", "certain"]]


def _certain(part: pd.DataFrame) -> "pd.Series[bool]":
    if "certainty" not in part:
        return pd.Series(pd.NA, index=part.index, dtype="boolean")
    return (part["certainty"] >= CERTAIN).astype("boolean").mask(part["certainty"].isna())


def summarise(view: View, measures: Mapping[str, Measure] = MEASURES) -> pd.DataFrame:
    """One row per (checkpoint, quantity): columns checkpoint, label, phase, quantity, value, se, low, high, in the
    lineup's order.

    Standard errors are from groups of documents, so that heads which share keys or documents are not counted as
    independent, and NaN without groups; `low` to `high` is the 95% interval.
    """
    rows = []
    tracks = {quantity: view.track(measure) for quantity, measure in measures.items()}
    for index, name in enumerate(view.lineup.names):
        for quantity, track in tracks.items():
            estimate = track.at(index)
            rows.append(
                {
                    "checkpoint": name,
                    "label": view.lineup.labels[index],
                    "phase": view.parts[index]["phase"].iloc[0],
                    "quantity": quantity,
                    "value": estimate.value,
                    "se": estimate.se,
                    "low": estimate.value - estimate.reach(),
                    "high": estimate.value + estimate.reach(),
                }
            )
    return pd.DataFrame(rows)
