"""Write docs/models.md: what was found on a tiny random model of each type, by the check that the tests make.

Example: python scripts/generate_models_doc.py
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import transformers

from ropewalk.files import write_text
from ropewalk.models.layout import Layout

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))
model_types: Any = importlib.import_module("helpers.model_types")

HEADER = """# Models

The tap sees the queries and keys of every model whose attention goes through transformers' registry. This page is
written by `scripts/generate_models_doc.py` from a check that the tests repeat: of each decoder type a tiny random model
is built (4 layers unless its kind needs others, 4 query heads, mostly 2 key heads), and on it

- the attention output recomputed from the tapped q, k and v is the one the model uses, which also proves the map from
  query heads to key heads and the mask;
- changing a tapped key changes the logits, in every layer;
- logits with the tap are bit-identical to those without;
- the rotary fraction is measured: the same hidden states at shifted positions, and the share of head dimensions that
  move in both q and k; "not measured" is a model that takes no position ids;
- sliding layers are those whose mask hides keys further away than the window.

`ropewalk doctor` makes the same check on the model you bring, and every capture makes its first and third point, on a
few tokens, before its first shard: manifest and report say how it went, and a model that fails is not captured.
Attention is recomputed in float64, and the model's attention function is held to it in float32, within 1e-5 of the
largest entry (or, where scores are in the hundreds, within the rounding of a score). In half precision a fault of a
percent would not show: there each call is made once more with its tensors in float32, and what half precision adds is
said apart. All types below pass in float32, bfloat16 and float16, with the attention they choose and with eager
attention. Captured all the same, with the words "could not be proven", are a model that gives other logits each time
it runs, an attention function that is given tensors of which the recomputation does not know, and a mask that is
neither a tensor nor flex attention's. An attention function without float32, as flash attention's, is proven in the
type it has, to 5e-2.

Layer numbers in the table are those of the tiny model; a type's own configuration decides where they are in a real one.
Checked with transformers {version}.

| types | |
|---|---|
| {tapped} | tapped and checked |
| {refused} | use the registry, and are refused when the model is first run, with a sentence |
| {not_built} | could not be built here |
| {no_dispatch} | do not use the registry: refused before weights are loaded, with a sentence |

## Tapped

| model type | tapped | rotary fraction | NoPE layers | sliding layers | QK-norm | notes |
|---|---|---|---|---|---|---|
"""


def expected_row(name: str) -> str:
    """The row of a type that is as `TYPES` says."""
    entry = model_types.TYPES[name]
    return _row(name, entry.layers, entry.depth, entry.each("rotary"), entry.each("window"), entry.qk_norm, entry.note)


def found_row(name: str) -> str:
    """The row of a type as it was found; stops where a check fails."""
    found = model_types.check(name)
    failed = [finding for finding in found.findings if not finding.passed]
    if failed:
        raise SystemExit(f"{name}: {failed[0].check}: {failed[0].detail}")
    layout: Layout = found.layout
    rotary = tuple(layer.rotary for layer in layout.layers)
    windows = tuple(layer.window for layer in layout.layers)
    layers = tuple(layer.layer for layer in layout.layers)
    return _row(name, layers, layout.depth, rotary, windows, found.qk_norm, model_types.TYPES[name].note)


def refused_rows() -> list[str]:
    """Rows of the types that cannot be studied, with the reason."""
    refused = [f"| `{name}` | refused | {reason} |" for name, (_, reason) in sorted(model_types.REFUSED.items())]
    not_built = [f"| `{name}` | not built | {reason} |" for name, reason in sorted(model_types.NOT_BUILT.items())]
    reason = "its attention does not go through the registry, or it has none"
    return [
        *refused,
        *not_built,
        *(f"| `{name}` | refused before loading | {reason} |" for name in model_types.NO_DISPATCH),
    ]


def document() -> str:
    """The whole page."""
    counts = {
        "tapped": len(model_types.TYPES),
        "refused": len(model_types.REFUSED),
        "not_built": len(model_types.NOT_BUILT),
        "no_dispatch": len(model_types.NO_DISPATCH),
    }
    lines = [found_row(name) for name in model_types.TYPES]
    header = HEADER.format(version=transformers.__version__, **counts)
    others = ["", "## Not tapped", "", "| model type | | reason |", "|---|---|---|", *refused_rows(), ""]
    return header + "\n".join([*lines, *others])


def _row(
    name: str,
    layers: tuple[int, ...],
    depth: int,
    rotary: tuple[Any, ...],
    windows: tuple[Any, ...],
    qk_norm: bool,
    note: str,
) -> str:
    shares = sorted({share for share in rotary if share}, reverse=True)
    measured = ", ".join(f"{share:.3g}" for share in shares) or "none"
    fraction = "not measured" if None in rotary else measured
    tapped = f"{len(layers)} of {depth} layers"
    nope = _numbers([layer for layer, share in zip(layers, rotary, strict=True) if share == 0], layers)
    sliding = _numbers([layer for layer, window in zip(layers, windows, strict=True) if window], layers)
    return f"| `{name}` | {tapped} | {fraction} | {nope} | {sliding} | {'yes' if qk_norm else ''} | {note} |"


def _numbers(some: list[int], layers: tuple[int, ...]) -> str:
    return "all" if len(some) == len(layers) else ", ".join(str(layer) for layer in some)


if __name__ == "__main__":
    write_text(ROOT / "docs" / "models.md", document())
