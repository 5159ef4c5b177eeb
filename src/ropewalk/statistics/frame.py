"""The RoPE frame: queries and keys turned back by the angles of their positions, and what is constant in them."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import Field

from ropewalk.geometry.distance import distance_edges
from ropewalk.geometry.kernel import Kernel, Turned, summary
from ropewalk.geometry.moments import Floats, merge_all, without_each
from ropewalk.geometry.rank import ranks
from ropewalk.models.layout import Rotary
from ropewalk.statistics.arrays import Stored, counts
from ropewalk.statistics.base import (
    KINDS,
    NOUNS,
    LayerHeads,
    Observation,
    Readout,
    Scope,
    Statistic,
    Sums,
    head_rows,
    left_out,
)
from ropewalk.statistics.packing import pack, packed_arrays, unpack
from ropewalk.statistics.pairs import PAIRS, spectrum_rows
from ropewalk.statistics.registry import register
from ropewalk.statistics.stream import MomentStream
from ropewalk.statistics.totals import Totals

if TYPE_CHECKING:
    import torch

BLOCK = 4096
"""Tokens that are worked on at once."""
PRE = "pre"
BINS = {"distance": "first distance of the bin, in tokens", "distance_stop": "first distance beyond it"}
"""Columns of `distance.csv` that tell its rows apart."""
_OF_PAIRS = {
    "energy": "share of the {noun}' energy E|x|² in the pair",
    "fixed": "share of the {noun}' energy E|x|² that is the pair's constant part |m|²",
    "concentration": "|m| / mean |u| of the {noun}: 1 where all tokens point the same way before the rotation",
}


@register("frame")
class Frame(Statistic):
    """Sums of vectors turned back by the model's own angles, per pair of dimensions (docs/method.md §8).

    Layers that do not rotate have none.
    """

    full: bool = Field(False, description="Also the second moments of the vectors before the rotation.")

    columns: ClassVar = {
        **{
            f"fixed_share_{kind}": f"share of the {noun}' energy that is one constant vector, which RoPE turns with "
            "position"
            for kind, noun in NOUNS.items()
        },
        **{
            f"concentration_{kind}": f"how far the {noun} of all tokens point the same way before the rotation (1: all "
            "do), as a mean over pairs weighted by energy"
            for kind, noun in NOUNS.items()
        },
        "kernel_range": "largest minus smallest value of the distance kernel K over the bins of `distance.csv`",
        "kernel_wavelength": "wavelength in tokens of what moves K: geometric mean over pairs weighted by kernel share",
        "dominant_wavelength": "wavelength in tokens of the pair with the largest kernel share",
        **{
            f"{name}_{kind}_pre": f"{text} of the {noun} before the rotation (with `frame: full`)"
            for name, text in (("rank", "participation ratio"), ("rank90", "components for 90% of the variance"))
            for kind, noun in NOUNS.items()
        },
    }
    tables: ClassVar = {
        "spectrum": {
            **PAIRS,
            **{
                f"{name}_{kind}": text.format(noun=noun)
                for name, text in _OF_PAIRS.items()
                for kind, noun in NOUNS.items()
            },
            "kernel_share": "how much of what moves K over distance the pair gives: its own variance over the sum",
            "kernel_re": "real part of s · conj(m of queries) · m of keys: K(Δ) = Σ Re(... e^(-iωΔ)) over pairs",
            "kernel_im": "imaginary part of it",
        },
        "distance": {
            **BINS,
            "kernel": "distance kernel K: the mean score of a key so far back when content averages out",
        },
    }

    def accumulator(self, heads: LayerHeads, scope: Scope) -> "FrameAccumulator":
        """Sums of turned vectors; none for a layer that does not turn pairs."""
        del scope
        return FrameAccumulator(heads.layer.rotary_pairs, self.full)

    def merge(self, parts: Sequence[Sums]) -> Sums:
        """Sums are added, second moments merged (Chan)."""
        held = [f"{kind}.{PRE}" for kind in KINDS if all(f"{kind}.{PRE}.sxx" in part for part in parts)]
        plain = [name for name in parts[0] if f".{PRE}." not in name]
        return {
            **{name: np.sum([part[name] for part in parts], axis=0) for name in plain},
            **pack({prefix: merge_all([unpack(part, prefix) for part in parts]) for prefix in held}),
        }

    def read(self, parts: Sequence[Sums], heads: LayerHeads, scope: Scope, found: Mapping[str, Floats]) -> Readout:
        """Fixed shares, concentrations, the kernel and its spectrum."""
        del found
        rotary = heads.layer.rotary_pairs
        if rotary is None or "n" not in parts[0]:
            return Readout()
        plain = [{name: array for name, array in part.items() if f".{PRE}." not in name} for part in parts]
        sums = left_out(plain)
        q, k = turned_means(sums, "q", rotary), turned_means(sums, "k", rotary)[heads.key_index]
        kernel = Kernel.of(q, k, rotary.frequencies, heads.layer.scale or heads.layer.head_dim**-0.5)
        reach = heads.layer.reach(scope.context)
        curve, shares = kernel.by_distance(scope.context, reach), kernel.shares(scope.context, reach)
        columns = dict(summary(q, k, curve, shares, rotary.frequencies)) | _ranks(parts, heads)
        of_pairs = {
            **{
                f"{name}_{kind}": one
                for kind, turned in (("q", q), ("k", k))
                for name, one in _of_pairs(turned).items()
            },
            "kernel_share": shares,
            "kernel_re": kernel.strength.real,
            "kernel_im": kernel.strength.imag,
        }
        tables = {
            "spectrum": spectrum_rows(heads, rotary, of_pairs),
            "distance": distance_rows(heads, scope.context, {"kernel": curve}),
        }
        return Readout.of_stacked(columns, tables, {"kernel": curve})

    def stored_arrays(self, heads: LayerHeads, scope: Scope, names: Collection[str]) -> Mapping[str, Stored]:
        """Sums of every dimension and lengths of every pair; nothing for a layer that does not turn pairs."""
        del scope
        rotary, d = heads.layer.rotary_pairs, heads.layer.head_dim
        if rotary is None or not names:
            return {}
        found = {"n": counts()}
        for kind in KINDS:
            size = len(heads.numbers(kind))
            found[f"{kind}.dimensions"] = Stored((size, 3, d))
            found[f"{kind}.length"] = Stored((size, len(rotary.first)))
            if any(f".{PRE}." in name for name in names):
                found.update(packed_arrays(f"{kind}.{PRE}", size, d))
        return found

    def stored_bytes(self, vectors: int, head_dim: int, scope: Scope, shards: int) -> float:
        """Three numbers for each dimension and one for each pair, in float64."""
        del scope
        return 8.0 * shards * vectors * (3.5 * head_dim + (head_dim**2 if self.full else 0))


def distance_rows(heads: LayerHeads, context: int, columns: Mapping[str, Floats]) -> pd.DataFrame:
    """Rows of `distance.csv` from columns [1 + groups, heads, bins], of the bins that there are."""
    count = next(iter(columns.values())).shape[-1]
    edges = distance_edges(context)
    facts = {"distance": edges[:-1][:count], "distance_stop": np.minimum(edges[1:][:count], heads.layer.reach(context))}
    return head_rows(heads, facts, columns)


def _of_pairs(turned: Turned) -> dict[str, Floats]:
    return {"energy": turned.energy_share, "fixed": turned.fixed, "concentration": turned.concentration}


def turned_means(sums: Sums, kind: str, rotary: Rotary) -> Turned:
    """Means over tokens: u_f = (a + ib) (cos φ - i sin φ), of which the four products are summed apart."""
    n = sums["n"].reshape(-1, 1, 1)
    cosine, sine, square = np.moveaxis(sums[f"{kind}.dimensions"], -2, 0) / n
    a, b, rest = list(rotary.first), list(rotary.second), rotary.others(cosine.shape[-1])
    return Turned(
        mean=cosine[..., a] + sine[..., b] + 1j * (cosine[..., b] - sine[..., a]),
        length=sums[f"{kind}.length"] / n,
        energy=square[..., a] + square[..., b],
        rest=cosine[..., rest],
        rest_energy=square[..., rest].sum(axis=-1),
    )


def _ranks(parts: Sequence[Sums], heads: LayerHeads) -> dict[str, Floats]:
    """Effective ranks before the rotation [1 + groups, heads], where second moments were captured."""
    found = {}
    for kind in KINDS:
        prefix = f"{kind}.{PRE}"
        if all(f"{prefix}.sxx" in part for part in parts):
            index: Any = heads.key_index if kind == "k" else slice(None)
            moments = [unpack(part, prefix) for part in parts]
            whole = merge_all(moments)
            left = without_each(whole, moments) if len(parts) > 1 else None
            for name, values in ranks(whole.sxx, None if left is None else left.sxx).items():
                found[f"{name}_{kind}_{PRE}"] = values[:, index]
    return found


class FrameAccumulator:
    """Turns the vectors of one layer back and adds them up.

    Only sums of u are wanted, so the products with cos φ and sin φ are summed dimension by dimension, and u itself is
    made only where its second moments are asked for.
    """

    def __init__(self, rotary: Rotary | None, full: bool) -> None:
        self._rotary, self._totals, self._tokens = rotary, Totals(), 0
        self._streams = {kind: MomentStream() for kind in KINDS} if full and rotary is not None else {}

    def update(self, seen: Observation) -> None:
        """Add one observation."""
        if self._rotary is None:
            return
        device, d = seen.query.device, seen.query.shape[3]
        key = ("frame", self._rotary, d, device)
        if key not in seen.shared:
            tables = angles(self._rotary, seen.positions if seen.rotated else seen.positions * 0, d)
            seen.shared[key] = [part.to(device) for part in tables]
        cosines, sines = seen.shared[key]
        for kind in KINDS:
            # Tokens first, as models have them in memory.
            for vectors in seen.vectors(kind).transpose(1, 2):
                for start in range(0, len(seen.positions), BLOCK):
                    block = slice(start, start + BLOCK)
                    x, tables = vectors[block].float(), (cosines[block], sines[block])
                    self._add(kind, x, tables, seen)
                    if self._streams:
                        turned = turned_back(x.transpose(0, 1), self._rotary, *tables)
                        self._streams[kind].update(turned[None], seen.positions[block])
        self._tokens += len(seen.documents) * len(seen.positions)

    def _add(self, kind: str, x: "torch.Tensor", tables: Sequence["torch.Tensor"], seen: Observation) -> None:
        import torch

        assert self._rotary is not None
        product = seen.memory("product", x.shape)
        parts = [torch.mul(x, factor, out=product).sum(dim=0) for factor in (*(one[:, None] for one in tables), x)]
        self._totals.add(f"{kind}.dimensions", torch.stack(parts, dim=1))
        first, second = (product[..., _index(dims)] for dims in (self._rotary.first, self._rotary.second))
        length = torch.add(first, second, out=seen.memory("length", first.shape)).sqrt_()
        self._totals.add(f"{kind}.length", length.sum(dim=0))

    def sums(self) -> Sums:
        """`n` tokens, and per kind `dimensions` [heads, 3, d], Σ x cos φ, Σ x sin φ and Σ x², and `length`
        [heads, pairs], Σ |u|. Of dimensions that do not turn, Σ x cos φ is Σ x.
        """
        if self._rotary is None:
            return {}
        return {
            "n": np.array(float(self._tokens)),
            **self._totals.sums(),
            **pack({f"{kind}.{PRE}": stream.result() for kind, stream in self._streams.items()}),
        }


def angles(rotary: Rotary, positions: "torch.Tensor", head_dim: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """cos φ and sin φ [tokens, d] of every dimension's angle at positions [tokens]: 1 and 0 where it does not turn.

    Angles are float32 products of frequency and position, as in the model.
    """
    import torch

    frequencies = torch.tensor(rotary.frequencies, dtype=torch.float32)
    cosines, sines = (torch.empty(len(positions), head_dim) for _ in range(2))
    for start in range(0, len(positions), BLOCK):
        block = slice(start, start + BLOCK)
        found = torch.zeros(len(positions[block]), head_dim, dtype=torch.float64)
        turn = torch.outer(positions[block].float(), frequencies).double()
        found[:, list(rotary.first)] = found[:, list(rotary.second)] = turn
        cosines[block], sines[block] = found.cos(), found.sin()
    return cosines, sines


def turned_back(x: "torch.Tensor", rotary: Rotary, cosines: "torch.Tensor", sines: "torch.Tensor") -> "torch.Tensor":
    """Vectors [..., tokens, d] as they were before the rotation: a' + ib' = (a + ib) e^(-iφ) for each pair."""
    first, second = list(rotary.first), list(rotary.second)
    turned = x * cosines
    turned[..., first] += x[..., second] * sines[..., second]
    turned[..., second] -= x[..., first] * sines[..., first]
    return turned


def _index(dims: Sequence[int]) -> Any:
    """Dimensions as a slice, which copies nothing, where they are evenly spaced."""
    step = dims[1] - dims[0] if len(dims) > 1 else 1
    even = step > 0 and list(dims) == list(range(dims[0], dims[0] + step * len(dims), step))
    return slice(dims[0], dims[-1] + 1, step) if even else list(dims)
