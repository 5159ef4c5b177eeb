"""Statistics by name: those of the package, of installed packages, and of files that the user names."""

import importlib
import importlib.util
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from ropewalk.errors import RopewalkError
from ropewalk.reading import open_regular, unreadable
from ropewalk.statistics.base import Statistic
from ropewalk.text import one_line
from ropewalk.validation import validated

BUILT_IN = {
    "moments": "ropewalk.statistics.moments",
    "profile": "ropewalk.statistics.profile",
    "frame": "ropewalk.statistics.frame",
    "behaviour": "ropewalk.statistics.behaviour",
    "sample": "ropewalk.statistics.sample",
    "buckets": "ropewalk.statistics.buckets",
}
"""Modules of the package's own statistics: each registers one."""

ENTRY_POINTS = "ropewalk.statistics"
"""Group of entry points by which an installed package offers statistics: name = module."""

RESERVED = ("heads",)
"""Names that shards use for something else."""

_registered: dict[str, type[Statistic]] = {}
_plugins: dict[Path, None] = {}
_Class = TypeVar("_Class", bound=type[Statistic])


def register(name: str) -> Callable[[_Class], _Class]:
    """Make a subclass of `Statistic` known under a name, by which a study's `capture.statistics` can choose it.

    >>> @register("norms")  # doctest: +SKIP
    ... class Norms(Statistic): ...
    """
    if name in RESERVED or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise RopewalkError(
            f"a statistic cannot be called {name!r}: use lower-case letters, digits and underscores, and not "
            f"{' or '.join(RESERVED)}"
        )

    def add(cls: _Class) -> _Class:
        if not (isinstance(cls, type) and issubclass(cls, Statistic)):
            raise RopewalkError(
                f"the statistic {name!r} is {one_line(repr(cls), 100)}: derive a class from `Statistic`"
            )
        known = _registered.get(name)
        # The same class defined again (a cell that is run twice) takes the place of the first.
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise RopewalkError(f"there is a statistic {name!r} already: give {cls.__qualname__} another name")
        cls.name = name
        _registered[name] = cls
        return cls

    return add


def load_plugin(path: Path) -> None:
    """Import a Python file that registers statistics, once. It runs with all rights of the user who names it."""
    if path.absolute() in _plugins:
        return
    remedy = "give the path of a Python file that registers statistics"
    try:
        open_regular(path).close()
    except FileNotFoundError as error:
        raise RopewalkError(f"no plugin at {path}: {remedy}") from error
    except (OSError, ValueError) as error:
        raise unreadable(path, error, remedy) from error
    spec = importlib.util.spec_from_file_location(_module_name(path), path)
    if spec is None or spec.loader is None:
        raise RopewalkError(f"{path} is not a Python file: a plugin's name ends in .py")
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except RopewalkError:
        raise
    # It is the user's own, and can fail in any way; where is what helps.
    except (Exception, SystemExit) as error:
        line = _line(error, path)
        raise RopewalkError(
            f"the plugin {path} fails{f' in line {line}' if line else ''} ({type(error).__name__}: "
            f"{one_line(error, 200)}): mend it"
        ) from error
    _plugins[path.absolute()] = None


def loaded_plugins() -> tuple[Path, ...]:
    """The files that were imported, in their order: another process that computes the same needs them too."""
    return tuple(_plugins)


def is_found_elsewhere(name: str) -> bool:
    """Whether another process that imports the same plugins knows the same statistic by this name.

    One that was registered by a script or in a notebook is known where that ran, and nowhere else.
    """
    module = find(name).__module__
    return module == _offered().get(name) or module in {_module_name(path) for path in _plugins}


def _module_name(path: Path) -> str:
    return f"ropewalk_plugin_{path.stem}"


def _line(error: BaseException, path: Path) -> int | None:
    """The line of a file at which an exception was raised, or from which it was called."""
    if isinstance(error, SyntaxError) and error.filename is not None and Path(error.filename) == path:
        return error.lineno
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if Path(frame.f_code.co_filename) == path]
    return lines[-1] if lines else None


def find(name: str) -> type[Statistic]:
    """The class of a statistic, or a sentence on what there is."""
    if name not in _registered:
        offered = _offered()
        if name in offered:
            importlib.import_module(offered[name])
    if name not in _registered:
        known = sorted({*_registered, *_offered()})
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(known)};"
        raise RopewalkError(
            f"no statistic is called {name!r}: {hint} one of your own comes with `ropewalk --plugin FILE`, or from "
            "Python with `ropewalk.register`"
        )
    return _registered[name]


def build(chosen: Mapping[str, Mapping[str, Any]]) -> list[Statistic]:
    """Statistics with their options, by name."""
    built = [validated(find(name), dict(options), f"capture.statistics.{name}") for name, options in chosen.items()]
    givers: dict[str, str] = {}
    for statistic in built:
        for column in statistic.columns:
            if givers.setdefault(column, statistic.name) != statistic.name:
                raise RopewalkError(
                    f"the statistics {givers[column]!r} and {statistic.name!r} both give {column!r}: leave one out, or "
                    "rename it in the one that is yours"
                )
    return built


def table_names(statistics: Iterable[str]) -> list[str]:
    """Names of the further tables that statistics write; one that is not known here writes none that can be read."""
    return [table for name in statistics if is_known(name) for table in find(name).tables]


def is_known(name: str) -> bool:
    """Whether there is a statistic of this name here."""
    return name in _registered or name in _offered()


def described_columns() -> dict[str, str]:
    """Every column that the statistics of the package add to `heads.csv`, with a sentence on what it holds."""
    return {column: text for name in BUILT_IN for column, text in find(name).columns.items()}


def described_tables() -> dict[str, list[str]]:
    """The further tables of the package's statistics, with the columns that each has whatever was captured."""
    found: dict[str, list[set[str]]] = {}
    for statistic in map(find, BUILT_IN):
        for table, columns in statistic.tables.items():
            found.setdefault(table, []).append(set(columns))
    return {table: sorted(set.intersection(*givers)) for table, givers in found.items()}


def _offered() -> dict[str, str]:
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return {**installed, **BUILT_IN}
