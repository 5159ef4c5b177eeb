"""Write benchmarks/results.md and its plot from what the benchmarks kept of their last run in build/bench.

python benchmarks/results.py
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from analysis import FLOOR, FLOOR_ALL
from measuring import KEPT, Series
from ropewalk.figures.style import page, style
from ropewalk.files import atomic_path, write_text
from ropewalk.text import count, size

HERE = Path(__file__).parent
EVEN = "All in one process that takes and keeps memory as captures do; no shard is written."
MOMENTS_LIMIT, TABLES_LIMIT, DEMO_LIMIT = 1.01, 1.7, 75.0
"""What is asked for: moments / plain pass; qk table / one eigendecomposition a head; seconds of the built-in study."""
Kept = Mapping[str, Any]
PEERS = ("transformer_lens", "nnsight", "dump")
COLOURS = {
    "plain": "#777777",
    "kept": "#b5b5b5",
    "moments": "#1f63ad",
    "all": "#6ba3d6",
    "transformer_lens": "#c61a27",
    "nnsight": "#e0841a",
    "dump": "#5b9e4d",
}


def read(name: str) -> Kept:
    """What a benchmark kept."""
    path = KEPT / f"{name}.json"
    if not path.is_file():
        raise SystemExit(f"{path.name} is not there: run `make bench`, or benchmarks/{name}.py alone")
    kept: Kept = json.loads(path.read_text(encoding="utf-8"))
    return kept


def series(row: Kept) -> Series:
    """Seconds over the rounds."""
    return Series(tuple(row["seconds"]))


def memory(row: Kept) -> str:
    """Peaks over the rounds: their median, and from the least to the most."""
    return spread(megabytes(row), 0)


def megabytes(row: Kept) -> Series:
    """Peaks over the rounds."""
    return Series(tuple(one / 1e6 for one in row["peaks"]))


def spread(one: Series, digits: int) -> str:
    """Median, and from the least to the most."""
    return f"{one.median:.{digits}f} ({one.least:.{digits}f} to {one.most:.{digits}f})"


def rows(headers: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table; numbers are to the right."""
    marks = ["---", *["---:"] * (len(headers) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headers, marks, *body))


def capture_section(kept: Kept) -> Iterator[str]:
    """Capture: each contender over 1, 4 and 16 documents."""
    yield "## Capture"
    yield (
        f"SmolLM2-135M in float32, {kept['tokens']:,} tokens a document, every token of all 270 heads. All run one "
        "document at a time, in a process each, taking turns. Ratios are to the plain forward pass of the backbone in "
        "the same round; memory is resident memory above that of the loaded model, at the most. That all of them see "
        "the same queries and keys is checked by `make bench-check`."
    )
    for documents, found in kept["documents"].items():
        plain = series(found["plain"])
        body = [
            [
                one["name"],
                f"{series(one).median:.2f} s",
                spread(series(one).over(plain), 3),
                memory(one),
                size(one["written"]) if one["written"] else "-",
            ]
            for one in found.values()
        ]
        yield f"### {count(int(documents), 'document')}, {count(len(plain.values), 'round')}"
        yield rows(("", "wall time", "/ plain", "memory, MB", "on disk"), body)
    for key, message in kept["failed"].items():
        yield f"{key} could not: {message}"
    first = next(iter(kept["documents"].values()))
    ratio = series(first["moments"]).over(series(first["plain"])).median
    held = verdict(ratio, MOMENTS_LIMIT)
    yield f"Moments alone are to cost no more than {MOMENTS_LIMIT} times the plain pass: {held}."
    even = spread(series(first["moments"]).over(series(first["kept"])), 3)
    yield (
        "A capture ends at the last layer's queries and keys, and its process keeps freed memory from one layer to the "
        "next, which glibc would give back to the system and take again page by page, and has torch take huge pages. A "
        f"plain pass in a process that does so too is in the first table; moments take {even} of that one's time."
    )
    shares = ", ".join(f"{step} {share:.1%}" for step, share in kept["steps"].items())
    beside = 1 - kept["steps"]["the rest"]
    yield (
        f"Of the time of moments, by a profiler: {shares}, which is the forward pass up to the last layer's queries "
        "and keys. Adding up is a float64 product of each block of 512 tokens with itself."
    )
    yield "### Moments beside each peer"
    headers = ("", "documents", "of its time", "of its memory", "of its bytes on disk")
    yield rows(headers, list(compared(kept["documents"])))
    yield f"Moments are to be faster and smaller than each peer: {outdone(kept['documents'])}."
    # Scatters are symmetric: a capture holds one half of each, a shard has both.
    sums = first["moments"]["written"] / 2e6
    passing = min(megabytes(first[key]).least for key in ("plain", "kept"))
    yield (
        f"Moments hold the sums of all heads, some {sums:.0f} MB, from the first layer until they are written, beside "
        f"what the pass itself holds, which is {passing:.0f} MB at the least and as much more as the allocator leaves "
        f"holes between activations: their limit is {sums + passing:.0f} MB. A dump holds the vectors of one layer at "
        "a time, and leaves more on disk with each document. nnsight ends the pass as early and keeps vectors as they "
        f"are, in memory: it has nothing to add up or to write, which is {beside:.1%} of the time of moments over one "
        "document. What they can be ahead of it by is the memory that they take from layer to layer again."
    )
    yield "What is there afterwards:"
    yield "\n".join(f"- {one['name']}: {one['keeps']}" for one in first.values())


def compared(documents: Mapping[str, Kept]) -> Iterator[list[str]]:
    """Moments beside each peer: time, memory and what is left on disk, for all numbers of documents."""
    for peer, number, own in beside_peers(documents):
        time, weight = (spread(ratios, 2) for ratios in of_each(own, peer))
        disk = f"{own['written'] / peer['written']:.2f}" if peer["written"] else "-"
        yield [peer["name"], number, time, weight, disk]


def outdone(documents: Mapping[str, Kept]) -> str:
    """Whether moments take less time and memory than each peer, by medians, and where they do not."""
    worse = [
        f"{what} beside {peer['name']} over {count(int(number), 'document')} ({ratios.median:.3f})"
        for peer, number, own in beside_peers(documents)
        for what, ratios in zip(("time", "memory"), of_each(own, peer), strict=True)
        if ratios.median >= 1
    ]
    return f"**not kept** in {', '.join(worse)}" if worse else "kept"


def beside_peers(documents: Mapping[str, Kept]) -> Iterator[tuple[Kept, str, Kept]]:
    """Each peer, a number of documents, and moments over as many."""
    for key in PEERS:
        for number, found in documents.items():
            if key in found:
                yield found[key], number, found["moments"]


def of_each(own: Kept, peer: Kept) -> tuple[Series, Series]:
    """Time and memory of one in those of another, round by round."""
    return series(own).over(series(peer)), megabytes(own).over(megabytes(peer))


def verdict(found: float, limit: float) -> str:
    """A number, and whether it keeps to a limit."""
    return f"{found:.3g}, kept" if found <= limit else f"{found:.3g}, **not kept**"


def analysis_section(kept: Kept) -> Iterator[str]:
    """Analysis: shards to tables, and scripts over the same vectors."""
    yield "## Analysis"
    yield (
        f"{kept['heads']} heads, head_dim {kept['d']}, {kept['vectors']:,} vectors of each head and kind, from disk to "
        f"a table. Shards are {size(kept['sizes']['shards'])}, the same vectors in Parquet "
        f"{size(kept['sizes']['vectors'])}. Ratios are to one eigendecomposition of a scatter a head on one core."
    )
    found = kept["found"]
    floor = series(found[FLOOR])
    body = [
        [
            name,
            f"{series(one).median:.2f} s",
            spread(series(one).over(Series(tuple(one["floors"]))), 2),
            memory(one),
            str(len(one["seconds"])),
        ]
        for name, one in found.items()
    ]
    yield rows(("", "wall time", "/ floor", "memory, MB", "rounds"), body)
    first = next(series(one) for name, one in found.items() if "qk table" in name)
    yield (
        f"The qk table with errors is to take no more than {TABLES_LIMIT} times the floor: "
        f"{verdict(first.over(floor).median, TABLES_LIMIT)}. Scripts give no errors: the same from them would take "
        f"{kept['shards']} more passes. Checking the seals of the shards, once a process: "
        f"{kept['sealing']:.2f} s. Largest difference in r on PC0 from ours: "
        + ", ".join(f"{value:.1e} ({name})" for name, value in kept["differences"].items())
        + "."
    )
    shares = ", ".join(f"{step} {share:.0%}" for step, share in kept["steps"].items())
    alone, cores = kept["alone"] / floor.median, kept["machine"]["cores"]
    yield (
        f"In one thread the qk table takes {alone:.2f} floors, so that {count(cores, 'core')} cannot take less than "
        f"{alone / cores:.2f}. Of it, by a profiler: {shares}. The floor itself takes "
        f"{series(found[FLOOR_ALL]).over(floor).median:.2f} on all cores."
    )
    if kept["everything"]:
        yield (
            f"All tables from all statistics, plasticity of up to {kept['kept']:,} kept vectors of each head among "
            f"them: {spread(Series(tuple(kept['everything'])), 1)} s."
        )


def scale_section(kept: Kept) -> Iterator[str]:
    """Scale: tokens, documents, heads, a large model, a whole study."""
    yield "## Scale"
    titles = {
        "tokens": (
            "tokens of one document",
            f"A random SmolLM3 of 4 layers with 2 query heads and 1 key head of 32 dimensions; one document. {EVEN}",
        ),
        "documents": ("documents of 1,024 tokens", "The same model."),
        "large": ("tokens", "SmolLM3-3B's shape (36 layers, 16 and 4 heads of 128), random weights, float32."),
    }
    for part, (header, text) in titles.items():
        if part not in kept:
            continue
        yield text
        body = []
        for key, row in kept[part].items():
            plain = series(row["plain"])
            cells = [f"{plain.median:.2f} s", memory(row["plain"])]
            for name in ("moments", "all"):
                cells += [spread(series(row[name]).over(plain), 3), memory(row[name])]
            body.append([f"{int(key):,}", *cells])
        yield rows((header, "plain pass", "MB", "moments / plain", "MB", "all / plain", "MB"), body)
    if "analysis" in kept:
        yield "All tables of moments with errors, from shards; ratios are to one eigendecomposition a head on one core."
        body = [
            [
                key,
                f"{series(row['all']).median:.2f} s",
                spread(series(row["all"]).over(series(row["plain"])), 1),
                memory(row["all"]),
            ]
            for key, row in kept["analysis"].items()
        ]
        yield rows(("heads x head_dim", "wall time", "/ floor", "memory, MB"), body)
    if "study" in kept:
        whole = kept["study"]
        extra = whole["moments"] / (whole["forward"] + whole["attention"])
        yield (
            "**Computed, not measured**: the published study (`configs/smollm3_training_progress.yaml`, "
            f"{whole['tokens'] / 1e9:.2f} billion tokens) takes {whole['forward'] / 1e18:.2f} · 10¹⁸ operations in "
            f"weights and {whole['attention'] / 1e18:.2f} · 10¹⁸ in attention: "
            f"{count(round(whole['hours']), 'hour')} at {whole['used']:.0%} of an H100's stated bfloat16 speed. "
            f"Moments add {extra:.1%} to the operations. Results take {size(whole['disk'])} of disk; dumping all "
            f"vectors in half precision would take {size(whole['dump'])}, the published sample of 16 positions of each "
            f"document {size(whole['sampled'])}. Beside the model, sums of a shard take at most {size(whole['held'])} "
            f"of memory, the vectors of one document up to {size(whole['vectors'])}."
        )


def start_section(kept: Kept) -> Iterator[str]:
    """Start: what a user waits for."""
    yield "## Start"
    found = {name: Series(tuple(values)) for name, values in kept["seconds"].items()}
    yield rows(("", "seconds"), [[name, spread(one, 2)] for name, one in found.items()])
    demo, passes = found["ropewalk demo"].median, found["its forward passes alone"].median
    yield (
        f"The built-in study is to take less than {DEMO_LIMIT:.0f} s: {verdict(demo, DEMO_LIMIT)}. Its limit is the "
        f"plain forward pass of its {kept['tokens']:,} tokens by {count(kept['workers'], 'process')}: {passes:.1f} s, "
        f"{passes / demo:.0%} of it."
    )
    shares = ", ".join(f"{step} {share:.0%}" for step, share in kept["steps"].items())
    yield f"Of the time of its capture, by a profiler over one shard of each checkpoint: {shares}."


@style()
def draw(capture: Kept, analysis: Kept, scale: Kept) -> Figure:
    """Wall time and memory of the contenders against documents, analysis, and capture against tokens."""
    figure = page(7.0, 5.2)
    axes = figure.subplots(2, 2)
    counts = [int(number) for number in capture["documents"]]
    found = capture["documents"]
    for key in found[str(counts[0])]:
        known = [(n, found[str(n)][key]) for n in counts if key in found[str(n)]]
        ratios = [series(row).over(series(found[str(n)]["plain"])) for n, row in known]
        options = {"color": COLOURS[key], "marker": "o", "label": known[0][1]["name"]}
        axes[0, 0].plot([n for n, _ in known], [one.median for one in ratios], **options)
        axes[0, 1].plot([n for n, _ in known], [megabytes(row).median for _, row in known], **options)
    axes[0, 0].set(ylabel="wall time / plain pass", title="capture: time")
    axes[0, 1].set(ylabel="MB above the loaded model", yscale="log", title="capture: memory")
    for ax in axes[0]:
        ax.set(xscale="log", xlabel=f"documents of {capture['tokens']:,} tokens", xticks=counts)
        ax.set_xticks(counts, [str(one) for one in counts])
        ax.minorticks_off()
        ax.grid(axis="y")
    names = list(analysis["found"])
    medians = [series(row).median for row in analysis["found"].values()]
    colours = [
        COLOURS["moments" if name.startswith("ropewalk") else "plain" if "eigen" in name else "dump"] for name in names
    ]
    axes[1, 0].barh(range(len(names)), medians, color=colours)
    axes[1, 0].set(xlabel="seconds", xscale="log", title=f"analysis of {analysis['heads']} heads")
    axes[1, 0].set_yticks(range(len(names)), [name.replace(", ", "\n") for name in names], fontsize=6.5)
    axes[1, 0].invert_yaxis()
    axes[1, 0].minorticks_off()
    lengths = [int(length) for length in scale["tokens"]]
    for key in ("plain", "moments", "all"):
        peaks = [megabytes(scale["tokens"][str(length)][key]).median for length in lengths]
        axes[1, 1].plot(lengths, peaks, color=COLOURS[key], marker="o")
    axes[1, 1].set(xscale="log", yscale="log", xlabel="tokens of one document", ylabel="MB above the loaded model")
    axes[1, 1].set_title("small model: memory")
    axes[1, 1].set_xticks(lengths, [f"{length // 1024}K" for length in lengths])
    axes[1, 1].minorticks_off()
    axes[1, 1].grid(axis="y")
    for axis in (axes[0, 1].yaxis, axes[1, 0].xaxis, axes[1, 1].yaxis):
        count_off(axis)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def count_off(axis: Axis) -> None:
    """Numbers at 1, 2 and 5 of each decade of a logarithmic axis, written out: it may cover little more than one."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,g}")


def main() -> None:
    """Write both."""
    capture, analysis, scale, start = (read(name) for name in ("capture", "analysis", "scale", "start"))
    if not {"kept", "moments"} <= next(iter(capture["documents"].values())).keys() or "steps" not in capture:
        raise SystemExit("capture.json is of a part of the contenders: run benchmarks/capture.py without --only")
    facts = capture["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    sections = [
        "# Benchmarks",
        "Written by `make bench` from one run on one machine; every number is a median over rounds in which all take "
        "turns, with the least and the most in brackets.",
        f"{facts['processor']}, {facts['cores']} cores, no GPU; Python {facts['python']}, {versions}.",
        "![Capture against documents, analysis, memory against tokens](results.png)",
        *capture_section(capture),
        *analysis_section(analysis),
        *scale_section(scale),
        *start_section(start),
    ]
    write_text(HERE / "results.md", "\n\n".join(sections) + "\n")
    with atomic_path(HERE / "results.png") as temporary:
        draw(capture, analysis, scale).savefig(temporary, format="png", dpi=200)


if __name__ == "__main__":
    main()
