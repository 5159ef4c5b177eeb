"""Studies that are wrong: as files, and field by field."""

import copy
import datetime
import gzip
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from faults.case import STUDY, Case, Edit, study_data, write_study
from ropewalk.corpora import Corpus
from ropewalk.study import Capture, Checkpoint, Figures, Study

ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**30, -(10**30), 2**63, 1e308, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        " ",
        "x",
        "NA",
        "null",
        "a\nb",
        "\x1b[2J\x07",
        "\u202ekcart",
        "\0",
        "../../..",
        "/",
        "~",
        "/dev/zero",
        "0x10",
    ),
    *("=1+1", "<script>alert(1)</script>", "{{ 7 * 7 }}", "$(touch x)", "'; --", "日本語", "x" * 300, "x" * 100_000),
    *([], [[]], [None], ["x"], [-1], [[0, 0, 0]], [[99, 99]], {}, {"": None}, {"x": {"y": [1]}}, {1: 2}),
    *(datetime.date(2000, 1, 1), b"\xff\xfe"),
)
"""Values that few fields take."""

PARTS: dict[str, type[BaseModel]] = {
    "": Study,
    "checkpoints": Checkpoint,
    "corpus": Corpus,
    "capture": Capture,
    "figures": Figures,
}
MUTATIONS = 120
"""Studies in which a few characters are changed at random."""


def fields(_: random.Random) -> Iterator[Case]:
    """Every field of every part of a study with every odd value."""
    for part, model in PARTS.items():
        for name in model.model_fields:
            for value in ODD:
                # Where results go is for the study to say, below its own folder.
                writes = (value,) if name == "results" and isinstance(value, str) and value else ()
                yield Case(f"{part or 'study'}.{name} = {repr(value)[:60]}", _with(part, name, value), writes=writes)
    for source in ("jsonl", "parquet", "dataset", "python-stdlib", "memory", "nonsense"):
        yield Case(f"corpus.source = {source}", _with("corpus", "source", source))
    for override in ("rope_theta", "hidden_size", "num_hidden_layers", "vocab_size", "attn_implementation", "dtype"):
        for value in ODD:
            yield Case(
                f"overrides.{override} = {repr(value)[:60]}", _with("checkpoints", "overrides", {override: value})
            )
    for statistic in ("moments", "frame", "profile", "behaviour", "sample", "nonsense"):
        for value in ODD:
            chosen = {statistic: value}
            yield Case(f"statistics.{statistic} = {repr(value)[:60]}", _with("capture", "statistics", chosen))
    for option in ("rate", "at_most", "nonsense"):
        for value in ODD:
            chosen = {"sample": {option: value}}
            yield Case(f"sample.{option} = {repr(value)[:60]}", _with("capture", "statistics", chosen))


def _with(part: str, name: str, value: Any) -> Edit:
    def edit(folder: Path) -> None:
        data = study_data()
        target = data if not part else data.setdefault(part, {})
        (target[0] if isinstance(target, list) else target)[name] = copy.deepcopy(value)
        write_study(folder, data)

    return edit


def texts(chance: random.Random) -> Iterator[Case]:
    """Files that are no study."""
    right = yaml.safe_dump(study_data(), sort_keys=False)
    listed: dict[str, bytes | str] = {
        "empty": "",
        "only a comment": "# nothing",
        "null": "null",
        "a number": "3",
        "a list": "- a\n- b\n",
        "text": "hello",
        "many documents": f"{right}---\n{right}",
        "tabs": right.replace("  ", "\t"),
        "no colon": right.replace("context: 32", "context 32"),
        "an open bracket": right + "figures: [",
        "an open quote": right + 'figures: "',
        "a wrong indent": right.replace("  context", " context"),
        "a double key": right + "name: twice\n",
        "a double key below": right.replace("  context: 32", "  context: 32\n  context: 64"),
        "an alias of nothing": right + "figures: *x\n",
        "an anchor within itself": "a: &a [*a]\n" + right,
        "a merge key": "<<: {name: x}\n" + right,
        "python objects": right + "figures: !!python/object/apply:os.system ['touch x']\n",
        "an unknown tag": right + "figures: !x {a: b}\n",
        "a set": right + "figures: !!set {a, b}\n",
        "binary": right + "figures: !!binary aGVsbG8=\n",
        "laughs": "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        "depth": "a: " + "[" * 5000 + "]" * 5000,
        "depth of mappings": "".join(f"{'  ' * level}a:\n" for level in range(1500)),
        "a very long line": f"name: {'x' * 3_000_000}\n",
        "very many keys": "".join(f"k{number}: 1\n" for number in range(100_000)),
        "very many checkpoints": json.dumps(study_data() | {"checkpoints": [{"context": 32}] * 50_000}),
        "a huge number": right.replace("context: 32", f"context: {'9' * 10_000}"),
        "a number in base 60": right.replace("context: 32", "context: 1:20:30"),
        "a time": right.replace("context: 32", "context: 2001-12-14t21:59:43.10-05:00"),
        "a date that is none": right.replace("context: 32", "context: 2001-99-99"),
        "not UTF-8": right.encode() + b"figures: \xff\n",
        "UTF-16": right.encode("utf-16"),
        "a mark of byte order": b"\xef\xbb\xbf" + right.encode(),
        "NUL bytes": right.encode().replace(b"bad", b"b\0d"),
        "control characters": right.encode().replace(b"bad", b"b\x1b[2Jd"),
        "gzip": gzip.compress(right.encode(), mtime=0),
        "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        "JSON": json.dumps(study_data()),
        "JSON with a comma too many": json.dumps(study_data())[:-1] + ",}",
        "a lone surrogate": right.replace("name: bad", 'name: "\\ud800"'),
        "a key that is no text": right + "[1, 2]: 3\n",
        "keys that are numbers": right + "1: 2\n",
        "a key of 10,000 characters": right + f"{'k' * 10_000}: 2\n",
        "a misspelt key": right.replace("checkpoints:", "checkpoint:"),
        "a misspelt key below": right.replace("context:", "contxt:"),
        "carriage returns": right.replace("\n", "\r"),
    }
    for name, content in listed.items():
        yield Case(name, _file(content))
    for number in range(MUTATIONS):
        yield Case(f"mutation {number}", _file(mutated(right.encode(), chance)))
    yield Case("no file", lambda folder: (folder / STUDY).unlink())
    yield Case("a folder", lambda folder: ((folder / STUDY).unlink(), (folder / STUDY).mkdir()))
    yield Case("a link to nowhere", lambda folder: _link(folder, "nowhere"))
    yield Case("a link to itself", lambda folder: _link(folder, STUDY))
    yield Case("a device", lambda folder: _link(folder, "/dev/zero"))
    yield Case("a file of the system", lambda folder: _link(folder, "/proc/self/mem"))
    yield Case("a pipe", _pipe)
    yield Case("a name too long", lambda _: None, ("run", "x" * 5000))


def _file(content: bytes | str) -> Edit:
    return lambda folder: (folder / STUDY).write_bytes(content.encode() if isinstance(content, str) else content)


def _link(folder: Path, target: str) -> None:
    (folder / STUDY).unlink()
    (folder / STUDY).symlink_to(target)


def _pipe(folder: Path) -> None:
    (folder / STUDY).unlink()
    os.mkfifo(folder / STUDY)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same bytes with a few of them changed, removed, doubled or put elsewhere."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if not changed:
            break
        at, length = chance.randrange(len(changed)), chance.randint(1, 8)
        match chance.randrange(5):
            case 0:
                changed[at] = chance.randrange(256)
            case 1:
                del changed[at : at + length]
            case 2:
                changed[at:at] = changed[at : at + length]
            case 3:
                changed[at:at] = bytes(chance.choices(b"0123456789-:[]{},&*!|>'\"%@`# \n\t\xff\0", k=length))
            case 4:
                changed[at:] = b""
    return bytes(changed)
