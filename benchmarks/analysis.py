"""From shards on disk to tables: milliseconds a head at head_dim 128, standard errors included.

Once from moments alone, with the plain eigendecomposition of one scatter a head beside it, in the same run; and once
from all statistics, with 2,048 kept vectors a head and kind: PCA, rotation, frame, profile, behaviour and plasticity.

    python benchmarks/analysis.py [--heads 300] [--shards 8] [--kept 2048]
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.capture.shards import Provenance, capture_folder
from ropewalk.capture.stored import MemoryCapture, write_capture
from ropewalk.geometry.moments import Moments
from ropewalk.models.layout import AttentionLayer, Layout
from ropewalk.record import write_record
from ropewalk.results import analyze
from ropewalk.statistics.base import FIRST, Scope, layers_of
from ropewalk.statistics.moments import moment_sums
from ropewalk.study import Capture
from ropewalk.studyfile import check_study

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
    study = check_study(data, "the benchmark")
    layers = tuple(AttentionLayer(i, i, HEADS, KEYS, D, 1.0, None) for i in range(LAYERS))
    layout = Layout("smollm3", LAYERS, layers, False)
    chosen = layout.heads(heads)
    generator = np.random.default_rng(0)
    positions = np.arange(TOKENS, dtype=float)
    parts = []
    for _ in range(shards):
        sums = {}
        for own in layers_of(layout, chosen):
            x = {
                kind: vectors(generator, 2 * own.layer.layer + odd, len(numbers))
                for odd, (kind, numbers) in enumerate((("q", own.heads), ("k", own.key_heads)))
            }
            sums["moments", own.layer.layer] = moment_sums(
                {kind: Moments.of(one, positions) for kind, one in x.items()},
                {kind: (generator.permutation(positions) - positions) @ one for kind, one in x.items()},
                {FIRST: {kind: Moments.of(one[:, :FIRST], positions[:FIRST]) for kind, one in x.items()}},
            )
        parts.append(sums)
    scope = Scope(context=TOKENS, documents=shards, bucket_size=TOKENS // 16)
    marks = [Provenance("m", str(shard), "s") for shard in range(shards)]
    captured = MemoryCapture(layout, chosen, scope, {"moments": {}}, marks, parts)
    write_capture(capture_folder(results, "one"), captured, "one")
    write_record(results, study, [])


def write_everything(results: Path, heads: int, shards: int, kept: int) -> int:
    """A results folder with one checkpoint of the same shape and all statistics; returns vectors kept of a head.

    The model is SmolLM3's with random weights and a narrow residual stream, which analysis does not see.
    """
    import torch
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    from ropewalk import measure

    torch.manual_seed(0)
    config = SmolLM3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEYS,
        head_dim=D,
        max_position_embeddings=TOKENS,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = SmolLM3ForCausalLM(config).eval()
    documents = kept // 16
    tokens = np.random.default_rng(0).integers(0, 512, (documents, TOKENS // 4))
    statistics = {"moments": {}, "frame": {}, "profile": {}, "behaviour": {}, "sample": {"at_most": kept}}
    measured = measure(model, tokens, context=TOKENS // 4, heads=heads, shards=shards, statistics=statistics)
    assert measured.study is not None
    (name, captured), (checkpoint,) = next(iter(measured.captures.items())), measured.study.checkpoints
    write_capture(capture_folder(results, checkpoint.slug), captured, name)
    write_record(results, measured.study, [])
    layer = layers_of(captured.layout, captured.heads)[0]
    return sum(len(part["position.q"]) for part in captured.parts("sample", layer))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=300)
    parser.add_argument("--shards", type=int, default=Capture().shards)
    parser.add_argument("--kept", type=int, default=2048, help="vectors kept of each head and kind")
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
    print(f"  shards to tables with standard errors     {per_head['analyze']:.2f} ms")
    print(f"  ratio                                     {per_head['analyze'] / per_head['eigh']:.2f}")
    with tempfile.TemporaryDirectory() as folder:
        kept = write_everything(Path(folder), options.heads, options.shards, options.kept)
        seconds["everything"] = []
        for _ in range(3):
            start = time.perf_counter()
            analyze(Path(folder))
            seconds["everything"].append(time.perf_counter() - start)
    best = min(seconds["everything"])
    print(f"all statistics, {kept:,} kept vectors of each head and kind, {options.heads} heads")
    print(f"  shards to tables with standard errors     {best:.1f} s (at most 30)")


if __name__ == "__main__":
    main()
