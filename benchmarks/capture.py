"""What capturing costs: the plain backbone forward and the capture of every head, side by side on SmolLM2-135M.

Runs both in turn, many times, in one process, and prints the ratio of their medians.

    python benchmarks/capture.py [--tokens 2048] [--rounds 7] [--statistics moments profile]
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from ropewalk.capture.collector import Collection, collect
from ropewalk.models.loading import load_model
from ropewalk.models.probe import read_layout
from ropewalk.models.source import ModelSource
from ropewalk.statistics.base import Scope
from ropewalk.statistics.registry import build
from ropewalk.study import Capture

MODEL = Path(__file__).parent.parent / "build" / "smollm2"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--statistics", nargs="+", default=list(Capture().statistics))
    options = parser.parse_args()
    file = next(MODEL.glob("*.gguf"), None)
    if file is None:
        raise SystemExit("no model: run `python scripts/fetch_smollm2.py` first")
    model = load_model(ModelSource(repo=str(MODEL), gguf_file=file.name, dtype="float32", device="cpu"))
    layout = read_layout(model)
    scope = Scope(context=options.tokens, documents=1, bucket_size=options.tokens // 16)
    chosen: dict[str, dict[str, object]] = {name: {} for name in options.statistics}
    collection = Collection(layout, layout.heads(), build(chosen), scope)
    tokens = np.random.default_rng(0).integers(10, 40_000, size=(1, options.tokens)).astype(np.int32)
    ids = torch.from_numpy(tokens.astype(np.int64))
    backbone = model.get_decoder()  # type: ignore[operator]

    def plain() -> None:
        with torch.inference_mode():
            backbone(input_ids=ids, use_cache=False)

    def captured() -> None:
        collect(model, collection, tokens)

    plain()
    captured()
    seconds: dict[str, list[float]] = {"plain": [], "captured": []}
    for _ in range(options.rounds):
        for name, work in (("plain", plain), ("captured", captured)):
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    heads = len(collection.heads)
    print(f"SmolLM2-135M, {options.tokens} tokens, float32, {torch.get_num_threads()} threads, {options.rounds} rounds")
    print(f"  plain backbone forward      {medians['plain']:.3f} s")
    print(f"  statistics: {', '.join(options.statistics)}")
    print(f"  capture of all {heads} heads    {medians['captured']:.3f} s")
    print(f"  ratio                       {medians['captured'] / medians['plain']:.3f}  (at most 1.05)")


if __name__ == "__main__":
    main()
