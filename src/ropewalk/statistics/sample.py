"""A small sample of vectors, kept as they are: `l{LL}h{HH}{q|k}/data.parquet`, for what sums cannot tell."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from ropewalk.files import atomic_path, write_text
from ropewalk.fingerprint import fingerprint
from ropewalk.geometry.moments import Floats
from ropewalk.models.layout import LAYOUT_FILE
from ropewalk.seals import Ledger
from ropewalk.statistics.arrays import Stored
from ropewalk.statistics.base import (
    KINDS,
    Captured,
    LayerHeads,
    Observation,
    Readout,
    Scope,
    Statistic,
    Sums,
    layers_of,
)
from ropewalk.statistics.plasticity import KEPT_COLUMNS, MAP, PROFILE, read_kept
from ropewalk.statistics.registry import register

if TYPE_CHECKING:
    import torch

VECTORS = "vectors"
"""Folder of the kept vectors of a checkpoint, beside its shards."""

SCHEMA = pa.schema(
    [
        ("bucket", pa.int32()),
        ("example_id", pa.int64()),
        ("position", pa.int64()),
        ("vector", pa.list_(pa.float32())),
        ("sliding_window", pa.int64()),
    ]
)
REPEATED = ["bucket", "example_id", "sliding_window"]
"""Columns whose values come again and again; a dictionary of numbers that do not only takes time and room."""


def kept_from(provenance: str) -> dict[str, str]:
    """What kept vectors are made from, as their ledger says it."""
    return {"shards": fingerprint(provenance)}


def kept_positions(seed: int, document: int, layer: int, kind: str, context: int, rate: float) -> NDArray[np.int64]:
    """Positions of a document whose vectors are kept, each with probability `rate`; the same for the same arguments."""
    # NumPy wants seeds of at least 0; a study may have any.
    words = seed if seed >= 0 else seed % 2**64
    generator = np.random.default_rng([words, document, layer, KINDS.index(kind)])
    return np.flatnonzero(generator.random(context) < rate)


@register("sample")
class VectorSample(Statistic):
    """Vectors of some positions, chosen at random and the same way every time (docs/method.md §1), and what needs
    vectors: attention plasticity (§6).
    """

    rate: float = Field(1.0, gt=0, le=1, description="A position is kept with probability rate / bucket_size.")
    at_most: int = Field(
        2048, gt=0, description="Kept vectors of one head to expect at most; the rate is lowered to meet it."
    )

    columns: ClassVar = KEPT_COLUMNS
    tables: ClassVar = {"plasticity_profile": PROFILE, "plasticity_map": MAP}

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

    def read(self, parts: Sequence[Sums], heads: LayerHeads, scope: Scope, found: Mapping[str, Floats]) -> Readout:
        """Attention plasticity of every head."""
        del found
        return read_kept(parts, heads, scope)

    def publish(self, captured: Captured, folder: Path) -> None:
        """Lay the sample out as Parquet below `folder`/vectors; done once for the same shards.

        What an earlier capture left there is taken away: its heads may be others.
        """
        target, made_from = folder / VECTORS, kept_from(captured.provenance)
        ledger = Ledger.read(target)
        if ledger is not None and ledger.made_from == made_from and not ledger.differs(target):
            return
        layers = layers_of(captured.layout, captured.heads)
        names = [
            LAYOUT_FILE,
            *(_name(heads, kind, number) for heads in layers for kind in KINDS for number in heads.numbers(kind)),
        ]
        Ledger.begin(target, names, replace=True)
        # Only what is not written again: another run of the same study may be at it too.
        for old in target.glob("l*h*/data.parquet"):
            if old.relative_to(target).as_posix() not in names:
                old.unlink(missing_ok=True)
                with suppress(OSError):  # where the folder holds something else too
                    old.parent.rmdir()
        for heads in layers:
            kept = self.merge(captured.parts(self.name, heads))
            for kind in KINDS:
                table = _without_vectors(kept[f"document.{kind}"], kept[f"position.{kind}"], heads, captured.scope)
                for vectors, number in zip(kept[f"{kind}.vectors"], heads.numbers(kind), strict=True):
                    whole = _with_vectors(table, vectors)
                    with atomic_path(target / _name(heads, kind, number)) as temporary:
                        pq.write_table(whole, temporary, compression="zstd", use_dictionary=REPEATED)
        write_text(target / LAYOUT_FILE, json.dumps(captured.layout.to_dict(), indent=1) + "\n")
        Ledger.of(target, names, made_from).write(target)

    def stored_arrays(self, heads: LayerHeads, scope: Scope, names: Collection[str]) -> Mapping[str, Stored]:
        """Vectors, however many were kept, and where each stood."""
        del names
        found = {}
        for kind in KINDS:
            kept = f"kept {kind}"
            found[f"{kind}.vectors"] = Stored((len(heads.numbers(kind)), kept, heads.layer.head_dim))
            found[f"document.{kind}"] = Stored((kept,), whole=True, least=0)
            found[f"position.{kind}"] = Stored((kept,), whole=True, least=0, below=scope.context)
        return found

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
        arrays: dict[str, NDArray[Any]] = {}
        for kind in KINDS:
            kept = self._kept_at[kind]
            vectors = np.concatenate([part.cpu().numpy() for part in self._vectors[kind]], axis=1)
            arrays[f"{kind}.vectors"] = np.ascontiguousarray(vectors)
            arrays[f"document.{kind}"] = np.concatenate([np.full(len(at), document) for document, at in kept])
            arrays[f"position.{kind}"] = np.concatenate([at for _, at in kept])
        return arrays


def _name(heads: LayerHeads, kind: str, number: int) -> str:
    return f"l{heads.layer.layer:02d}h{number:02d}{kind}/data.parquet"


def _without_vectors(
    document: NDArray[np.int64], position: NDArray[np.int64], heads: LayerHeads, scope: Scope
) -> dict[str, pa.Array]:
    """The columns that all heads of a layer share."""
    return {
        "bucket": pa.array(position // scope.bucket_size, pa.int32()),
        "example_id": pa.array(document, pa.int64()),
        "position": pa.array(position, pa.int64()),
        "sliding_window": pa.array([heads.layer.window] * len(position), pa.int64()),
    }


def _with_vectors(columns: Mapping[str, pa.Array], vectors: NDArray[np.float32]) -> pa.Table:
    """A table of vectors [kept, d], one in each row."""
    count, d = vectors.shape
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * d)
    lists = pa.ListArray.from_arrays(offsets, pa.array(vectors.ravel()))
    return pa.table({**columns, "vector": lists}, schema=SCHEMA)
