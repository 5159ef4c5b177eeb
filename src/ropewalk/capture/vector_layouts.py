"""`layout.json` beside vectors on disk: what it says of the model, checked before anything is made from it."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError, model_validator

from ropewalk.capture.vector_files import LONGEST_VECTOR, LONGEST_WINDOW
from ropewalk.errors import RopewalkError
from ropewalk.models.layout import Layout
from ropewalk.reading import named, open_regular, unreadable
from ropewalk.text import cut, one_line, size

LARGEST = 20_000_000
"""Bytes of a layout: a thousand layers with all their frequencies have a few million."""
MOST_LAYERS = 10_000
MOST_HEADS = 100_000
"""Of a model: hundreds of times those of the largest."""
REMEDY = "write it again, or remove it and set `key_heads` in the study"

_Number = Annotated[StrictInt, Field(ge=0, lt=MOST_LAYERS)]
_Heads = Annotated[StrictInt, Field(ge=1, le=MOST_HEADS)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
# `model_type` is a field: the oldest pydantic keeps names that begin with `model_` to itself unless told.
_Part = ConfigDict(extra="forbid", protected_namespaces=())


class _Rotary(BaseModel):
    model_config = _Part

    first: Annotated[list[_Number], Field(max_length=LONGEST_VECTOR)]
    second: Annotated[list[_Number], Field(max_length=LONGEST_VECTOR)]
    frequencies: Annotated[list[_Finite], Field(max_length=LONGEST_VECTOR)]


class _Layer(BaseModel):
    model_config = _Part

    call_index: _Number | None = None
    call: _Number | None = None
    layer: _Number
    query_heads: _Heads
    key_heads: _Heads
    # 0 in the manifest of vectors on disk: of a layer from which no head was chosen.
    head_dim: Annotated[StrictInt, Field(ge=0, le=LONGEST_VECTOR)]
    rotary: Annotated[_Finite, Field(ge=0, le=1)] | None
    window: Annotated[StrictInt, Field(ge=1, lt=LONGEST_WINDOW)] | None
    scale: _Finite | None = None
    rotary_pairs: _Rotary | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "_Layer":
        if self.query_heads % self.key_heads:
            raise ValueError(f"{self.query_heads} query heads cannot share {self.key_heads} key heads evenly")
        if (self.call_index is None) == (self.call is None):
            raise ValueError("call_index is missing")
        pairs = self.rotary_pairs
        if pairs is not None:
            turned = [*pairs.first, *pairs.second]
            if not len(pairs.first) == len(pairs.second) == len(pairs.frequencies):
                raise ValueError("rotary_pairs has lists of different lengths")
            if len(set(turned)) < len(turned) or max(turned, default=0) >= self.head_dim:
                raise ValueError(f"rotary_pairs names a dimension twice, or one beyond head_dim {self.head_dim}")
        return self


class _Layout(BaseModel):
    model_config = _Part

    model_type: Annotated[StrictStr, Field(max_length=200)]
    depth: Annotated[StrictInt, Field(ge=1, le=MOST_LAYERS)]
    layers: Annotated[list[_Layer], Field(min_length=1, max_length=MOST_LAYERS)]
    absolute_positions: StrictBool

    @model_validator(mode="after")
    def _consistent(self) -> "_Layout":
        numbers = [layer.layer for layer in self.layers]
        twice = [number for number, times in Counter(numbers).items() if times > 1]
        if twice:
            raise ValueError(f"layer {twice[0]} is there twice")
        if max(numbers) >= self.depth:
            raise ValueError(f"it has a layer {max(numbers)} and says depth {self.depth}")
        heads = sum(layer.query_heads for layer in self.layers)
        if heads > MOST_HEADS:
            raise ValueError(f"it has {heads:,} heads, and {MOST_HEADS:,} are the most")
        return self


def read_layout_file(path: Path) -> Layout:
    """The layout that a file tells, or a sentence on what is wrong with it; nothing is made before it is checked."""
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise unreadable(path, error, REMEDY) from error
    if len(data) > LARGEST:
        raise _damaged(path, f"it has more than {size(LARGEST)}")
    try:
        layout = checked_layout(json.loads(data.decode("utf-8")))
    except ValidationError as error:
        raise _damaged(path, _first(error)) from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise _damaged(path, "it is no JSON") from error
    empty = next((layer.layer for layer in layout.layers if layer.head_dim == 0), None)
    if empty is not None:
        raise _damaged(path, f"layer {empty} has head_dim 0")
    return layout


def checked_layout(data: Any) -> Layout:
    """A layout from plain data, or a ValidationError."""
    _Layout.model_validate(data)
    return Layout.from_dict(data)


def _first(error: ValidationError) -> str:
    details = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in details["loc"] if part != "function-after[_consistent(), _Layer]")
    message = one_line(details["msg"].removeprefix("Value error, "))
    value = details["input"]
    shown = "" if isinstance(value, dict | list) or details["type"] == "value_error" else f" is {_shown(value)}"
    return cut(f"{where}{shown}: {message}" if where else message, 200)


def _shown(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return cut(repr(value), 40)
    except ValueError:
        return "a number of thousands of digits"


def _damaged(path: Path, reason: str) -> RopewalkError:
    return RopewalkError(f"{named(path)} is damaged ({reason}): {REMEDY}")
