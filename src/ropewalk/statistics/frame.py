"""The RoPE frame: queries and keys turned back by the angles of their positions, and what is constant in them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import Field

from ropewalk.geometry.distance import distance_edges
from ropewalk.geometry.jackknife import rest
from ropewalk.geometry.kernel import Kernel, Turned, summary
from ropewalk.geometry.moments import Floats, merge_all
from ropewalk.geometry.rank import ranks
from ropewalk.models.layout import Rotary
from ropewalk.statistics.base import (
    KINDS,
    LayerHeads,
    Observation,
    Readout,
    Scope,
    Statistic,
    Sums,
    head_rows,
    left_out,
)
from ropewalk.statistics.packing import pack, unpack
from ropewalk.statistics.registry import register
from ropewalk.statistics.stream import BLOCK, MomentStream
from ropewalk.statistics.totals import Totals

if TYPE_CHECKING:
    import torch

PRE = "pre"
NOUNS = {"q": "queries", "k": "keys"}
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
            "pair": "pair of dimensions that turn together, fastest first",
            "frequency": "radians a token",
            "wavelength": "tokens for a whole turn",
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
            "distance": "first distance of the bin, in tokens",
            "distance_stop": "first distance beyond it",
            "kernel": "distance kernel K: the mean score of a key so far back when content averages out",
        },
    }

    def accumulator(self, heads: LayerHeads, scope: Scope) -> "FrameAccumulator":
        """Sums of turned vectors; none for a layer that does not turn pairs."""
        return FrameAccumulator(heads.layer.rotary_pairs, heads.layer.head_dim, scope, self.full)

    def merge(self, parts: Sequence[Sums]) -> Sums:
        """Sums are added, second moments merged (Chan)."""
        held = [f"{kind}.{PRE}" for kind in KINDS if all(f"{kind}.{PRE}.sxx" in part for part in parts)]
        plain = [name for name in parts[0] if f".{PRE}." not in name]
        merged: Sums = {name: np.sum([part[name] for part in parts], axis=0) for name in plain}
        return merged | pack({prefix: merge_all([unpack(part, prefix) for part in parts]) for prefix in held})

    def read(self, parts: Sequence[Sums], heads: LayerHeads, scope: Scope, found: Mapping[str, Floats]) -> Readout:
        """Fixed shares, concentrations, the kernel and its spectrum."""
        del found
        rotary = heads.layer.rotary_pairs
        if rotary is None or "n" not in parts[0]:
            return Readout()
        plain = [{name: array for name, array in part.items() if f".{PRE}." not in name} for part in parts]
        sums = left_out(plain)
        q, k = _turned(sums, "q"), _turned(sums, "k")[heads.key_index]
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
            "spectrum": _spectrum(heads, rotary, of_pairs),
            "distance": distance_rows(heads, scope.context, {"kernel": curve}),
        }
        return Readout.of_stacked(columns, tables, {"kernel": curve})

    def stored_bytes(self, vectors: int, head_dim: int, scope: Scope, shards: int) -> float:
        """Four numbers for each pair and one for each dimension that does not turn, in float64."""
        del scope
        return 8.0 * shards * vectors * (2 * head_dim + (head_dim**2 if self.full else 0))


def distance_rows(heads: LayerHeads, context: int, columns: Mapping[str, Floats]) -> pd.DataFrame:
    """Rows of `distance.csv` from columns [1 + groups, heads, bins], of the bins that there are."""
    count = next(iter(columns.values())).shape[-1]
    edges = distance_edges(context)
    facts = {"distance": edges[:-1][:count], "distance_stop": np.minimum(edges[1:][:count], heads.layer.reach(context))}
    return head_rows(heads, facts, columns)


def _of_pairs(turned: Turned) -> dict[str, Floats]:
    return {"energy": turned.energy_share, "fixed": turned.fixed, "concentration": turned.concentration}


def _spectrum(heads: LayerHeads, rotary: Rotary, columns: Mapping[str, Floats]) -> pd.DataFrame:
    frequencies = np.array(rotary.frequencies)
    order = np.argsort(-frequencies, kind="stable")
    facts = {
        "pair": np.arange(len(order)),
        "frequency": frequencies[order],
        "wavelength": 2 * np.pi / frequencies[order],
    }
    return head_rows(heads, facts, {name: column[..., order] for name, column in columns.items()})


def _turned(sums: Sums, kind: str) -> Turned:
    n = sums["n"].reshape(-1, 1, 1)
    parts = {name: sums[f"{kind}.{name}"] for name in ("re", "im", "length", "energy", "rest")}
    means = {name: part / n for name, part in parts.items()}
    return Turned(
        mean=means["re"] + 1j * means["im"],
        length=means["length"],
        energy=means["energy"],
        rest=means["rest"],
        rest_energy=sums[f"{kind}.rest_energy"] / n[..., 0],
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
            left = rest(whole, moments) if len(parts) > 1 else None
            for name, values in ranks(whole.sxx, None if left is None else left.sxx).items():
                found[f"{name}_{kind}_{PRE}"] = values[:, index]
    return found


class FrameAccumulator:
    """Turns the vectors of one layer back and adds them up, pair by pair."""

    def __init__(self, rotary: Rotary | None, head_dim: int, scope: Scope, full: bool) -> None:
        self._rotary, self._scope = rotary, scope
        self._totals, self._tokens = Totals(), 0
        self._streams = {kind: MomentStream() for kind in KINDS} if full and rotary is not None else {}
        self._rest: list[int] = []
        if rotary is not None:
            self._first, self._second = _index(rotary.first), _index(rotary.second)
            turning = {*rotary.first, *rotary.second}
            self._rest = [dim for dim in range(head_dim) if dim not in turning]

    def update(self, seen: Observation) -> None:
        """Add one observation."""
        if self._rotary is None:
            return
        key = ("frame", self._rotary.frequencies, seen.query.device)
        if key not in seen.shared:
            tables = angles(self._rotary, seen.positions if seen.rotated else seen.positions * 0)
            seen.shared[key] = [part.to(seen.query.device) for part in tables]
        cosines, sines = seen.shared[key]
        for kind in KINDS:
            for number in range(len(seen.documents)):
                # Tokens of one document at a time, in pieces that stay in cache.
                for start in range(0, len(seen.positions), BLOCK):
                    block = slice(start, start + BLOCK)
                    self._add(kind, seen, number, block, cosines[block], sines[block])
        self._tokens += len(seen.documents) * len(seen.positions)

    def _add(
        self, kind: str, seen: Observation, number: int, block: slice, cosines: "torch.Tensor", sines: "torch.Tensor"
    ) -> None:
        x = seen.vectors(kind)[number, :, block].float()
        re, im = turned_back(x[..., self._first], x[..., self._second], cosines, sines)
        self._totals.add(f"{kind}.re", re.sum(dim=1))
        self._totals.add(f"{kind}.im", im.sum(dim=1))
        if self._streams:
            turned = x.clone()
            turned[..., self._first], turned[..., self._second] = re, im
            self._streams[kind].update(turned[None], seen.positions[block])
        energy = re.mul_(re).addcmul_(im, im)
        self._totals.add(f"{kind}.energy", energy.sum(dim=1))
        self._totals.add(f"{kind}.length", energy.sqrt_().sum(dim=1))
        rest = x[..., self._rest]
        self._totals.add(f"{kind}.rest", rest.sum(dim=1))
        self._totals.add(f"{kind}.rest_energy", rest.square().sum(dim=(1, 2)))

    def sums(self) -> Sums:
        """`n` tokens, and per kind Σ u (`re`, `im`), Σ |u|, Σ |u|² [heads, pairs], Σ x and Σ |x|² of the rest."""
        if self._rotary is None:
            return {}
        arrays = {"n": np.array(float(self._tokens)), **self._totals.sums()}
        return arrays | pack({f"{kind}.{PRE}": stream.result() for kind, stream in self._streams.items()})


def turned_back(
    a: "torch.Tensor", b: "torch.Tensor", cosines: "torch.Tensor", sines: "torch.Tensor"
) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Real and imaginary part of (a + ib) e^(-iφ) [..., tokens, pairs], with cos φ and sin φ [tokens, pairs]."""
    return (a * cosines).addcmul_(b, sines), (b * cosines).addcmul_(a, sines, value=-1)


def angles(rotary: Rotary, positions: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
    """cos and sin [tokens, pairs] of the angles at positions [tokens], which are float32 products as in the model."""
    import torch

    found = torch.outer(positions.float(), torch.tensor(rotary.frequencies, dtype=torch.float32)).double()
    return found.cos().float(), found.sin().float()


def _index(dims: Sequence[int]) -> Any:
    """Dimensions as a slice, which copies nothing, where they are evenly spaced."""
    step = dims[1] - dims[0] if len(dims) > 1 else 1
    even = step > 0 and list(dims) == list(range(dims[0], dims[0] + step * len(dims), step))
    return slice(dims[0], dims[-1] + 1, step) if even else list(dims)
