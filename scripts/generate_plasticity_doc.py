"""Write docs/plasticity.md: planar rotation and plasticity of the miniature, and how many kept vectors are enough.

Example: ropewalk demo && python scripts/generate_plasticity_doc.py results/miniature
"""

import argparse
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd

from ropewalk.files import write_bytes, write_text
from ropewalk.geometry.jackknife import jackknife_error
from ropewalk.results import Results, load
from ropewalk.statistics.base import KINDS, Sums, layers_of
from ropewalk.statistics.plasticity import read_kept

DOCUMENT = Path(__file__).parent.parent / "docs" / "plasticity.md"
IMAGES = ("plasticity_trajectory", "bias_decomposition")
"""Figures that the page shows."""
SIZES = (64, 128, 256, 512, 1024)
"""Kept vectors of a head and kind that are tried, as far as there are so many."""
COLUMNS = {
    "mean_bias_strength": (1000, 2),
    "mean_bias_strength_context": (1, 2),
    "mean_abs_alpha_k": (1000, 2),
    "mean_abs_alpha_k_context": (1, 2),
    "mean_abs_r_k_a": (1, 3),
    "mean_ap_overall": (1, 3),
    "mean_ap_first_20": (1, 3),
    "mean_ap_drop": (1, 3),
    "mean_ap_gap": (1, 3),
}
"""Quantities of the table, what they are multiplied by, and their digits."""

HEADER = """# Planar rotation and attention plasticity

Written by `python scripts/generate_plasticity_doc.py RESULTS` from the results of `ropewalk demo`; [the
method](method.md) §5 and §6 defines every quantity. `ropewalk head results/miniature --layer 2 --head 3` draws
one head in its plane.

![Plasticity over training](images/plasticity_plasticity_trajectory.png)

![Bias strength per token and per context](images/plasticity_bias_decomposition.png)

## The miniature over its training

Means over heads with standard errors. Slopes are given per 1,000 tokens and per context, because contexts grow
in the last two phases.
"""

PUBLISHED = """
In the published SmolLM3-3B numbers bias strength per token falls by a factor {fall:.0f} from the last checkpoint
at the short context to the last of all, which reads like a collapse; times the context it goes from {low:.0f} to
{high:.0f}. In the miniature, from {before} to {after}, {token} per token and {context} per context. A slope per
token says how steep a path is, and the same path over a longer context is less steep.

`ropewalk compare RESULTS --published smollm3` sets a study of the published checkpoints against the published
numbers, in both units.
"""

ENOUGH = """
## How many kept vectors are enough

Errors of plasticity with fewer kept vectors than there are, drawn from those of {label} ({heads} heads,
{groups} shards of documents). *A head* is the median standard error over heads, *the mean* that of the mean
over all heads, *off* how far the mean over heads comes out from that with all kept vectors.

| kept vectors of a head and kind | a head: overall | a head: drop | the mean: overall | the mean: drop | off: overall |
|---|---|---|---|---|---|
{rows}

A few hundred are enough for means over heads. For single heads, 1,000 and more: the default of `sample` is
2,048 at most. With few kept vectors a bucket has few queries, which the two forms correct for on average (the
last column), and pairs are few in the first buckets, which is where errors of the drop come from.
"""


def main() -> None:
    """Read results and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    folder = parser.parse_args().results
    results = load(folder)
    for name in IMAGES:
        picture = next(folder.glob(f"figures/*_{name}/figure.png")).read_bytes()
        write_bytes(DOCUMENT.parent / "images" / f"plasticity_{name}.png", picture)
    write_text(DOCUMENT, "\n".join([HEADER, *_table(results), _published(results), _enough(results)]))


def _table(results: Results) -> Iterator[str]:
    view = results.view
    names = [name.removeprefix("mean_").removeprefix("abs_") for name in COLUMNS]
    units = [" (per 1,000)" if factor == 1000 else "" for factor, _ in COLUMNS.values()]
    yield "| checkpoint | " + " | ".join(f"{name}{unit}" for name, unit in zip(names, units, strict=True)) + " |"
    yield "|---" * (1 + len(COLUMNS)) + "|"
    for index, label in enumerate(view.lineup.labels):
        cells = []
        for name, (factor, digits) in COLUMNS.items():
            found = view.track(name).at(index)
            cells.append(f"{factor * found.value:.{digits}f} ± {factor * found.se:.{digits}f}")
        yield f"| {label} | " + " | ".join(cells) + " |"


def _published(results: Results) -> str:
    view = results.view
    last = len(view.lineup) - 1
    contexts = [int(part["context"].iloc[0]) for part in view.parts]
    before = max(index for index, context in enumerate(contexts) if context == contexts[0])
    ways = {}
    for unit, name in (("token", "mean_bias_strength"), ("context", "mean_bias_strength_context")):
        start, end = (view.track(name).values[index] for index in (before, last))
        ways[unit] = f"{'falls' if end < start else 'rises'} by a factor {max(start, end) / min(start, end):.1f}"
    labels = view.lineup.labels
    folder = Path(str(files("ropewalk") / "data" / "published" / "smollm3"))
    sheets = [pd.read_csv(folder / f"{name}.csv") for name in ("checkpoints", "rotation_plasticity")]
    slope, length = sheets[1]["bias_strength"], sheets[0]["context"]
    short = int((length == length.iloc[0]).sum()) - 1
    whole = (slope * length).iloc[[short, -1]]
    return PUBLISHED.format(
        **{unit: f"it {way}" for unit, way in ways.items()},
        fall=slope.iloc[short] / slope.iloc[-1],
        low=whole.iloc[0],
        high=whole.iloc[-1],
        before=labels[before],
        after=labels[last],
    )


def _enough(results: Results) -> str:
    name = results.view.lineup.names[-1]
    captured = results.captures[name]
    layers = layers_of(captured.layout, captured.heads)
    parts = [captured.parts("sample", layer) for layer in layers]
    there = min(sum(len(part[f"position.{kind}"]) for part in parts[0]) for kind in KINDS)
    rows, whole = [], float("nan")
    for size in (*(size for size in SIZES if size < 0.9 * there), there)[::-1]:
        read = [
            read_kept(_fewer(part, size / there, number), layer, captured.scope)
            for number, (layer, part) in enumerate(zip(layers, parts, strict=True))
        ]
        values, replicates = (
            {
                column: np.concatenate([getattr(one, kind)[column] for one in read], axis=-1)
                for column in ("ap_overall", "ap_drop")
            }
            for kind in ("values", "replicates")
        )
        single = [np.nanmedian(jackknife_error(replicates[column])) for column in values]
        mean = [jackknife_error(np.nanmean(replicates[column], axis=1)) for column in values]
        whole = float(np.nanmean(values["ap_overall"])) if np.isnan(whole) else whole
        off = float(np.nanmean(values["ap_overall"])) - whole
        cells = [*(f"{float(one):.3f}" for one in (*single, *mean)), f"{off:+.3f}"]
        rows.append(f"| {'all, ' if size == there else ''}{size:,} | " + " | ".join(cells) + " |")
    facts = {"label": results.view.lineup.labels[-1], "heads": len(captured.heads), "groups": len(parts[0])}
    return ENOUGH.format(**facts, rows="\n".join(rows[::-1]))


def _fewer(parts: Sequence[Sums], share: float, seed: int) -> list[Sums]:
    """The same kept vectors, each with this probability."""
    generator = np.random.default_rng(seed)
    fewer: list[Sums] = []
    for part in parts:
        own: dict[str, np.ndarray] = {}
        for kind in KINDS:
            kept = generator.random(len(part[f"position.{kind}"])) < share
            own[f"{kind}.vectors"] = part[f"{kind}.vectors"][:, kept]
            own |= {f"{name}.{kind}": part[f"{name}.{kind}"][kept] for name in ("document", "position")}
        fewer.append(own)
    return fewer


if __name__ == "__main__":
    main()
