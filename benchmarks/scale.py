"""How time and memory grow: with tokens, documents, heads and head_dim; a model of 3 billion parameters; a whole study.

Each size is measured in alternating rounds beside the plain forward pass (capture) or beside one eigendecomposition a
head (analysis). The model of SmolLM3-3B's shape has random weights. What the published study would take on a GPU is
computed from operations, and said to be.

    python benchmarks/scale.py [--rounds 5] [--only tokens documents analysis large study]
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import SmolLM3Config, SmolLM3ForCausalLM

from analysis import decomposing, write_results
from measuring import Series, keep, side_by_side
from ropewalk.allocator import suit_passes
from ropewalk.capture.collector import Collection, collect
from ropewalk.models.probe import read_layout
from ropewalk.models.rotary import with_rotary
from ropewalk.results import analyze
from ropewalk.statistics.base import Scope
from ropewalk.statistics.registry import build
from ropewalk.study import Capture
from ropewalk.studyfile import load_study
from ropewalk.text import size

STUDY = Path(__file__).parent.parent / "configs" / "smollm3_training_progress.yaml"
GPU, USED = 989e12, 0.4
"""Operations a second that an H100 states for bfloat16 without sparsity, and the share that a forward pass reaches."""
Measured = dict[str, dict[str, Any]]


def small_model() -> nn.Module:
    """A random SmolLM3 of few and narrow layers, in which long documents fit."""
    return model(hidden=128, intermediate=384, layers=4, heads=2, keys=1, d=32)


def large_model() -> nn.Module:
    """A random model of SmolLM3-3B's shape but for its vocabulary, which a capture does not see."""
    return model(hidden=2048, intermediate=11008, layers=36, heads=16, keys=4, d=128)


def model(hidden: int, intermediate: int, layers: int, heads: int, keys: int, d: int) -> nn.Module:
    """A random SmolLM3."""
    torch.manual_seed(0)
    config = SmolLM3Config(
        vocab_size=1024,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        head_dim=d,
        max_position_embeddings=1 << 17,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    made: nn.Module = SmolLM3ForCausalLM(config).eval()
    return made


def captures(own: nn.Module, documents: int, length: int) -> dict[str, Callable[[], object]]:
    """The plain pass, moments and all statistics over random documents."""
    tokens = np.random.default_rng(0).integers(0, 1024, size=(documents, length)).astype(np.int32)
    layout = with_rotary(own, read_layout(own), length)
    scope = Scope(context=length, documents=documents, bucket_size=max(1, length // 16))
    backbone: Any = own.get_decoder()  # type: ignore[operator]

    @torch.inference_mode()
    def plain() -> None:
        for row in tokens:
            backbone(input_ids=torch.from_numpy(row.astype(np.int64))[None], use_cache=False)

    def capturing(*names: str) -> Callable[[], object]:
        collection = Collection(layout, layout.heads(), build({name: {} for name in names}), scope)
        return lambda: collect(own, collection, tokens)

    return {"plain": plain, "moments": capturing("moments"), "all": capturing(*Capture().statistics)}


def over_tokens(rounds: int) -> dict[str, Measured]:
    """One document, longer and longer."""
    own = small_model()
    return {str(length): side_by_side(captures(own, 1, length), rounds) for length in (1024, 4096, 16384, 65536)}


def over_documents(rounds: int) -> dict[str, Measured]:
    """More and more documents of 1,024 tokens."""
    own = small_model()
    return {str(count): side_by_side(captures(own, count, 1024), rounds) for count in (1, 4, 16, 64)}


def over_heads(rounds: int) -> dict[str, Measured]:
    """From shards to tables: more heads of 128 dimensions, and 100 heads of more dimensions."""
    found = {}
    for heads, d in ((30, 128), (100, 128), (300, 128), (576, 128), (100, 32), (100, 64), (100, 256)):
        with TemporaryDirectory() as folder:
            results = Path(folder)
            write_results(results, heads, Capture().shards, d, dump=False)
            works: dict[str, Callable[[], object]] = {
                "plain": decomposing(heads, d, 1),
                "all": lambda results=results: analyze(results),  # type: ignore[misc]
            }
            found[f"{heads} x {d}"] = side_by_side(works, rounds)
    return found


def large(rounds: int) -> dict[str, Measured]:
    """SmolLM3-3B's shape in float32, 256 tokens."""
    own = large_model()
    return {"256": side_by_side(captures(own, 1, 256), rounds)}


def whole_study() -> dict[str, float]:
    """The published study, computed: operations and hours on a GPU, disk, and what dumping vectors would take.

    Two operations a parameter and token, four a pair of tokens, layer and dimension of all heads for attention (half
    of them masked), and two a head and pair of dimensions for moments, of queries and of keys, taken in float32.
    """
    study = load_study(STUDY)
    with torch.device("meta"):
        own = large_model()
    body = sum(one.numel() for name, one in own.named_parameters() if "embed" not in name and "lm_head" not in name)
    text: Any = own.config
    layers, queries, keys = text.num_hidden_layers, text.num_attention_heads, text.num_key_value_heads
    d, chosen = text.head_dim, study.capture.heads
    assert isinstance(chosen, int)
    documents = study.corpus.documents or 0
    tokens = [documents * one.context for one in study.checkpoints]
    forward = sum(2 * body * count for count in tokens)
    attention = sum(
        2 * layers * queries * d * one.context * count for one, count in zip(study.checkpoints, tokens, strict=True)
    )
    stored = chosen + layers * keys
    sums = []
    for one in study.checkpoints:
        scope = Scope(context=one.context, documents=documents, bucket_size=one.bucket_size or one.context // 16)
        chosen_statistics = build(study.capture.statistics)
        sums.append(sum(each.stored_bytes(stored, d, scope, 1) for each in chosen_statistics))
    return {
        "tokens": float(sum(tokens)),
        "forward": float(forward),
        "attention": float(attention),
        "moments": float(sum(2 * stored * d * d * count for count in tokens)),
        "used": USED,
        "hours": (forward + attention) / (GPU * USED) / 3600,
        "disk": study.capture.shards * sum(sums),
        "held": max(sums),
        "vectors": float(max(one.context for one in study.checkpoints)) * stored * d * 2,
        "dump": float(sum(tokens)) * stored * d * 2,
        "sampled": float(len(tokens) * documents * 16 * stored * d * 2),
    }


PARTS: dict[str, Callable[[int], Any]] = {
    "tokens": over_tokens,
    "documents": over_documents,
    "analysis": over_heads,
    "large": large,
    "study": lambda _: whole_study(),
}


def weight(one: Mapping[str, Any]) -> str:
    """The median of peaks."""
    return size(Series(tuple(one["peaks"])).median)


def show(name: str, found: dict[str, Any]) -> None:
    """Print what a part found."""
    print(name)
    for key, row in found.items():
        if not isinstance(row, dict):
            print(f"  {key:<12} {row:.3g}")
            continue
        plain = Series(tuple(row["plain"]["seconds"]))
        cells = [
            f"{work} {Series(tuple(one['seconds'])).over(plain).median:.3f} ({weight(one)})"
            for work, one in row.items()
            if work != "plain"
        ]
        print(f"  {key:>10}  plain {plain.median:8.3f} s ({weight(row['plain'])})   {'   '.join(cells)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args(arguments)
    # Before the first tensor: all take and keep memory as captures do.
    suit_passes()
    found = {}
    for name in options.only:
        found[name] = PARTS[name](options.rounds)
        show(name, found[name])
    keep("scale", {"rounds": options.rounds, **found})


if __name__ == "__main__":
    main()
