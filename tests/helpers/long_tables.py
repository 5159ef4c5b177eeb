"""Synthetic studies with several rows per head: planted kernels, spectra and paths through the context."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from ropewalk.summary.view import View

KINDS = ("decaying", "oscillating", "flat", "rising")
"""Kernel of the heads 0, 1, 2, 3 of a layer; more heads begin again."""
PAIRS = 16


class LongStudy(NamedTuple):
    """Heads, their replicates and the tables with several rows per head."""

    heads: pd.DataFrame
    replicates: pd.DataFrame
    tables: dict[str, pd.DataFrame]

    def view(self, errors: bool = True) -> View:
        tables = self.tables
        heads = self.heads
        if not errors:
            tables = {
                name: table.drop(columns=[c for c in table if c.startswith("se_")]) for name, table in tables.items()
            }
            heads = heads.drop(columns=[c for c in heads if c.startswith("se_")])
        return View.of(heads, self.replicates if errors else None, tables=tables)


def distance_bins(context: int) -> list[int]:
    """Edges 0, 1, ..., 8, then four per octave, up to the context."""
    edges = list(range(9))
    while edges[-1] < context:
        edges.append(min(max(edges[-1] + 1, round(8 * 2 ** ((len(edges) - 8) / 4))), context))
    return edges


def kernel(kind: str, distance: np.ndarray, context: int) -> np.ndarray:
    """A kernel with a range of about 1."""
    along = np.log1p(distance) / np.log1p(context)
    shapes = {
        "decaying": -along,
        "rising": along,
        "oscillating": 0.5 * np.cos(6 * np.pi * along),
        "flat": 0.002 * np.cos(2 * np.pi * along),
    }
    return shapes[kind]


def long_study(
    checkpoints: int = 4,
    *,
    layers: int = 8,
    heads: int = 4,
    phases: int = 2,
    models: bool = False,
    nope: bool = True,
    growth: float = 3.0,
    bend: float = 0.9,
    unpredicted: float = 0.3,
    noise: float = 0.01,
    context: int = 256,
    longer: int = 1,
    shards: int = 8,
    seed: int = 0,
) -> LongStudy:
    """A study whose kernels strengthen by `growth` and whose paths are `bend` away from straight in deep layers.

    `unpredicted` is the part of the measured curve that K misses in the last layer, `longer` the factor by which the
    context grows from phase to phase; with growth, bend or unpredicted 0 there is nothing to be found.
    """
    rng = np.random.default_rng(seed)
    tables: dict[str, list[pd.DataFrame]] = {"spectrum": [], "profiles": [], "distance": []}
    rows, left_out = [], []
    for index in range(checkpoints):
        age = index / max(checkpoints - 1, 1)
        phase = index * phases // checkpoints
        length = context * longer**phase
        facts = {
            "checkpoint": f"model-{index}" if models else f"phase{phase + 1}-step-{index * 100}",
            "label": f"M{index}" if models else f"P{phase + 1}-{index * 100}",
            "phase": "" if models else f"phase {phase + 1}",
            "step": pd.NA if models else index * 100,
            "family": ("Llama", "Qwen")[index * 2 // checkpoints] if models else "",
            "context": length,
            "layers": layers,
        }
        for layer in range(layers):
            rope = not nope or layer % 4 != 3
            for head in range(heads):
                key = {"layer": layer, "head": head}
                found = _head(rng, key, rope, age, length, layers, growth, bend, unpredicted, noise)
                for name, table in found.tables.items():
                    tables[name].append(table.assign(**facts, **key))
                known = {"k_head": head // 2, "rope": rope, "explained_variance": 0.3, "sliding": False}
                rows.append({**facts, **key, **known, **found.values} | {f"se_{n}": noise for n in found.values})
                spread = noise / np.sqrt((shards - 1) * (shards - 1) / shards)
                for shard in range(shards):
                    moved = {name: v + rng.normal(0, spread) for name, v in found.values.items()}
                    moved |= {"checkpoint": facts["checkpoint"], "left_out": shard, "explained_variance": 0.3}
                    left_out.append(key | moved)
    return LongStudy(
        pd.DataFrame(rows),
        pd.DataFrame(left_out),
        {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items() if parts},
    )


class _Found(NamedTuple):
    values: dict[str, float]
    tables: dict[str, pd.DataFrame]


def _head(rng, key, rope, age, context, layers, growth, bend, unpredicted, noise) -> _Found:
    depth = key["layer"] / max(layers - 1, 1)
    edges = np.array(distance_bins(context))
    middle = (edges[:-1] + edges[1:] - 1) / 2
    strength = 1 + growth * age
    k = strength * kernel(KINDS[key["head"] % 4], middle, context)
    missed = unpredicted * depth * strength * np.sin(np.arange(len(middle)))
    score = (k if rope else 0.3 * np.sin(np.log1p(middle))) + missed + 2.0 + rng.normal(0, noise, len(middle))
    distance = pd.DataFrame(
        {
            "distance": edges[:-1],
            "distance_stop": edges[1:],
            "kernel": k if rope else np.nan,
            "score": score,
            "mass": np.exp(score) / np.exp(score).sum(),
            "se_kernel": noise if rope else np.nan,
            "se_score": 3 * noise,
            "se_mass": 0.001,
        }
    )
    profiles, values = _paths(rng, context, bend * depth, noise)
    tables = {"profiles": profiles, "distance": distance}
    if rope:
        tables["spectrum"] = _spectrum(key, context, age, noise)
        away, spread = score - score.mean(), k - k.mean()
        share = tables["spectrum"]["kernel_share"]
        wavelength = tables["spectrum"]["wavelength"]
        values |= {
            "kernel_range": float(np.ptp(k)),
            "kernel_misfit": float(((away - spread) ** 2).sum() / (away**2).sum()),
            "kernel_r": float(np.corrcoef(away, spread)[0, 1]),
            "kernel_wavelength": float(np.exp((share * np.log(wavelength)).sum())),
            "dominant_wavelength": float(wavelength[share.idxmax()]),
        }
    return _Found(values, tables)


def _paths(rng, context, bend, noise) -> tuple[pd.DataFrame, dict[str, float]]:
    """A path that rises with position, bent by an early rise that levels off; r and η² on PC0 follow."""
    edges = np.unique([0, 1, 2, 4, *(np.arange(1, 65) * context // 64)])
    start, stop = edges[:-1], edges[1:]
    middle = (start + stop - 1) / 2
    tokens = (stop - start) * 100
    weights = tokens / tokens.sum()
    found: dict[str, np.ndarray] = {"start": start, "stop": stop, "tokens": tokens}
    values = {}
    for kind, sign in (("q", 1.0), ("k", -1.0)):
        t = middle / context
        curve = sign * ((1 - bend) * t + bend * (1 - np.exp(-20 * t)))
        line = np.polyval(np.polyfit(t, curve, 1, w=np.sqrt(weights)), t)
        total = 0.2
        eta2 = float((weights * (curve - weights @ curve) ** 2).sum() / total)
        along = float((weights * (line - weights @ line) ** 2).sum() / total)
        values |= {f"r_{kind}": sign * np.sqrt(along), f"eta2_pc0_{kind}": eta2, f"bend_{kind}": eta2 - along}
        values[f"eta2_{kind}"] = eta2 / 2
        offset = 5.0 * sign
        found |= {
            kind: curve + offset + rng.normal(0, noise, len(t)),
            f"line_{kind}": line + offset,
            f"se_{kind}": noise,
        }
    return pd.DataFrame(found), values


def _spectrum(key, context, age, noise) -> pd.DataFrame:
    """Energy about a tenth of the context, the kernel about half of it and, with age, beyond it."""
    pair = np.arange(PAIRS)
    frequency = (20.0 * context) ** (-pair / PAIRS)
    wavelength = 2 * np.pi / frequency
    x = np.log2(wavelength / context)

    def bump(centre: float, width: float) -> np.ndarray:
        shape = np.exp(-(((x - centre) / width) ** 2))
        return shape / shape.sum()

    columns = {
        "energy_q": bump(-3, 3),
        "energy_k": bump(-2.5, 3),
        "fixed_q": 0.6 * bump(-1, 2),
        "fixed_k": 0.5 * bump(-1, 2),
        "concentration_q": 0.5 + 0 * x,
        "concentration_k": 0.4 + 0 * x,
        "kernel_share": bump(-1 + 2 * age + 0.1 * key["head"], 1.5),
    }
    errors = {f"se_{name}": noise / PAIRS for name in columns}
    return pd.DataFrame({"pair": pair, "frequency": frequency, "wavelength": wavelength, **columns, **errors})
