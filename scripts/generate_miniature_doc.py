"""Write docs/miniature.md: the published SmolLM3-3B findings beside the miniature's, finding by finding.

Every number comes from the built-in study, run here with the untrained model as a second null (where it is in
results/miniature_nulls already, it goes on), and from the published tables in the package.

    python scripts/generate_miniature_doc.py [results/miniature_nulls]
"""

import argparse
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ropewalk.demo import demo_study
from ropewalk.figures.findings import sign
from ropewalk.figures.gallery import find, folder_name
from ropewalk.figures.phrases import CORRELATION, SHARE, Unit
from ropewalk.figures.wording import WHERE, value
from ropewalk.files import write_text
from ropewalk.geometry.axes import AXES
from ropewalk.geometry.taxonomy import CATEGORIES, DEPTH_BINS, HIGH, depth_bin
from ropewalk.models.layout import AttentionLayer, Layout
from ropewalk.pipeline import run_study
from ropewalk.summary.measures import Columns, Mean, Measure, Share, in_bins
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import COMMON, View

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "miniature.md"
IMAGES = {
    folder_name(find(name)): text
    for name, text in {
        "position_signal": "Position correlation on PC0 over training",
        "concordance": "Concordance: signed and absolute r_k, RoPE and NoPE layers apart",
        "taxonomy_evolution": "Head taxonomy over training",
        "category_flows": "Which heads change category",
        "axis_choice": "The same heads on three choices of axis",
    }.items()
}
STAGE1, STAGE3, LAST = (0, 3), 5, 9
"""Indices of the checkpoints in both series: first and last of stage 1, stage 3, the end of the extensions."""


class Finding(NamedTuple):
    """A published change between two checkpoints, or (first None) a value at one, and how the miniature measures it."""

    sentence: str
    published: pd.Series
    measure: str | Measure
    first: int | None
    last: int
    unit: Unit


def published_tables() -> dict[str, pd.DataFrame]:
    """The published tables by name, checkpoints in order."""
    folder = files("ropewalk") / "data" / "published" / "smollm3"
    names = ("checkpoints", "taxonomy", "depth_r_q", "depth_r_k")
    return {name: pd.read_csv(str(folder / f"{name}.csv")) for name in names}


def published_split(depth_r_k: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Mean r_k of RoPE and of NoPE heads, fitted to the published cells of the depth heatmap.

    Each cell is a mean over its bin's sampled heads, so cell = (1 - f) RoPE + f NoPE with f the NoPE share of the bin;
    least squares over the ten bins, weighted by their heads.
    """
    layers = tuple(AttentionLayer(i, i, 16, 4, 128, 0.0 if i % 4 == 3 else 1.0, None) for i in range(36))
    heads = Layout("smollm3", 36, layers, False).heads(300, 0)
    bins = depth_bin([head.layer for head in heads], 35)
    nope = np.array([head.layer % 4 == 3 for head in heads])
    count = np.bincount(bins, minlength=DEPTH_BINS)
    share = np.bincount(bins, weights=nope, minlength=DEPTH_BINS) / count
    weight = np.sqrt(count)
    design = np.column_stack([1 - share, share]) * weight[:, None]
    cells = depth_r_k.iloc[:, 1:].to_numpy(dtype=float)
    fit = np.array([np.linalg.lstsq(design, row * weight, rcond=None)[0] for row in cells])
    return pd.Series(fit[:, 0]), pd.Series(fit[:, 1])


def _share(category: int) -> str:
    return f"share_{CATEGORIES[category]}"


def depth_gradient(heads: Columns) -> Any:
    """Mean r_k of the first three depth bins minus that of the last three, bins weighted alike."""
    cells = [Mean("r_k", among=in_bins(depth))(heads) for depth in range(DEPTH_BINS)]
    return sum(cells[:3]) / 3 - sum(cells[-3:]) / 3


STRONG_KEYS = Share(lambda heads: np.abs(heads["r_k"]) > HIGH, lambda heads: ~np.isnan(heads["r_k"]))
"""Share of heads with |r_k| above the taxonomy's upper threshold."""


def findings() -> list[Finding]:
    """The published findings, as numbers."""
    tables = published_tables()
    points, taxonomy, depth = tables["checkpoints"], tables["taxonomy"], tables["depth_r_k"]
    cells = depth.iloc[:, 1:].to_numpy(dtype=float)
    gradient = pd.Series(cells[:, :3].mean(axis=1) - cells[:, -3:].mean(axis=1))
    rope, nope = published_split(depth)
    strong = taxonomy["position_dominated"] + taxonomy["k_positional"]
    variance = points["mean_explained_variance"]
    dominated = taxonomy["position_dominated"]
    extensions = (STAGE3, LAST)
    return [
        Finding("Mean r_q rises in stage 1", points["mean_r_q"], "mean_r_q", *STAGE1, CORRELATION),
        Finding("Mean r_q rises with the extensions", points["mean_r_q"], "mean_r_q", *extensions, CORRELATION),
        Finding("Mean r_k rises in stage 1", points["mean_r_k"], "mean_r_k", *STAGE1, CORRELATION),
        Finding("Mean r_k falls with the extensions", points["mean_r_k"], "mean_r_k", *extensions, CORRELATION),
        Finding(f"Heads with abs r_k > {HIGH} rise with the extensions", strong, STRONG_KEYS, *extensions, SHARE),
        Finding(
            "r_k of NoPE heads falls with the extensions (fitted)", nope, "mean_r_k_nope", *extensions, CORRELATION
        ),
        Finding(
            "r_k of RoPE heads rises with the extensions (fitted)", rope, "mean_r_k_rope", *extensions, CORRELATION
        ),
        Finding("NoPE heads end with mean r_k below 0 (fitted)", nope, "mean_r_k_nope", None, LAST, CORRELATION),
        Finding("Early layers have the higher r_k at the end", gradient, depth_gradient, None, LAST, CORRELATION),
        Finding("Position-dominated heads rise in stage 1", dominated, _share(0), *STAGE1, SHARE),
        Finding("Position-dominated heads rise with the extensions", dominated, _share(0), *extensions, SHARE),
        Finding("Q-positional heads fall with the extensions", taxonomy["q_positional"], _share(1), *extensions, SHARE),
        Finding("Content-focused heads fall in stage 1", taxonomy["content_focused"], _share(3), *STAGE1, SHARE),
        Finding("PC0 explains more in stage 1", variance, "mean_explained_variance", *STAGE1, CORRELATION),
        Finding("PC0 explains more with the extensions", variance, "mean_explained_variance", *extensions, CORRELATION),
    ]


def verdict(published: float, measured: Estimate) -> str:
    """`same` or `different` sign where the miniature's number exceeds its error enough, else that it cannot be told."""
    if not sign(measured, CORRELATION):
        return "too small to tell"
    return "same" if np.sign(measured.value) == np.sign(published) else "**different**"


def finding_row(view: View, finding: Finding) -> str:
    """A row of the table."""
    track, unit = view.track(finding.measure), finding.unit
    last = finding.published.iloc[finding.last]
    if finding.first is None:
        theirs, ours = float(last), track.at(finding.last)
        texts = unit.number(theirs) + unit.value, value(ours, unit)
    else:
        start = finding.published.iloc[finding.first]
        theirs, ours = float(last - start), track.change(finding.first, finding.last)
        texts = (
            f"{unit.number(start)} → {unit.number(last)}{unit.value}",
            f"{unit.number(track.values[finding.first])} → {unit.number(track.values[finding.last])}{unit.value}"
            f" ({'+' if ours.value >= 0 else ''}{unit.number(ours.value)}{unit.error(ours.se)})",
        )
    return f"| {finding.sentence} | {texts[0]} | {texts[1]} | {verdict(theirs, ours)} |"


QUANTITIES = {
    "mean_r_q": ("mean r_q", CORRELATION),
    "mean_r_k": ("mean r_k", CORRELATION),
    "mean_abs_r_k": ("mean abs r_k", CORRELATION),
    "discordant": ("discordant among the decided", SHARE),
    _share(0): ("position-dominated heads", SHARE),
    _share(3): ("content-focused heads", SHARE),
}


def null_section(view: View) -> str:
    """The last checkpoint, with shuffled positions, and the same architecture with random weights."""
    shuffled = {name: f"{name}_permuted" for name in ("mean_r_q", "mean_r_k", "mean_abs_r_k")}
    lines = [
        "| at context 2,048 | trained (last checkpoint) | positions shuffled | untrained | trained - untrained |",
        "|---|---|---|---|---|",
    ]
    for measure, (name, unit) in QUANTITIES.items():
        untrained, above = view.track_untrained(measure), view.above_untrained(measure, LAST)
        assert untrained is not None
        assert above is not None
        permuted = value(view.track(shuffled[measure]).at(LAST), unit) if measure in shuffled else ""
        both = [value(track.at(LAST), unit) for track in (view.track(measure), untrained)]
        cells = (both[0], permuted, both[1], _signed(above, unit))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _signed(change: Estimate, unit: Unit) -> str:
    return f"{'+' if change.value >= 0 else ''}{unit.number(change.value)}{unit.error(change.se)}"


def axis_section(view: View) -> str:
    """The same heads on each choice of axis, at the first and the last checkpoint."""
    lines = [
        f"| {view.lineup.labels[0]} → {view.lineup.labels[LAST]} | {' | '.join(WHERE[name] for name in AXES)} |",
        "|---|" + "---|" * len(AXES),
    ]
    for measure, (name, unit) in QUANTITIES.items():
        tracks = [view.on(axis).track(measure) for axis in AXES]
        cells = [f"{value(track.at(0), unit)} → {value(track.at(LAST), unit)}" for track in tracks]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def context_section(view: View) -> str:
    """Changes from stage 3 to the end, as they are and with every document cut to the shortest context."""
    cut = view.with_columns(COMMON)
    lines = [
        "| stage 3 → end of the extensions | each at its own context | all at 256 tokens |",
        "|---|---|---|",
    ]
    for measure, (name, unit) in QUANTITIES.items():
        cells = []
        for one in (view, cut):
            track, change = one.track(measure), one.track(measure).change(STAGE3, LAST)
            ends = f"{unit.number(track.values[STAGE3])} → {unit.number(track.values[LAST])}{unit.value}"
            cells.append(f"{ends} ({_signed(change, unit)})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def nope_section(view: View) -> str:
    """r_k of RoPE and NoPE layers at every checkpoint."""
    lines = [
        "| checkpoint | r_k, RoPE layers | r_k, NoPE layers | abs r_k, NoPE layers | discordant NoPE heads |",
        "|---|---|---|---|---|",
    ]
    for index, label in enumerate(view.lineup.labels):
        cells = [
            value(view.track(measure).at(index), unit)
            for measure, unit in (
                ("mean_r_k_rope", CORRELATION),
                ("mean_r_k_nope", CORRELATION),
                ("mean_abs_r_k_nope", CORRELATION),
                ("discordant_nope", SHARE),
            )
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ends(view: View, measure: str, unit: Unit = CORRELATION) -> list[str]:
    """A measure at the first and the last checkpoint."""
    return [value(view.track(measure).at(index), unit) for index in (0, LAST)]


def context_answer(view: View) -> str:
    """Whether what the extensions do to r_q is still there at one context."""
    own, cut = (verdict(1.0, one.track("mean_r_q").change(STAGE3, LAST)) for one in (view, view.with_columns(COMMON)))
    way = {"same": "rises", "**different**": "falls", "too small to tell": "does not change beyond its error"}
    so = "So it is the longer range that is measured, and not only what training did." if own != cut else ""
    return (
        f"Mean r_q {way[own]} with the extensions at each checkpoint's own context, and {way[cut]} at one context. {so}"
    ).strip()


def axis_answer(view: View) -> str:
    """On which axes the share of position-dominated heads rises over the whole training."""
    found = {axis: verdict(1.0, view.on(axis).track(_share(0)).change(0, LAST)) == "same" for axis in AXES}
    rising = [WHERE[axis] for axis, rises in found.items() if rises]
    others = [WHERE[axis] for axis, rises in found.items() if not rises]
    if not others:
        return "The share of position-dominated heads rises over training whichever axis is chosen."
    if not rising:
        return "The share of position-dominated heads does not rise over training on any axis."
    return (
        f"The share of position-dominated heads rises over training {' and '.join(rising)}, and not "
        f"{' nor '.join(others)}: it hangs on the choice of axis."
    )


def withdrawn(rows: list[str]) -> str:
    """What stood here as a finding while shares had errors that were too small."""
    row = next(row for row in rows if "Content-focused heads fall in stage 1" in row)
    if "too small" not in row:
        return ""
    return (
        " The fall of content-focused heads in stage 1 stood here as the same when errors of shares were those of\n"
        "a jackknife, which is blind to heads near a threshold; it does not stand."
    )


def document(view: View) -> str:
    """The whole page."""
    change = view.track("mean_r_k_nope").change(STAGE3, LAST)
    end = view.track("mean_r_k_nope").at(LAST)
    answer = {
        "same": "Their mean r_k falls with the extensions",
        "**different**": "No: their mean r_k rises with the extensions",
        "too small to tell": "Not in the miniature: their mean r_k does not change beyond its error",
    }[verdict(-1.0, change)]
    side = {"same": "below 0", "**different**": "above 0", "too small to tell": "not beyond its error from 0"}
    sizes = [value(view.track(f"mean_abs_r_k_{layers}").at(LAST), CORRELATION) for layers in ("nope", "rope")]
    pictures = "\n\n".join(f"![{text}](images/miniature_{name}.png)" for name, text in IMAGES.items())
    rows = [finding_row(view, finding) for finding in findings()]
    table = "\n".join(rows)
    counts = [sum(word in row for row in rows) for word in ("| same |", "different", "too small")]
    separation = ends(view, "mean_separation_share", SHARE)
    above = [value(view.track(f"above_permuted_{kind}").at(LAST), SHARE) for kind in ("q", "k")]
    return f"""# The miniature study

`ropewalk demo` runs the ten checkpoints of a miniature SmolLM3 ({len(view.parts[0])} query heads,
{int(view.parts[0]["layers"].iloc[0])} layers, every 4th without RoPE) that was trained from scratch through the five
phases of the published SmolLM3-3B run in small; its [model card](../src/ropewalk/data/miniature/README.md) says how.
This page sets what it shows beside what was published, and says what of it hangs on the axis, the context and the
architecture alone. It is written by `python scripts/generate_miniature_doc.py`, which runs the same study with
`nulls: [permuted, untrained]`.

{pictures}

## Finding by finding

Published numbers are those of SmolLM3-3B (300 of 576 heads, contexts 4,096 to 65,536); the miniature's are over all its
heads on PC0, at contexts 256 to 2,048, with standard errors over {view.groups[0]} groups of documents
([method](method.md) §7). "Same" and "different" compare the direction, where the miniature's change lies outside its
95% interval. "Fitted" numbers were not published: they follow from the published depth cells and the share of NoPE
heads in each ([method](method.md) §4).

| finding | published | miniature | verdict |
|---|---|---|---|
{table}

{counts[0]} of {len(rows)} come out the same, {counts[1]} different, {counts[2]} too small to
tell.{withdrawn(rows)} What follows says how far the same ones are about training.

## Is it the training or the context?

A correlation with position depends on how far positions reach, and the extensions change both the weights and the
context. From the same capture, with every document cut to the shortest context:

{context_section(view)}

{context_answer(view)}

## Which axis?

How much of PC0's variance is the offset between queries and keys, as a mean over heads: {separation[0]} at
{view.lineup.labels[0]}, {separation[1]} at {view.lineup.labels[LAST]}. The same heads on three choices of axis
([method](method.md) §3):

{axis_section(view)}

{axis_answer(view)} The readout, which needs no axis, goes from {" to ".join(ends(view, "mean_readout_q"))} for queries
and from {" to ".join(ends(view, "mean_readout_k"))} for keys.

## Do NoPE heads turn discordant when the context is extended?

{answer} ({CORRELATION.number(change.value)}{CORRELATION.error(change.se)}). It ends at
{value(end, CORRELATION)}, {side[verdict(-1.0, end)]}. On PC0 their keys carry little position at all: the mean of
abs r_k is {sizes[0]} in NoPE layers and {sizes[1]} in RoPE layers at the last checkpoint. Discordant is counted among
the heads whose r_q and r_k are both beyond their errors.

{nope_section(view)}

## Is it more than nothing?

RoPE alone leaves correlations in an untrained model. The last checkpoint, the same with positions shuffled within
documents, and the same architecture with random weights on the same documents:

{null_section(view)}

r_q of {above[0]} of the heads and abs r_k of {above[1]} are above those of shuffled positions.
"""


def main() -> None:
    """Run the study with its nulls, write the page and copy its figures beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=Path("results/miniature_nulls"))
    results = parser.parse_args().results
    study = demo_study().model_copy(update={"nulls": ("permuted", "untrained"), "results": str(results)})
    view = run_study(study).view
    for name in IMAGES:
        target = DOCUMENT.parent / "images" / f"miniature_{name}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(results / "figures" / name / "figure.png", target)
    write_text(DOCUMENT, document(view))


if __name__ == "__main__":
    main()
