"""First and second moments of queries, keys and positions, and what follows from them alone."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ropewalk.geometry.moments import Floats, Moments, merge_all
from ropewalk.statistics.arrays import Stored
from ropewalk.statistics.base import FIRST, KINDS, LayerHeads, Observation, Readout, Scope, Statistic, Sums
from ropewalk.statistics.packing import pack, packed_arrays, unpack
from ropewalk.statistics.position import COLUMNS, COMMON, SKIPPED, SPECTRUM, ByKind, read_position
from ropewalk.statistics.registry import register
from ropewalk.statistics.stream import MomentStream, shuffled_positions


@register("moments")
class MomentSums(Statistic):
    """Moments of every token's query and key with its position (docs/method.md §2), and what follows from them alone:
    the combined PCA, the choices of axis and the readout (§3), with positions as they are and shuffled (§7), the plane
    of drift and separation (§5).
    """

    revision: ClassVar = 2
    columns: ClassVar = COLUMNS
    tables: ClassVar = {"spectrum": SPECTRUM}
    same_names: ClassVar = False

    def accumulator(self, heads: LayerHeads, scope: Scope) -> "MomentAccumulator":
        """Streams of queries and of keys."""
        return MomentAccumulator(heads, scope)

    def merge(self, parts: Sequence[Sums]) -> Sums:
        """Moments of all parts together (Chan), as far as all hold them; other sums are added."""
        return {
            **pack({prefix: merge_all([unpack(part, prefix) for part in parts]) for prefix in _held(parts)}),
            **{name: np.sum([part[name] for part in parts], axis=0) for name in _SHUFFLED},
        }

    def without(self, whole: Sums, part: Sums) -> Sums:
        """The inverse of `merge` for one part."""
        held = _held([whole, part])
        return {
            **pack({prefix: unpack(whole, prefix).without(unpack(part, prefix)) for prefix in held}),
            **{name: whole[name] - part[name] for name in _SHUFFLED},
        }

    def read(self, parts: Sequence[Sums], heads: LayerHeads, scope: Scope, found: Mapping[str, Floats]) -> Readout:
        """Every head's numbers for `heads.csv`, its components for `qk.csv`."""
        del found
        whole = _by_kind(parts, "q", "k")
        others = {}
        for suffix, cut, later in ((SKIPPED, _first(scope), True), (COMMON, _common(scope), False)):
            lead = None if cut is None else [_lead(kind, cut) for kind in KINDS]
            if lead is not None and set(lead) <= set(_held(parts)):
                leading = _by_kind(parts, *lead)
                others[suffix] = _differences(whole, leading) if later else leading
        if scope.common_context == scope.context:
            others[COMMON] = whole
        shuffled = {kind: [part[f"{kind}.shuffled"] for part in parts] for kind in KINDS}
        return read_position(heads, scope, whole, shuffled, others)

    def stored_arrays(self, heads: LayerHeads, scope: Scope, names: Collection[str]) -> Mapping[str, Stored]:
        """Moments of all tokens and of leading ones, whichever, and Σ x (t' - t)."""
        del scope
        return _stored(tuple(len(heads.numbers(kind)) for kind in KINDS), heads.layer.head_dim, frozenset(names))

    def stored_bytes(self, vectors: int, head_dim: int, scope: Scope, shards: int) -> float:
        """Scatters of all tokens and of the leading ones, and a few vectors and numbers each, in float64."""
        kept_apart = len(cuts(scope))
        return 8.0 * shards * vectors * ((1 + kept_apart) * (head_dim**2 + 2 * head_dim + 3) + head_dim)


def cuts(scope: Scope) -> tuple[int, ...]:
    """Numbers of leading tokens, of those that count, whose moments are kept apart.

    They only add sums: sums made with other cuts are as good, and lack what these give.
    """
    return tuple(sorted({count for count in (_first(scope), _common(scope)) if count is not None}))


def _first(scope: Scope) -> int | None:
    """How many of the tokens that count are among the first `FIRST` of a document; None where all or none are."""
    return _cut(FIRST, scope)


def _common(scope: Scope) -> int | None:
    """How many of the tokens that count lie within the shortest context of the study; None where all do."""
    return None if scope.common_context is None else _cut(scope.common_context, scope)


def _cut(position: int, scope: Scope) -> int | None:
    # Two tokens are the least that a correlation can be of, on either side.
    return (
        position - scope.skip_first if 1 < position - scope.skip_first < scope.context - scope.skip_first - 1 else None
    )


@lru_cache
def _stored(sizes: tuple[int, ...], head_dim: int, names: frozenset[str]) -> Mapping[str, Stored]:
    """What arrays with these names must be, for so many heads of each kind: the same in every shard of a layer."""
    found: dict[str, Stored] = {}
    for kind, size in zip(KINDS, sizes, strict=True):
        leading = [name.removesuffix(".sxx") for name in names if re.fullmatch(rf"{kind}\.first\d+\.sxx", name)]
        for prefix in (kind, *leading):
            found.update(packed_arrays(prefix, size, head_dim))
        found[f"{kind}.shuffled"] = Stored((size, head_dim))
    return found


class MomentAccumulator:
    """Moments of the queries and keys of one layer."""

    def __init__(self, heads: LayerHeads, scope: Scope) -> None:
        self._seed, self._cuts = scope.seed, cuts(scope)
        shapes = {kind: (len(heads.numbers(kind)), heads.layer.head_dim) for kind in KINDS}
        self._streams = {kind: MomentStream(self._cuts, shape) for kind, shape in shapes.items()}

    def update(self, seen: Observation) -> None:
        """Add one observation."""
        shuffled = [shuffled_positions(self._seed, document, seen.positions) for document in seen.documents]
        for kind, stream in self._streams.items():
            stream.update(seen.vectors(kind), seen.positions, shuffled)

    def sums(self) -> Sums:
        """Moments of everything seen so far and of its leading tokens, and Σ x (t' - t) with shuffled positions t'."""
        streams = self._streams
        return moment_sums(
            {kind: stream.result() for kind, stream in streams.items()},
            {kind: stream.shuffled() for kind, stream in streams.items()},
            {cut: {kind: stream.leading(cut) for kind, stream in streams.items()} for cut in self._cuts},
        )


def moments_of(sums: Sums, heads: LayerHeads) -> tuple[Moments, Moments]:
    """Moments of the queries and of the keys of each query head, from the stored sums of a layer."""
    return unpack(sums, "q"), unpack(sums, "k")[heads.key_index]


def moment_sums(
    whole: Mapping[str, Moments],
    shuffled: Mapping[str, Floats],
    leading: Mapping[int, Mapping[str, Moments]] | None = None,
) -> Sums:
    """Sums as the statistic stores them, each by kind: moments of query heads ("q") and of key heads ("k").

    `shuffled` holds Σ x (t' - t) with shuffled positions t', `leading` the moments of the first so many tokens.
    """
    apart = {_lead(kind, cut): part for cut, pair in (leading or {}).items() for kind, part in pair.items()}
    return {**pack({**whole, **apart}), **{f"{kind}.shuffled": sums for kind, sums in shuffled.items()}}


_SHUFFLED = tuple(f"{kind}.shuffled" for kind in KINDS)


def _lead(kind: str, count: int) -> str:
    return f"{kind}.first{count}"


def _held(parts: Sequence[Sums]) -> list[str]:
    """Prefixes of the moments that all parts hold."""
    return [
        name.removesuffix(".sxx") for name in parts[0] if name.endswith(".sxx") and all(name in part for part in parts)
    ]


def _by_kind(parts: Sequence[Sums], q: str, k: str) -> ByKind:
    return {"q": [unpack(part, q) for part in parts], "k": [unpack(part, k) for part in parts]}


def _differences(whole: ByKind, leading: ByKind) -> ByKind:
    """What is left of the moments of each group without its leading tokens."""
    return {kind: [a.without(b) for a, b in zip(whole[kind], leading[kind], strict=True)] for kind in KINDS}
