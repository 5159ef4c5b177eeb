"""Bases of lower rank for queries and keys, what each loses of the scores, and filters: a folder with a figure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field, model_validator
from safetensors.numpy import save

from ropewalk.errors import RopewalkError
from ropewalk.export import rank_figure
from ropewalk.export.arrays import ENTRY, Arrays, in_order
from ropewalk.export.folder import writing
from ropewalk.export.formats import Format
from ropewalk.export.source import POST, ByKind, Source, facts
from ropewalk.figures.style import png_and_pdf
from ropewalk.files import write_bytes, write_text
from ropewalk.geometry.lowrank import (
    Bases,
    all_bases,
    covariance,
    gram,
    leading_direction,
    projection,
    score_errors,
    turned_gram,
)
from ropewalk.geometry.moments import Floats, Moments, merge_all, stack, without_each
from ropewalk.geometry.pca import pooled_scatter, ratio
from ropewalk.models.layout import Rotary
from ropewalk.schema import Part
from ropewalk.seals import BLANK, seal
from ropewalk.statistics.base import LayerHeads
from ropewalk.statistics.frame import PRE
from ropewalk.tables import write_csv

VERSION = 1
FILES = ("bases.safetensors", "errors.csv", "figure.png", "figure.pdf", "README.md")
RANK = 16
"""Rank of the bases unless it is chosen."""
PRE_KEY = "pre_key"
"""The basis of keys before their rotation."""

COLUMNS = {
    "layer": "layer",
    "head": "query head; the first of those that share a key head where `grouped`",
    "k_head": "key head",
    "basis": "`pooled`, `joint`, `key`, `query`, `optimal`, or `pre_key`: keys before the rotation",
    "rank": "number of directions",
    "energy": "share of what the basis was chosen by that these directions hold",
    "error": "expected error of scores: the share of their mean square that is lost",
    "held_out": "the same where the basis is made without a group of documents and its error measured on that group, "
    "as a mean over groups; empty with one group",
    "se_held_out": "standard error of `held_out` over groups",
}
"""Columns of errors.csv."""


class Choice(Part):
    """What can be chosen of bases."""

    rank: int | None = Field(None, gt=0, le=100_000, description="Directions of each basis; 16 by default.")
    energy: float | None = Field(
        None, gt=0, le=1, description="As many directions as hold this share, head by head, in place of a rank."
    )
    grouped: bool = Field(
        False, description="One basis for all query heads that read a key head, as a cache of keys needs it."
    )
    centred: bool = Field(
        False, description="Keys about their mean: errors of what a softmax sees, which no common part of keys changes."
    )

    @model_validator(mode="after")
    def _one(self) -> "Choice":
        if self.rank is not None and self.energy is not None:
            raise ValueError("rank and energy are two ways to say how many directions: give one of them")
        return self


def write(source: Source, path: Path, options: Choice) -> list[Path]:
    """Write a folder with bases, the table of their errors, and its figure with a caption: `FILES`."""
    arrays: Arrays = {}
    rows: list[pd.DataFrame] = []
    for heads in source.layers:
        smallest = heads.layer.head_dim
        if options.rank is not None and options.rank > smallest:
            raise RopewalkError(
                f"rank {options.rank} is more than the {smallest} dimensions of the heads of layer "
                f"{heads.layer.layer}: give at most {smallest}"
            )
        found = LayerBases.of(source, heads, grouped=options.grouped, centred=options.centred)
        arrays |= found.arrays(options)
        rows.append(found.table(options))
    table = pd.concat(rows, ignore_index=True)
    about = {"format": "ropewalk-bases", "version": VERSION, "choice": options.model_dump(), **facts(source)}
    title = f"{source.label}, {len(table[['layer', 'head']].drop_duplicates())} heads"
    with writing(path, FILES, about):
        metadata = {ENTRY: json.dumps({"seal": BLANK, **about})}
        write_bytes(path / FILES[0], seal(save(in_order(arrays), metadata=metadata)))
        write_csv(path / FILES[1], table[list(COLUMNS)])
        picture, paper = png_and_pdf(rank_figure.draw(table))
        write_bytes(path / FILES[2], picture)
        write_bytes(path / FILES[3], paper)
        write_text(path / FILES[4], rank_figure.caption(table, title, centred=options.centred))
    return [path / name for name in FILES]


@dataclass(frozen=True)
class KeysBefore:
    """Keys before their rotation, by group of documents, how they turn (None: not at all), and their positions."""

    keys: Sequence[Moments]
    rotary: Rotary | None
    positions: range

    def seen(self, query: Floats) -> Floats:
        """Gram matrices of queries [heads, d, d] as these keys see them, taken to be alike at all positions."""
        if self.rotary is None:
            return query
        first, second = list(self.rotary.first), list(self.rotary.second)
        angles = np.zeros((len(self.positions), query.shape[-1]))
        angles[:, first] = angles[:, second] = np.outer(self.positions, self.rotary.frequencies)
        return turned_gram(query, first, second, np.cos(angles), np.sin(angles))


class LayerBases:
    """The bases of one layer's heads: of all documents, and their errors with each group left out."""

    def __init__(self, heads: LayerHeads, units: "Units", centred: bool) -> None:
        self.heads, self.centred = heads, centred
        self.q, self.k, self.numbers = units
        self.whole = merge_all(self.q), merge_all(self.k)
        self.bases = self._bases(*self.whole)
        self.pre: KeysBefore | None = None

    @classmethod
    def of(cls, source: Source, heads: LayerHeads, *, grouped: bool, centred: bool) -> "LayerBases":
        """From the sums of a layer; `grouped` takes the query heads of a key head together."""
        post = source.need(heads, POST)
        found = cls(heads, _side_by_side(post, heads, grouped), centred)
        # A common part of keys before the rotation is none after it: there is nothing that a softmax would not see.
        before = None if centred else source.moments(heads, PRE)
        if before is not None:
            _, keys, _ = _side_by_side(before, heads, grouped)
            scope = source.captured.scope
            rotary = heads.layer.rotary_pairs if heads.layer.rope else None
            found.pre = KeysBefore(keys, rotary, range(scope.skip_first, scope.context))
            found.bases[PRE_KEY] = projection(gram(merge_all(keys)))
        return found

    def _bases(self, q: Moments, k: Moments) -> dict[str, Bases]:
        return dict(all_bases(*self._matrices(q, k), pooled_scatter(q, k)))

    def _matrices(self, q: Moments, k: Moments) -> tuple[Floats, Floats]:
        """What bases and errors are of: G_q, and G_k or the covariance of keys."""
        return gram(q), covariance(k) if self.centred else gram(k)

    def ranks(self, options: Choice, bases: Bases) -> NDArray[np.intp]:
        """[heads] How many directions are chosen."""
        if options.energy is not None:
            return bases.rank_for(options.energy)
        d = bases.energy.shape[1]
        return np.full(len(bases.energy), min(options.rank or RANK, d))

    def arrays(self, options: Choice) -> Arrays:
        """Bases [heads, d, rank] with zeros beyond each head's own rank, ranks [heads], filters [heads, d]."""
        prefix = f"l{self.heads.layer.layer:02d}"
        found: Arrays = {f"{prefix}.heads": self.numbers[0], f"{prefix}.k_heads": self.numbers[1]}
        for name, bases in self.bases.items():
            ranks = self.ranks(options, bases)
            kept = np.arange(bases.energy.shape[1])[: int(ranks.max())] < ranks[:, None]
            sides = {"query": bases.query, "key": bases.key} if name == "optimal" else {"": bases.key}
            for side, vectors in sides.items():
                end = f".{side}" if side else ""
                found[f"{prefix}.{name}{end}"] = np.where(kept[:, None, :], vectors[:, :, : kept.shape[1]], 0.0)
            found[f"{prefix}.{name}.ranks"] = ranks
        direction, share = leading_direction(self.whole[0])
        found[f"{prefix}.filter"], found[f"{prefix}.filter.share"] = direction, share
        return found

    def table(self, options: Choice) -> pd.DataFrame:
        """Rows of `COLUMNS`: every basis of every head at powers of two and at the chosen rank."""
        parts = []
        held_out = self._held_out()
        for name, bases in self.bases.items():
            errors = self._errors(name, bases, None)
            middle, spread = held_out[name]
            chosen = self.ranks(options, bases)
            energy = np.cumsum(np.nan_to_num(ratio(bases.energy, bases.energy.sum(axis=1, keepdims=True))), axis=1)
            for index in range(len(errors)):
                ranks = np.array(sorted({*_steps(errors.shape[1] - 1), int(chosen[index])}))
                columns = {
                    "layer": self.heads.layer.layer,
                    "head": self.numbers[0][index],
                    "k_head": self.numbers[1][index],
                    "basis": name,
                    "rank": ranks,
                    "energy": energy[index, ranks - 1],
                    "error": errors[index, ranks],
                    "held_out": middle[index, ranks],
                    "se_held_out": spread[index, ranks],
                }
                parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def _held_out(self) -> Mapping[str, tuple[Floats, Floats]]:
        """By basis, mean and standard error [heads, d + 1] over groups of the error on a group of bases without it."""
        groups, heads = len(self.q), len(self.numbers[0])
        if groups < 2:
            nothing = np.full((heads, self.heads.layer.head_dim + 1), np.nan)
            return dict.fromkeys(self.bases, (nothing, nothing))
        q_rest, k_rest = without_each(self.whole[0], self.q), without_each(self.whole[1], self.k)
        pre_rest = None if self.pre is None else without_each(merge_all(self.pre.keys), self.pre.keys)
        found: dict[str, list[Floats]] = {name: [] for name in self.bases}
        for group in range(groups):
            own = slice(group * heads, (group + 1) * heads)
            bases = self._bases(q_rest[own], k_rest[own])
            if pre_rest is not None:
                bases[PRE_KEY] = projection(gram(pre_rest[own]))
            for name, one in bases.items():
                found[name].append(self._errors(name, one, group))
        stacked = {name: np.stack(values) for name, values in found.items()}
        return {
            name: (values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(groups))
            for name, values in stacked.items()
        }

    def _errors(self, name: str, bases: Bases, group: int | None) -> Floats:
        """Relative errors [heads, d + 1] of bases on all documents, or on one group of them."""
        q, k = self.whole if group is None else (self.q[group], self.k[group])
        if name != PRE_KEY:
            return score_errors(bases, *self._matrices(q, k))
        assert self.pre is not None
        keys = merge_all(self.pre.keys) if group is None else self.pre.keys[group]
        return score_errors(bases, self.pre.seen(gram(q)), gram(keys))


Units = tuple[list[Moments], list[Moments], NDArray[np.intp]]


def _side_by_side(found: ByKind, heads: LayerHeads, grouped: bool) -> Units:
    """Moments of queries and keys [units, ...] by group of documents, and the numbers [2, units] of their heads.

    A unit is a query head with the key head it reads, or (`grouped`) a key head with all queries that read it.
    """
    if not grouped:
        numbers = np.array([heads.heads, [heads.layer.k_head(head) for head in heads.heads]])
        return list(found["q"]), [one[heads.key_index] for one in found["k"]], numbers
    own = [np.flatnonzero(heads.key_index == index) for index in range(len(heads.key_heads))]
    numbers = np.array([[heads.heads[index[0]] for index in own], heads.key_heads])
    return [_pooled(one, own) for one in found["q"]], list(found["k"]), numbers


def _pooled(moments: Moments, groups: Sequence[Any]) -> Moments:
    """Moments of the vectors of several heads together, group by group of heads."""
    return stack([merge_all([moments[np.array([head])] for head in group]) for group in groups])


def _steps(d: int) -> Iterator[int]:
    """1, 2, 4, ... and d."""
    rank = 1
    while rank < d:
        yield rank
        rank *= 2
    yield d


FORMAT = Format("bases", "bases of lower rank for scores, with the error of each, a table and a figure", Choice, write)
