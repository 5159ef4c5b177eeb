"""Write docs/miniature.md: the published SmolLM3-3B findings beside the miniature's, finding by finding.

Every number comes from results/miniature (run `ropewalk demo` first) and from the published tables in the package.

    python scripts/generate_miniature_doc.py [results/miniature]
"""

import argparse
import shutil
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ropewalk.capture.run import capture_study
from ropewalk.demo import demo_study
from ropewalk.figures.gallery import find, folder_name
from ropewalk.figures.wording import BEYOND, CORRELATION, SHARE, Unit, value
from ropewalk.files import write_text
from ropewalk.geometry.taxonomy import CATEGORIES, DEPTH_BINS, HIGH, depth_bin
from ropewalk.models.layout import AttentionLayer, Layout
from ropewalk.results import analyze, load
from ropewalk.summary.measures import Measure
from ropewalk.summary.tracks import Estimate
from ropewalk.summary.view import View

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "miniature.md"
IMAGES = {
    folder_name(find(name)): text
    for name, text in {
        "position_signal": "Position correlation on PC0 over training",
        "concordance": "Concordance: signed and absolute r_k, RoPE and NoPE layers apart",
        "taxonomy_evolution": "Head taxonomy over training",
        "category_flows": "Which heads change category",
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


def depth_gradient(heads: pd.DataFrame) -> float:
    """Mean r_k of the first three depth bins minus that of the last three, bins weighted alike."""
    cells = heads.groupby("bin")["r_k"].mean().reindex(range(DEPTH_BINS))
    return float(cells.iloc[:3].mean() - cells.iloc[-3:].mean())


def strong_keys(heads: pd.DataFrame) -> float:
    """Share of heads with |r_k| above the taxonomy's upper threshold."""
    return float((heads["r_k"].abs() > HIGH).mean())


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
        Finding(f"Heads with abs r_k > {HIGH} rise with the extensions", strong, strong_keys, *extensions, SHARE),
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


def _share(category: int) -> str:
    return f"share_{CATEGORIES[category]}"


def verdict(published: float, measured: Estimate) -> str:
    """`same` or `different` sign where the miniature's number exceeds its error enough, else that it cannot be told."""
    if np.isnan(measured.value) or abs(measured.value) <= BEYOND * measured.se:
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


def null_section(view: View) -> str:
    """The last checkpoint against the same architecture with random weights, on the same documents."""
    study = demo_study()
    last = study.checkpoints[-1]
    untrained = last.model_copy(update={"random_weights": True, "name": "untrained", "label": "untrained"})
    null = study.model_copy(update={"name": "miniature_null", "results": "", "checkpoints": (untrained,)})
    capture_study(null)
    analyze(null.folder)
    other = analyze(null.folder).view
    lines = ["| at context 2,048 | trained (last checkpoint) | untrained |", "|---|---|---|"]
    names = {
        "mean_r_q": ("mean r_q", CORRELATION),
        "mean_r_k": ("mean r_k", CORRELATION),
        "mean_abs_r_k": ("mean abs r_k", CORRELATION),
        _share(0): ("position-dominated heads", SHARE),
        _share(3): ("content-focused heads", SHARE),
    }
    for measure, (name, unit) in names.items():
        ours, theirs = view.track(measure).at(LAST), other.track(measure).at(0)
        lines.append(f"| {name} | {value(ours, unit)} | {value(theirs, unit)} |")
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


def document(results: Path) -> str:
    """The whole page."""
    view = load(results).view
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
    table = "\n".join(finding_row(view, finding) for finding in findings())
    return f"""# The miniature study

`ropewalk demo` runs the ten checkpoints of a miniature SmolLM3 ({len(view.parts[0])} query heads,
{int(view.parts[0]["layers"].iloc[0])} layers, every 4th without RoPE) that was trained from scratch through the five
phases of the published SmolLM3-3B run in small; its [model card](../src/ropewalk/data/miniature/README.md) says how.
This page sets what it shows beside what was published. It is written by `python scripts/generate_miniature_doc.py`
from `results/miniature`.

{pictures}

## Finding by finding

Published numbers are those of SmolLM3-3B (300 of 576 heads, contexts 4,096 to 65,536); the miniature's are over all its
heads at contexts 256 to 2,048, with delete-one-shard jackknife errors over documents ([method](method.md) §7). "Same"
and "different" compare the direction, where the miniature's change exceeds {BEYOND} standard errors. "Fitted" numbers
were not published: they follow from the published depth cells and the share of NoPE heads in each ([method](method.md)
§4).

| finding | published | miniature | verdict |
|---|---|---|---|
{table}

## Do NoPE heads turn discordant when the context is extended?

{answer} ({CORRELATION.number(change.value)}{CORRELATION.error(change.se)}). It ends at
{value(end, CORRELATION)}, {side[verdict(-1.0, end)]}. On PC0 their keys carry little position at all: the mean of
abs r_k is {sizes[0]} in NoPE layers and {sizes[1]} in RoPE layers at the last checkpoint.

{nope_section(view)}

## Is it more than nothing?

RoPE alone leaves correlations in an untrained model. The last checkpoint, and the same architecture with random weights
on the same documents:

{null_section(view)}
"""


def main() -> None:
    """Write the page and copy its figures beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=Path("results/miniature"))
    results = parser.parse_args().results
    for name in IMAGES:
        target = DOCUMENT.parent / "images" / f"miniature_{name}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(results / "figures" / name / "figure.png", target)
    write_text(DOCUMENT, document(results))


if __name__ == "__main__":
    main()
