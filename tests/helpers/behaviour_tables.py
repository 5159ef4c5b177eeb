"""Synthetic tables of heads with columns of the statistics `frame` and `behaviour`, and their replicates."""

import math

import numpy as np
import pandas as pd

FACTS = ("checkpoint", "phase", "step", "label", "family", "context", "layers", "layer", "head", "k_head", "rope")


def octaves(context: int) -> list[int]:
    """The first distance of every octave that a context has: 2, 4, 8, ..."""
    return [2**power for power in range(1, math.ceil(math.log2(context)))]


def behaviour(
    checkpoints: int = 10,
    *,
    layers: int = 12,
    heads: int = 8,
    phases: int = 5,
    models: bool = False,
    effect: bool = True,
    nope: bool = True,
    sink: bool = False,
    axes: bool = True,
    context: int = 512,
    seed: int = 0,
) -> pd.DataFrame:
    """A table of heads, `heads` in each layer, every fourth layer without RoPE.

    With an effect, fixed shares make r_q and r_k, distance explains the scores of heads that carry position, NoPE heads
    hold the induction mass, attention moves from near tokens to the first one as training goes on, and leaving the
    first tokens out lowers r_q. Without, behaviour has nothing to do with r_q and r_k, and no checkpoint differs.
    """
    rng = np.random.default_rng(seed)
    count = layers * heads
    layer, head = np.repeat(np.arange(layers), heads), np.tile(np.arange(heads), layers)
    rope = (layer % 4 != 3) if nope else np.ones(count, dtype=bool)
    strength = np.where(rope, rng.uniform(0.0, 1.0, count), rng.uniform(0.0, 0.45, count))
    own, drift = rng.uniform(0.0, 1.0, (2, count))
    noise = {name: rng.normal(0, 0.03, count) for name in ("r_q", "r_k", "q", "k", "r2", "first", "induction")}
    side = np.where(rng.uniform(size=count) < 0.15, -1.0, 1.0)
    weights = rng.gamma(2.0, 1.0, (count, len(octaves(context)) + 2))
    tables = []
    for index in range(checkpoints):
        age = index / max(checkpoints - 1, 1) if effect else 0.5
        r_q = np.clip(0.05 + (0.7 + 0.25 * age) * strength + noise["r_q"], 0, 0.99)
        size = np.clip((0.6 + 0.38 * age) * strength + noise["r_k"], 0.01, 0.99)
        drives = strength if effect else own
        first = np.clip(0.05 + (0.3 * age * layer / max(layers - 1, 1) if effect else 0.1) + noise["first"], 0.01, 0.9)
        near = weights * np.exp(-np.arange(weights.shape[1]) * (0.5 - 0.35 * age))
        kept = 0.9 if sink else 1.0
        mass = kept * (1 - first)[:, None] * near / near.sum(axis=1, keepdims=True)
        mass[:, -1] += kept * first
        phase = index * phases // checkpoints
        family = ("Llama", "Qwen", "SmolLM", "OLMo 2")[index * 4 // checkpoints]
        columns = {
            "checkpoint": f"{family}-{index}" if models else f"stage{phase + 1}-step-{index * 40000}",
            "phase": ""
            if models
            else f"stage {phase + 1}"
            if phase < 3
            else f"LC {4 * 8 ** (phase - 3)}K->{32 * 2 ** (phase - 3)}K",
            "step": pd.NA if models else index * 40000,
            "label": f"{family}-{index}B" if models else f"S{phase + 1}-{index * 40}K",
            "family": family if models else "",
            "context": context,
            "layers": layers,
            "layer": layer,
            "head": head,
            "k_head": head // 4,
            "rope": rope,
            "explained_variance": 0.3,
            "r_q": r_q,
            "r_k": side * size,
            "r_q_skip4": np.clip(r_q - (0.1 if effect else 0.0), 0, 1),
            "r_k_skip4": side * size,
            "fixed_share_q": np.where(rope, np.clip(0.1 + 0.8 * drives + noise["q"], 0, 1), np.nan),
            "fixed_share_k": np.where(rope, np.clip(0.1 + 0.7 * drives + noise["k"], 0, 1), np.nan),
            "score_r2_distance": np.clip(0.05 + 0.5 * drives + noise["r2"], 0.001, 1),
            "mass_first": kept * first,
            "mass_first4": kept * np.clip(first + 0.02, 0, 1),
            "mass_self": mass[:, 0],
            "mass_previous": mass[:, 1],
            **{f"mass_{start}": mass[:, 2 + place] for place, start in enumerate(octaves(context))},
            "effective_keys": 4 + 100 * (1 - drives) ** 2,
            "mass_induction": np.clip(np.where(rope | (not effect), 0.03, 0.18) + 0.3 * noise["induction"], 0, 1),
            "lift_induction": np.where(rope | (not effect), 1.0, 6.0) + noise["induction"],
        }
        if axes:
            columns |= {"r_q_centred": np.clip(r_q - 0.05, 0, 1), "r_k_centred": side * size * 0.9}
            columns |= {"r_q_drift": drift, "r_k_drift": 0.95 * drift}
        if sink:
            columns["mass_sink"] = np.full(count, 1 - kept)
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def behaviour_replicates(table: pd.DataFrame, shards: int = 8, noise: float = 0.002, seed: int = 1) -> pd.DataFrame:
    """Replicates scattered about every number of a table of heads."""
    rng = np.random.default_rng(seed)
    numbers = [name for name in table if name not in FACTS]
    parts = []
    for shard in range(shards):
        part = table[["checkpoint", "layer", "head", *numbers]].assign(left_out=shard)
        for name in numbers:
            scale = noise * max(float(table[name].abs().max()), 1.0)
            part[name] = part[name] + rng.normal(0, scale) + rng.normal(0, scale, len(part))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)
