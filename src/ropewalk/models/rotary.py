"""How a model's layers rotate queries and keys: which dimensions turn together and how fast, measured on the model."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ropewalk.errors import RopewalkError
from ropewalk.models.layout import AttentionLayer, Layout, Rotary
from ropewalk.models.probe import Replay, model_type_of, probe_tokens, text_config
from ropewalk.models.tap import Call

FIRST = 1
"""Position that angles are measured from: some recurrent layers start anew at 0, which is no trace of a rotation."""
LEAST_TOKENS = 16
EXACT, HALF = 1e-3, 6e-2
"""Largest share of a layer's turning that its pairs and frequencies may leave unexplained, by the type it runs in."""
CLOSE, HALF_CLOSE = 2e-3, 3e-2
"""Radians at the last position by which measured and configured angles may differ, by the type a layer runs in."""
SLACK = 3.0
"""Roundings of a number that may add up until it is compared."""
ROUNDING = 3e-7
"""The same as a share of the angle: a model knows it in float32."""

Complex = NDArray[np.complex128]
Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]


@torch.inference_mode()
def with_rotary(model: nn.Module, layout: Layout, context: int) -> Layout:
    """The layout with how each layer rotates, at positions up to `context`; the model's configuration must agree.

    The same tokens run twice, every attention module being given the hidden states of the first run: first all at one
    position, then at distances 1, 2, 4, 8, ... from it. Two dimensions turn together where the squares of what they
    hold gain and lose the same; each doubling of the distance doubles the precision of the angle. A layer whose
    vectors do not move, or not as turning pairs do, has no rotary (None).
    """
    if not any(layer.rope for layer in layout.layers):
        return layout
    positions = _positions(context)
    tokens = probe_tokens(model, len(positions))
    still = torch.full_like(tokens, FIRST)
    # Frequencies may depend on how far positions reach: the last token stands where it stands in a document.
    still[0, -1] = context - 1
    moved = torch.tensor(positions, device=tokens.device)[None]
    replay = Replay.of(model, tokens, still, moved)
    exact = replay.before[0].key.dtype.itemsize > 2
    layers = []
    for layer in layout.layers:
        rotary = None
        if layer.rope:
            before, after = (calls[layer.call_index] for calls in (replay.before, replay.after))
            rotary = _measured(layer, before, after, np.array(positions[:-1]) - FIRST, EXACT if exact else HALF)
        expected = None if rotary is None else told(model, layer.layer, context)
        if rotary is not None and expected is not None:
            if not _agree(rotary, expected, context, CLOSE if exact else HALF_CLOSE):
                raise RopewalkError(
                    f"layer {layer.layer} of this {model_type_of(model)} model turns "
                    f"{_described(np.array(rotary.frequencies))}, and its configuration says {_described(expected)}: "
                    "load it with the configuration that its code uses, or set `rope_parameters` right"
                )
            # Where both agree, those of the configuration are exact.
            rotary = _turning(replace(rotary, frequencies=tuple(expected.tolist())))
        layers.append(replace(layer, rotary_pairs=rotary))
    return replace(layout, layers=tuple(layers))


def _positions(context: int) -> list[int]:
    """Positions of the moved tokens: powers of two beyond the first, again and again, and the last of a document."""
    reach = max(context - 1 - FIRST, 1)
    steps = [1 << power for power in range(reach.bit_length())]
    repeated = steps * math.ceil(LEAST_TOKENS / len(steps))
    return [*(FIRST + step for step in repeated), context - 1]


def _measured(
    layer: AttentionLayer, before: Call, after: Call, distances: NDArray[np.int64], limit: float
) -> Rotary | None:
    """Pairs and frequencies of one layer from its queries and keys at one position and at `distances` from it."""
    # Queries may also be scaled by position; pairs are found, and the outcome is checked, on keys alone.
    keys, turned = (_vectors(call.key) for call in (before, after))
    queries, turned_queries = (_vectors(call.query) for call in (before, after))
    # What rounding alone can make of a square; the rest of a gain is a gain.
    eps = torch.finfo(before.key.dtype).eps
    gain = (turned**2 - keys**2).reshape(-1, layer.head_dim)
    noise = SLACK * eps * (turned**2 + keys**2).reshape(-1, layer.head_dim)
    best: tuple[float, Pairs] | None = None
    for pairs in _candidates(gain):
        left = _unexplained(gain, noise, pairs)
        if best is None or left < best[0] / 2:
            best = (left, pairs)
    if best is None or best[0] > limit:
        return None
    first, second = best[1]
    z, w = _complex(keys, best[1]), _complex(turned, best[1])
    zq, wq = _complex(queries, best[1]), _complex(turned_queries, best[1])
    # Every head votes for the angle of its token with the size of what it holds.
    votes = (w * z.conj()).sum(axis=0) + (wq * zq.conj()).sum(axis=0)
    frequencies = _frequencies(votes, distances)
    angles = distances[:, None] * frequencies
    scale = np.abs(votes).sum() / max(float((np.abs(z) ** 2).sum() + (np.abs(zq) ** 2).sum()), 1e-300)
    error = np.maximum(np.abs(w - scale * z * np.exp(1j * angles)) - SLACK * eps * np.abs(z), 0)
    if (error**2).sum() > limit**2 * (np.abs(w - z) ** 2).sum():
        return None
    swap = frequencies < 0
    first, second = np.where(swap, second, first), np.where(swap, first, second)
    return Rotary(tuple(first.tolist()), tuple(second.tolist()), tuple(np.abs(frequencies).tolist()))


def _vectors(vectors: torch.Tensor) -> NDArray[np.float64]:
    """[heads, tokens, d] of the one document, without the last token, in float64."""
    return vectors[0, :, :-1].cpu().double().numpy()


def _complex(vectors: NDArray[np.float64], pairs: Pairs) -> Complex:
    return np.asarray(vectors[..., pairs[0]] + 1j * vectors[..., pairs[1]])


def _candidates(gain: NDArray[np.float64]) -> Iterator[Pairs]:
    """Ways to pair the dimensions that move: halves or neighbours of a block, then whatever fits best."""
    moved = np.flatnonzero((gain != 0).any(axis=0))
    d = gain.shape[1]
    # In half precision the slowest may stand still: then the block is the whole head, or reaches to its end.
    for start, stop in dict.fromkeys(((int(moved[0]), int(moved[-1]) + 1), (0, d), (int(moved[0]), d))):
        if (stop - start) % 2 == 0:
            dims = np.arange(start, stop)
            half = len(dims) // 2
            yield dims[:half], dims[half:]
            yield dims[::2], dims[1::2]
    if len(moved) % 2 == 0:
        yield _matched(gain, moved)


def _matched(gain: NDArray[np.float64], moved: NDArray[np.intp]) -> Pairs:
    """Each dimension with the one that gains most nearly what it loses, the best matches first."""
    unit = gain[:, moved] / np.linalg.norm(gain[:, moved], axis=0)
    alike = unit.T @ unit
    first, second, free = [], [], set(range(len(moved)))
    for flat in np.argsort(alike, axis=None):
        i, j = divmod(int(flat), len(moved))
        if i < j and i in free and j in free:
            free -= {i, j}
            first.append(i)
            second.append(j)
    order = np.argsort(first)
    return moved[np.array(first)[order]], moved[np.array(second)[order]]


def _unexplained(gain: NDArray[np.float64], noise: NDArray[np.float64], pairs: Pairs) -> float:
    """Share of what dimensions gain beyond noise that their partners do not lose, and that of those without one."""
    first, second = pairs
    size = np.maximum(np.abs(gain) - noise, 0)
    together = np.maximum(np.abs(gain[:, first] + gain[:, second]) - noise[:, first] - noise[:, second], 0)
    alone = np.delete(size, np.concatenate(pairs), axis=1)
    total = float((size**2).sum())
    return float(np.sqrt(((together**2).sum() + (alone**2).sum()) / total)) if total > 0 else np.inf


def _frequencies(votes: Complex, distances: NDArray[np.int64]) -> NDArray[np.float64]:
    """Radians per token [pairs] from complex votes [tokens, pairs] for the angle at each distance, a power of two.

    At distance 1 the angle is within half a turn; at each further distance the nearest angle to what is known so far.
    """
    frequencies = np.zeros(votes.shape[1])
    for number, distance in enumerate(np.unique(distances)):
        angle = np.angle(votes[distances == distance].sum(axis=0))
        turns = 0.0 if number == 0 else np.round((frequencies * distance - angle) / (2 * np.pi))
        frequencies = (angle + 2 * np.pi * turns) / distance
    return np.asarray(frequencies)


def told(model: nn.Module, layer: int, context: int) -> NDArray[np.float64] | None:
    """Frequencies [pairs] that the configuration names for a layer, as float32 holds them; None where it does not."""
    config = text_config(model)
    parameters: Any = getattr(config, "rope_parameters", None)
    kinds = getattr(config, "layer_types", None)
    kind = kinds[layer] if kinds and layer < len(kinds) else None
    if isinstance(parameters, dict) and isinstance(parameters.get(kind), dict):
        parameters = parameters[kind]
    else:
        kind = None
    if not isinstance(parameters, dict) or "rope_theta" not in parameters:
        return None
    rope_type = parameters.get("rope_type", "default")
    if rope_type == "default":
        own = _own_config(config, layer)
        size = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
        count = int(size * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, count, 2, dtype=torch.int64).float() / count
        return np.asarray((1.0 / (parameters["rope_theta"] ** exponents)).double())
    if rope_type not in ROPE_INIT_FUNCTIONS:
        return None
    options = {} if kind is None else {"layer_type": kind}
    found, _ = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"), seq_len=context, **options)
    return np.asarray(found.double())


def _own_config(config: Any, layer: int) -> Any:
    """The configuration of one layer, where layers differ in more than their kind."""
    try:
        return config.per_layer_config[layer]
    except (AttributeError, IndexError, KeyError, ValueError):
        return config


def _agree(rotary: Rotary, expected: NDArray[np.float64], context: int, close: float) -> bool:
    """Whether as many pairs turn as expected, by angles that differ by no more than measuring them does."""
    found = np.array(rotary.frequencies)
    if len(found) != len(expected):
        return False
    return bool((np.abs(found - expected) * context <= close + ROUNDING * expected * context).all())


def _turning(rotary: Rotary) -> Rotary:
    """Without the pairs that a configuration counts among the rotated and does not turn."""
    rows = zip(rotary.first, rotary.second, rotary.frequencies, strict=True)
    return Rotary(*zip(*(row for row in rows if row[2] > 0), strict=True))


def _described(frequencies: NDArray[np.float64]) -> str:
    slowest, fastest = float(frequencies.min()), float(frequencies.max())
    return f"{len(frequencies)} pairs of dimensions by {fastest:.4g} to {slowest:.4g} radians a token"
