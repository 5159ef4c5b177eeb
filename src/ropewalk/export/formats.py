"""The formats by name, and writing one."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.export.source import Source
from ropewalk.schema import Part
from ropewalk.validation import validated

MODULES = {
    "safetensors": "ropewalk.export.safetensors",
    "npz": "ropewalk.export.npz",
    "kvpress": "ropewalk.export.kvpress",
    "bases": "ropewalk.export.bases",
    "heads": "ropewalk.export.heads",
}
"""Modules of the formats: each has a `FORMAT`."""


@dataclass(frozen=True)
class Format:
    """A format: `write(source, path, options)` writes a checkpoint's statistics and returns the files it wrote.

    `options` is what can be chosen, as a model of which every field has a sentence.
    """

    name: str
    title: str
    options: type[Part]
    write: Callable[[Source, Path, Any], list[Path]]


def find(name: str) -> Format:
    """The format of this name, or a sentence on what there is."""
    if name not in MODULES:
        near = get_close_matches(name, MODULES, n=1)
        hint = f"did you mean {near[0]!r}? There are " if near else "there are "
        raise RopewalkError(f"no format is called {name!r}: {hint}{', '.join(MODULES)}")
    found: Format = importlib.import_module(MODULES[name]).FORMAT
    return found


def export(source: Source, path: Path, to: str, options: Mapping[str, Any]) -> list[Path]:
    """Write a checkpoint in a format; options that it does not take are an error."""
    chosen = find(to)
    for name in options:
        if name not in chosen.options.model_fields:
            raise RopewalkError(
                f"the format {to} has no option {name!r}: it takes {', '.join(chosen.options.model_fields)}"
            )
    return chosen.write(source, path, validated(chosen.options, dict(options), f"export to {to}"))
