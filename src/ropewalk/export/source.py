"""What is exported: one checkpoint's sums, as mean and covariance of queries and keys in both frames, and its facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pandas as pd

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import fingerprint
from ropewalk.geometry.kernel import Turned
from ropewalk.geometry.moments import Floats, Moments
from ropewalk.models.layout import AttentionLayer, Rotary
from ropewalk.record import Record
from ropewalk.statistics.base import KINDS, Captured, LayerHeads, Sums, layers_of
from ropewalk.statistics.frame import PRE, Frame, turned_means
from ropewalk.statistics.moments import MomentSums
from ropewalk.statistics.packing import unpack
from ropewalk.study import Study

POST = "post"
FRAMES = {
    POST: "as the dot product takes them, after the rotation",
    PRE: "before the rotation: turned back by the angles of their positions; after a QK-norm",
}
"""The two frames of vectors."""

ByKind = Mapping[str, Sequence[Moments]]
"""Moments of each group of documents, of queries (`q`) and of keys (`k`)."""

FULL = "`capture: {statistics: {moments: {}, frame: {full: true}}}`"
"""The setting of a study that captures second moments before the rotation."""


class Kept(Captured, Protocol):
    """The sums of a checkpoint that also say which type its model ran in."""

    @property
    def dtype(self) -> str | None:
        """Type of the weights; None where it was not noted."""


@dataclass(frozen=True)
class Source:
    """A checkpoint that is exported.

    `heads` are its rows of `heads.csv`. `pre_rope` says that vectors were captured before the rotation in place of
    after it. `origin` and `documents` are what the record says of its model and of its documents.
    """

    captured: Captured
    checkpoint: str
    label: str
    heads: pd.DataFrame
    study: str = ""
    pre_rope: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)
    documents: Sequence[Mapping[str, Any]] = ()
    dtype: str | None = None

    @classmethod
    def of(
        cls,
        captured: "Kept | None",
        checkpoint: str,
        heads: pd.DataFrame,
        name: str,
        study: Study | None,
        record: Record | None,
    ) -> "Source":
        """A checkpoint of results called `name`, of which `heads` are the rows; tables alone have no sums to export."""
        if captured is None:
            raise RopewalkError(
                f"the sums of {checkpoint!r} are not at hand, only tables: load the folder of a run with its "
                "`captures` (`ropewalk capture STUDY` computes what is missing of them)"
            )
        own = heads[heads["checkpoint"] == checkpoint]
        known = {} if record is None else record.data
        origins = {one["checkpoint"]: one for one in known.get("origins", ())}
        return cls(
            captured,
            checkpoint,
            str(own["label"].iloc[0]),
            own,
            name,
            pre_rope=study is not None and study.capture.pre_rope,
            origin=origins.get(checkpoint, {}),
            documents=known.get("documents", ()),
            dtype=captured.dtype,
        )

    @cached_property
    def layers(self) -> list[LayerHeads]:
        """The layers that have chosen heads."""
        return layers_of(self.captured.layout, self.captured.heads)

    def moments(self, heads: LayerHeads, frame: str) -> ByKind | None:
        """Moments of a layer's vectors in a frame, by kind and group of documents; None where sums do not hold them.

        A layer that does not rotate has the same before and after.
        """
        captured_as = PRE if self.pre_rope else POST
        if frame == captured_as or heads.layer.rope is False:
            parts = self.captured.parts(MomentSums.name, heads)
            return {kind: [unpack(part, kind) for part in parts] for kind in KINDS}
        if frame == PRE:
            parts = self._frame(heads)
            if parts and all(f"{kind}.{PRE}.sxx" in part for part in parts for kind in KINDS):
                return {kind: [unpack(part, f"{kind}.{PRE}") for part in parts] for kind in KINDS}
        return None

    def need(self, heads: LayerHeads, frame: str) -> ByKind:
        """The same where it must be there: what is missing is said, with the setting that captures it."""
        found = self.moments(heads, frame)
        if found is None:
            raise RopewalkError(f"layer {heads.layer.layer} of {self.label!r}: {self.why_not(heads.layer, frame)}")
        return found

    def why_not(self, layer: AttentionLayer, frame: str) -> str:
        """Why a layer has no second moments in a frame, and what to do."""
        if frame == POST:
            return (
                "vectors were captured before the rotation (`pre_rope: true`), and what is wanted is after it: run the "
                "study without `pre_rope`"
            )
        if layer.rope is None:
            return (
                "whether it rotates is not known (vectors came without their model), so nothing can be turned back: "
                "capture the model itself"
            )
        if layer.rotary_pairs is None:
            return (
                "its vectors move with position, but not as turning pairs do, so they cannot be turned back: capture "
                "them before the rotation with `capture: {pre_rope: true}`"
            )
        return f"second moments before the rotation were not captured: run the study with {FULL}"

    def turned(self, heads: LayerHeads) -> Mapping[str, Turned]:
        """What the frame's sums say of queries and keys, per pair of dimensions; nothing for a layer without them."""
        parts = self._frame(heads)
        rotary = heads.layer.rotary_pairs
        if not parts or rotary is None:
            return {}
        names = [name for name in parts[0] if f".{PRE}." not in name]
        sums = {name: np.sum([part[name] for part in parts], axis=0)[None] for name in names}
        found = {kind: turned_means(sums, kind, rotary) for kind in KINDS}
        return {
            kind: Turned(one.mean[0], one.length[0], one.energy[0], one.rest[0], one.rest_energy[0])
            for kind, one in found.items()
        }

    def _frame(self, heads: LayerHeads) -> list[Sums]:
        if Frame.name not in self.captured.statistics:
            return []
        parts = self.captured.parts(Frame.name, heads)
        return parts if parts and "n" in parts[0] else []


def turned_mean(turned: Turned, rotary: Rotary) -> Floats:
    """The mean [heads, d] of vectors turned back, dimension by dimension."""
    d = 2 * len(rotary.first) + turned.rest.shape[-1]
    mean = np.zeros((*turned.rest.shape[:-1], d))
    mean[..., list(rotary.first)], mean[..., list(rotary.second)] = turned.mean.real, turned.mean.imag
    mean[..., rotary.others(d)] = turned.rest
    return mean


def pairing(rotary: Rotary | None) -> str | None:
    """How pairs of dimensions lie: `half` (i, i + n), `interleaved` (2i, 2i + 1), else `other`; None without pairs."""
    if rotary is None:
        return None
    pairs, count = {tuple(sorted(pair)) for pair in zip(rotary.first, rotary.second, strict=True)}, len(rotary.first)
    start = min(min(rotary.first), min(rotary.second))
    if pairs == {(start + i, start + i + count) for i in range(count)}:
        return "half"
    return "interleaved" if pairs == {(start + 2 * i, start + 2 * i + 1) for i in range(count)} else "other"


def facts(source: Source) -> dict[str, Any]:
    """What every export says of where its numbers come from, as plain data."""
    captured, layout = source.captured, source.captured.layout
    marks = [line.split() for line in captured.provenance.splitlines()]
    scope = captured.scope
    return {
        "ropewalk": __version__,
        "study": source.study,
        "checkpoint": source.checkpoint,
        "model": {
            "type": layout.model_type,
            "origin": source.origin.get("model"),
            "fingerprint": marks[0][0],
            "dtype": source.dtype,
            "depth": layout.depth,
            "absolute_positions": layout.absolute_positions,
        },
        "tokens": {
            "tokenizer": source.origin.get("tokenizer"),
            "fingerprint": fingerprint([one[1] for one in marks]),
            "corpus": [dict(one) for one in source.documents],
            "documents": scope.documents,
            "context": scope.context,
            "skip_first": scope.skip_first,
            "counted": scope.documents * (scope.context - scope.skip_first),
            "groups": len(marks),
        },
        "settings": marks[0][2],
        "layers": [_layer_facts(heads) for heads in source.layers],
    }


def _layer_facts(heads: LayerHeads) -> dict[str, Any]:
    layer, rotary = heads.layer, heads.layer.rotary_pairs
    return {
        "layer": layer.layer,
        "query_heads": layer.query_heads,
        "key_heads": layer.key_heads,
        "head_dim": layer.head_dim,
        "rope": layer.rope,
        "rotated_dimensions": None if layer.rotary is None else round(layer.rotary * layer.head_dim),
        "pairing": pairing(rotary),
        "first": None if rotary is None else list(rotary.first),
        "second": None if rotary is None else list(rotary.second),
        "frequencies": None if rotary is None else list(rotary.frequencies),
        "window": layer.window,
        "scale": layer.scale,
        "heads": list(heads.heads),
        "k_heads": list(heads.key_heads),
    }
