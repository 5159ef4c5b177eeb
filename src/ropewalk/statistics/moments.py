"""First and second moments of queries, keys and positions: what the combined PCA is computed from."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from ropewalk.geometry.jackknife import jackknife_error, leave_one_out
from ropewalk.geometry.moments import Moments, merge_all
from ropewalk.geometry.pca import PCA
from ropewalk.geometry.taxonomy import classify
from ropewalk.statistics.base import LayerHeads, Observation, Readout, Scope, Statistic, Sums
from ropewalk.statistics.registry import register

if TYPE_CHECKING:
    import torch

BLOCK = 512
"""Tokens that are multiplied at once."""

KINDS = ("q", "k")
PC0_COLUMNS = ("explained_variance", "r_q", "r_k")


@register("moments")
class MomentSums(Statistic):
    """Moments of every token's query and key with its position (docs/method.md §2), and the combined PCA (§3)."""

    columns: ClassVar = {
        "explained_variance": "share of the pooled variance of queries and keys on PC0",
        "r_q": "correlation of the queries' projection on PC0 with token position",
        "r_k": "correlation of the keys' projection on PC0 with token position, in the same orientation",
        "eigengap": "(λ0 - λ1) / λ0: near 0, PC0 is not a stable direction",
    }

    def accumulator(self, heads: LayerHeads, scope: Scope) -> "MomentAccumulator":
        """Streams of queries and of keys."""
        del heads, scope
        return MomentAccumulator()

    def merge(self, parts: Sequence[Sums]) -> Sums:
        """Moments of all parts together (Chan)."""
        return _arrays({kind: merge_all([_moments(part, kind) for part in parts]) for kind in KINDS})

    def without(self, whole: Sums, part: Sums) -> Sums:
        """The inverse of `merge` for one part."""
        return _arrays({kind: _moments(whole, kind).without(_moments(part, kind)) for kind in KINDS})

    def read(self, parts: Sequence[Sums], heads: LayerHeads, scope: Scope) -> Readout:
        """PC0 of every head for `heads.csv`, every component for `qk.csv`."""
        q, k = ([_moments(part, kind) for part in parts] for kind in KINDS)
        whole, left_out = leave_one_out(q, k, heads.key_index, scope.components)
        counts = {
            "n_q": np.sum([part.n for part in q], axis=0).astype(np.int64),
            "n_k": np.sum([part.n[heads.key_index] for part in k], axis=0).astype(np.int64),
            "shards": np.full(len(heads.heads), len(parts)),
        }
        return Readout(
            values={name: getattr(whole, name)[:, 0] for name in PC0_COLUMNS} | {"eigengap": whole.eigengap},
            replicates={
                **{name: np.stack([getattr(pca, name)[:, 0] for pca in left_out]) for name in PC0_COLUMNS},
                "eigengap": np.stack([pca.eigengap for pca in left_out]),
            }
            if left_out
            else {},
            tables={"qk": _components(heads, whole, left_out, counts)},
        )

    def stored_bytes(self, vectors: int, head_dim: int, scope: Scope, shards: int) -> float:
        """A scatter, two vectors and three numbers each, in float64."""
        del scope
        return 8.0 * shards * vectors * (head_dim**2 + 2 * head_dim + 3)


class MomentAccumulator:
    """Moments of the queries and keys of one layer."""

    def __init__(self) -> None:
        self._streams = {kind: MomentStream() for kind in KINDS}

    def update(self, seen: Observation) -> None:
        """Add one observation."""
        for kind, stream in self._streams.items():
            stream.update(seen.vectors(kind), seen.positions)

    def sums(self) -> Sums:
        """Moments of everything seen so far."""
        return _arrays({kind: stream.result() for kind, stream in self._streams.items()})


class MomentStream:
    """Takes batches of vectors of a fixed set of heads and gives their `Moments`.

    Vectors are widened to float64 and shifted by the mean of the first ones before they are multiplied, so that a
    common offset a thousand times the spread costs no digits, and so that cutting the stream elsewhere changes nothing
    that matters. Float32 products would be twice as fast, and would make the seventh digit depend on the cut. Memory is
    heads · d² numbers, whatever the number of tokens.
    """

    def __init__(self) -> None:
        self._sums: torch.Tensor | None = None

    def update(self, vectors: "torch.Tensor", positions: "torch.Tensor") -> None:
        """Add vectors [documents, heads, tokens, d] at positions [tokens] (on the CPU), the same in every document."""
        import torch

        documents, heads, tokens, d = vectors.shape
        if self._sums is None:
            # The widest type the device multiplies in: Apple's GPUs have no float64.
            dtype = torch.float32 if vectors.device.type == "mps" else torch.float64
            self._shift = vectors[0, :, :BLOCK].mean(dim=1, keepdim=True, dtype=dtype)
            self._t_shift = positions.double().mean()
            self._sums = torch.zeros(heads, d, d, dtype=dtype, device=vectors.device)
            self._first = torch.zeros(heads, 2, d, dtype=dtype, device=vectors.device)
            self._t_first = torch.zeros(2, dtype=torch.float64)
            self._n = 0
        t = positions.double() - self._t_shift
        weights = torch.stack([torch.ones_like(t), t]).to(self._sums).expand(heads, -1, -1)
        for document in vectors:
            for start in range(0, tokens, BLOCK):
                block = slice(start, start + BLOCK)
                # Widened and shifted in one pass over the vectors as they lie, a piece at a time that stays in cache.
                x = document[:, block] - self._shift
                self._sums.baddbmm_(x.transpose(1, 2), x)
                self._first.baddbmm_(weights[:, :, block], x)
        self._t_first += documents * torch.stack([t.sum(), t @ t])
        self._n += documents * tokens

    def result(self) -> Moments:
        """Moments of everything seen so far."""
        if self._sums is None:
            raise ValueError("no vectors were given")
        sums, first = self._sums.cpu().double().numpy(), self._first.cpu().double().numpy()
        shift, t_sums = self._shift[:, 0].cpu().double().numpy(), self._t_first.numpy()
        n, ones = float(self._n), np.ones(len(sums))
        mean, t_mean = first[:, 0] / n, t_sums[0] / n
        return Moments(
            n=n * ones,
            mean=shift + mean,
            t_mean=(float(self._t_shift) + t_mean) * ones,
            sxx=sums - n * mean[:, :, None] * mean[:, None, :],
            sxt=first[:, 1] - n * mean * t_mean,
            stt=(t_sums[1] - n * t_mean**2) * ones,
        )


def moments_of(sums: Sums, heads: LayerHeads) -> tuple[Moments, Moments]:
    """Moments of the queries and of the keys of each query head, from the stored sums of a layer."""
    return _moments(sums, "q"), _moments(sums, "k")[heads.key_index]


def moment_sums(q: Moments, k: Moments) -> Sums:
    """Sums as the statistic stores them, from moments of query heads and of key heads."""
    return _arrays({"q": q, "k": k})


def _moments(sums: Sums, kind: str) -> Moments:
    return Moments(**{name: sums[f"{kind}.{name}"] for name in Moments.names()})


def _arrays(moments: dict[str, Moments]) -> Sums:
    # The whole scatter, though half would do: putting it together again costs more than reading it.
    return {
        f"{kind}.{name}": np.ascontiguousarray(getattr(part, name))
        for kind, part in moments.items()
        for name in Moments.names()
    }


def _components(heads: LayerHeads, whole: PCA, left_out: Sequence[PCA], counts: dict[str, Any]) -> pd.DataFrame:
    """Rows of `qk.csv`: one per head and component."""
    layer = heads.layer
    count, components = whole.r_q.shape
    first = np.tile(np.arange(components) == 0, count)

    def spread(values: Any) -> Any:
        return np.repeat(np.asarray(values), components)

    def error(name: str) -> Any:
        replicates = np.array([getattr(pca, name) for pca in left_out]).reshape(len(left_out), count, components)
        return jackknife_error(replicates).ravel()

    return pd.DataFrame(
        {
            "layer": layer.layer,
            "head": spread(heads.heads),
            "k_head": spread([layer.k_head(head) for head in heads.heads]),
            "rope": pd.array([layer.rope] * (count * components), dtype="boolean"),
            "pc": np.tile(np.arange(components), count),
            "explained_variance": whole.explained_variance.ravel(),
            "r_q": whole.r_q.ravel(),
            "r_k": whole.r_k.ravel(),
            "sliding": layer.window is not None,
            "category": np.where(first, spread(classify(whole.r_q[:, 0], whole.r_k[:, 0])), None),
            "eigengap": np.where(first, spread(whole.eigengap), np.nan),
            "se_explained_variance": error("explained_variance"),
            "se_r_q": error("r_q"),
            "se_r_k": error("r_k"),
            **{name: spread(count) for name, count in counts.items()},
        }
    )
