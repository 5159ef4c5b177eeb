"""The mean path of a head's queries and keys through the context, bucket by bucket of positions."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import ratio
from ropewalk.geometry.profile import between, between_along, selections
from ropewalk.statistics.arrays import Stored, counts
from ropewalk.statistics.base import KINDS, NOUNS, LayerHeads, Observation, Readout, Scope, Statistic, Sums, head_rows
from ropewalk.statistics.registry import register
from ropewalk.statistics.totals import Totals

if TYPE_CHECKING:
    import torch

BLOCK = 4096
"""Tokens that are worked on at once, as far as a bucket has no more."""
STEPS = 64
"""Even steps into which the context is cut; its first one is cut again, at powers of two."""


def bucket_edges(context: int) -> NDArray[np.int64]:
    """Edges of the position buckets: 0, 1, 2, 4, 8, ... below a 64th of the context, then every 64th of it.

    Bucket i holds the positions edges[i] <= t < edges[i + 1]; a context below 64 has a bucket for each position.
    """
    even = -(-np.arange(1, STEPS + 1) * context // STEPS)
    octaves = [0, *(1 << power for power in range(context.bit_length()) if 1 << power < even[0])]
    return np.unique(np.array([*octaves, *even], dtype=np.int64))


@register("profile")
class Profile(Statistic):
    """Sums of x and |x|² per position bucket, for queries and keys (docs/method.md §9)."""

    columns: ClassVar = {
        **{
            f"eta2_{kind}": f"share of the variance of the {noun} that lies between positions, whatever its shape"
            for kind, noun in NOUNS.items()
        },
        **{f"eta2_pc0_{kind}": f"the same of the projection of the {noun} on PC0" for kind, noun in NOUNS.items()},
        **{
            f"bend_{kind}": f"eta2_pc0_{kind} - r_{kind}²: what a straight line misses of the {noun}' way through the "
            "context"
            for kind, noun in NOUNS.items()
        },
    }
    tables: ClassVar = {
        "profiles": {
            "start": "first position of the bucket",
            "stop": "first position beyond it",
            "tokens": "tokens of all documents in it",
            **{kind: f"mean projection of the {noun} on PC0" for kind, noun in NOUNS.items()},
            **{
                f"line_{kind}": f"the straight line of the {noun} that r_{kind} assumes, in the middle of the bucket"
                for kind, noun in NOUNS.items()
            },
        }
    }
    after: ClassVar = ("moments",)

    def accumulator(self, heads: LayerHeads, scope: Scope) -> "ProfileAccumulator":
        """Sums per bucket."""
        del heads
        return ProfileAccumulator(scope)

    def read(self, parts: Sequence[Sums], heads: LayerHeads, scope: Scope, found: Mapping[str, Floats]) -> Readout:
        """η² over all dimensions and on PC0, and the path on PC0."""
        n = np.stack([part["n"] for part in parts])
        edges = bucket_edges(scope.context)
        seen = n.sum(axis=0) > 0
        starts, stops = np.maximum(edges[:-1], scope.skip_first)[seen], edges[1:][seen]
        columns: dict[str, Floats] = {}
        path: dict[str, Floats] = {}
        lines: dict[str, Floats] = {}
        for kind in KINDS:
            index: Any = heads.key_index if kind == "k" else slice(None)
            sums = np.stack([part[f"{kind}.sum"] for part in parts])
            squares = np.stack([part[f"{kind}.square"] for part in parts])
            columns[f"eta2_{kind}"] = ratio(*between(n, sums, squares))[:, index]
            sums = sums[:, index]
            columns[f"eta2_pc0_{kind}"] = ratio(between_along(n, sums, found["pc0"]), found[f"spread_{kind}"])
            columns[f"bend_{kind}"] = columns[f"eta2_pc0_{kind}"] - found[f"r_{kind}"] ** 2
            # Along PC0 of all documents: its own uncertainty would move the whole path, and not bend it.
            along = np.einsum("ghbd,hd->ghb", sums[:, :, seen], found["pc0"][0])
            chosen = selections(len(parts))
            path[kind] = np.einsum("rg,ghb->rhb", chosen, along) / (chosen @ n[:, seen])[:, None]
            away = (starts + stops - 1) / 2 - found[f"middle_{kind}"][:, None]
            lines[f"line_{kind}"] = found[f"level_{kind}"][:, None] + found[f"slope_{kind}"][:, None] * away
        facts = {"start": starts, "stop": stops, "tokens": n.sum(axis=0)[seen].astype(np.int64)}
        table = head_rows(heads, facts, path)
        return Readout.of_stacked(
            columns, {"profiles": table.assign(**{name: line.ravel() for name, line in lines.items()})}
        )

    def stored_arrays(self, heads: LayerHeads, scope: Scope, names: Collection[str]) -> Mapping[str, Stored]:
        """Counts, vectors and squares by bucket."""
        del names
        d, buckets = heads.layer.head_dim, len(bucket_edges(scope.context)) - 1
        sizes = {kind: len(heads.numbers(kind)) for kind in KINDS}
        return {
            "n": counts(buckets),
            **{f"{kind}.sum": Stored((size, buckets, d)) for kind, size in sizes.items()},
            **{f"{kind}.square": Stored((size, buckets)) for kind, size in sizes.items()},
        }

    def stored_bytes(self, vectors: int, head_dim: int, scope: Scope, shards: int) -> float:
        """A vector and a number for each bucket, in float64."""
        return 8.0 * shards * vectors * (head_dim + 1) * (len(bucket_edges(scope.context)) - 1)


class ProfileAccumulator:
    """Adds up vectors by the bucket of their position."""

    def __init__(self, scope: Scope) -> None:
        self._counts = np.diff(np.clip(bucket_edges(scope.context) - scope.skip_first, 0, None))
        self._documents, self._totals = 0, Totals()

    def update(self, seen: Observation) -> None:
        """Add one observation."""
        for kind in KINDS:
            # Tokens first, as models have them.
            for sums, squares in zip(*self._bucket_sums(seen.vectors(kind).transpose(1, 2)), strict=True):
                self._totals.add(f"{kind}.sum", sums)
                self._totals.add(f"{kind}.square", squares)
        self._documents += len(seen.documents)

    def _bucket_sums(self, x: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
        """Sums of x [documents, tokens, heads, d] and of |x|² over buckets, [documents, heads, buckets, (d)].

        Within a bucket in float32 (widening every vector would cost ten times the sums); what is added up beyond it is
        widened, document by document, so that another batch gives the same. Neighbouring buckets of one width are one
        call, as far as they have no more than `BLOCK` tokens.
        """
        import torch

        sums, squares, start = [], [], 0
        for width, count in _runs(self._counts.tolist()):
            stop = start + width * count
            part = x[:, start:stop].float()
            norms = torch.linalg.vector_norm(part, dim=3).square_()
            sums.append(part.reshape(len(x), count, width, *x.shape[2:]).sum(dim=2))
            squares.append(norms.reshape(len(x), count, width, x.shape[2]).sum(dim=2))
            start = stop
        both = [torch.cat(parts, dim=1).transpose(1, 2) for parts in (sums, squares)]
        return both[0], both[1]

    def sums(self) -> Sums:
        """`n` [buckets] tokens, and per kind `sum` [heads, buckets, d] = Σ x, `square` [heads, buckets] = Σ |x|²."""
        return {"n": self._counts * float(self._documents), **self._totals.sums()}


def _runs(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(width, how many) of neighbouring buckets of one width, of up to `BLOCK` tokens together."""
    for width, run in groupby(counts):
        left, most = len(list(run)), max(BLOCK // max(width, 1), 1)
        while left:
            yield width, min(left, most)
            left -= min(left, most)
