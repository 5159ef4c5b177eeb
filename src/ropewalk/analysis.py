"""From the sums of a capture to tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import call
from pathlib import Path
from typing import Any

import pandas as pd

from ropewalk.geometry.rotation import METRICS, OF_PAIRS
from ropewalk.head_tables import heads_table, replicates_table, side_by_side
from ropewalk.helpers import ALONE, Helpers
from ropewalk.seals import Ledger
from ropewalk.statistics.base import Captured, LayerHeads, Readout, Statistic, layers_of
from ropewalk.statistics.plasticity import KEPT_COLUMNS, SUMS_COLUMNS
from ropewalk.statistics.registry import build, described_tables, is_found_elsewhere, load_plugin, loaded_plugins
from ropewalk.study import Checkpoint
from ropewalk.table_checks import check_measured
from ropewalk.tables import (
    FACTS,
    HEAD_FACTS,
    QK_COLUMNS,
    REPLICATE_KEY,
    REPLICATES_FILE,
    first_components,
    read_heads,
    read_other,
    read_qk,
    read_replicates,
    write_csv,
    write_replicates,
)
from ropewalk.threads import cores, work_on_each

EXCERPTS: Mapping[str, Sequence[str]] = {
    "rotated": (*METRICS, *OF_PAIRS),
    "plasticity": (*KEPT_COLUMNS, *SUMS_COLUMNS),
}
"""Tables that repeat columns of `heads.csv`: the planar rotation (docs/method.md §5), attention plasticity (§6)."""
SHARE = 3
"""Checkpoints that there must be for each process: with fewer, threads over layers share the work more evenly."""


@dataclass(frozen=True)
class Tables:
    """The tables of one or several checkpoints: `qk`, `heads`, `replicates`, and those of statistics by name."""

    qk: pd.DataFrame
    heads: pd.DataFrame
    replicates: pd.DataFrame
    others: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, others: Iterable[str] = (), captures: Mapping[str, Captured] = {}) -> "Tables":
        """The tables of a results folder, `others` by name as far as they are there; or those of a qk table alone.

        The heads must be ones of the `captures` that are beside them.
        """
        qk = read_qk(path)
        if path.is_file():
            return cls(qk, first_components(qk), pd.DataFrame())
        heads = read_heads(path, qk)
        check_measured(heads, str(path / "heads.csv"), {name: one.heads for name, one in captures.items()})
        replicates, known = read_replicates(path, heads), described_tables()
        there = [name for name in sorted(others) if (path / f"{name}.csv").is_file()]
        return cls(
            qk,
            heads,
            pd.DataFrame() if replicates is None else replicates,
            {name: read_other(path, name, heads, known.get(name)) for name in there},
        )

    @classmethod
    def concat(cls, parts: Sequence["Tables"]) -> "Tables":
        """The rows of several, one after the other; a column that some lack is empty there."""
        names = dict.fromkeys(name for part in parts for name in part.others)
        return cls(
            qk=_joined([part.qk for part in parts]),
            heads=_joined([part.heads for part in parts]),
            replicates=_joined([part.replicates for part in parts]),
            others={name: _joined([part.others[name] for part in parts if name in part.others]) for name in names},
        )

    def write(
        self,
        folder: Path,
        more: Mapping[str, Callable[[], pd.DataFrame]],
        made_from: Mapping[str, Any],
        helpers: Helpers = ALONE,
    ) -> None:
        """Write all tables and what `more` gives as CSV, the replicates, and last the ledger of their digests.

        `helpers` that are there already write as well: files alone are not worth the start of a process.
        """
        tables = {"qk": self.qk, "heads": self.heads, **self.excerpts(), **self.others}
        names = [*(f"{name}.csv" for name in (*tables, *more)), REPLICATES_FILE]
        Ledger(dict.fromkeys(names)).write(folder)
        # What must be computed is done here, while helpers begin with the largest.
        pieces: list[Callable[[], None]] = [partial(_write_made, folder / f"{name}.csv", more[name]) for name in more]
        pieces.append(partial(write_replicates, folder, self.replicates))
        for name, table in sorted(tables.items(), key=lambda item: item[1].size):
            pieces.append(partial(write_csv, folder / f"{name}.csv", table))
        for _ in (helpers if helpers.are_there else ALONE).each(pieces, call, call, share=2):
            pass
        Ledger.of(folder, names, made_from).write(folder)

    def excerpts(self) -> dict[str, pd.DataFrame]:
        """Columns of heads that are about one thing as tables of their own, by name, as far as there are any."""
        found = {}
        for name, columns in EXCERPTS.items():
            there = [column for column in columns if column in self.heads]
            if there:
                errors = [f"se_{column}" for column in there if f"se_{column}" in self.heads]
                order = [one for column in there for one in (column, f"se_{column}") if one in (*there, *errors)]
                found[name] = self.heads[[*FACTS, *order]]
        return found


def _write_made(path: Path, make: Callable[[], pd.DataFrame]) -> None:
    write_csv(path, make())


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows one after the other; columns in the order of the table that has most of them, as a longer context does."""
    order = dict.fromkeys(column for table in sorted(tables, key=lambda one: -one.shape[1]) for column in table)
    # Copied, because columns that some lack are left in pieces, which pandas is slow with.
    return pd.concat(tables, ignore_index=True)[list(order)].copy()


def tabulate_all(captures: Sequence[tuple[Captured, Checkpoint]], helpers: Helpers = ALONE) -> Tables:
    """The tables of several checkpoints, one after the other.

    With `helpers`, each process takes whole checkpoints and its share of the threads, so that no more layers are in
    memory: small heads are bound by the interpreter's lock. Statistics that only this process knows are read here.
    """
    if not all(map(is_found_elsewhere, {name for captured, _ in captures for name in captured.statistics})):
        helpers = ALONE
    threads = max(1, cores() // (1 + helpers.count(len(captures), SHARE)))
    work = partial(_tabulate_with, threads=threads, plugins=loaded_plugins())
    return Tables.concat(list(helpers.each(captures, work, work, SHARE)))


def _tabulate_with(pair: tuple[Captured, Checkpoint], threads: int, plugins: Sequence[Path]) -> Tables:
    """The tables of one checkpoint, in whatever process."""
    for path in plugins:
        load_plugin(path)
    return tabulate(*pair, threads)


def tabulate(captured: Captured, checkpoint: Checkpoint, threads: int | None = None) -> Tables:
    """The tables of one checkpoint.

    Layers are independent and are worked on by so many threads, as many as there are cores by default, so that no more
    than so many layers are in memory.
    """
    statistics = [one for one in build(captured.statistics) if one.columns or one.tables]
    layers = layers_of(captured.layout, captured.heads)
    readouts = work_on_each(lambda heads: _read(captured, statistics, heads), layers, threads)
    facts = checkpoint_facts(checkpoint, captured.layout.depth)
    names = dict.fromkeys(name for readout in readouts for name in readout.tables)
    tables = {
        name: _with_facts(_joined([one.tables[name] for one in readouts if name in one.tables]), facts)
        for name in names
    }
    values = side_by_side([readout.values for readout in readouts], layers)
    replicates = side_by_side([readout.replicates for readout in readouts], layers)
    return Tables(
        tables.pop("qk")[QK_COLUMNS],
        _with_facts(heads_table(layers, values, replicates), facts).pipe(_in_front, HEAD_FACTS),
        replicates_table(layers, replicates).assign(checkpoint=checkpoint.name).pipe(_in_front, REPLICATE_KEY),
        tables,
    )


def checkpoint_facts(checkpoint: Checkpoint, depth: int) -> dict[str, Any]:
    """Columns that are the same for all rows of a checkpoint."""
    return {
        "checkpoint": checkpoint.name,
        "phase": checkpoint.phase,
        "step": pd.NA if checkpoint.step is None else checkpoint.step,
        "label": checkpoint.label,
        "family": checkpoint.family,
        "context": checkpoint.context,
        "layers": depth,
        "untrained": checkpoint.untrained,
    }


def _with_facts(table: pd.DataFrame, facts: Mapping[str, Any]) -> pd.DataFrame:
    table = table.assign(**facts)
    table["step"] = table["step"].astype("Int64")
    return table


def _in_front(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    return table[[*columns, *(column for column in table if column not in columns)]]


def _read(captured: Captured, statistics: Sequence[Statistic], heads: LayerHeads) -> Readout:
    """What all statistics say of one layer, as one."""
    found = Readout({}, {}, {}, {})
    for one in _in_order(statistics):
        own = one.read(captured.parts(one.name, heads), heads, captured.scope, found.arrays)
        tables = {name: _merged(found.tables.get(name), table) for name, table in own.tables.items()}
        found = Readout(
            {**found.values, **own.values},
            {**found.replicates, **own.replicates},
            {**found.tables, **tables},
            {**found.arrays, **own.arrays},
        )
    return found


def _in_order(statistics: Sequence[Statistic]) -> Iterator[Statistic]:
    """Each after those whose arrays it can use, as far as they are there."""
    waiting = list(statistics)
    while waiting:
        names = {one.name for one in waiting}
        ready = [one for one in waiting if not names & set(one.after)]
        # A circle has no first: then any order is as good.
        yield from ready or waiting
        waiting = [one for one in waiting if one not in ready] if ready else []


def _merged(table: pd.DataFrame | None, other: pd.DataFrame) -> pd.DataFrame:
    """The columns of two tables side by side, joined by those that both have."""
    if table is None:
        return other
    shared = [column for column in table if column in other]
    if shared and table[shared].equals(other[shared]) and not table.duplicated(shared).any():
        # The same rows, as nearly always: merging takes long to find that out.
        return pd.concat([table, other.drop(columns=shared)], axis=1)
    return table.merge(other, how="outer", sort=False)
