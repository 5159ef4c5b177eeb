"""What capturing costs: the plain backbone forward, the capture of moments and of all statistics, on SmolLM2-135M.

Runs them in turn, many times, in one process, and prints the ratios of their medians.

    python benchmarks/capture.py [--tokens 2048] [--rounds 7] [--statistics moments frame]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.capture.collector import Collection, collect
from ropewalk.models.loading import load_model
from ropewalk.models.probe import read_layout
from ropewalk.models.rotary import with_rotary
from ropewalk.models.source import ModelSource
from ropewalk.statistics.base import Scope
from ropewalk.statistics.registry import build
from ropewalk.study import Capture

MODEL = Path(__file__).parent.parent / "build" / "smollm2"
LIMITS = {("moments", "plain"): 1.05, ("all", "moments"): 1.05, ("all", "plain"): 1.08}


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
    layout = with_rotary(model, read_layout(model), options.tokens)
    scope = Scope(context=options.tokens, documents=1, bucket_size=options.tokens // 16)
    tokens = np.random.default_rng(0).integers(10, 40_000, size=(1, options.tokens)).astype(np.int32)
    ids = torch.from_numpy(tokens.astype(np.int64))
    backbone: Any = model.get_decoder()  # type: ignore[operator]

    def plain() -> None:
        with torch.inference_mode():
            backbone(input_ids=ids, use_cache=False)

    def capturing(*names: str) -> Callable[[], object]:
        collection = Collection(layout, layout.heads(), build({name: {} for name in names}), scope)
        return lambda: collect(model, collection, tokens)

    work = {"plain": plain, "moments": capturing("moments"), "all": capturing(*options.statistics)}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(options.rounds + 1):
        for name, one in work.items():
            start = time.perf_counter()
            one()
            # The first round warms up.
            if number:
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"SmolLM2-135M, {options.tokens} tokens, float32, {torch.get_num_threads()} threads, {options.rounds} rounds")
    print(f"  plain backbone forward                {medians['plain']:.3f} s")
    print(f"  moments of all {len(layout.heads())} heads              {medians['moments']:.3f} s")
    print(f"  {', '.join(options.statistics):<37} {medians['all']:.3f} s")
    for (name, other), limit in LIMITS.items():
        ratios = [a / b for a, b in zip(seconds[name], seconds[other], strict=True)]
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(f"  {name} / {other:<28} {medians[name] / medians[other]:.3f}  ({spread}; at most {limit})")


if __name__ == "__main__":
    main()
