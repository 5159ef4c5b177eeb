"""What all contenders of `make bench` have in common, and those that need no peer: the plain pass and this project.

All of them are after the queries and keys of every token, layer and head, after the rotation, as the dot product takes
them. Each loads SmolLM2-135M from its GGUF file in float32 and runs one document at a time, without gradients, without
a cache of keys.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ropewalk.allocator import suit_passes
from ropewalk.capture.collector import Collection, collect
from ropewalk.capture.shards import Provenance, ShardSums, shard_path, write_shard
from ropewalk.models.loading import load_model
from ropewalk.models.probe import read_layout
from ropewalk.models.rotary import with_rotary
from ropewalk.models.source import ModelSource
from ropewalk.statistics.base import KINDS, Scope, layers_of
from ropewalk.statistics.moments import MomentAccumulator
from ropewalk.statistics.packing import unpack
from ropewalk.statistics.registry import build

MODEL = Path(__file__).parent.parent / "build" / "smollm2"

Vectors = Mapping[str, NDArray[np.float32]]
"""Of one layer and document: queries `q` [heads, tokens, d] and keys `k` [key heads, tokens, d]."""

Reference = Mapping[tuple[int, int], Vectors]
"""What was captured by (document, layer)."""


class Contender(ABC):
    """One way to capture: prepared once, given documents, run any number of times with `clear` after each.

    `name` is for tables, `keeps` says what is there after a run, and where.
    """

    name: str
    keeps: str
    as_captures = False
    """Whether its process takes and keeps memory as those do that compute shards."""
    steps: Mapping[str, Sequence[Callable[..., Any]]] = MappingProxyType({})
    """What a run does beside the forward pass, by the functions that do it."""

    def prepare(self, folder: Path) -> None:
        """Load the model of a folder; not timed."""
        if self.as_captures:
            suit_passes()
        self.model = load(folder)
        self.backbone: Any = self.model.get_decoder()  # type: ignore[operator]
        self.output = folder.parent / "contenders" / self.name.replace(",", "").replace(" ", "-")
        self.clear()

    def take(self, tokens: NDArray[np.int32]) -> None:
        """The documents [documents, length] that are run from now on; not timed."""
        self.tokens = tokens
        self.ids = [torch.from_numpy(row.astype(np.int64))[None] for row in tokens]

    @abstractmethod
    def run(self) -> None:
        """Capture all documents, and leave the results where this tool leaves them."""

    def clear(self) -> None:
        """Take away what a run has left, in memory and on disk; not timed."""
        shutil.rmtree(self.output, ignore_errors=True)

    @property
    def written(self) -> int:
        """Bytes that the last run has left on disk."""
        return sum(path.stat().st_size for path in self.output.rglob("*") if path.is_file())

    @abstractmethod
    def difference(self, reference: Reference) -> float | None:
        """Largest relative difference of what the last run has left from a reference; None where it leaves nothing."""


class Plain(Contender):
    """The backbone's forward pass alone: what there is to pay before anything is captured."""

    name = "plain backbone forward"
    keeps = "nothing"

    @torch.inference_mode()
    def run(self) -> None:
        """Run the documents."""
        for ids in self.ids:
            self.backbone(input_ids=ids, use_cache=False)

    def difference(self, reference: Reference) -> None:
        """There is nothing to compare."""
        del reference


class Kept(Plain):
    """The same in a process that takes huge pages and keeps freed memory from one layer to the next, as captures of
    this project do.
    """

    name = "plain, memory as in captures"
    as_captures = True


class Ropewalk(Contender):
    """This project: statistics are summed during the pass, which ends at the last layer's queries and keys.

    The sums of all documents are written as one shard, as `ropewalk run` does, in a process that takes and keeps memory
    as it does.
    """

    as_captures = True
    steps = MappingProxyType(
        {
            "adding up": (MomentAccumulator.update,),
            "from sums to moments": (MomentAccumulator.sums,),
            "writing the shard": (write_shard,),
        }
    )
    sums: ShardSums

    def __init__(self, name: str, *statistics: str) -> None:
        self.name = f"ropewalk, {name}"
        self.keeps = f"{', '.join(statistics)} of every token, as one shard on disk"
        self._statistics = statistics

    def take(self, tokens: NDArray[np.int32]) -> None:
        """Measure the model's layout too."""
        super().take(tokens)
        documents, context = tokens.shape
        layout = with_rotary(self.model, read_layout(self.model), context)
        scope = Scope(context=context, documents=documents, bucket_size=max(1, context // 16))
        statistics = build({name: {} for name in self._statistics})
        self._collection = Collection(layout, layout.heads(), statistics, scope)

    def run(self) -> None:
        """Sum and write."""
        self.sums = collect(self.model, self._collection, self.tokens)
        heads = layers_of(self._collection.layout, self._collection.heads)
        write_shard(shard_path(self.output, 0), self.sums, heads, Provenance("model", "tokens", "settings"))

    def clear(self) -> None:
        """Forget the sums too."""
        super().clear()
        self.sums = {}

    def difference(self, reference: Reference) -> float:
        """Of means and scatters from those that NumPy gives for the vectors."""
        found = []
        for layer in {layer for _, layer in reference}:
            for kind in KINDS:
                parts = [reference[document, layer][kind] for document in range(len(self.tokens))]
                vectors = np.concatenate(parts, axis=1).astype(np.float64)
                mean = vectors.mean(axis=1)
                centred = vectors - mean[:, None]
                moments = unpack(self.sums["moments", layer], kind)
                found += [relative(moments.mean, mean), relative(moments.sxx, centred.mT @ centred)]
        return float(np.max(found))


class Keeping(Contender):
    """A contender that keeps the vectors themselves."""

    @abstractmethod
    def vectors(self, document: int, layer: int) -> Vectors:
        """What the last run has kept of a document and layer."""

    def difference(self, reference: Reference) -> float:
        """Of every vector of every head."""
        found = []
        for at, expected in reference.items():
            vectors = self.vectors(*at)
            found += [relative(vectors[kind], expected[kind]) for kind in KINDS]
        return float(np.max(found))


def load(folder: Path) -> nn.Module:
    """The model of a folder's GGUF file, in float32, on the CPU, with transformers' SDPA attention."""
    return load_model(ModelSource(repo=str(folder), gguf_file=gguf_file(folder), dtype="float32", device="cpu"))


def gguf_file(folder: Path) -> str:
    """Name of the GGUF file in a folder."""
    file = next(folder.glob("*.gguf"), None)
    if file is None:
        raise SystemExit("no model: run `python scripts/fetch_smollm2.py` first")
    return file.name


def random_documents(documents: int, length: int) -> NDArray[np.int32]:
    """Token ids [documents, length] at random, the same ones every time."""
    return np.random.default_rng(0).integers(10, 40_000, size=(documents, length)).astype(np.int32)


def relative(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """max |found - expected| / max |expected| of a head, for the head [heads, ...] where it is largest."""
    if found.shape != expected.shape:
        raise ValueError(f"shapes {found.shape} and {expected.shape} cannot be compared")
    rest = tuple(range(1, expected.ndim))
    return float(np.max(np.abs(found - expected).max(axis=rest) / np.abs(expected).max(axis=rest)))
