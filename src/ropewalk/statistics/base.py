"""A statistic: what is added up over the tokens of a capture, and what the sums mean.

The heavy side sees tensors during the forward pass (`observe`, or an accumulator of its own), the light side sees NumPy
arrays afterwards (`values`, `read`). What lies between (shards on disk, resuming, merging, standard errors, tables) is
the same for all statistics and is not their business. Nothing here imports torch, so that sums can be read without it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ropewalk.geometry.jackknife import jackknife_error
from ropewalk.geometry.moments import Floats
from ropewalk.models.layout import AttentionLayer, Head, Layout
from ropewalk.schema import Part
from ropewalk.statistics.arrays import Stored
from ropewalk.statistics.totals import Totals

if TYPE_CHECKING:
    import torch

    from ropewalk.models.tap import Call

NOUNS = {"q": "queries", "k": "keys"}
KINDS = tuple(NOUNS)
"""The two kinds of vectors."""
FIRST = 4
"""Tokens at the start of a document that are kept apart: attention sinks have extreme vectors and scores."""

Sums = Mapping[str, NDArray[Any]]
"""Named arrays of one layer and one group of documents.

An array whose name starts with `q.` has the layer's chosen query heads as its first axis, with `k.` its key heads.
"""


@dataclass(frozen=True)
class Scope:
    """What is the same for a whole capture: the study's settings of the same names, and the number of documents.

    `common_context` is the shortest context of the study's checkpoints; None where all have the same.
    """

    context: int
    documents: int
    bucket_size: int
    seed: int = 0
    skip_first: int = 0
    components: int = 10
    common_context: int | None = None


@dataclass(frozen=True)
class LayerHeads:
    """The chosen heads of one layer: query heads, and the key heads that they read, each in ascending order."""

    layer: AttentionLayer
    heads: tuple[int, ...]
    key_heads: tuple[int, ...]

    def numbers(self, kind: str) -> tuple[int, ...]:
        """Numbers of the query heads (kind `q`) or of the key heads (`k`)."""
        return self.heads if kind == "q" else self.key_heads

    @cached_property
    def key_index(self) -> NDArray[np.intp]:
        """[heads] Where the key head of each query head stands in `key_heads`."""
        return np.array([self.key_heads.index(self.layer.k_head(head)) for head in self.heads], dtype=np.intp)


@dataclass(frozen=True)
class Observation:
    """One attention call over a batch of documents, cut to the chosen heads and the tokens that count.

    query [documents, heads, tokens, d] and key [documents, key heads, tokens, d] are what the dot product takes;
    positions [tokens] (on the CPU) and token_ids [documents, tokens] belong to their tokens; `documents` are the
    documents' numbers in the corpus. `call` is the whole call as it was tapped: all heads, all tokens, the options.
    `whole_token_ids` [documents, context] are those of all tokens. `shared` is the same for all layers of a batch: what
    depends on its documents alone can be kept there. Where not `rotated`, query and key are those before the rotation.
    """

    heads: LayerHeads
    query: "torch.Tensor"
    key: "torch.Tensor"
    positions: "torch.Tensor"
    token_ids: "torch.Tensor"
    documents: Sequence[int]
    call: "Call"
    whole_token_ids: "torch.Tensor"
    shared: dict[Any, Any] = field(default_factory=dict)
    rotated: bool = True

    def memory(self, name: str, shape: Sequence[int]) -> "torch.Tensor":
        """A float32 tensor to work in, the same for all layers: taking a new one for each costs as much as the work."""
        import torch

        key = (name, tuple(shape), self.query.device)
        if key not in self.shared:
            self.shared[key] = torch.empty(key[1], device=self.query.device)
        found: torch.Tensor = self.shared[key]
        return found

    def vectors(self, kind: str) -> "torch.Tensor":
        """Queries for "q", keys for "k"."""
        return self.query if kind == "q" else self.key


class Accumulator(Protocol):
    """Adds up the observations of one layer."""

    def update(self, seen: Observation) -> None:
        """Add one observation."""

    def sums(self) -> Sums:
        """Everything added so far."""


@dataclass(frozen=True)
class Readout:
    """What the sums of one layer mean: per column values [heads] and replicates [groups, heads], and other tables.

    Replicates are the values with each group of documents left out (none with fewer than two groups). A table has any
    rows and columns, among them `layer` and `head`; the checkpoint's own columns are added later. `arrays` are not
    written: they are for the statistics that are read `after` this one.
    """

    values: Mapping[str, Floats] = field(default_factory=dict)
    replicates: Mapping[str, Floats] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    arrays: Mapping[str, Floats] = field(default_factory=dict)

    @classmethod
    def of_stacked(
        cls,
        columns: Mapping[str, Floats],
        tables: Mapping[str, pd.DataFrame] = {},
        arrays: Mapping[str, Floats] = {},
    ) -> "Readout":
        """From columns [1 + groups, heads] of the whole and of what is left without each group (see `left_out`)."""
        several = any(len(column) > 1 for column in columns.values())
        return cls(
            {name: column[0] for name, column in columns.items()},
            {name: column[1:] for name, column in columns.items()} if several else {},
            tables,
            arrays,
        )


class Captured(Protocol):
    """The sums of one checkpoint, on disk or in memory."""

    @property
    def scope(self) -> Scope:
        """Settings of the capture."""

    @property
    def layout(self) -> Layout:
        """Layout of the model."""

    @property
    def heads(self) -> Sequence[Head]:
        """The chosen heads, in layer order."""

    @property
    def statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """Names of the statistics that were captured, with their options."""

    @property
    def provenance(self) -> str:
        """A fingerprint of all shards together: what they were made from."""

    def parts(self, statistic: str, heads: LayerHeads) -> list[Sums]:
        """Sums of one statistic and layer, per group of documents."""


def layers_of(layout: Layout, heads: Sequence[Head]) -> list[LayerHeads]:
    """The layers that have chosen heads, in order."""
    found = []
    for layer in layout.layers:
        own = [head for head in heads if head.layer == layer.layer]
        if own:
            keys = sorted({head.k_head for head in own})
            found.append(LayerHeads(layer, tuple(head.head for head in own), tuple(keys)))
    return found


def left_out(parts: Sequence[Sums]) -> Sums:
    """Sums [1 + groups, ...]: of all groups of documents, then without each of them; [1, ...] of a single group."""
    found = {}
    for name in parts[0]:
        stacked = np.stack([part[name] for part in parts])
        whole = stacked.sum(axis=0, keepdims=True)
        found[name] = np.concatenate([whole, whole - stacked]) if len(parts) > 1 else whole
    return found


def head_rows(heads: LayerHeads, facts: Mapping[str, Any], columns: Mapping[str, Floats]) -> pd.DataFrame:
    """A table with the same rows for every head: `facts` [rows], and columns [1 + groups, heads, rows] with errors."""
    size = len(next(iter(facts.values())))
    table: dict[str, Any] = {
        "layer": np.repeat(heads.layer.layer, len(heads.heads) * size),
        "head": np.repeat(heads.heads, size),
        **{name: np.tile(values, len(heads.heads)) for name, values in facts.items()},
    }
    for name, column in columns.items():
        table[name], table[f"se_{name}"] = column[0].ravel(), jackknife_error(column[1:]).ravel()
    return pd.DataFrame(table)


class Statistic(Part):
    """Base of all statistics; its fields are the options that a study can set.

    A simple one defines `columns`, `observe` and `values`. One that must do more than add overrides `accumulator`,
    `merge` and `without`; one whose errors or tables are special overrides `read`.
    """

    name: ClassVar[str] = ""
    """Set by `register`."""
    revision: ClassVar[int] = 1
    """Raise it when the same tokens give other sums: shards of an older revision are then refused."""
    columns: ClassVar[Mapping[str, str]] = {}
    """Columns that it adds to `heads.csv`, each with a sentence on what it holds."""
    tables: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Further tables by name (`spectrum` is written as `spectrum.csv`), each with its columns and what they hold.

    Several statistics may give columns of one table: their rows are joined by the columns that they share.
    """
    same_names: ClassVar[bool] = True
    """Whether the sums of one layer have the same names in every group of documents."""
    after: ClassVar[tuple[str, ...]] = ()
    """Statistics whose `arrays` it can use: they are read first, where they were captured."""

    def accumulator(self, heads: LayerHeads, scope: Scope) -> Accumulator:
        """What adds up a layer: the sums of `observe` by default."""
        del heads, scope
        return _Adder(self)

    def observe(self, seen: Observation) -> Mapping[str, "torch.Tensor"]:
        """Named sums over the documents and tokens of one observation, as tensors."""
        raise NotImplementedError(f"the statistic {self.name!r} defines neither observe() nor accumulator()")

    def merge(self, parts: Sequence[Sums]) -> Sums:
        """Sums of several groups of documents together."""
        return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}

    def without(self, whole: Sums, part: Sums) -> Sums:
        """Sums of the whole with one of its parts taken out again."""
        return {name: whole[name] - part[name] for name in whole}

    def values(self, sums: Sums, heads: LayerHeads, scope: Scope) -> Mapping[str, Floats]:
        """The columns [heads] that the sums of a layer mean."""
        del sums, heads, scope
        return {}

    def read(self, parts: Sequence[Sums], heads: LayerHeads, scope: Scope, found: Mapping[str, Floats]) -> Readout:
        """The columns of a layer with their replicates, from the sums of each group of documents.

        `found` holds the arrays of the statistics that it comes `after`.
        """
        del found
        whole = self.merge(parts)
        values = self.values(whole, heads, scope)
        if len(parts) < 2:
            return Readout(values)
        left_out = [self.values(self.without(whole, part), heads, scope) for part in parts]
        return Readout(values, {name: np.stack([one[name] for one in left_out]) for name in values})

    def stored_arrays(self, heads: LayerHeads, scope: Scope, names: Collection[str]) -> Mapping[str, Stored] | None:
        """What sums of a layer on disk that have these names must be; None, where that is not said, and not checked."""
        del heads, scope, names
        return None

    def stored_bytes(self, vectors: int, head_dim: int, scope: Scope, shards: int) -> float:
        """About how many bytes of disk the sums of so many query and key heads take in all shards, for the plan."""
        del vectors, head_dim, scope, shards
        return 0.0

    def publish(self, captured: "Captured", folder: Path) -> None:
        """Write files of its own into a checkpoint's folder once all its shards are there; nothing by default."""


class _Adder:
    """Adds up what a statistic observes."""

    def __init__(self, statistic: Statistic) -> None:
        self._statistic, self._totals = statistic, Totals()

    def update(self, seen: Observation) -> None:
        for name, part in self._statistic.observe(seen).items():
            self._totals.add(name, part)

    def sums(self) -> Sums:
        return self._totals.sums()
