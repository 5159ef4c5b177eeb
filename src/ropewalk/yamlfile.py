"""YAML files that people write, read safely, with the line of every value."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ropewalk.errors import RopewalkError
from ropewalk.reading import is_folder, named, not_text, open_regular, unreadable
from ropewalk.text import cut, one_line, size

Location = tuple[str | int, ...]
"""Where a value stands in a file: keys and indices from the top."""

Lines = Callable[[Location], int | None]
"""The line on which the value at a location stands."""

LARGEST = 1_000_000
"""Bytes of a file: a study of a thousand checkpoints has a third of it."""
MOST_VALUES = 60_000
"""Keys and values of a file, every alias counted as often as it is used."""
DEEPEST = 100
"""Levels of lists and mappings in each other."""
LARGEST_NUMBER = 10**100
"""What no setting reaches; printing numbers of thousands of digits is an error in itself."""
WIDTH = 80
"""Characters of a value or a key in a message."""

TAG = "tag:yaml.org,2002:"
PLAIN = {
    f"{TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp", "seq", "map", "merge", "value")
}
"""Types of plain data; the others make objects that no setting is."""
# libyaml is many times faster and knows the same safe types.
_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class _Dumper(yaml.SafeDumper):
    """Writes text that reads back as it was: some line breaks are kept in double quotes alone."""

    def ignore_aliases(self, _: Any) -> bool:
        """What is there twice is written twice: see `read_own`."""
        return True


def _represented(dumper: _Dumper, text: str) -> yaml.Node:
    style = '"' if re.search("[\x85\u2028\u2029\ufeff]", text) else None
    return dumper.represent_scalar(f"{TAG}str", text, style=style)


_Dumper.add_representer(str, _represented)


def dump_yaml(data: Any, width: int = 120, *, flow: bool | None = False) -> str:
    """Plain data as YAML, keys in their order, all scripts as they are; `flow` as PyYAML's default_flow_style."""
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width, default_flow_style=flow
    )
    return text


def read_own(text: str) -> Any:
    """Data that `dump_yaml` wrote, quickly; ValueError for what it would not write (aliases, which can hide a bomb)."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST or isinstance(event, yaml.AliasEvent):
                raise ValueError("it holds aliases, or is nested too deeply")
        return yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ValueError(one_line(error, 100)) from error


@dataclass(frozen=True)
class YamlFile:
    """The plain data of a file, and where in the file each value stands."""

    data: Any
    root: yaml.Node | None = None
    _keys: dict[int, dict[str, tuple[yaml.Node, yaml.Node]]] = field(default_factory=dict, repr=False, compare=False)

    def line(self, location: Location) -> int | None:
        """The line of a key or an item, or of the nearest thing around it that is in the file; None for the whole.

        Looked up rather than laid out beforehand: a value that is repeated by aliases has many locations.
        """
        node, line = self.root, None
        for part in location:
            found: tuple[yaml.Node, yaml.Node] | None = None
            if isinstance(node, yaml.MappingNode):
                found = self._members(node).get(str(part))
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                found = node.value[part], node.value[part]
            if found is None:
                break
            mark, node = found
            line = _line(mark)
        return line

    def _members(self, node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if id(node) not in self._keys:
            # The last one counts: keys that were merged in by `<<` stand before the mapping's own.
            self._keys[id(node)] = {_name(key): (key, value) for key, value in node.value}
        return self._keys[id(node)]


def read_yaml(path: Path | str, what: str) -> YamlFile:
    """Read a file as plain data, or say in a sentence why it is no `what` (such as a study); no code in it is run."""
    path = Path(path)
    text = _text(path, what)
    try:
        _check_size(text, path)
        loader = _LOADER(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return YamlFile(None)
            _inspect(root, path, loader, {}, ())
            return YamlFile(loader.construct_document(root), root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark, lines = error.problem_mark or error.context_mark, text.splitlines()
        # What is missing at the end of a file is missed in the line after it.
        number = min(mark.line + 1, len(lines)) if mark else 1
        where = f"{path} line {number}"
        if "another document" in str(error.problem):
            raise RopewalkError(f"{where} begins a second document (`---`): keep one {what} in a file") from error
        reason = ", ".join(one_line(part) for part in (error.context, error.problem) if part)
        hint = "indent with spaces, not tabs" if lines and re.match(r" *\t", lines[number - 1]) else "correct it"
        raise RopewalkError(f"{where} is not valid YAML ({cut(reason, 3 * WIDTH)}): {hint}") from error
    except RecursionError as error:
        raise _too_deep(path) from error


def _text(path: Path, what: str) -> str:
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            raise unreadable(path, error, "give the path of a YAML file") from error
        raise RopewalkError(f"no {what} at {named(path)}: give the path of a YAML file") from error
    except (OSError, ValueError) as error:
        # A path with a NUL in it is a ValueError.
        if is_folder(path):
            raise RopewalkError(f"{path} is a folder: give the path of the {what} in it, a YAML file") from error
        raise unreadable(path, error, f"give the path of a {what}, a YAML file that you may read") from error
    if len(data) > LARGEST:
        raise RopewalkError(
            f"{path} has more than {size(LARGEST)}, too much for a {what}: give the path of a YAML file"
        )
    if other := not_text(data):
        raise RopewalkError(f"{path} {other}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RopewalkError(f"{path} line {line} is not UTF-8 text: save the file as UTF-8") from error
    if unprintable := yaml.reader.Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, unprintable.start()) + 1
        raise RopewalkError(
            f"{path} line {line} is not valid YAML (unprintable character U+{ord(unprintable.group()):04X}): remove it"
        )
    return text


def _check_size(text: str, path: Path) -> None:
    """Count values and levels as they come, before anything is built from them."""
    loader, total, depth = _LOADER(text), 0, 0
    try:
        while loader.check_event():
            event = loader.get_event()
            if isinstance(event, yaml.NodeEvent):
                total += 1
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > DEEPEST:
                raise _too_deep(path)
            if total > MOST_VALUES:
                raise _too_many(path, event.start_mark.line + 1)
    finally:
        loader.dispose()


def _inspect(
    node: yaml.Node,
    path: Path,
    loader: Any,
    known: dict[int, tuple[int, int]],
    above: tuple[int, ...],
    location: Location = (),
) -> tuple[int, int]:
    """How many values a node stands for and how deep they go; aliases are counted as if they were written out.

    Raises on what would be too much, on a value that holds itself, on keys that are there twice, and on single values
    that are no plain data.
    """
    if id(node) in above:
        raise RopewalkError(f"{path} line {_line(node)}: this value holds itself by an alias: write it without")
    if id(node) in known:
        return known[id(node)]
    if node.tag not in PLAIN:
        kind = cut(one_line(node.tag.removeprefix(TAG)), WIDTH)
        raise RopewalkError(f"{path} line {_line(node)}: the type `{kind}` is not plain data: write it without `!`")
    children: list[tuple[str | int, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, path, location)
        children = [(_name(key), part) for key, value in node.value for part in (key, value)]
    elif isinstance(node, yaml.SequenceNode):
        children = list(enumerate(node.value))
    elif isinstance(node, yaml.ScalarNode):
        _check_scalar(node, path, loader)
    total, depth = 1, 0
    for part, child in children:
        inside, below = _inspect(child, path, loader, known, (*above, id(node)), (*location, part))
        total, depth = total + inside, max(depth, below + 1)
        if total > MOST_VALUES:
            raise _too_many(path, _line(node), ", with its aliases written out")
    if depth > DEEPEST:
        raise _too_deep(path)
    known[id(node)] = total, depth
    return total, depth


def _check_keys(node: yaml.MappingNode, path: Path, location: Location) -> None:
    seen: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise RopewalkError(f"{path} line {_line(key)}: a list or a mapping cannot be a key: write it as text")
        if (key.tag, key.value) in seen:
            raise RopewalkError(
                f"{path} line {_line(key)}: {dotted((*location, key.value))} is there already, in line "
                f"{seen[key.tag, key.value]}: remove one of the two"
            )
        seen[key.tag, key.value] = _line(key)


def _check_scalar(node: yaml.ScalarNode, path: Path, loader: Any) -> None:
    """Refuse values that cannot be read, and numbers that YAML reads otherwise than people do."""
    kind, text = node.tag.removeprefix(TAG), node.value
    if kind == "merge" or (kind == "str" and text.isascii()):
        return
    where = f"{path} line {_line(node)}"
    shown = cut(one_line(repr(cut(text, 2 * WIDTH))), WIDTH)
    if kind == "str":
        if re.search("[\ud800-\udfff]", text):
            raise RopewalkError(f"{where}: {shown} holds half a character (a lone surrogate): write the whole one")
        return
    try:
        value = loader.construct_object(node)
    except (ValueError, KeyError, AttributeError, OverflowError, yaml.YAMLError) as error:
        raise RopewalkError(
            f"{where} is not valid YAML ({shown} cannot be read as a value of type {kind}): correct it"
        ) from error
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
        raise RopewalkError(f"{where}: the number {shown[1:-1]} is larger than any setting can be: correct it")
    digits = text.lstrip("+-")
    odd = ":" in digits or (kind == "int" and len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbB")
    if kind in ("int", "float") and odd:
        raise RopewalkError(f"{where}: {shown[1:-1]} would be read as {value}: put it in quotes, or write the number")


def _name(key: yaml.Node) -> str:
    # A key that is a list or a mapping is not printed: with its aliases written out it may be endless.
    return str(key.value) if isinstance(key, yaml.ScalarNode) else "?"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _too_deep(path: Path) -> RopewalkError:
    return RopewalkError(f"{path} is nested more than {DEEPEST} levels deep: make it flatter")


def _too_many(path: Path, line: int, how: str = "") -> RopewalkError:
    return RopewalkError(f"{path} line {line} holds more than {MOST_VALUES:,} values{how}: make it smaller")


def dotted(location: Location) -> str:
    """A location for people: `checkpoints.1.context`."""
    parts = (cut(" ".join(str(part).split()), WIDTH) or repr(part) for part in location)
    return cut(".".join(parts), 3 * WIDTH)
