"""What is wrong with data that people wrote: every mistake by its line and by what would be right."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ropewalk.errors import RopewalkError
from ropewalk.text import count, cut, one_line, some
from ropewalk.yamlfile import WIDTH, Lines, Location, dotted

LONGEST_LIST = 120
"""Characters of the names of all keys: more of them are not listed in a message."""

Checked = TypeVar("Checked", bound=BaseModel)

SHOWN = 20
"""Mistakes that are listed; the rest is counted."""
MOST = 5_000
"""Mistakes that are looked at, to list the first ones of the file."""

Written = Callable[[Location], Location]
"""Where the value at a location was written, if data was rearranged before it was checked."""

SHOULD = "input should be "


def validated(
    model: type[Checked],
    data: Any,
    name: str,
    lines: Lines | None = None,
    written: Written | None = None,
) -> Checked:
    """Check plain data against a model; mistakes are raised as one error, see `sentences`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise RopewalkError(sentences(error, name, model, lines, written)) from error


def sentences(
    error: ValidationError,
    name: str,
    model: type[BaseModel],
    lines: Lines | None = None,
    written: Written | None = None,
) -> str:
    """Every mistake in a sentence on a line of its own: the file and its line, the field, the value, what is right.

    `name` is that of the file, or what the data is called where there is none (and no `lines`).
    """
    problems: dict[Location, list[_Problem]] = {}
    found = error.errors(include_url=False)
    for details in found[:MOST]:
        problem = _Problem.of(model, details)
        problems.setdefault(problem.location, []).append(problem)
    # A list with a wrong item is also called too short, and a choice of types complains of each: the inner one tells.
    outer = {location[:length] for location in problems for length in range(len(location))}
    # What defaults get wrong is wrong in every checkpoint: it was written once.
    told: dict[Location, tuple[int, list[_Problem]]] = {}
    for location, group in problems.items():
        if location not in outer:
            place = location if written is None else written(location)
            told.setdefault(place, ((lines(place) or 0) if lines is not None else 0, group))
    ordered = sorted(told, key=lambda place: told[place][0])
    texts = []
    for place in ordered[:SHOWN]:
        line, group = told[place]
        texts.append(f"line {line}: {_sentence(place, group)}" if line else _sentence(place, group))
    more = max(len(ordered) - SHOWN, 0) + max(len(found) - MOST, 0)
    if more:
        texts.append(f"and {count(more, 'more mistake')}")
    return f"{name}{' ' if told[ordered[0]][0] else ': '}" + "\n  ".join(texts)


@dataclass(frozen=True)
class _Problem:
    """One complaint of pydantic, at a location of the data, with the types that the model has there and around it."""

    location: Location
    kind: str
    message: str
    value: Any
    limits: Mapping[str, Any]
    types: Sequence[Any]
    around: Sequence[Any]

    @classmethod
    def of(cls, model: type[BaseModel], details: Mapping[str, Any]) -> "_Problem":
        types: list[Any] = [model]
        around: list[Any] = []
        location: list[str | int] = []
        for part in details["loc"]:
            members = _flat(types)
            if len(members) > len(types):
                # Of a choice of types pydantic names the one it tried, which is no part of the data.
                types = members
            elif part != "[key]":
                location.append(part)
                around, types = members, [inner for member in members for inner in _inside(member, part)]
        kind = "invalid_key" if details["loc"][-1:] == ("[key]",) else details["type"]
        return cls(
            tuple(location), kind, details["msg"], details["input"], details.get("ctx", {}), _flat(types), around
        )


def _flat(types: Sequence[Any]) -> list[Any]:
    return [member for annotation in types for member in _members(annotation)]


def _members(annotation: Any) -> Iterator[Any]:
    """The types a value may have, `None` aside, without what is annotated to them."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _members(arguments[0])
    elif origin in (Union, UnionType):
        for argument in arguments:
            if argument is not NoneType:
                yield from _members(argument)
    else:
        yield annotation


def _inside(annotation: Any, part: str | int) -> Sequence[Any]:
    """The types of what stands in a model, a mapping or a list at a key or an index; none where nothing can."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None:
        fields = annotation.model_fields if _is_model(annotation) else {}
        return [fields[part].annotation] if part in fields else []
    if not isinstance(origin, type):
        return ()
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return arguments[part : part + 1] if isinstance(part, int) else ()
    return arguments[1:2] if issubclass(origin, Mapping) else arguments[:1]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _keys(types: Sequence[Any]) -> list[str]:
    """The keys that models have, those that must be given first."""
    fields = [field for annotation in types if _is_model(annotation) for field in annotation.model_fields.items()]
    return [key for key, _ in sorted(fields, key=lambda field: not field[1].is_required())]


def _sentence(place: Location, group: Sequence[_Problem]) -> str:
    """What is wrong at one place; of several types that would do, pydantic complains of each."""
    problem, where = group[0], dotted(place)
    if problem.kind == "extra_forbidden":
        return f"{where} is not a known key: {_known(str(place[-1]), _keys(problem.around))}"
    if problem.kind == "invalid_key":
        return f"{where} is a key that is not text: put it in quotes, or remove it"
    if problem.kind == "missing":
        return f"{where} is missing: add it"
    if problem.kind in ("value_error", "assertion_error"):
        # What a validator says may hold the value itself, of any length.
        message = one_line(re.sub("^(Value error|Assertion failed), ", "", problem.message))
        return f"{where}: {message}" if where else message
    reasons = list(dict.fromkeys(_reason(one, alone=len(group) == 1) for one in group))
    reason = reasons[0] + "".join(f" or {other.removeprefix(SHOULD)}" for other in reasons[1:])
    return f"{where or 'it'} is {_shown(problem.value)}: {reason}{_nearest_choice(problem)}"


def _reason(problem: _Problem, alone: bool) -> str:
    """Why a value is wrong, in the words of the file rather than of Python."""
    match problem.kind:
        case "model_type" | "dict_type":
            keys = _keys(problem.types)
            return f"{SHOULD}a mapping" + (f" with {some(keys)}" if keys else "")
        case "tuple_type" | "list_type":
            return f"{SHOULD}a list"
        case "too_short":
            return f"input should have at least {count(problem.limits['min_length'], 'item')}"
        case "too_long":
            return f"input should have at most {count(problem.limits['max_length'], 'item')}"
        case "string_type" if isinstance(problem.value, bool):
            return f"{SHOULD}text: put it in quotes (yes, no, on, off, true and false are no text without)"
        case "string_type" if alone and isinstance(problem.value, int | float | date):
            return f"{SHOULD}text: put it in quotes"
        case "string_type" if alone and problem.value is None:
            return f"{SHOULD}text: write it, in quotes if it is null or ~"
        case "string_unicode":
            return "it holds half a character (a lone surrogate): write the whole one"
        case "string_too_long":
            return f"input should have at most {count(problem.limits['max_length'], 'character')}"
    message = one_line(problem.message if alone else problem.message.split(", unable to parse")[0])
    return message[:1].lower() + message[1:]


def _known(key: str, keys: Sequence[str]) -> str:
    near = get_close_matches(cut(key, WIDTH).lower().replace("-", "_"), keys, 1)
    if near:
        return f"did you mean `{near[0]}`?"
    listed = ", ".join(keys)
    return f"known here: {listed}" if 0 < len(listed) <= LONGEST_LIST else "check its spelling, or remove it"


def _nearest_choice(problem: _Problem) -> str:
    choices = [c for t in problem.types if get_origin(t) is Literal for c in get_args(t) if isinstance(c, str)]
    near = get_close_matches(cut(problem.value, WIDTH).lower(), choices, 1) if isinstance(problem.value, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _shown(value: Any) -> str:
    """A value as it would stand in a file, on a part of a line."""
    if value is None:
        return "empty"
    try:
        return one_line(value if isinstance(value, date) else repr(value), WIDTH)
    except (ValueError, RecursionError):
        # Python does not print numbers of thousands of digits.
        return f"a {type(value).__name__} that is too large to print"
