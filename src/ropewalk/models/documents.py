"""What a model's folder says of itself in JSON: data from a stranger, read before transformers believes any of it."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.reading import unreadable
from ropewalk.text import one_line, size

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
"""What transformers calls the files of a model that are not weights."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""Files of which a folder with a tokenizer has one."""

LARGEST_DOCUMENT = 200_000_000
"""Bytes of a JSON file; the largest indices of weights have a tenth of it."""

DEEPEST = 50
"""Levels of a JSON file: what reads it calls itself at each."""

LAYERS = re.compile(r"(^|_)(n?layers?|blocks?|depths?|stages|codebooks)$")
EXPERTS = re.compile(r"(^|_)experts$")
HEADS = re.compile(r"(^|_)heads?$")
MOST_LAYERS, MOST_EXPERTS, MOST_HEADS, MOST_EXPERTS_IN_ALL = 4096, 8192, 65_536, 2**17
"""Parts of a model, each an object in memory however small: far beyond all models, far below what fills a machine."""

NEVER_ZERO = ("num_attention_heads", "num_hidden_layers", "hidden_size", "n_head", "n_layer", "n_embd", "d_model")

_ELSEWHERE = {
    "transformers_weights": "names the weight file itself: remove it, and give the file the usual name",
    "configuration_files": "names other configurations to use in its place: keep the one that is meant",
}
_ATTENTION = re.compile(r"_?(attn|experts)_implementation(_internal)?")


def read_document(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; ValueError with the reason where it does not."""
    length = path.stat().st_size
    if length > LARGEST_DOCUMENT:
        raise ValueError(f"it has {size(length)}")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError(f"it holds {type(document).__name__} in place of an object")
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        parts = (part.values() if isinstance(part, dict) else part for part in level)
        level = [value for part in parts for value in part if isinstance(value, dict | list)]
    if level:
        raise ValueError("it is nested too deeply")
    return document


def read_config(repo: str, path: Path) -> dict[str, Any]:
    """config.json of a model, as it stands."""
    try:
        return read_document(path)
    except ValueError as error:
        raise RopewalkError(f"{CONFIG} of {repo} is not JSON that describes a model: fetch it again") from error
    except OSError as error:
        raise RopewalkError(
            f"{CONFIG} of {repo} cannot be read ({error.strerror}): check who may read it, and the disk"
        ) from error


def check_folder(repo: str, folder: Path) -> None:
    """Refuse a folder of which transformers would load something else than its configuration and weights."""
    try:
        names = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        # Of a repository that holds nothing but weights, there is no folder before they are fetched.
        names = set()
    except OSError as error:
        raise unreadable(folder, error, "check who may read it, and the disk") from error
    if ADAPTER in names:
        raise RopewalkError(
            f"{repo} is an adapter ({ADAPTER}), which needs another model: merge it into that model, save the result, "
            "and give its folder"
        )
    if any(re.match(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors$", name) for name in names):
        raise RopewalkError(
            f"{repo} holds a distributed checkpoint (shard-*-model-*.safetensors), which is read past the weights of "
            "the model: consolidate it into one folder of safetensors files first"
        )


def check_tokenizer(repo: str, folder: Path, trusted: bool) -> None:
    """Refuse a tokenizer's configuration that names code of another repository, where code is run at all."""
    path = folder / TOKENIZER_CONFIG
    if not trusted or not path.is_file():
        return
    try:
        data = read_document(path)
    except (ValueError, OSError):
        # Whether the tokenizer can be used shows when it is loaded.
        return
    check_leads_nowhere(data, f"{TOKENIZER_CONFIG} of {repo}", trusted)


def check_leads_nowhere(data: Mapping[str, Any], where: str, trusted: bool) -> None:
    """Refuse what leads transformers to other files, or to code that no commit of this repository holds.

    Code that is not `trusted` is not run: then it does not matter what names it has.
    """
    for key, value in walked(data):
        if key in _ELSEWHERE and value is not None:
            raise RopewalkError(f"`{key}` in {where} {_ELSEWHERE[key]}")
        if key == "auto_map" and trusted and value is not None:
            _check_code(value, where)
        if _ATTENTION.fullmatch(key):
            for name in value.values() if isinstance(value, dict) else [value]:
                if isinstance(name, str) and is_kernel(name):
                    raise RopewalkError(
                        f"`{key}` in {where} is '{one_line(name, 100)}', code of another repository on the hub, which "
                        "is not run: remove it, and name what is installed as `attention`"
                    )


def is_kernel(attention: str) -> bool:
    """Whether the name of an attention is that of code on the hub, which would be fetched and run."""
    return "/" in attention


def _check_code(auto_map: Any, where: str) -> None:
    names = auto_map.values() if isinstance(auto_map, dict) else [auto_map]
    # Of tokenizers there are two, a slow one and a fast one, and one of them may be missing.
    flat = [one for name in names for one in (name if isinstance(name, list | tuple) else [name]) if one is not None]
    for name in flat:
        if not isinstance(name, str):
            raise RopewalkError(f"`auto_map` in {where} is not a mapping to names of classes: mend it, or remove it")
        if "--" in name:
            raise RopewalkError(
                f"`auto_map` in {where} names code of another repository ('{one_line(name, 100)}'), of which no commit "
                "is known: copy the code beside the configuration, read it, and name it without the repository"
            )
        if not re.fullmatch(r"\w+\.\w+", name):
            raise RopewalkError(
                f"`auto_map` in {where} names '{one_line(name, 100)}', which is not a class in a file beside it: "
                "it must be written as module.Class"
            )


def check_counts(data: Mapping[str, Any], where: str) -> None:
    """Refuse a model of more parts than any has: building it, even without weights, would fill the memory.

    And one of none, which fails wherever it is divided by first, or of what is no number, which shows in its vectors.
    """
    experts = layers = 1
    for key, value in walked(data):
        if key == "quantization_config" and value is not None and not _names_method(value):
            raise RopewalkError(f"{key} of {where} does not name a quant_method: mend it, or remove it")
        # A list may end in infinity: as a limit, it is none.
        if isinstance(value, float) and not math.isfinite(value):
            raise RopewalkError(f"{one_line(key, 100)} of {where} is {value}: it must be a finite number")
        if key in NEVER_ZERO and isinstance(value, int | float) and not value > 0:
            raise RopewalkError(f"{key} of {where} is {one_line(value, 40)}: it must be a positive number")
        most = MOST_LAYERS if LAYERS.search(key) else MOST_EXPERTS if EXPERTS.search(key) else MOST_HEADS
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not (LAYERS.search(key) or EXPERTS.search(key) or HEADS.search(key)):
            continue
        if not abs(value) <= most:
            raise RopewalkError(
                f"{one_line(key, 100)} of {where} is {one_line(value, 40)}, and no model has more than {most:,}: "
                "correct it"
            )
        layers = max(layers, int(value)) if LAYERS.search(key) else layers
        experts = max(experts, int(value)) if EXPERTS.search(key) else experts
    if layers * experts > MOST_EXPERTS_IN_ALL:
        raise RopewalkError(
            f"{where} describes {layers:,} layers of {experts:,} experts, and no model has more than "
            f"{MOST_EXPERTS_IN_ALL:,} in all: correct it"
        )


def _names_method(quantization: Any) -> bool:
    return isinstance(quantization, dict) and isinstance(quantization.get("quant_method"), str)


def walked(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All keys of a document with their values, the inner ones too."""
    waiting: list[Any] = [data]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from ((str(key), value) for key, value in part.items())
            part = list(part.values())
        waiting += [value for value in part if isinstance(value, dict | list)]
