"""Watch attention heads learn position.

>>> import ropewalk
>>> r = ropewalk.measure(model, texts, tokenizer, context=2048)  # doctest: +SKIP
>>> r.figure("position_signal")  # doctest: +SKIP
>>> r = ropewalk.load("results/miniature")  # doctest: +SKIP

The library says what it does through `logging.getLogger("ropewalk")`, which is silent unless asked.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError

if TYPE_CHECKING:
    from ropewalk import live as live
    from ropewalk.geometry.estimator import CombinedPCA
    from ropewalk.joining import concat
    from ropewalk.measurement import measure
    from ropewalk.models.tap import tap
    from ropewalk.pipeline import run_study
    from ropewalk.prompt import capture_vectors
    from ropewalk.results import Results, load
    from ropewalk.statistics.base import Statistic
    from ropewalk.statistics.registry import register
    from ropewalk.studyfile import load_study

_HOMES = {
    "CombinedPCA": "geometry.estimator",
    "Results": "results",
    "Statistic": "statistics.base",
    "capture_vectors": "prompt",
    "concat": "joining",
    "load": "results",
    "load_study": "studyfile",
    "measure": "measurement",
    "register": "statistics.registry",
    "run_study": "pipeline",
    "tap": "models.tap",
}

__all__ = [
    "CombinedPCA",
    "Results",
    "RopewalkError",
    "Statistic",
    "__version__",
    "capture_vectors",
    "concat",
    "load",
    "load_study",
    "measure",
    "register",
    "run_study",
    "tap",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: what does not need torch does not load it."""
    if name == "live":
        return importlib.import_module("ropewalk.live")
    if name not in _HOMES:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ropewalk.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
