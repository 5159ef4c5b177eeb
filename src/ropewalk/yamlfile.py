"""YAML files that people write, read safely, with the line of every value."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ropewalk.errors import RopewalkError
from ropewalk.text import cut, one_line, size

Location = tuple[str | int, ...]
"""Where a value stands in a file: keys and indices from the top."""

Lines = Callable[[Location], int | None]
"""The line on which the value at a location stands."""

LARGEST = 5_000_000
"""Bytes of a file."""
MOST_VALUES = 1_000_000
"""Keys and values of a file, every alias counted as often as it is used."""
DEEPEST = 100
"""Levels of lists and mappings in each other."""
WIDTH = 80
"""Characters of a value or a key in a message."""


@dataclass(frozen=True)
class YamlFile:
    """The plain data of a file, and where in the file each value stands."""

    data: Any
    root: yaml.Node | None = None

    def line(self, location: Location) -> int | None:
        """The line of a key or an item, or of the nearest thing around it that is in the file; None for the whole.

        Looked up rather than laid out beforehand: a value that is repeated by aliases has many locations.
        """
        node, line = self.root, None
        for part in location:
            if isinstance(node, yaml.MappingNode):
                # The last one: keys that were merged in by `<<` stand before the mapping's own.
                found = [(key, value) for key, value in node.value if key.value == str(part)][-1:]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                found = [(item, item) for item in node.value[part : part + 1]]
            else:
                break
            if not found:
                break
            mark, node = found[0]
            line = _line(mark)
        return line


def read_yaml(path: Path | str, what: str) -> YamlFile:
    """Read a file as plain data, or say in a sentence why it is no `what` (such as a study); no code in it is run."""
    path = Path(path)
    text = _text(path, what)
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return YamlFile(None)
            _inspect(root, path, {}, ())
            return YamlFile(loader.construct_document(root), root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        reason = ", ".join(one_line(part) for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        where = f"{path} line {mark.line + 1}" if mark else str(path)
        raise RopewalkError(f"{where} is not valid YAML ({cut(reason, 3 * WIDTH)}): correct it") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RopewalkError(
            f"{path} line {line} is not valid YAML (unprintable character U+{error.character:04X}): remove it"
        ) from error
    except RecursionError as error:
        raise _too_deep(path) from error


class _Loader(yaml.SafeLoader):
    """The safe loader, whose failures to read a value (such as the date 2024-13-01) know their line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, AttributeError, OverflowError) as error:
            if not isinstance(node, yaml.ScalarNode):
                raise
            kind = node.tag.rsplit(":", 1)[-1]
            problem = f"{cut(repr(node.value), WIDTH)} cannot be read as a value of type {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def _text(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RopewalkError(f"no {what} at {path}: give the path of a YAML file") from error
    except IsADirectoryError as error:
        raise RopewalkError(f"{path} is a folder: give the path of the {what} in it, a YAML file") from error
    except OSError as error:
        raise RopewalkError(
            f"the {what} {path} cannot be read ({error.strerror}): check the path, and who may read it"
        ) from error
    if len(data) > LARGEST:
        raise RopewalkError(
            f"{path} has more than {size(LARGEST)}, too much for a {what}: give the path of a YAML file"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RopewalkError(f"{path} line {line} is not UTF-8 text: save the file as UTF-8") from error


def _inspect(
    node: yaml.Node, path: Path, known: dict[int, tuple[int, int]], above: tuple[int, ...], location: Location = ()
) -> tuple[int, int]:
    """How many values a node stands for and how deep they go; aliases are counted as if they were written out.

    Raises on what would be too much, on a value that holds itself, and on keys that are there twice.
    """
    if id(node) in above:
        raise RopewalkError(f"{path} line {_line(node)}: this value holds itself by an alias: write it without")
    if id(node) in known:
        return known[id(node)]
    children: list[tuple[str | int, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, path, location)
        children = [(_name(key), part) for key, value in node.value for part in (key, value)]
    elif isinstance(node, yaml.SequenceNode):
        children = list(enumerate(node.value))
    total, depth = 1, 0
    for part, child in children:
        inside, below = _inspect(child, path, known, (*above, id(node)), (*location, part))
        total, depth = total + inside, max(depth, below + 1)
        if total > MOST_VALUES:
            raise RopewalkError(
                f"{path} line {_line(node)} holds more than {MOST_VALUES:,} values, with its aliases written out: "
                "make it smaller"
            )
    if depth > DEEPEST:
        raise _too_deep(path)
    known[id(node)] = total, depth
    return total, depth


def _check_keys(node: yaml.MappingNode, path: Path, location: Location) -> None:
    seen: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if (key.tag, key.value) in seen:
            raise RopewalkError(
                f"{path} line {_line(key)}: {dotted((*location, key.value))} is there already, in line "
                f"{seen[key.tag, key.value]}: remove one of the two"
            )
        seen[key.tag, key.value] = _line(key)


def _name(key: yaml.Node) -> str:
    # A key that is a list or a mapping is not printed: with its aliases written out it may be endless.
    return str(key.value) if isinstance(key, yaml.ScalarNode) else "?"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _too_deep(path: Path) -> RopewalkError:
    return RopewalkError(f"{path} is nested more than {DEEPEST} levels deep: make it flatter")


def dotted(location: Location) -> str:
    """A location for people: `checkpoints.1.context`."""
    parts = (cut(" ".join(str(part).split()), WIDTH) or repr(part) for part in location)
    return cut(".".join(parts), 3 * WIDTH)
