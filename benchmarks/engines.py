"""What engines cost for a study of many small shards: `make ray`.

The miniature's first two checkpoints, a document a shard. One process, processes and Ray actors (a cluster that this
starts) take turns; of each the median over the repetitions: all together, until the first shard is there, and a shard
after that. Of the two engines with workers, the ratios.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ropewalk.capture.run import capture_study
from ropewalk.demo import demo_study
from ropewalk.engines import choose_engine
from ropewalk.placement import Placement
from ropewalk.study import Study
from ropewalk.text import table


class Run(NamedTuple):
    """Seconds of one run: all of it, until its first shard, and a shard after that."""

    whole: float
    first: float
    shard: float


def study(results: Path, documents: int) -> Study:
    """Two checkpoints, moments only, a document a shard."""
    whole = demo_study(results)
    capture = whole.capture.model_copy(update={"shards": documents, "statistics": {"moments": {}}})
    corpus = whole.corpus.model_copy(update={"documents": documents})
    return whole.model_copy(
        update={"checkpoints": whole.checkpoints[:2], "corpus": corpus, "capture": capture, "nulls": ("permuted",)}
    )


def measure(placement: Placement, documents: int) -> Run:
    """One run into a new folder."""
    with TemporaryDirectory() as home:
        results, begun = Path(home) / "results", time.time()
        capture_study(study(results, documents), engine=choose_engine(placement))
        whole = time.time() - begun
        written = sorted(path.stat().st_mtime for path in results.glob("captures/*/shard-*"))
        return Run(whole, written[0] - begun, (written[-1] - written[0]) / (len(written) - 1))


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=24, help="shards of each of the two checkpoints")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each engine, in turn")
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args(arguments)
    engines = {
        "one process": Placement(),
        f"local, {chosen.workers} workers": Placement(workers=chosen.workers),
        f"ray, {chosen.workers} workers": Placement(name="ray", workers=chosen.workers),
    }
    runs: dict[str, list[Run]] = {name: [] for name in engines}
    for _ in range(chosen.repeat):
        for name, placement in engines.items():
            runs[name].append(measure(placement, chosen.documents))
    medians = {name: Run(*(statistics.median(part) for part in zip(*own, strict=True))) for name, own in runs.items()}
    rows = [
        (name, f"{one.whole:.1f} s", f"{one.first:.1f} s", f"{1000 * one.shard:.1f} ms")
        for name, one in medians.items()
    ]
    print(f"{2 * chosen.documents} shards of one document, median of {chosen.repeat} runs in turn")
    for line in table(("engine", "all", "until the first shard", "a shard after that"), rows, right=(1, 2, 3)):
        print(line)
    _, local, ray = medians.values()
    print(f"ray over local: {ray.whole / local.whole:.2f} in all, {ray.shard / local.shard:.2f} a shard")
    return 0


if __name__ == "__main__":
    sys.exit(main())
