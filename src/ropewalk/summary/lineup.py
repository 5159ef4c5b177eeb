"""The checkpoints of a table in the order in which they are shown."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from ropewalk.errors import RopewalkError


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
    def noun(self) -> str:
        """What stands in the lineup: "checkpoint" or "model"."""
        return "checkpoint" if self.training or not any(group.name for group in self.groups) else "model"

    @property
    def connected(self) -> bool:
        """Whether each checkpoint grew out of the one before it: training, with more than one checkpoint."""
        return self.training and len(self) > 1

    @property
    def side_by_side(self) -> bool:
        """Whether several stand beside each other, none of which grew out of another."""
        return not self.training and len(self) > 1

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

    def known(self, names: Iterable[str]) -> list[str]:
        """Those of the names or labels that are of checkpoints here."""
        return [name for name in names if name in self.names or name in self.labels]

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
