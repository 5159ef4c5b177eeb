"""Where position is in queries and keys: what the moments of every group of documents say (docs/method.md §3)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.geometry.axes import (
    AXES,
    Components,
    Directions,
    Signal,
    components,
    drift,
    signal,
    signals,
)
from ropewalk.geometry.groups import Grouped, Side
from ropewalk.geometry.jackknife import MIXED, jackknife_error
from ropewalk.geometry.moments import Floats, Moments
from ropewalk.geometry.pca import ratio
from ropewalk.geometry.rank import ranks
from ropewalk.geometry.readout import readouts
from ropewalk.geometry.rotation import METRICS, OF_PAIRS, by_wavelength, pair_energy, rotation
from ropewalk.geometry.taxonomy import classify
from ropewalk.statistics.base import FIRST, KINDS, NOUNS, LayerHeads, Readout, Scope
from ropewalk.statistics.pairs import PAIRS, spectrum_rows

CENTRED, DRIFT = AXES["centred"], AXES["drift"]
SKIPPED, COMMON, PERMUTED = f"_skip{FIRST}", "_common", "_permuted"
"""Endings of the columns that hold r_q and r_k otherwise than on PC0 of all tokens."""

_ALONG = {
    "": "on PC0",
    CENTRED: "on the first component of queries and keys centred apart",
    DRIFT: "along the drift axis",
    SKIPPED: f"on PC0, without the first {FIRST} tokens of every document",
    COMMON: "on PC0, within the shortest context of the study; only where contexts differ",
}
_SHUFFLED = "with positions shuffled within documents"

COLUMNS: Mapping[str, str] = {
    "explained_variance": "share of the pooled variance of queries and keys on PC0",
    "separation_share": "share of PC0's variance that is the offset between queries and keys: near 1, PC0 is the axis "
    "that tells them apart",
    "eigengap": "(λ0 - λ1) / λ0: near 0, PC0 is not a stable direction",
    "overlap": "smallest |cos| between PC0 and what it becomes with one shard left out: below "
    f"{MIXED} it mixes with other components, and errors on PC0 are those of a mixture",
    **{
        f"r_{kind}{axis}": f"correlation of the {NOUNS[kind]}' projection with token position {where}"
        for axis, where in _ALONG.items()
        for kind in KINDS
    },
    **{f"r_{kind}{axis}{PERMUTED}": f"r_{kind}{axis} {_SHUFFLED}" for axis in ("", CENTRED, DRIFT) for kind in KINDS},
    **{
        f"readout_{kind}": f"correlation of position with its best linear prediction from the {NOUNS[kind]}, fitted on "
        "the other shards"
        for kind in KINDS
    },
    **{f"readout_{kind}{PERMUTED}": f"readout_{kind} {_SHUFFLED}" for kind in KINDS},
    **{f"rank_{kind}": f"effective rank of the {NOUNS[kind]}: participation ratio" for kind in KINDS},
    **{
        f"rank90_{kind}": f"principal components that hold 90% of the variance of the {NOUNS[kind]}, the last one "
        "counted in part"
        for kind in KINDS
    },
    **METRICS,
    **OF_PAIRS,
}
"""Columns of `heads.csv` that come from moments."""
SPECTRUM: Mapping[str, str] = {
    **PAIRS,
    "drift_energy": "share of the drift axis' energy in the pair",
    "pc0_energy": "share of PC0's energy in the pair",
}
"""Columns of `spectrum.csv` that come from moments."""

ByKind = Mapping[str, Sequence[Moments]]
"""Moments of the query heads ("q") and of the key heads ("k") of a layer, per group of documents."""


def read_position(
    heads: LayerHeads,
    scope: Scope,
    whole: ByKind,
    shuffled: Mapping[str, Sequence[Floats]],
    others: Mapping[str, ByKind],
) -> Readout:
    """The columns `COLUMNS` of a layer's heads, their components for `qk.csv`, and energies for `spectrum.csv`.

    `shuffled` holds Σ x (t' - t) [heads, d] per kind and group, t' being shuffled positions; `others` the moments of
    some of the tokens, by the ending of the columns that they make.
    """
    sides = {kind: Side.of(parts) for kind, parts in whole.items()}
    moments = Grouped(sides["q"], sides["k"][heads.key_index])
    null = moments.relabelled(shuffled["q"], [part[heads.key_index] for part in shuffled["k"]])
    pooled = components(moments, scope.components)
    centred = components(moments, 1, centred=True)
    drifting = drift(moments)
    along, shuffled_along = signals(pooled.directions, moments, null)
    found = _Columns()
    found.add("explained_variance", pooled.explained_variance[:, 0], pooled.explained_variance_rest[..., 0])
    found.add("separation_share", pooled.separation_share[:, 0], pooled.separation_share_rest[..., 0])
    found.add("eigengap", pooled.eigengap, pooled.eigengap_rest)
    found.values["overlap"] = pooled.overlap[:, 0]
    found.add_signal("", along)
    centred_along = signals(centred.directions, moments, null)
    found.add_signal(CENTRED, centred_along[0])
    found.add_signal(DRIFT, signal(moments, drifting))
    found.add_rotation(moments, scope.context)
    for ending, part in others.items():
        if part is whole:
            found.add_signal(ending, along)
            continue
        other = Grouped(Side.of(part["q"]), Side.of(part["k"])[heads.key_index])
        found.add_signal(ending, signal(other, components(other, 1).directions))
    found.add_signal(PERMUTED, shuffled_along)
    found.add_signal(f"{CENTRED}{PERMUTED}", centred_along[1])
    found.add_signal(f"{DRIFT}{PERMUTED}", signal(null, drift(null)))
    for kind, side in sides.items():
        # Query heads that share a key head share its readout.
        index = heads.key_index if kind == "k" else slice(None)
        nothing = [np.zeros(1)] * len(whole[kind])
        both = readouts(whole[kind], side.rest, [nothing, shuffled[kind]])
        for ending, one in zip(("", PERMUTED), both, strict=True):
            found.add(f"readout_{kind}{ending}", one.r[index], one.replicates[:, index])
        for name, values in ranks(side.whole.sxx, None if side.rest is None else side.rest.sxx).items():
            found.add(f"{name}_{kind}", values[0, index], values[1:, index])
    counts = {
        "n_q": moments.q.n.astype(np.int64),
        "n_k": moments.k.n.astype(np.int64),
        "shards": np.full(len(heads.heads), moments.groups),
    }
    replicates = found.replicates if moments.groups > 1 else {}
    tables = {"qk": _component_rows(heads, pooled, along, counts)}
    rotary = heads.layer.rotary_pairs
    if rotary is not None:
        energies = {
            name: pair_energy(_stacked(moments, axes), rotary.first, rotary.second)
            for name, axes in (("drift", drifting), ("pc0", pooled.directions))
        }
        for name, stacked in by_wavelength(**energies, frequencies=rotary.frequencies, context=scope.context).items():
            found.add(name, stacked[0], stacked[1:])
        rows = {f"{name}_energy": energy for name, energy in energies.items()}
        tables["spectrum"] = spectrum_rows(heads, rotary, rows)
    arrays = _along_first(moments, pooled.directions, along)
    return Readout(found.values, replicates, tables, arrays)


def _stacked(moments: Grouped, directions: Directions) -> Floats:
    """The first of some directions, of the whole and without each group [1 + groups, heads, d]."""
    whole = directions.whole[None, :, :, 0]
    return whole if directions.rest is None else np.concatenate([whole, moments.split(directions.rest[:, :, 0])])


def _along_first(moments: Grouped, directions: Directions, along: Signal) -> dict[str, Floats]:
    """What others may ask of PC0, stacked [1 + groups, heads, ...]: its direction `pc0`, oriented as r_q is, and by
    kind the correlation `r_q` and the sum of squares `spread_q` along it; of the whole alone [heads] the straight line
    that the correlation assumes: `level_q` at position `middle_q`, rising by `slope_q` a token.
    """
    axes = _stacked(moments, directions) * along.sign[:, :1]
    arrays: dict[str, Floats] = {"pc0": axes}
    for kind, whole, r, r_rest, spread in (
        ("q", moments.q, along.r_q, along.r_q_rest, along.spread_q),
        ("k", moments.k, along.r_k, along.r_k_rest, along.spread_k),
    ):
        arrays[f"r_{kind}"] = np.concatenate([r[None, :, 0], r_rest[..., 0]])
        arrays[f"spread_{kind}"] = spread[..., 0]
        arrays[f"level_{kind}"] = (axes[0] * whole.mean).sum(axis=1)
        arrays[f"middle_{kind}"] = whole.t_mean
        arrays[f"slope_{kind}"] = ratio((axes[0] * whole.sxt).sum(axis=1), whole.stt)
    return arrays


class _Columns:
    """Columns [heads] and their replicates [groups, heads]."""

    def __init__(self) -> None:
        self.values: dict[str, Floats] = {}
        self.replicates: dict[str, Floats] = {}

    def add(self, name: str, values: Floats, replicates: Floats) -> None:
        self.values[name], self.replicates[name] = values, replicates

    def add_rotation(self, moments: Grouped, context: int) -> None:
        whole = rotation(moments.q, moments.k, context)
        left = {} if moments.rest is None else rotation(*moments.rest, context)
        for name, values in whole.items():
            self.add(name, values, moments.split(left[name]) if left else np.empty((0, len(values))))

    def add_signal(self, ending: str, along: Signal) -> None:
        self.add(f"r_q{ending}", along.r_q[:, 0], along.r_q_rest[..., 0])
        self.add(f"r_k{ending}", along.r_k[:, 0], along.r_k_rest[..., 0])


def _component_rows(heads: LayerHeads, pooled: Components, along: Signal, counts: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of `qk.csv`: one per head and component."""
    layer = heads.layer
    count, size = along.r_q.shape
    first = np.tile(np.arange(size) == 0, count)

    def spread(values: Any) -> Any:
        return np.repeat(np.asarray(values), size)

    def error(replicates: Floats) -> Any:
        return jackknife_error(replicates).ravel()

    return pd.DataFrame(
        {
            "layer": layer.layer,
            "head": spread(heads.heads),
            "k_head": spread([layer.k_head(head) for head in heads.heads]),
            "rope": pd.array([layer.rope] * (count * size), dtype="boolean"),
            "pc": np.tile(np.arange(size), count),
            "explained_variance": pooled.explained_variance.ravel(),
            "r_q": along.r_q.ravel(),
            "r_k": along.r_k.ravel(),
            "sliding": layer.window is not None,
            "category": np.where(first, spread(classify(along.r_q[:, 0], along.r_k[:, 0])), None),
            "eigengap": np.where(first, spread(pooled.eigengap), np.nan),
            "separation_share": pooled.separation_share.ravel(),
            "overlap": pooled.overlap.ravel(),
            "se_explained_variance": error(pooled.explained_variance_rest),
            "se_r_q": error(along.r_q_rest),
            "se_r_k": error(along.r_k_rest),
            "se_separation_share": error(pooled.separation_share_rest),
            **{name: spread(number) for name, number in counts.items()},
        }
    )
