"""The built-in study: the miniature SmolLM3 that travels with the package, on its held-out files."""

from importlib.resources import files
from pathlib import Path

from ropewalk.study import Study
from ropewalk.studyfile import load_study


def demo_study(results: Path | None = None) -> Study:
    """The study `miniature`: ten checkpoints through five phases, all heads."""
    return load_study(Path(str(files("ropewalk") / "data" / "miniature" / "study.yaml")), results)
