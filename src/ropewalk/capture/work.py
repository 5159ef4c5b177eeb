"""The work of computing shards, as data that any process can take: which model, which documents, and doing it."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk._version import __version__
from ropewalk.allocator import suit_passes
from ropewalk.capture.collector import Collection, collect
from ropewalk.capture.manifest import model_facts, write_manifest
from ropewalk.capture.readiness import make_ready
from ropewalk.capture.settings import choose_heads
from ropewalk.capture.shards import Pieces, Provenance, shard_pieces
from ropewalk.errors import RopewalkError
from ropewalk.models.downloads import absent_weights, fetch
from ropewalk.models.identity import model_fingerprint
from ropewalk.models.loading import load_config, load_model
from ropewalk.statistics.base import Scope, layers_of
from ropewalk.statistics.registry import build, load_plugin
from ropewalk.study import Capture, Checkpoint


@dataclass(frozen=True)
class Order:
    """A checkpoint of which shards are wanted, as plain data: whoever takes it loads the model by itself.

    `model` is the fingerprint of the model, `commit` and `dtype` where its revision stands and the type it runs in,
    `manifest` what the manifest says without the model. `plugins` are files that register statistics. `host` and
    `version` tell where the study was started, and by what.
    """

    label: str
    checkpoint: Checkpoint
    capture: Capture
    scope: Scope
    folder: Path
    model: str
    commit: str | None
    dtype: str
    manifest: Mapping[str, Any]
    shards: int
    plugins: tuple[Path, ...] = ()
    host: str = field(default_factory=platform.node)
    version: str = __version__

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return self.checkpoint.name

    def pinned(self) -> "Order":
        """The same order, of which another process or machine makes the same: nothing is left to be found out there."""
        repo = str(self.checkpoint.repo)
        fixed = {"dtype": self.dtype, "revision": self.commit or self.checkpoint.revision}
        if self.commit is None:
            fixed["repo"] = str(Path(repo).absolute())
        return replace(self, checkpoint=self.checkpoint.model_copy(update=fixed))

    def write_manifest(self, facts: Mapping[str, Any]) -> None:
        """Write the manifest with what the loaded model tells (see `Bench.facts`)."""
        write_manifest(self.folder, {**self.manifest, **facts})


@dataclass(frozen=True)
class Piece:
    """One shard to be computed: its number, its tokens [documents, context], where they begin, its marks."""

    number: int
    first_document: int
    tokens: NDArray[np.int32]
    provenance: Provenance


class Bench:
    """A checkpoint's model, loaded and proven, that turns pieces into shards."""

    def __init__(self, order: Order) -> None:
        """Load the model of an order; on another machine than it comes from, make sure that it is the same one."""
        here = platform.node()
        if order.version != __version__:
            raise RopewalkError(
                f"{here} has ropewalk {__version__} and the study was started by {order.version}: install that there"
            )
        for plugin in order.plugins:
            load_plugin(plugin)
        self.order = order
        suit_passes()
        checkpoint, capture = order.checkpoint, order.capture
        config = load_config(checkpoint, checkpoint.context)
        if here != order.host and model_fingerprint(checkpoint, config) != order.model:
            raise RopewalkError(
                f"{checkpoint.repo} is another model on {here} than on {order.host}, where the study was started: put "
                "the same files there, or name a repository of the hub"
            )
        weights = absent_weights(checkpoint)
        if weights is not None:
            fetch(weights)
        self._model = load_model(checkpoint, config)
        ready = make_ready(self._model, checkpoint.label, checkpoint.context, capture.pre_rope)
        self.heads = choose_heads(ready.layout, capture)
        self.facts = model_facts(ready.layout, self.heads, ready.dtype, ready.proof)
        statistics = tuple(build(capture.statistics))
        self._collection = Collection(ready.layout, self.heads, statistics, order.scope, capture.pre_rope)

    def shard(self, piece: Piece, advance: Callable[[int], None] = lambda _: None) -> Pieces:
        """The shard as it stands on disk, in pieces. `advance` is told the tokens done."""
        sums = collect(
            self._model,
            self._collection,
            piece.tokens,
            first_document=piece.first_document,
            batch=max(1, self.order.capture.batch_tokens // self.order.checkpoint.context),
            advance=advance,
        )
        return shard_pieces(sums, layers_of(self._collection.layout, self.heads), piece.provenance)
