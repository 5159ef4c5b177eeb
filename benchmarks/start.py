"""What a user waits for: help, the import, the first line of a run, and the whole built-in study.

Commands take turns in processes of their own, beside a Python that does nothing. Of the study's capture, a profile.

    python benchmarks/start.py [--rounds 5] [--demos 5]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from measuring import Series, alternate, keep, seconds, shares
from ropewalk.cli.study import MOST_WORKERS
from ropewalk.demo import demo_study
from ropewalk.study import Capture
from ropewalk.threads import cores

DOCUMENTS = 64
"""Of the built-in study."""
WORKERS = min(cores(), MOST_WORKERS)
COMMAND = [str(Path(sys.executable).parent / "ropewalk")]
"""The command line, of the environment that runs this."""


def running(*command: str) -> Callable[[], float]:
    """A timer of a command, from its start to its end."""
    return lambda: seconds(lambda: subprocess.run(command, check=True, capture_output=True))


def first_line() -> float:
    """Seconds from starting the built-in study to its first line; it is stopped then."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        with subprocess.Popen(
            [*COMMAND, "demo", "--results", folder], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = time.perf_counter() - start
            process.kill()
        assert line, "the study said nothing"
    return found


PHASES = {
    "starting and tokenizing": ("corpus:", 1),
    "capture": ("shards done", len(demo_study().checkpoints)),
    "tables": ("tables:", 1),
    "figures": ("23_", 1),
    "report": ("report:", 1),
}
"""What the built-in study does one after the other, and what stands in the line that ends it, so many times."""


def demo() -> dict[str, float]:
    """Seconds of the whole built-in study, and of its phases."""
    found: dict[str, float] = {}
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        start = last = time.perf_counter()
        command = [*COMMAND, "demo", "--results", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                phase = next((name for name, (end, _) in PHASES.items() if end in line and name not in found), None)
                if phase is None:
                    continue
                seen[phase] += 1
                if seen[phase] == PHASES[phase][1]:
                    now = time.perf_counter()
                    found[phase], last = now - last, now
        assert process.returncode == 0, "the study failed"
        assert list(found) == list(PHASES), "a phase was not seen to end"
    return {**found, "all": time.perf_counter() - start}


def passes() -> float:
    """Seconds of the study's forward passes alone, as `ropewalk demo` computes them: a process a core."""
    command = [sys.executable, __file__, "--passes"]
    started = [subprocess.Popen([*command, str(part)], stdout=subprocess.PIPE, text=True) for part in range(WORKERS)]
    return max(float(process.communicate()[0]) for process in started)


def run_passes(part: int) -> None:
    """Run every other document of all checkpoints through the plain backbone in one thread; print the seconds."""
    import numpy as np
    import torch

    from ropewalk.allocator import suit_passes
    from ropewalk.models.loading import load_model

    suit_passes()
    torch.set_num_threads(max(1, cores() // WORKERS))
    generator, taken = np.random.default_rng(0), 0.0
    for checkpoint in demo_study().checkpoints:
        backbone: Any = load_model(checkpoint).get_decoder()  # type: ignore[operator]
        batch = max(1, Capture().batch_tokens // checkpoint.context)
        ids = torch.from_numpy(generator.integers(0, 2000, (DOCUMENTS, checkpoint.context)))[part::WORKERS]
        own = [ids[start : start + batch] for start in range(0, len(ids), batch)]
        with torch.inference_mode():
            taken += seconds(lambda: [backbone(input_ids=some, use_cache=False) for some in own])  # noqa: B023
    print(taken)


def run_profile() -> None:
    """Capture a shard of each checkpoint in one thread, as a worker does; print the shares of what that consists of."""
    import numpy as np
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from ropewalk.allocator import suit_passes
    from ropewalk.capture.collector import Collection, collect
    from ropewalk.models.loading import load_model
    from ropewalk.models.probe import read_layout
    from ropewalk.models.rotary import with_rotary
    from ropewalk.statistics.base import Scope
    from ropewalk.statistics.behaviour import BehaviourAccumulator
    from ropewalk.statistics.frame import FrameAccumulator
    from ropewalk.statistics.moments import MomentAccumulator
    from ropewalk.statistics.profile import ProfileAccumulator
    from ropewalk.statistics.registry import build
    from ropewalk.statistics.sample import SampleAccumulator

    suit_passes()
    torch.set_num_threads(1)
    study, generator = demo_study(), np.random.default_rng(0)
    shards = []
    for checkpoint in study.checkpoints:
        model, context = load_model(checkpoint), checkpoint.context
        layout = with_rotary(model, read_layout(model), context)
        scope = Scope(context=context, documents=DOCUMENTS, bucket_size=context // 16)
        collection = Collection(layout, layout.heads(), tuple(build(study.capture.statistics)), scope)
        tokens = generator.integers(0, 2000, (DOCUMENTS // study.capture.shards, context)).astype(np.int32)
        batch = max(1, study.capture.batch_tokens // context)
        shards.append(partial(collect, model, collection, tokens, batch=batch))
    shards[0]()
    steps = {
        "the model's attention": (sdpa_attention_forward,),
        "its linear layers": (torch.nn.Linear.forward,),
        "moments": (MomentAccumulator.update,),
        "frame": (FrameAccumulator.update,),
        "profile": (ProfileAccumulator.update,),
        "behaviour": (BehaviourAccumulator.update,),
        "a sample of vectors": (SampleAccumulator.update,),
    }
    print(json.dumps(shares(lambda: [shard() for shard in shards], steps)))


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--demos", type=int, default=5, help="runs of the built-in study")
    parser.add_argument("--passes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.passes is not None:
        run_passes(options.passes)
        return
    if options.profile:
        run_profile()
        return
    profile = subprocess.run([sys.executable, __file__, "--profile"], check=True, stdout=subprocess.PIPE, text=True)
    steps: dict[str, float] = json.loads(profile.stdout)
    found = alternate(
        {
            "python -c pass": running(sys.executable, "-c", "pass"),
            "ropewalk --help": running(*COMMAND, "--help"),
            "ropewalk run --help": running(*COMMAND, "run", "--help"),
            "import ropewalk": running(sys.executable, "-c", "import ropewalk"),
            "first line of a run": first_line,
        },
        options.rounds,
    )
    demos = alternate({"demo": demo, "passes": lambda: {"all": passes()}}, options.demos, warmups=0)
    for phase in (*PHASES, "all"):
        found["ropewalk demo" if phase == "all" else f"- {phase}"] = [one[phase] for one in demos["demo"]]
    found["its forward passes alone"] = [one["all"] for one in demos["passes"]]
    for name, values in found.items():
        series = Series(tuple(values))
        print(f"  {name:<26} {series.median:7.2f} s  ({series.least:.2f} to {series.most:.2f})")
    print("of its capture, by a profiler: " + ", ".join(f"{step} {share:.1%}" for step, share in steps.items()))
    tokens = sum(DOCUMENTS * one.context for one in demo_study().checkpoints)
    keep("start", {"seconds": found, "workers": WORKERS, "tokens": tokens, "steps": steps})


if __name__ == "__main__":
    main()
