"""From what a capture left on disk to tables: this project's shards, and the same vectors in Parquet with other tools.

300 heads, head_dim 128, 8,192 vectors of each head and kind, in alternating rounds:

- the plain eigendecomposition of one scatter a head, on one core: the floor; and on all cores;
- `qk.csv` on the pooled axis with its errors, from shards, and all tables that moments give, on all cores;
- what published scripts do: per head, read the Parquet files of its queries and keys, scikit-learn's PCA of both,
  SciPy's pearsonr of each component with position; no errors;
- the same with IncrementalPCA, which holds a part of the vectors at a time.

Then all tables from all statistics, with up to 2,048 kept vectors a head and kind.

    python benchmarks/analysis.py [--heads 300] [--shards 8] [--kept 2048] [--rounds 5]
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.stats import pearsonr
from sklearn.decomposition import PCA, IncrementalPCA
from threadpoolctl import threadpool_limits

from measuring import OFTEN, Series, keep, seconds, shares, side_by_side
from ropewalk.allocator import keep_freed
from ropewalk.capture.shards import Provenance, capture_folder
from ropewalk.capture.stored import MemoryCapture, StoredCapture, write_capture
from ropewalk.geometry.axes import components, signal, spreads_along
from ropewalk.geometry.groups import Grouped, Side
from ropewalk.geometry.jackknife import follow, jackknife_error
from ropewalk.geometry.moments import Moments
from ropewalk.geometry.pca import eigenbasis
from ropewalk.models.layout import AttentionLayer, Head, Layout
from ropewalk.record import write_record
from ropewalk.results import analyze
from ropewalk.seals import is_intact
from ropewalk.statistics.arrays import Checked
from ropewalk.statistics.base import FIRST, LayerHeads, Scope, layers_of
from ropewalk.statistics.moments import moment_sums
from ropewalk.statistics.packing import unpack
from ropewalk.study import Capture
from ropewalk.studyfile import check_study
from ropewalk.tables import write_csv
from ropewalk.text import size
from ropewalk.threads import cores, work_on_each

LAYERS, HEADS, KEYS, TOKENS, COMPONENTS = 36, 16, 4, 1024, 10
FLOOR, FLOOR_ALL = "one eigendecomposition a head, one core", "one eigendecomposition a head, all cores"
INCREMENTAL = "scikit-learn IncrementalPCA, SciPy pearsonr"


def vectors(generator: np.random.Generator, seed: int, heads: int, d: int) -> Any:
    """Vectors of a layer: a decaying spectrum in a basis of its own, a drift, and a level per document."""
    fixed = np.random.default_rng(seed)
    scale = np.exp(-np.arange(d) / 20)
    x = generator.normal(size=(heads, TOKENS, d)) * scale + 0.1 * generator.normal(size=(heads, 1, d)) * scale
    drift = 0.003 * np.arange(TOKENS)[None, :, None] * fixed.normal(size=(heads, 1, d)) * scale
    return (x + drift) @ np.linalg.qr(fixed.normal(size=(d, d)))[0]


def decomposing(heads: int, d: int, threads: int) -> Callable[[], object]:
    """One eigendecomposition of a scatter [d, d] for each head, in some threads of one core each.

    A layer's heads at a time, as the tables are made: one stack of all heads would be larger than memory that is kept,
    and the time to take it from the system would be counted as decomposing.
    """
    scatter = np.cov(np.random.default_rng(0).normal(size=(d, 4 * d)) * np.exp(-np.arange(d) / 20)[:, None])
    stacks = np.array_split(np.broadcast_to(scatter, (heads, d, d)).copy(), min(LAYERS, heads))

    def work() -> None:
        with ThreadPoolExecutor(threads) as pool, threadpool_limits(1):
            list(pool.map(np.linalg.eigh, stacks))

    return work


def write_results(results: Path, heads: int, shards: int, d: int = 128, dump: bool = True) -> None:
    """A results folder with one checkpoint of SmolLM3-3B's shape; with `dump`, all its vectors in Parquet as well."""
    data = {"name": "bench", "checkpoints": [{"repo": "o/n", "name": "one", "context": TOKENS}]}
    study = check_study(data, "the benchmark")
    layers = tuple(AttentionLayer(i, i, HEADS, KEYS, d, 1.0, None) for i in range(LAYERS))
    layout = Layout("smollm3", LAYERS, layers, False)
    chosen = layout.heads(heads)
    generator = np.random.default_rng(0)
    positions = np.arange(TOKENS, dtype=float)
    parts: list[dict[tuple[str, int], Any]] = [{} for _ in range(shards)]
    # A layer at a time: all vectors of all layers do not have to fit in memory.
    for own in layers_of(layout, chosen):
        seen: dict[str, list[NDArray[np.float32]]] = {"q": [], "k": []}
        for part in parts:
            for odd, (kind, numbers) in enumerate((("q", own.heads), ("k", own.key_heads))):
                own_vectors = vectors(generator, 2 * own.layer.layer + odd, len(numbers), d)
                seen[kind].append(own_vectors.astype(np.float32))
            x = {kind: one[-1].astype(np.float64) for kind, one in seen.items()}
            part["moments", own.layer.layer] = moment_sums(
                {kind: Moments.of(one, positions) for kind, one in x.items()},
                {kind: (generator.permutation(positions) - positions) @ one for kind, one in x.items()},
                {FIRST: {kind: Moments.of(one[:, :FIRST], positions[:FIRST]) for kind, one in x.items()}},
            )
        for kind, numbers in (("q", own.heads), ("k", own.key_heads)) if dump else ():
            for head, values in zip(numbers, np.concatenate(seen[kind], axis=1), strict=True):
                write_vectors(parquet(results, own.layer.layer, head, kind), values)
    scope = Scope(context=TOKENS, documents=shards, bucket_size=TOKENS // 16)
    marks = [Provenance("m", str(shard), "s") for shard in range(shards)]
    captured = MemoryCapture(layout, chosen, scope, {"moments": {}}, marks, parts)
    write_capture(capture_folder(results, "one"), captured, "one")
    write_record(results, study, [])


def parquet(results: Path, layer: int, head: int, kind: str) -> Path:
    """Where the vectors of a head are, as existing datasets of queries and keys have it."""
    return results / "vectors" / f"l{layer:02d}h{head:02d}{kind}" / "data.parquet"


def write_vectors(path: Path, values: NDArray[np.float32]) -> None:
    """Vectors [documents * tokens, d] of one head, document by document, with their positions."""
    path.parent.mkdir(parents=True)
    position = np.tile(np.arange(TOKENS), len(values) // TOKENS)
    example = np.repeat(np.arange(len(values) // TOKENS), TOKENS)
    table = pa.table(
        {
            "bucket": position // (TOKENS // 16),
            "example_id": example,
            "position": position,
            "vector": pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1]),
        }
    )
    pq.write_table(table, path, use_dictionary=False)


def read_vectors(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Vectors [n, d] of one head and their positions [n]."""
    table = pq.read_table(path, columns=["position", "vector"])
    values: NDArray[np.float32] = table["vector"].combine_chunks().flatten().to_numpy()
    return values.reshape(len(table), -1), table["position"].to_numpy()


def by_scripts(results: Path, make: Callable[[], Any]) -> pd.DataFrame:
    """The qk table as scripts make it: head by head, scikit-learn's PCA of its vectors, SciPy's correlations."""
    captured = StoredCapture(capture_folder(results, "one"), "one")
    rows = [row for head in captured.heads for row in script_rows(results, head, make())]
    return pd.DataFrame(rows, columns=["layer", "head", "pc", "explained_variance", "r_q", "r_k"])


def script_rows(results: Path, head: Head, pca: Any) -> Iterator[tuple[Any, ...]]:
    """The rows of one head, oriented as published: r_q is positive."""
    q, q_position = read_vectors(parquet(results, head.layer, head.head, "q"))
    k, k_position = read_vectors(parquet(results, head.layer, head.k_head, "k"))
    pca.fit(np.concatenate([q, k]))
    along_q, along_k = pca.transform(q), pca.transform(k)
    for pc, share in enumerate(pca.explained_variance_ratio_):
        r_q, r_k = pearsonr(along_q[:, pc], q_position)[0], pearsonr(along_k[:, pc], k_position)[0]
        sign = 1 if r_q >= 0 else -1
        yield head.layer, head.head, pc, share, sign * r_q, sign * r_k


def largest_difference(found: pd.DataFrame, exact: pd.DataFrame) -> float:
    """The largest difference of |r_q| and |r_k| on PC0 between two tables of the same heads."""
    key = ["layer", "head", "pc"]
    both = found.merge(exact[[*key, "r_q", "r_k"]], on=key, suffixes=("", "_exact"))
    first = both[both["pc"] == 0]
    assert len(first) == exact[key[:2]].drop_duplicates().shape[0]
    return float(max((first[r].abs() - first[f"{r}_exact"].abs()).abs().max() for r in ("r_q", "r_k")))


def write_everything(results: Path, heads: int, shards: int, kept: int, d: int = 128) -> int:
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
        head_dim=d,
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


def pooled_axis(results: Path, work_on: Callable[..., list[Any]] = work_on_each) -> None:
    """Only the components on the pooled axis with their errors, from the same shards to a table on disk."""
    captured = StoredCapture(capture_folder(results, "one"), "one")

    def columns(heads: LayerHeads) -> dict[str, NDArray[Any]]:
        parts = captured.parts("moments", heads)
        q, k = (Side.of([unpack(part, kind) for part in parts]) for kind in ("q", "k"))
        moments = Grouped(q, k[heads.key_index])
        pooled = components(moments, captured.scope.components)
        along = signal(moments, pooled.directions)
        found = {
            "explained_variance": (pooled.explained_variance, pooled.explained_variance_rest),
            "r_q": (along.r_q, along.r_q_rest),
            "r_k": (along.r_k, along.r_k_rest),
        }
        head = np.repeat(heads.heads, along.r_q.shape[1])
        table = {"layer": np.full_like(head, heads.layer.layer), "head": head}
        for name, (values, replicates) in found.items():
            table |= {name: values.ravel(), f"se_{name}": jackknife_error(replicates).ravel()}
        return table

    # One frame at the end: one for each layer takes a millisecond each.
    layers = work_on(columns, layers_of(captured.layout, captured.heads))
    table = {name: np.concatenate([layer[name] for layer in layers]) for name in layers[0]}
    write_csv(results / "pooled.csv", pd.DataFrame(table))


STEPS: Mapping[str, Sequence[Callable[..., Any]]] = {
    "reading and checking shards": (StoredCapture.parts, Checked.__getitem__),
    "merging, and leaving out each shard": (Side.of, Side.__getitem__),
    "the decomposition": (eigenbasis,),
    "products with each shard": (Side.images,),
    "components without each shard": (follow,),
    "correlations": (spreads_along, signal),
}
"""What the qk table with errors is made of, by the functions that do it; none calls another."""


def in_one_thread(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """What `work_on_each` does, by one thread."""
    keep_freed()
    with threadpool_limits(1):
        return [work(item) for item in items]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=300)
    parser.add_argument("--shards", type=int, default=Capture().shards)
    parser.add_argument("--kept", type=int, default=2048, help="vectors kept of each head and kind; 0: moments alone")
    parser.add_argument("--rounds", type=int, default=5, help=f"{OFTEN} times as many of what takes seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        write_results(results, options.heads, options.shards)
        shards = sorted(results.rglob("shard-*.safetensors"))
        # Checked once in a process, and apart: how long it takes depends on the bytes of shards and on nothing else.
        sealing = seconds(lambda: [is_intact(path) for path in shards])
        exact = analyze(results).table
        d = StoredCapture(capture_folder(results, "one"), "one").layout.layers[0].head_dim
        tables: dict[str, pd.DataFrame] = {}
        works: dict[str, Callable[[], object]] = {
            FLOOR: decomposing(options.heads, d, 1),
            FLOOR_ALL: decomposing(options.heads, d, cores()),
            "ropewalk, qk table with errors": lambda: pooled_axis(results),
            "ropewalk, all tables of moments with errors": lambda: analyze(results),
            "scikit-learn PCA, SciPy pearsonr": lambda: tables.update(pca=by_scripts(results, lambda: PCA(COMPONENTS))),
        }
        longest: dict[str, Callable[[], object]] = {
            FLOOR: works[FLOOR],
            INCREMENTAL: lambda: tables.update(
                incremental=by_scripts(results, lambda: IncrementalPCA(COMPONENTS, batch_size=2 * TOKENS))
            ),
        }
        # The longest not once before it counts: it has nothing to set up that would show in its minutes.
        races = side_by_side(works, options.rounds * OFTEN), side_by_side(longest, options.rounds, warmups=0)
        found = {
            name: {**race[name], "floors": race[FLOOR]["seconds"]}
            for race, names in zip(races, (works, [INCREMENTAL]), strict=True)
            for name in names
        }
        sizes = {
            "shards": sum(path.stat().st_size for path in shards),
            "vectors": sum(path.stat().st_size for path in results.rglob("data.parquet")),
        }
        differences = {name: largest_difference(table, exact) for name, table in tables.items()}
        steps = shares(lambda: pooled_axis(results, in_one_thread), STEPS)
        alone = float(np.median([seconds(lambda: pooled_axis(results, in_one_thread)) for _ in range(options.rounds)]))
    print(f"{options.heads} heads, head_dim {d}, {options.shards} shards")
    floor = Series(tuple(found[FLOOR]["seconds"]))
    for name, row in found.items():
        series, peaks = Series(tuple(row["seconds"])), Series(tuple(row["peaks"]))
        ratio = series.over(Series(tuple(row["floors"])))
        print(
            f"  {name:<44} {1000 * series.median / options.heads:8.2f} ms a head   "
            f"{ratio.median:7.2f} ({ratio.least:.2f} to {ratio.most:.2f})   {size(peaks.median):>9}"
        )
    once = 1000 * alone / options.heads
    print(f"  {'the qk table in one thread':<44} {once:8.2f} ms a head   {alone / floor.median:7.2f}")
    for step, share in steps.items():
        print(f"    {step:<42} {share:8.1%}")
    print(f"  {'checking the seals of shards':<44} {sealing / options.heads * 1000:8.2f} ms a head")
    for name, difference in differences.items():
        print(f"  largest difference in r on PC0, {name:<12} {difference:.1e}")
    everything: list[float] = []
    if options.kept:
        with tempfile.TemporaryDirectory() as folder:
            kept = write_everything(Path(folder), options.heads, options.shards, options.kept)
            everything = [seconds(lambda: analyze(Path(folder))) for _ in range(options.rounds)]
        print(f"all statistics, {kept:,} kept vectors of each head and kind, {options.heads} heads")
        print(f"  shards to tables with standard errors     {np.median(everything):.1f} s (at most 30)")
    keep(
        "analysis",
        {
            "heads": options.heads,
            "d": d,
            "shards": options.shards,
            "vectors": options.shards * TOKENS,
            "kept": options.kept,
            "found": found,
            "sizes": sizes,
            "sealing": sealing,
            "steps": steps,
            "alone": alone,
            "differences": differences,
            "everything": everything,
        },
    )


if __name__ == "__main__":
    main()
