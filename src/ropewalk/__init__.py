"""Watch attention heads learn position.

>>> import ropewalk
>>> table = ropewalk.measure(model, texts, tokenizer, context=2048)  # doctest: +SKIP
>>> ropewalk.figures.position_signal(table)  # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING, Any

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError

if TYPE_CHECKING:
    from ropewalk import figures
    from ropewalk.analysis import analyze
    from ropewalk.capture.measure import measure
    from ropewalk.capture.run import capture_study
    from ropewalk.geometry.moments import Moments
    from ropewalk.models.doctor import examine
    from ropewalk.models.probe import read_layout
    from ropewalk.pipeline import run_study
    from ropewalk.study import load_study
    from ropewalk.tables import read_qk

_HOMES = {
    "Moments": "geometry.moments",
    "analyze": "analysis",
    "capture_study": "capture.run",
    "examine": "models.doctor",
    "load_study": "study",
    "measure": "capture.measure",
    "read_layout": "models.probe",
    "read_qk": "tables",
    "run_study": "pipeline",
}

__all__ = [
    "Moments",
    "RopewalkError",
    "__version__",
    "analyze",
    "capture_study",
    "examine",
    "figures",
    "load_study",
    "measure",
    "read_layout",
    "read_qk",
    "run_study",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: what does not need torch does not load it."""
    if name == "figures":
        return importlib.import_module("ropewalk.figures")
    if name not in _HOMES:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ropewalk.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
