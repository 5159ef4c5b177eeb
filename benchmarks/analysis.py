"""From moments on disk to `qk.csv`: milliseconds a head at head_dim 128, standard errors included.

The plain eigendecomposition of one scatter a head is measured beside it, in the same run.

    python benchmarks/analysis.py [--heads 300] [--shards 8]
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ropewalk.analysis import analyze
from ropewalk.capture.shards import Identity, layer_prefix, moments_arrays, shard_path, write_manifest, write_shard
from ropewalk.geometry.moments import Moments
from ropewalk.models.layout import AttentionLayer, Layout
from ropewalk.study import Capture, parse_study

LAYERS, HEADS, KEYS, D, TOKENS = 36, 16, 4, 128, 1024


def vectors(generator: np.random.Generator, seed: int, heads: int) -> Any:
    """Vectors of a layer: a decaying spectrum in a basis of its own, a drift, and a level per document."""
    fixed = np.random.default_rng(seed)
    scale = np.exp(-np.arange(D) / 20)
    x = generator.normal(size=(heads, TOKENS, D)) * scale + 0.1 * generator.normal(size=(heads, 1, D)) * scale
    drift = 0.003 * np.arange(TOKENS)[None, :, None] * fixed.normal(size=(heads, 1, D)) * scale
    return (x + drift) @ np.linalg.qr(fixed.normal(size=(D, D)))[0]


def write_results(results: Path, heads: int, shards: int) -> None:
    """A results folder with one checkpoint of SmolLM3-3B's shape."""
    data = {"name": "bench", "checkpoints": [{"repo": "o/n", "name": "one", "context": TOKENS}]}
    study = parse_study(data)
    layers = tuple(AttentionLayer(i, i, HEADS, KEYS, D, 1.0, None) for i in range(LAYERS))
    layout = Layout("smollm3", LAYERS, layers, False)
    chosen = layout.choose(Capture(heads=heads))
    folder = results / "captures" / "one"
    tokens = [str(shard) for shard in range(shards)]
    manifest = {
        "shards": shards,
        "tokens_of_shards": tokens,
        "heads": [list(h) for h in chosen],
        "layout": layout.to_dict(),
    }
    write_manifest(folder, {**manifest, "model": "m", "settings": "s"})
    generator = np.random.default_rng(0)
    for shard in range(shards):
        arrays: dict[str, Any] = {}
        for layer in range(LAYERS):
            own = [head for head in chosen if head.layer == layer]
            numbers = {"q": [head.head for head in own], "k": sorted({head.k_head for head in own})}
            for kind, present in numbers.items():
                x = vectors(generator, 2 * layer + (kind == "k"), len(present))
                prefix = layer_prefix(layer, kind)
                arrays |= moments_arrays(prefix, Moments.of(x, np.arange(TOKENS, dtype=np.float64)))
                arrays[f"{prefix}.heads"] = np.array(present)
        write_shard(shard_path(folder, shard), arrays, Identity("m", tokens[shard], "s"))
    (results / "study.yaml").write_text(yaml.safe_dump({"study": study.model_dump(mode="json")}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=300)
    parser.add_argument("--shards", type=int, default=Capture().shards)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        write_results(results, options.heads, options.shards)
        scatter = np.cov(np.random.default_rng(0).normal(size=(D, 4 * D)) * np.exp(-np.arange(D) / 20)[:, None])
        stack = np.broadcast_to(scatter, (options.heads, D, D)).copy()
        analyze(results)
        seconds: dict[str, list[float]] = {"eigh": [], "analyze": []}
        for _ in range(3):
            start = time.perf_counter()
            np.linalg.eigh(stack)
            seconds["eigh"].append(time.perf_counter() - start)
            start = time.perf_counter()
            analyze(results)
            seconds["analyze"].append(time.perf_counter() - start)
    per_head = {name: min(values) / options.heads * 1000 for name, values in seconds.items()}
    print(f"{options.heads} heads, head_dim {D}, {options.shards} shards")
    print(f"  one eigendecomposition a head             {per_head['eigh']:.2f} ms")
    print(f"  shards to qk.csv with standard errors     {per_head['analyze']:.2f} ms  (at most 3)")
    print(f"  ratio                                     {per_head['analyze'] / per_head['eigh']:.2f}")


if __name__ == "__main__":
    main()
