"""A small sample of vectors, kept as they are: `l{LL}h{HH}{q|k}/data.parquet`, for what sums cannot tell."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from ropewalk.files import atomic_path, write_text
from ropewalk.models.layout import LAYOUT_FILE
from ropewalk.statistics.base import KINDS, Captured, LayerHeads, Observation, Scope, Statistic, Sums, layers_of
from ropewalk.statistics.registry import register

if TYPE_CHECKING:
    import torch

MADE_FROM = "made_from.txt"
SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("example_id", pa.int64()),
        ("position", pa.int64()),
        ("vector", pa.list_(pa.float32())),
        ("sliding_window", pa.int64()),
    ]
)


def kept_positions(seed: int, document: int, layer: int, kind: str, context: int, rate: float) -> NDArray[np.int64]:
    """Positions of a document whose vectors are kept, each with probability `rate`; the same for the same arguments."""
    generator = np.random.default_rng([seed, document, layer, KINDS.index(kind)])
    return np.flatnonzero(generator.random(context) < rate)


@register("sample")
class VectorSample(Statistic):
    """Vectors of some positions, chosen at random and the same way every time (docs/method.md §1)."""

    rate: float = Field(1.0, gt=0, le=1, description="A position is kept with probability rate / bucket_size.")
    at_most: int = Field(
        2048, gt=0, description="Kept vectors of one head to expect at most; the rate is lowered to meet it."
    )

    def probability(self, scope: Scope) -> float:
        """Probability with which a position of a document is kept."""
        expected = scope.documents * scope.context / scope.bucket_size
        return min(self.rate, self.at_most / expected) / scope.bucket_size

    def accumulator(self, heads: LayerHeads, scope: Scope) -> "SampleAccumulator":
        """Picks vectors out of a layer."""
        return SampleAccumulator(heads, scope, self.probability(scope))

    def merge(self, parts: Sequence[Sums]) -> Sums:
        """The samples of all parts, one after the other."""
        return {
            name: np.concatenate([part[name] for part in parts], axis=1 if name.endswith(".vectors") else 0)
            for name in parts[0]
        }

    def publish(self, captured: Captured, folder: Path) -> None:
        """Lay the sample out as Parquet below `folder`/vectors; done once for the same shards.

        What an earlier capture left there is taken away: its heads may be others.
        """
        target = folder / "vectors"
        mark = target / MADE_FROM
        if mark.is_file() and mark.read_text(encoding="utf-8") == captured.provenance:
            return
        # First, because from here on nothing else is as it says.
        mark.unlink(missing_ok=True)
        for old in target.glob("l*h*/data.parquet"):
            old.unlink()
            with suppress(OSError):  # where the folder holds something else too
                old.parent.rmdir()
        for heads in layers_of(captured.layout, captured.heads):
            kept = self.merge(captured.parts(self.name, heads))
            for kind, numbers in (("q", heads.heads), ("k", heads.key_heads)):
                for vectors, number in zip(kept[f"{kind}.vectors"], numbers, strict=True):
                    table = _table(vectors, kept[f"document.{kind}"], kept[f"position.{kind}"], heads, captured.scope)
                    name = f"l{heads.layer.layer:02d}h{number:02d}{kind}"
                    with atomic_path(target / name / "data.parquet") as temporary:
                        pq.write_table(table, temporary, compression="zstd")
        write_text(target / LAYOUT_FILE, json.dumps(captured.layout.to_dict(), indent=1) + "\n")
        # Last, because it says that everything else is there.
        write_text(mark, captured.provenance)

    def stored_bytes(self, vectors: int, head_dim: int, scope: Scope, shards: int) -> float:
        """What is expected to be kept, in float32, once in shards and once as Parquet."""
        del shards
        return 2 * 4.0 * vectors * head_dim * self.probability(scope) * scope.documents * scope.context


class SampleAccumulator:
    """Gathers the vectors of the kept positions of one layer."""

    def __init__(self, heads: LayerHeads, scope: Scope, probability: float) -> None:
        self._heads, self._scope, self._probability = heads, scope, probability
        self._vectors: dict[str, list[torch.Tensor]] = {kind: [] for kind in KINDS}
        self._kept_at: dict[str, list[tuple[int, NDArray[np.int64]]]] = {kind: [] for kind in KINDS}

    def update(self, seen: Observation) -> None:
        """Pick the kept positions of each document."""
        import torch

        scope = self._scope
        for kind in KINDS:
            for document, vectors in zip(seen.documents, seen.vectors(kind), strict=True):
                layer = self._heads.layer.layer
                at = kept_positions(scope.seed, document, layer, kind, scope.context, self._probability)
                at = at[at >= scope.skip_first]
                index = torch.from_numpy(at - scope.skip_first).to(vectors.device)
                self._vectors[kind].append(vectors[:, index].float())
                self._kept_at[kind].append((document, at))

    def sums(self) -> Sums:
        """Per kind `vectors` [heads, kept, d] in float32, and `document` and `position` [kept]."""
        arrays: Sums = {}
        for kind in KINDS:
            kept = self._kept_at[kind]
            vectors = np.concatenate([part.cpu().numpy() for part in self._vectors[kind]], axis=1)
            arrays[f"{kind}.vectors"] = np.ascontiguousarray(vectors)
            arrays[f"document.{kind}"] = np.concatenate([np.full(len(at), document) for document, at in kept])
            arrays[f"position.{kind}"] = np.concatenate([at for _, at in kept])
        return arrays


def _table(
    vectors: NDArray[np.float32],
    document: NDArray[np.int64],
    position: NDArray[np.int64],
    heads: LayerHeads,
    scope: Scope,
) -> pa.Table:
    count, d = vectors.shape
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * d)
    return pa.table(
        {
            "bucket": pa.array(position // scope.bucket_size, pa.int32()),
            "example_id": document,
            "position": position,
            "vector": pa.ListArray.from_arrays(offsets, pa.array(vectors.ravel())),
            "sliding_window": pa.array([heads.layer.window] * count, pa.int64()),
        },
        schema=SCHEMA,
    )
