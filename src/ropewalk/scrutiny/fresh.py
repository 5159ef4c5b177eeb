"""A short fresh capture of a model's queries and keys: as they should be, and as every known fault makes them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ropewalk.export.claims import Key
from ropewalk.export.faults import Fresh
from ropewalk.export.source import POST, pairing
from ropewalk.geometry.moments import Floats, Moments, merge_all
from ropewalk.models.layout import AttentionLayer, Layout, Rotary
from ropewalk.models.probe import input_device
from ropewalk.models.tap import Call, tap
from ropewalk.statistics.base import KINDS
from ropewalk.statistics.frame import PRE

NORMS = ("norm", "layernorm")
"""How the names of a module that norms queries or keys end."""

NOT_TURNED_BACK = "not rotated back"
TURNED_BACK = "rotated back"
WRONG_WAY = "rotated back the wrong way"
WRONG_PAIRING = "wrong pairing"
NO_NORM = "missing QK-norm"
NOPE_TURNED = "NoPE layers counted as rotated"
TRANSPOSED = "transposed heads"

Vectors = Floats
"""[heads, tokens, d] of one document."""


class Capture:
    """Moments of some layers' vectors: as they should be, by document, and as each fault makes them, of all."""

    def __init__(self, layout: Layout, layers: Sequence[AttentionLayer], skip_first: int) -> None:
        """With every fault of these `layers`; the others only as they should be, which a file may have mixed up."""
        self._layers = {layer.call_index: layer for layer in layout.layers}
        self._with_faults = {layer.layer for layer in layers}
        self._skip_first = skip_first
        self._usual = next((layer.rotary_pairs for layer in layout.layers if layer.rotary_pairs is not None), None)
        self._right: dict[Key, list[Moments]] = {}
        self._others: dict[Key, dict[str, list[Moments]]] = {}
        self._norms: dict[int, dict[str, torch.Tensor]] = {}
        self._call_index = 0

    @torch.inference_mode()
    def of(self, model: nn.Module, rows: NDArray[np.int64]) -> dict[Key, Fresh]:
        """Run documents [documents, context], one by one."""
        with _inputs_of_norms(model) as norms, tap(model, self._view):
            self._norms = norms
            for row in rows:
                self._call_index = 0
                model(input_ids=torch.from_numpy(row)[None].to(input_device(model)), use_cache=False)
        layers = {layer.layer: layer for layer in self._layers.values()}
        return {
            key: Fresh(
                parts, {name: merge_all(own) for name, own in self._others[key].items()}, _scales(layers[key[0]])
            )
            for key, parts in self._right.items()
        }

    def _view(self, call: Call) -> None:
        layer, self._call_index = self._layers.get(self._call_index), self._call_index + 1
        before_norm = self._norms.pop(id(call.module), {})
        if layer is None:
            return
        for kind, vectors in (("q", call.query), ("k", call.key)):
            x = _numbers(vectors[0])
            bare = before_norm.get(kind)
            plain = None if bare is None else _by_head(bare, x.shape)
            for frame, versions in self._versions(layer, x, plain).items():
                key = (layer.layer, kind, frame)
                for name, version in versions.items():
                    if name and layer.layer not in self._with_faults:
                        continue
                    own = Moments.of(version[:, self._skip_first :], np.arange(self._skip_first, x.shape[1]))
                    if name:
                        self._others.setdefault(key, {}).setdefault(name, []).append(own)
                    else:
                        self._right.setdefault(key, []).append(own)
                        self._others.setdefault(key, {})

    def _versions(self, layer: AttentionLayer, x: Vectors, plain: Vectors | None) -> dict[str, dict[str, Vectors]]:
        """Vectors in each frame: as they should be under "", and as each fault makes them under its name."""
        heads, tokens, d = x.shape
        found: dict[str, dict[str, Vectors]] = {POST: {"": x}}
        rotary = layer.rotary_pairs
        if layer.rope is False:
            found[PRE] = {"": x}
            if self._usual is not None and max(*self._usual.first, *self._usual.second) < d:
                found[PRE][NOPE_TURNED] = turned(x, self._usual, -1)
                found[POST][NOPE_TURNED] = turned(x, self._usual, 1)
        elif rotary is not None:
            back = turned(x, rotary, -1)
            other = _other_pairing(rotary)
            found[PRE] = {"": back, NOT_TURNED_BACK: x, WRONG_WAY: turned(x, rotary, 1)}
            found[POST] |= {TURNED_BACK: back}
            if other is not None:
                found[PRE][WRONG_PAIRING] = turned(x, other, -1)
                found[POST][WRONG_PAIRING] = turned(back, other, 1)
        if plain is not None and PRE in found:
            found[PRE][NO_NORM] = plain
            found[POST][NO_NORM] = plain if rotary is None else turned(plain, rotary, 1)
        if heads > 1:
            for versions in found.values():
                flat = versions[""].transpose(1, 0, 2).reshape(tokens, d, heads)
                versions[TRANSPOSED] = flat.transpose(2, 0, 1)
        return found


def turned(x: Vectors, rotary: Rotary, sign: int) -> Vectors:
    """Vectors [heads, tokens, d] of positions 0, 1, ... turned by their angles, forth (1) or back (-1)."""
    first, second = list(rotary.first), list(rotary.second)
    turn = np.exp(1j * sign * np.outer(np.arange(x.shape[1]), rotary.frequencies))
    z = (x[..., first] + 1j * x[..., second]) * turn
    found = x.copy()
    found[..., first], found[..., second] = z.real, z.imag
    return found


def _other_pairing(rotary: Rotary) -> Rotary | None:
    """The same dimensions and frequencies, paired the other way: halves for neighbours, neighbours for halves."""
    kind, size = pairing(rotary), len(rotary.first)
    if kind not in ("half", "interleaved") or size < 2:
        return None
    start = min(*rotary.first, *rotary.second)
    order = np.argsort(np.minimum(rotary.first, rotary.second))
    frequencies = tuple(rotary.frequencies[index] for index in order)
    if kind == "half":
        return Rotary(
            tuple(start + 2 * i for i in range(size)), tuple(start + 2 * i + 1 for i in range(size)), frequencies
        )
    return Rotary(tuple(start + i for i in range(size)), tuple(start + size + i for i in range(size)), frequencies)


def _scales(layer: AttentionLayer) -> dict[str, float]:
    scale = layer.scale or layer.head_dim**-0.5
    return {
        "the model's score scale": scale,
        "the root of the model's score scale": scale**0.5,
        "one over the model's score scale": 1 / scale,
    }


@contextmanager
def _inputs_of_norms(model: nn.Module) -> Iterator[dict[int, dict[str, torch.Tensor]]]:
    """What goes into the norms of queries and keys, by the attention module that has them and by kind."""
    seen: dict[int, dict[str, torch.Tensor]] = {}
    with ExitStack() as stack:
        for module in model.modules():
            for name, child in module.named_children():
                kind = name[0]
                if kind in KINDS and name.endswith(NORMS) and not name.startswith(("kv", "qkv")):

                    def note(_: nn.Module, inputs: Any, owner: int = id(module), kind: str = kind) -> None:
                        seen.setdefault(owner, {})[kind] = inputs[0].detach()

                    stack.callback(child.register_forward_pre_hook(note).remove)
        yield seen


def _by_head(x: torch.Tensor, shape: tuple[int, ...]) -> Any:
    """What went into a norm, of one document, as [heads, tokens, d]; None where it does not have that size."""
    heads, tokens, d = shape
    if x.numel() != heads * tokens * d:
        return None
    flat = _numbers(x)
    if flat.ndim == 4 and flat.shape[1:] == (heads, tokens, d):
        return flat[0]
    return flat.reshape(tokens, heads, d).transpose(1, 0, 2)


def _numbers(x: torch.Tensor) -> Any:
    return x.detach().cpu().double().numpy()
