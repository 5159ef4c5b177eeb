"""From shards on disk to tables: milliseconds a head at head_dim 128, standard errors included.

From moments alone, in alternating rounds: the plain eigendecomposition of one scatter a head on one core, `qk.csv` on
the pooled axis with its errors, and all tables that moments give, the latter two on all cores. Then all tables from all
statistics, with 2,048 kept vectors a head and kind: PCA, rotation, frame, profile, behaviour and plasticity.

    python benchmarks/analysis.py [--heads 300] [--shards 8] [--kept 2048] [--rounds 5]
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from ropewalk.capture.shards import Provenance, capture_folder
from ropewalk.capture.stored import MemoryCapture, StoredCapture, write_capture
from ropewalk.geometry.axes import Grouped, Side, components, signal
from ropewalk.geometry.jackknife import jackknife_error
from ropewalk.geometry.moments import Moments
from ropewalk.models.layout import AttentionLayer, Layout
from ropewalk.record import write_record
from ropewalk.results import analyze
from ropewalk.seals import is_intact
from ropewalk.statistics.base import FIRST, LayerHeads, Scope, layers_of
from ropewalk.statistics.moments import moment_sums
from ropewalk.statistics.packing import unpack
from ropewalk.study import Capture
from ropewalk.studyfile import check_study
from ropewalk.tables import write_csv

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


def pooled_axis(results: Path) -> None:
    """Only the components on the pooled axis with their errors, from the same shards to a table on disk."""
    captured = StoredCapture(capture_folder(results, "one"), "one")

    def rows(heads: LayerHeads) -> pd.DataFrame:
        parts = captured.parts("moments", heads)
        q, k = (Side.of([unpack(part, kind) for part in parts]) for kind in ("q", "k"))
        moments = Grouped.pair(q, k[heads.key_index])
        pooled = components(moments, captured.scope.components)
        along = signal(moments, pooled.directions)
        columns = {
            "explained_variance": (pooled.explained_variance, pooled.explained_variance_rest),
            "r_q": (along.r_q, along.r_q_rest),
            "r_k": (along.r_k, along.r_k_rest),
        }
        table: dict[str, Any] = {"layer": heads.layer.layer, "head": np.repeat(heads.heads, along.r_q.shape[1])}
        for name, (values, replicates) in columns.items():
            table |= {name: values.ravel(), f"se_{name}": jackknife_error(replicates).ravel()}
        return pd.DataFrame(table)

    with ThreadPoolExecutor(os.cpu_count()) as pool, threadpool_limits(1):
        tables = list(pool.map(rows, layers_of(captured.layout, captured.heads)))
    write_csv(results / "pooled.csv", pd.concat(tables))


def seconds_of(work: Callable[[], object]) -> float:
    """How long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=300)
    parser.add_argument("--shards", type=int, default=Capture().shards)
    parser.add_argument("--kept", type=int, default=2048, help="vectors kept of each head and kind; 0: moments alone")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    scatter = np.cov(np.random.default_rng(0).normal(size=(D, 4 * D)) * np.exp(-np.arange(D) / 20)[:, None])
    stack = np.broadcast_to(scatter, (options.heads, D, D)).copy()

    def decompose() -> None:
        with threadpool_limits(1):
            np.linalg.eigh(stack)

    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        write_results(results, options.heads, options.shards)
        shards = sorted(results.rglob("shard-*.safetensors"))
        # Checked once in a process, and apart: how long it takes depends on the bytes of shards and on nothing else.
        sealing = seconds_of(lambda: [is_intact(path) for path in shards])
        works: dict[str, Callable[[], object]] = {
            "one eigendecomposition a head, one core": decompose,
            "qk table with errors, pooled axis": lambda: pooled_axis(results),
            "all tables of moments with errors": lambda: analyze(results),
        }
        rounds = [{name: seconds_of(work) for name, work in works.items()} for _ in range(options.rounds + 1)][1:]
    floor = next(iter(works))
    print(f"{options.heads} heads, head_dim {D}, {options.shards} shards, {options.rounds} rounds")
    for name in works:
        best = min(one[name] for one in rounds) / options.heads * 1000
        ratios = [one[name] / one[floor] for one in rounds]
        spread = f"   ratio {median(ratios):6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})" if name != floor else ""
        print(f"  {name:<41} {best:6.2f} ms{spread}")
    print(f"  {'checking the seals of shards':<41} {sealing / options.heads * 1000:6.2f} ms")
    if not options.kept:
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = write_everything(Path(folder), options.heads, options.shards, options.kept)
        best = min(seconds_of(lambda: analyze(Path(folder))) for _ in range(3))
    print(f"all statistics, {kept:,} kept vectors of each head and kind, {options.heads} heads")
    print(f"  shards to tables with standard errors     {best:.1f} s (at most 30)")


if __name__ == "__main__":
    main()
