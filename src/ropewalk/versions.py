"""Versions of the libraries that decide numbers, as they are installed."""

import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from ropewalk._version import __version__

Versions = dict[str, str | None]
"""Versions by name; None where a library is not installed."""

DECISIVE = ("ropewalk", "python", "numpy", "torch", "transformers", "tokenizers", "safetensors")
"""What every shard says that it was made with."""
OTHERS = ("pandas", "pyarrow")
"""What only writes tables: the record names it too."""


def installed(names: Sequence[str] = DECISIVE) -> Versions:
    """The versions that are installed now."""
    own = {"ropewalk": __version__, "python": platform.python_version()}
    return {name: own.get(name) or _version(name) for name in names}


# What is installed while a process runs is not what it has imported; and every shard asks.
@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
