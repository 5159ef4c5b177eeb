"""What heads do: the attention of sampled queries, reduced at once to sums (docs/method.md §10)."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ropewalk.geometry.behaviour import fit, lift, octave_name
from ropewalk.geometry.distance import distance_edges, octaves
from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import ratio
from ropewalk.statistics.arrays import Stored, counts
from ropewalk.statistics.base import FIRST, LayerHeads, Observation, Readout, Scope, Statistic, Sums, left_out
from ropewalk.statistics.frame import BINS, distance_rows
from ropewalk.statistics.registry import register
from ropewalk.statistics.row_plan import COPIES, OF_QUERIES, RowPlan
from ropewalk.statistics.rows import OF_HEADS, reduce_rows, unpacked

if TYPE_CHECKING:
    import torch

KEYS_AT_ONCE = 1 << 26
"""Numbers of a document's keys that are widened at once."""
OCTAVES = [1 << power for power in range(1, 20)]
"""First distances of the octaves that `columns` names: those of contexts up to a million tokens."""


def query_positions(seed: int, document: int, context: int, rows: int, start: float) -> NDArray[np.int64]:
    """Positions of a document whose attention is looked at: one at random from each of `rows` even pieces of what lies
    beyond the first `start` of the context; all of it where it has no more.
    """
    first = min(int(np.ceil(start * context)), context - 1)
    if rows >= context - first:
        return np.arange(first, context)
    borders = np.linspace(first, context, rows + 1)
    generator = np.random.default_rng([seed % 2**32, document, rows])
    return np.floor(borders[:-1] + generator.random(rows) * np.diff(borders)).astype(np.int64)


def query_ends(context: int, rows: int, start: float) -> NDArray[np.int64]:
    """What lies beyond each of the positions of `query_positions`, whatever the document."""
    first = min(int(np.ceil(start * context)), context - 1)
    if rows >= context - first:
        return np.arange(first, context) + 1
    return np.ceil(np.linspace(first, context, rows + 1)[1:]).astype(np.int64)


@register("behaviour")
class Behaviour(Statistic):
    """Attention rows of some queries of every document, exactly as the model computes them (docs/method.md §10)."""

    rows: int = Field(32, gt=0, description="Queries of each document, spread over the context.")
    start: float = Field(0.125, ge=0, lt=1, description="Share of the context before the first of them.")

    columns: ClassVar = {
        "score_r2_distance": "share of the variance of scores over keys that the distance octave explains, as a mean "
        f"over queries; the first {FIRST} keys are left out",
        "mass_first": "attention on the first key of a document",
        "mass_first4": f"attention on its first {FIRST} keys",
        "mass_sink": "attention on a learned sink, of models that have one",
        **{
            octave_name(start): f"attention on keys {text}"
            for start, text in (
                (0, "at the query's own position"),
                (1, "one token back"),
                *((first, f"{first} to {2 * first - 1} tokens back") for first in OCTAVES),
            )
        },
        "effective_keys": "exp(entropy) of the attention over keys, as a mean over queries",
        **{
            f"{name}_{what}": text.format(keys=keys)
            for what, keys in (
                ("induction", "after an earlier copy of the current token"),
                ("duplicate", "that are earlier copies of the current token"),
            )
            for name, text in (
                ("mass", "attention on keys {keys}, of queries that have such keys"),
                ("lift", "mass on keys {keys}, over their share of the keys (1: chance)"),
            )
        },
        "kernel_misfit": "share of how the measured mean score varies over distance that the kernel K misses",
        "kernel_r": "correlation of the kernel K with the measured mean score over the bins of `distance.csv`",
    }
    tables: ClassVar = {
        "distance": {
            **BINS,
            "score": f"measured mean score (scaled q·k) of keys so far back, without the first {FIRST} keys",
            "mass": "attention on keys so far back",
        }
    }
    after: ClassVar = ("moments", "frame")

    def accumulator(self, heads: LayerHeads, scope: Scope) -> "BehaviourAccumulator":
        """Sums over the sampled queries of a layer."""
        return BehaviourAccumulator(self, heads, scope)

    def read(self, parts: Sequence[Sums], heads: LayerHeads, scope: Scope, found: Mapping[str, Floats]) -> Readout:
        """Every head's masses, lifts and explained scores; its curves over distance."""
        if not parts[0]:
            return Readout()
        sums = left_out(parts)
        rows = sums["rows"][:, None]
        starts, octave = octaves(scope.context)
        mass = sums["q.mass"] / rows[..., None]
        score = ratio(sums["q.score"], sums["keys"][:, None])
        columns = {
            "score_r2_distance": ratio(sums["q.explained"], sums["q.explained_rows"]),
            **{f"mass_{name}": sums[f"q.{name}"] / rows for name in ("first", "first4", "sink") if f"q.{name}" in sums},
            **{octave_name(int(at)): mass[..., octave == number].sum(axis=-1) for number, at in enumerate(starts)},
            "effective_keys": sums["q.effective"] / rows,
        }
        for what in COPIES:
            own = sums[f"q.{what}"], sums[f"{what}_rows"][:, None], sums[f"{what}_share"][:, None]
            columns[f"mass_{what}"], columns[f"lift_{what}"] = lift(*own)
        curves = {"score": score, "mass": mass}
        if "kernel" in found:
            columns |= fit(found["kernel"], score[..., : found["kernel"].shape[-1]])
        # Beyond what the layer sees there is nothing to say.
        count = int((distance_edges(scope.context)[:-1] < heads.layer.reach(scope.context)).sum())
        cut = {name: curve[..., :count] for name, curve in curves.items()}
        return Readout.of_stacked(columns, {"distance": distance_rows(heads, scope.context, cut)})

    def stored_arrays(self, heads: LayerHeads, scope: Scope, names: Collection[str]) -> Mapping[str, Stored]:
        """What is summed over queries, of each head and by bins of distances; nothing of attention that is not causal.

        A learned sink is one of some models.
        """
        if not names:
            return {}
        size, bins = len(heads.heads), len(distance_edges(scope.context)) - 1
        of_heads = [name for name in OF_HEADS if name != "sink" or "q.sink" in names]
        return {
            **{f"q.{name}": Stored((size,)) for name in of_heads},
            **{f"q.{name}": Stored((size, bins)) for name in ("mass", "score")},
            **{name: counts() for name in OF_QUERIES},
            "keys": counts(bins),
        }

    def stored_bytes(self, vectors: int, head_dim: int, scope: Scope, shards: int) -> float:
        """Two numbers for each bin of distances and ten more, in float64."""
        del head_dim
        return 8.0 * shards * vectors * (2 * (len(distance_edges(scope.context)) - 1) + 10)


class BehaviourAccumulator:
    """Adds up what the attention rows of one layer show."""

    def __init__(self, statistic: Behaviour, heads: LayerHeads, scope: Scope) -> None:
        self._statistic, self._heads, self._scope = statistic, heads, scope
        self._groups = key_groups(heads, scope.context)
        self._totals: list[list[torch.Tensor]] = [[] for _ in self._groups]
        self._sink = False

    def update(self, seen: Observation) -> None:
        """Add the sampled rows of each document."""
        from ropewalk.models.recomputation import sinks_of

        device = seen.query.device
        kept = (self._statistic.name, device)
        if kept not in seen.shared:
            seen.shared[kept] = self._plans(seen.documents, seen.whole_token_ids.to(device))
        for plan in seen.shared[kept]:
            for group, heads in enumerate(self._groups):
                for of_heads, of_queries in reduce_rows(seen, plan, heads):
                    for parts in zip(of_heads, of_queries, strict=True):
                        before = self._totals[group]
                        pairs = zip(before, parts, strict=True)
                        self._totals[group] = [total + part for total, part in pairs] if before else list(parts)
        self._sink = sinks_of(seen.call.module, seen.call.options) is not None

    def _plans(self, documents: Sequence[int], tokens: "torch.Tensor") -> list[RowPlan]:
        own, scope = self._statistic, self._scope
        rows = [query_positions(scope.seed, one, scope.context, own.rows, own.start) for one in documents]
        ends = query_ends(scope.context, own.rows, own.start)
        return RowPlan.of([one[one >= scope.skip_first] for one in rows], ends, tokens, len(self._heads.heads))

    def sums(self) -> Sums:
        """Numbers of queries and keys, and per query head what is added up over queries."""
        import torch

        if not self._totals[0]:
            return {}
        # What is summed over queries alone is the same in every group.
        of_heads, of_queries = torch.cat([one[0] for one in self._totals]), self._totals[0][1]
        return unpacked(of_heads, of_queries, self._sink)


def key_groups(heads: LayerHeads, context: int) -> list[LayerHeads]:
    """The heads of a layer in groups whose keys are worked on at once, as far as one key head has no more numbers."""
    count = -(-len(heads.key_heads) * context * heads.layer.head_dim // KEYS_AT_ONCE)
    groups = []
    for part in np.array_split(heads.key_heads, min(count, len(heads.key_heads))):
        keys = tuple(part.tolist())
        own = tuple(head for head in heads.heads if heads.layer.k_head(head) in keys)
        groups.append(LayerHeads(heads.layer, own, keys))
    return groups
