"""Write docs/training.md: what the miniature's curves look like at every step that `ropewalk train --observe` sees.

Every number comes from the observed results and from the record of the training.

    OMP_NUM_THREADS=1 ropewalk train --output build/trained --observe results/training    # an hour and a half
    ropewalk analyze results/training
    python scripts/generate_training_doc.py build/trained results/training
"""

import argparse
import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropewalk.figures.findings import sign
from ropewalk.figures.gallery import find, folder_name
from ropewalk.figures.phrases import CORRELATION, QUANTITIES, SHARE, Unit
from ropewalk.figures.style import png
from ropewalk.figures.wording import WHERE, value
from ropewalk.files import write_bytes, write_text
from ropewalk.fingerprint import file_fingerprint
from ropewalk.geometry.taxonomy import DOMINATED
from ropewalk.models.weights import WEIGHTS
from ropewalk.results import load
from ropewalk.summary.tracks import Track
from ropewalk.summary.view import View
from ropewalk.text import count
from ropewalk.train.output import RECORD

DOCUMENT = Path(__file__).parent.parent / "docs" / "training.md"
IMAGES = {
    "position_signal": "Mean r_q and r_k on PC0 at every step that was observed",
    "axis_choice": "The same on three choices of axis",
    "fixed_share": "Fixed share and position, at the end and over training",
}
LEAST = 0.05
"""A curve turns where it goes back by more than this, beyond its error."""


class Curve(NamedTuple):
    """A quantity over the observed steps: what it is called, how it is written, and its numbers."""

    name: str
    unit: Unit
    track: Track


def curves(view: View) -> list[Curve]:
    """The quantities of the page."""
    found = []
    for axis in ("pooled", "drift"):
        for measure in ("mean_r_q", "mean_r_k", f"share_{DOMINATED}"):
            quantity = QUANTITIES[measure]
            found.append(Curve(f"{quantity.name} {WHERE[axis]}", quantity.unit, view.on(axis).track(measure)))
    for measure in ("mean_readout_q", "mean_readout_k", "mean_separation_share"):
        found.append(Curve(QUANTITIES[measure].name, QUANTITIES[measure].unit, view.track(measure)))
    for measure in ("mean_fixed_share_q", "mean_fixed_share_k"):
        found.append(Curve(QUANTITIES[measure].name, SHARE, view.track(measure)))
    return found


def turns(track: Track, indices: Sequence[int], unit: Unit) -> list[int]:
    """Where a curve begins, turns and ends, of these checkpoints.

    It has turned at its last extreme when it has since gone back by more than `LEAST`, and by more than its error
    allows for the largest of all changes between two of them.
    """
    candidates = len(list(combinations(indices, 2)))

    def moved(first: int, last: int) -> int:
        change = track.change(first, last)
        return sign(change, unit, candidates) if abs(change.value) > LEAST else 0

    way, extremes, found = 0, [indices[0], indices[0]], [indices[0]]
    for index in indices[1:]:
        # The lowest and the highest since the last turn.
        low, high = extremes = [choose([*extremes, index], key=track.values.__getitem__) for choose in (min, max)]
        if way <= 0 and moved(low, index) > 0:
            found, way, extremes = [*found, low], 1, [index, index]
        elif way >= 0 and moved(high, index) < 0:
            found, way, extremes = [*found, high], -1, [index, index]
    if way:
        found.append(extremes[way > 0])
    # What lies within `LEAST` of the beginning or the end is no turn.
    for at, end in ((1, indices[0]), (-1, indices[-1])):
        if len(found) > 1 and abs(track.values[found[at]] - track.values[end]) <= LEAST:
            found.pop(at)
    return list(dict.fromkeys([*found, indices[-1]]))


def path(curve: Curve, view: View, indices: Sequence[int]) -> str:
    """A curve by its turns: `0.102 (S1-0) → 0.356 (S1-23) → ...`."""
    return " → ".join(
        f"{curve.unit.number(curve.track.values[index])}{curve.unit.value} ({view.lineup.labels[index]})"
        for index in indices
    )


def turning_section(view: View, saved: NDArray[np.bool_]) -> str:
    """Curves before the first extension of the context, at all steps and at the saved ones."""
    contexts = [int(part["context"].iloc[0]) for part in view.parts]
    short = [index for index, context in enumerate(contexts) if context == contexts[0]]
    kept = [index for index in short if saved[index]]
    rows, unseen = [], 0
    for curve in curves(view):
        every, few = (turns(curve.track, indices, curve.unit) for indices in (short, kept))
        unseen += len(every) > len(few)
        rows.append(f"| {curve.name} | {path(curve, view, every)} | {path(curve, view, few)} |")
    return "\n".join(
        [
            f"| up to {view.lineup.labels[short[-1]]} | at all {len(short)} steps | at the {len(kept)} saved ones |",
            "|---|---|---|",
            *rows,
            "",
            f"{unseen} of {len(rows)} quantities turn more often than the saved checkpoints tell, which begin at "
            f"{view.lineup.labels[kept[0]]}.",
        ]
    )


def peak_section(view: View, saved: NDArray[np.bool_]) -> str:
    """The first rise and fall of mean r_q on PC0, where there is one, and what else goes with it."""
    contexts = [int(part["context"].iloc[0]) for part in view.parts]
    short = [index for index, context in enumerate(contexts) if context == contexts[0]]
    track = view.track("mean_r_q")
    found = turns(track, short, CORRELATION)
    if len(found) < 4 or track.values[found[1]] < track.values[found[0]]:
        return "Mean r_q on PC0 has no early peak in this training."
    labels = [view.lineup.labels[index] for index in found]
    lines = [
        f"Mean r_q on PC0 rises twice: to {value(track.at(found[1]), CORRELATION)} at {labels[1]}, then it falls to "
        f"{value(track.at(found[2]), CORRELATION)} at {labels[2]} before it rises for good. Of the steps in between, "
        f"{count(int(saved[found[1] : found[2] + 1].sum()), 'checkpoint')} was saved."
    ]
    lines += ["", f"| | {' | '.join(labels[:4])} |", "|---|" + "---|" * len(labels[:4])]
    for curve in curves(view):
        cells = [value(curve.track.at(index), curve.unit) for index in found[:4]]
        lines.append(f"| {curve.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def extension_section(view: View) -> str:
    """The first steps after each extension of the context."""
    measures = ("mean_r_q", "mean_r_k", f"share_{DOMINATED}", "mean_fixed_share_k")
    names = [QUANTITIES[measure].name for measure in measures]
    lines = [f"| | context | {' | '.join(names)} |", "|---|---|" + "---|" * len(measures)]
    contexts = [int(part["context"].iloc[0]) for part in view.parts]
    starts = [index for index in range(1, len(contexts)) if contexts[index] != contexts[index - 1]]
    shown: dict[int, None] = {}
    for start, stop in zip(starts, [*starts[1:], len(contexts)], strict=True):
        steps = [int(view.parts[index]["step"].iloc[0]) for index in range(start, stop)]
        doublings = [index for index, step in zip(range(start, stop), steps, strict=True) if step & (step - 1) == 0]
        shown |= dict.fromkeys([start - 1, *doublings, stop - 1])
    for index in shown:
        cells = [value(view.track(one).at(index), QUANTITIES[one].unit) for one in measures]
        lines.append(f"| {view.lineup.labels[index]} | {contexts[index]:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def same_training(output: Path, record: dict[str, Any]) -> str:
    """How the saved checkpoints stand to those of the package: their weights, and their held-out losses."""
    package = Path(str(files("ropewalk") / "data" / "miniature"))
    known = {row["name"]: row for row in json.loads((package / RECORD).read_text(encoding="utf-8"))["checkpoints"]}
    names = [row["name"] for row in record["checkpoints"]]
    weights = [f"checkpoints/{name}/{WEIGHTS}" for name in names]
    same = sum(file_fingerprint(output / name) == file_fingerprint(package / name) for name in weights)
    if same == len(names):
        return f"The {len(names)} checkpoints that it saved are those of the package, byte for byte."
    apart = max(abs(row["heldout_loss"] - known[row["name"]]["heldout_loss"]) for row in record["checkpoints"])
    return (
        f"Held-out losses of the {len(names)} checkpoints that it saved agree within {apart:.4f} nats with those of "
        "the package; weights are not the same to the bit, and on another processor need not be."
    )


def document(view: View, output: Path) -> str:
    """The whole page."""
    record = json.loads((output / RECORD).read_text(encoding="utf-8"))
    kept = {row["label"] for row in record["checkpoints"]}
    saved = np.array([label in kept for label in view.lineup.labels])
    pictures = {name: f"![{text}](images/training_{folder_name(find(name))}.png)" for name, text in IMAGES.items()}
    return f"""# The miniature while it trains

`ropewalk demo` studies ten checkpoints of the miniature. `ropewalk train --observe` trains it again and looks at it
at {len(view.lineup)} steps: at step 0, twice a doubling of the steps of each phase, and where a checkpoint is saved
([live](live.md)). {same_training(output, record)}
Numbers are means over its {len(view.parts[0])} heads on {record["heldout_files"]} held-out texts, with standard errors
over {view.groups[0]} groups of them. This page is written by `python scripts/generate_training_doc.py TRAINED RESULTS`
(its first lines say how both are made).

{pictures["position_signal"]}

## What ten checkpoints do not show

Curves by where they begin, turn and end, while the context is the shortest. A turn counts where the curve goes back by
more than {LEAST} (of 1) and beyond its error, as the largest of all changes ([method](method.md) §7).

{turning_section(view, saved)}

## Two rises

{peak_section(view, saved)}

{pictures["axis_choice"]}

{pictures["fixed_share"]}

## The first steps after an extension

Each phase counts its steps from 1 where the context is extended. Every checkpoint at its own context, the last one
before the extension first.

{extension_section(view)}
"""


def main() -> None:
    """Write the page, and copy its figures beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", type=Path, help="what `ropewalk train` wrote")
    parser.add_argument("results", type=Path, help="what it observed")
    options = parser.parse_args()
    results = load(options.results)
    for name in IMAGES:
        target = DOCUMENT.parent / "images" / f"training_{folder_name(find(name))}.png"
        write_bytes(target, png(results.figure(name)))
    write_text(DOCUMENT, document(results.view, options.trained))


if __name__ == "__main__":
    main()
