"""The page of a large study in a headless browser: its size, its first paint, and how fast the slider moves.

Synthetic results of the shape of a long training run are written, their page is made and opened from disk; the page
itself measures when its first views were drawn and how many frames a second its slider draws.

    python benchmarks/explorer.py [--checkpoints 128] [--layers 36] [--heads 16] [--quantities 10]
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.errors import RopewalkError
from ropewalk.results import load

LIMITS = {"size": 4.0, "paint": 2.0, "drawn": 2.0, "frames": 20.0}
"""Megabytes, seconds, seconds, and frames a second."""
FURTHER = (
    *("eigengap", "separation_share", "readout_q", "readout_k", "fixed_share_q", "fixed_share_k", "mass_first"),
    *("mass_previous", "score_r2_distance", "eta2_q", "eta2_k", "mass_induction"),
)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def table(checkpoints: int, layers: int, heads: int, quantities: int) -> pd.DataFrame:
    """A table of heads whose quantities grow over training, each with its error."""
    generator = np.random.default_rng(0)
    count = layers * heads
    layer, head = np.divmod(np.arange(count), heads)
    names = ("r_q", "r_k", "explained_variance", *FURTHER)[:quantities]
    levels = {name: generator.uniform(0, 1, count) for name in names}
    walks = {name: np.zeros(count) for name in names}
    parts = []
    for index in range(checkpoints):
        facts = {
            "checkpoint": f"step-{index * 1000}",
            "label": f"{index}K",
            "phase": f"stage {index * 4 // checkpoints}",
        }
        columns: dict[str, Any] = {}
        for name in names:
            walks[name] += generator.normal(0, 0.02, count)
            grown = levels[name] * (index + 1) / checkpoints + walks[name]
            columns[name] = np.clip(np.where(layer % 4 == 3, -grown, grown) if name == "r_k" else np.abs(grown), -1, 1)
            columns[f"se_{name}"] = generator.uniform(0.002, 0.02, count)
        known = {"layer": layer, "head": head, "k_head": head // 4, "rope": layer % 4 != 3, "layers": layers}
        parts.append(pd.DataFrame({**known, **columns}).assign(**facts, step=index * 1000, pc=0, shards=16))
    return pd.concat(parts, ignore_index=True)


def visit(page: Path) -> dict[str, float]:
    """Open the page and read what it measured of itself: seconds to paint and to draw, frames a second."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        raise RopewalkError("no browser found: install chromium or google-chrome and put it on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.goto(f"{page.resolve().as_uri()}#measure")
        opened.wait_for_selector("#explore[data-frames]")
        found = opened.evaluate(
            """() => ({
              paint: performance.getEntriesByName("first-contentful-paint")[0].startTime / 1000,
              drawn: Number(document.getElementById("explore").dataset.drawn) / 1000,
              frames: Number(document.getElementById("explore").dataset.frames),
            })"""
        )
        browser.close()
    return {name: float(value) for name, value in found.items()}


def main() -> None:
    """Measure, print, and fail where a limit does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=128)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--quantities", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="Folder to leave the page in.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = table(options.checkpoints, options.layers, options.heads, options.quantities)
        rows.to_csv(folder / "qk.csv", index=False, float_format="%.9g")
        page = load(folder / "qk.csv").report(folder)
        found = {"size": page.stat().st_size / 1e6, **visit(page)}
    shape = (
        f"{options.checkpoints} checkpoints, {options.layers * options.heads} heads, {options.quantities} quantities"
    )
    print(f"page of {shape}")
    print(f"  size                     {found['size']:6.2f} MB  (at most {LIMITS['size']:g})")
    print(f"  first paint              {found['paint']:6.2f} s   (at most {LIMITS['paint']:g})")
    print(f"  explorer drawn           {found['drawn']:6.2f} s   (at most {LIMITS['drawn']:g})")
    print(f"  slider                   {found['frames']:6.1f} frames a second  (at least {LIMITS['frames']:g})")
    failed = [name for name in ("size", "paint", "drawn") if found[name] > LIMITS[name]]
    sys.exit(1 if failed or found["frames"] < LIMITS["frames"] else 0)


if __name__ == "__main__":
    main()
