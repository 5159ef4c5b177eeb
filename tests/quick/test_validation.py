"""Files that people write: what is read, and the sentence for every mistake, with its line."""

import errno
import gzip
import os
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ropewalk.errors import RopewalkError
from ropewalk.studyfile import load_study, parse_study
from ropewalk.validation import SHOWN, validated
from ropewalk.yamlfile import YamlFile, read_yaml


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "study.yaml"


def reading(file: Path, text: str | bytes) -> str:
    """What is said about a file that cannot be read, without the folder it is in."""
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RopewalkError) as caught:
        read_yaml(file, "study")
    return str(caught.value).replace(str(file), "study.yaml")


def checking(file: Path, text: str) -> list[str]:
    """What is said about a file that is no study."""
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RopewalkError) as caught:
        load_study(file)
    return str(caught.value).replace(str(file), "study.yaml").split("\n  ")


# --- files


def test_plain_data_comes_with_its_lines(file: Path) -> None:
    file.write_text("a: 1\nb:\n  - x\n  - {c: 2,\n     d: [3,\n 4]}\n")
    read = read_yaml(file, "study")
    assert read.data == {"a": 1, "b": ["x", {"c": 2, "d": [3, 4]}]}
    expected: dict[tuple[str | int, ...], int | None] = {
        (): None,
        ("a",): 1,
        ("b",): 2,
        ("b", 0): 3,
        ("b", 1): 4,
        ("b", 1, "c"): 4,
        ("b", 1, "d"): 5,
        ("b", 1, "d", 0): 5,
        ("b", 1, "d", 1): 6,
        # What is not there is told by the nearest thing around it that is.
        ("z",): None,
        ("b", 7): 2,
        ("b", 1, "z"): 4,
        ("b", 1, "c", "z"): 4,
        ("b", "x"): 2,
    }
    assert {location: read.line(location) for location in expected} == expected


def test_aliases_and_merged_keys_stand_where_they_were_written(file: Path) -> None:
    file.write_text("base: &base\n  x: 1\n  y: 2\nuse:\n  <<: *base\n  y: 3\nsame: *base\n")
    read = read_yaml(file, "study")
    assert read.data["use"] == {"x": 1, "y": 3}
    assert [read.line(("use", key)) for key in "xy"] == [2, 6]
    assert read.line(("same",)) == 7
    assert read.line(("same", "y")) == 3


# Every character that means something to YAML, and few others.
TEXT = st.text("abé1.: -#\n'\"{}[],&*!|>%@?~<=", max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN, st.sampled_from([True, False, None]))
@settings(deadline=None)
def test_any_plain_data_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, data: Any, flow: bool | None
) -> None:
    file = tmp_path_factory.mktemp("any") / "study.yaml"
    file.write_text(yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True), encoding="utf-8", newline="\n")
    assert read_yaml(file, "study").data == data


def test_an_empty_file_is_nothing(file: Path) -> None:
    file.write_text("# only a comment\n")
    assert read_yaml(file, "study") == YamlFile(None)


def test_a_byte_order_mark_is_no_text(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_yaml(file, "study").data == {"name": "x"}


def test_every_way_not_to_be_a_file_has_its_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(path: Path) -> str:
        with pytest.raises(RopewalkError) as caught:
            read_yaml(path, "recipe")
        return str(caught.value)

    file = tmp_path / "file.yaml"
    file.touch()
    for missing in (tmp_path / "none.yaml", file / "none.yaml"):
        assert said(missing) == f"no recipe at {missing}: give the path of a YAML file"
    assert said(tmp_path) == f"{tmp_path} is a folder: give the path of the recipe in it, a YAML file"

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    dangling, looping, pipe = (tmp_path / name for name in ("dangling", "looping", "pipe"))
    dangling.symlink_to("nowhere")
    looping.symlink_to(looping)
    os.mkfifo(pipe)
    remedy = "give the path of a recipe, a YAML file that you may read"
    assert said(dangling) == (
        f"{dangling} cannot be read (it leads to 'nowhere', which is not there): give the path of a YAML file"
    )
    assert said(looping) == f"{looping} cannot be read (Too many levels of symbolic links): {remedy}"
    assert said(pipe) == f"{pipe} cannot be read (not a regular file): {remedy}"
    assert said(Path("/dev/zero")) == f"/dev/zero cannot be read (not a regular file): {remedy}"
    assert len(said(tmp_path / ("x" * 10_000))) < 400
    # The tests may run as a user who may read everything.
    monkeypatch.setattr(os, "open", refuse)
    assert said(file) == f"{file} cannot be read (Permission denied): {remedy}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "a: 1\nb: [1",
            "line 2 is not valid YAML (while parsing a flow sequence, did not find expected ',' or ']'): correct it",
        ),
        ("a: 1\n  b: 2\n", "line 2 is not valid YAML (mapping values are not allowed in this context): correct it"),
        ("a: *b\n", "line 1 is not valid YAML (found undefined alias): correct it"),
        ("a: 1\nb: \0\n", "line 2 is not valid YAML (unprintable character U+0000): remove it"),
        ("a: 1\n---\nb: 2\n", "line 2 begins a second document (`---`): keep one study in a file"),
        (
            "a: !!python/object/apply:os.getcwd []",
            "line 1: the type `python/object/apply:os.getcwd` is not plain data: write it without `!`",
        ),
        ("a: !!binary aGk=", "line 1: the type `binary` is not plain data: write it without `!`"),
        ("a: !!set {x}", "line 1: the type `set` is not plain data: write it without `!`"),
        ("a: !!omap [x: 1]", "line 1: the type `omap` is not plain data: write it without `!`"),
        ("a: !own x", "line 1: the type `!own` is not plain data: write it without `!`"),
        ("a: 1\nb: 1:30\n", "line 2: 1:30 would be read as 90: put it in quotes, or write the number"),
        ("a: 1:30.5\n", "line 1: 1:30.5 would be read as 90.5: put it in quotes, or write the number"),
        ("a: -0100\n", "line 1: -0100 would be read as -64: put it in quotes, or write the number"),
        (
            f"a: {'9' * 100_000}\n",
            f"line 1 is not valid YAML ('{'9' * 52}…{'9' * 25}' cannot be read as a value of type int): correct it",
        ),
        (
            f"a: 0x{'f' * 100_000}\n",
            f"line 1: the number 0x{'f' * 50}…{'f' * 25} is larger than any setting can be: correct it",
        ),
        (
            "a:\n\tb: 2\n",
            "line 2 is not valid YAML (while scanning for the next token, found character that cannot start any "
            "token): indent with spaces, not tabs",
        ),
        (
            "a: 1\nb: 2024-13-01\n",
            "line 2 is not valid YAML ('2024-13-01' cannot be read as a value of type timestamp): correct it",
        ),
        ("a: !!int x\n", "line 1 is not valid YAML ('x' cannot be read as a value of type int): correct it"),
        ("a: !!bool x\n", "line 1 is not valid YAML ('x' cannot be read as a value of type bool): correct it"),
        ("? [1]\n: 2\n", "line 1: a list or a mapping cannot be a key: write it as text"),
        (b"a: 1\nb: \xff\n", "line 2 is not UTF-8 text: save the file as UTF-8"),
        ("name: x".encode("utf-16"), "is UTF-16 text: convert it to UTF-8"),
        (gzip.compress(b"name: x", mtime=0), "is compressed (gzip): unpack it"),
    ],
)
def test_what_is_not_yaml(file: Path, text: str | bytes, sentence: str) -> None:
    assert reading(file, text) == f"study.yaml {sentence}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: a\nx: 1\nname: b\n", "line 3: name is there already, in line 1"),
        ("a:\n  - b: 1\n    c: 2\n    b: 1\n", "line 4: a.0.b is there already, in line 2"),
        ("{a: {b: 1,\n c: 2,\n b: 3}}", "line 3: a.b is there already, in line 1"),
        ("a: {b: 1, b: 2}", "line 1: a.b is there already, in line 1"),
        ("a: &x {b: 1, b: 2}\nc: *x\n", "line 1: a.b is there already, in line 1"),
        ("'': 1\n'': 2\n", "line 2: '' is there already, in line 1"),
    ],
)
def test_a_key_that_is_there_twice(file: Path, text: str, sentence: str) -> None:
    assert reading(file, text) == f"study.yaml {sentence}: remove one of the two"


def test_keys_of_other_mappings_or_types_are_no_doubles(file: Path) -> None:
    file.write_text("a: {b: 1}\nc: {b: 1}\n1: x\n'1': y\nd: {<<: {b: 1}, b: 2}\n")
    assert read_yaml(file, "study").data["d"] == {"b": 2}


def laughs(value: str, repeated: str) -> str:
    """Ten to the eleventh times a value, in twelve lines."""
    lines = [f"a0: &a0 {value}"]
    lines += [f"a{i}: &a{i} {repeated.format(','.join([f'*a{i - 1}'] * 10))}" for i in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [laughs("x", "[{}]"), laughs("{k: v}", "{{<<: [{}]}}")],
    ids=["lists", "merged"],
)
def test_a_bomb_is_not_lit(file: Path, text: str) -> None:
    sentence = reading(file, text)
    assert re.fullmatch(
        r"study\.yaml line \d+ holds more than 60,000 values, with its aliases written out: make it smaller",
        sentence,
    )


def test_aliases_within_reason_are_fine(file: Path) -> None:
    file.write_text("\n".join(laughs("x", "[{}]").splitlines()[:5]))
    assert str(read_yaml(file, "study").data).count("x") == 11_111


def test_other_ways_to_be_endless(file: Path) -> None:
    assert reading(file, "a: 1\nb: &b\n  - *b\n") == (
        "study.yaml line 2: this value holds itself by an alias: write it without"
    )
    deep = "study.yaml is nested more than 100 levels deep: make it flatter"
    assert reading(file, "[" * 120 + "]" * 120) == deep
    assert reading(file, "[" * 5_000) == deep
    chain = "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 2_000))
    assert reading(file, f"a0: &a0 x\n{chain}") == deep
    assert reading(file, "a: " + "x" * 1_000_000) == (
        "study.yaml has more than 1.0 MB, too much for a study: give the path of a YAML file"
    )


# --- sentences


STUDY = """\
name: s
defaults:
  repo: o/n
  {default}
checkpoints:
  - revision: r1
    {first}
  - {{revision: r2,
     {second}}}
{top}
"""


def study(default: str = "dtype: auto", first: str = "step: 1", second: str = "context: 8", top: str = "") -> str:
    text = STUDY.format(default=default, first=first, second=second, top=top)
    return text if "context" in first else text.replace("    step: 1", "    context: 8\n    step: 1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (study(top="corpse: {}"), ["line 11: corpse is not a known key: did you mean `corpus`?"]),
        (study(top="default: {}"), ["line 11: default is not a known key: did you mean `defaults`?"]),
        (
            study(top="capture:\n  - heads"),
            ["line 11: capture is ['heads']: input should be a mapping with heads, seed"],
        ),
        (
            study(top="capture:\n  seed: 1\n  batch_token: 3"),
            ["line 13: capture.batch_token is not a known key: did you mean `batch_tokens`?"],
        ),
        (
            study(top="zebra: 1"),
            [
                "line 11: zebra is not a known key: known here: "
                "name, checkpoints, results, defaults, corpus, capture, nulls, downloads, figures, engine"
            ],
        ),
        (
            study(top="corpus: {zebra: 1}"),
            ["line 11: corpus.zebra is not a known key: known here: source, paths, column, repo, config, split, "],
        ),
        (
            study(first="context: 8\n    zebra: 1"),
            ["line 8: checkpoints.0.zebra is not a known key: check its spelling"],
        ),
        (
            study(second="context: 8, contxt: 9"),
            ["line 10: checkpoints.1.contxt is not a known key: did you mean `context`?"],
        ),
        (study(second="step: 2"), ["line 9: checkpoints.1.context is missing: add it"]),
        (
            study(second="context: long"),
            ["line 10: checkpoints.1.context is 'long': input should be a valid integer, "],
        ),
        (study(second="context: "), ["line 10: checkpoints.1.context is empty: input should be a valid integer"]),
        (
            study(second="context: 8, dtype: bfloat"),
            [
                "line 10: checkpoints.1.dtype is 'bfloat': input should be 'auto', 'float32', 'bfloat16' or 'float16'; "
                "did you mean 'bfloat16'?"
            ],
        ),
        (
            study(second="context: 8, label: 2024-01-02"),
            ["line 10: checkpoints.1.label is 2024-01-02: input should be text: put it in quotes"],
        ),
        # The label is the name's: one mistake.
        (study(second="context: 8, name: 5"), ["line 10: checkpoints.1.name is 5: input should be text: put it in "]),
        (
            study(second="context: 8, overrides: {1: 2}"),
            ["line 10: checkpoints.1.overrides.1 is a key that is not text: put it in quotes, or remove it"],
        ),
        (study(default="contxt: 8"), ["line 4: defaults.contxt is not a known key: did you mean `context`?"]),
        (study(default="dtype: int8"), ["line 4: defaults.dtype is 'int8': input should be 'auto', 'float32', "]),
        (
            study(default="device_map: {a: [1]}"),
            ["line 4: defaults.device_map.a is [1]: input should be a valid integer or a valid string"],
        ),
        (
            study(default="contxt: 8", second="context: 8, contxt: 9"),
            [
                "line 4: defaults.contxt is not a known key: did you mean `context`?",
                "line 10: checkpoints.1.contxt is not a known key: did you mean `context`?",
            ],
        ),
        (
            study(top="capture: {heads: al}"),
            ["line 11: capture.heads is 'al': input should be a valid integer or 'all'; did you mean 'all'?"],
        ),
        (
            study(top="capture: {heads: 0}"),
            ["line 11: capture.heads: must be a positive number (at most "],
        ),
        (
            study(top="capture: {pairs: [[1, 2], [1, 2, 3]]}"),
            ["line 11: capture.pairs.1 is [1, 2, 3]: input should have "],
        ),
        (study(top="capture: {skip_first: 7}"), ["skip_first 7 leaves nothing of the context 8 of 'r1'"]),
        ("name: s\ncheckpoints: 3\n", ["line 2: checkpoints is 3: input should be a list"]),
        ("name: s\n", ["checkpoints is missing: add it"]),
        ("", ["a study is a mapping with `name` and `checkpoints`"]),
    ],
)
def test_mistakes_have_their_lines(file: Path, text: str, said: list[str]) -> None:
    found = checking(file, text)
    assert found[0].startswith("study.yaml line " if said[0].startswith("line") else "study.yaml: ")
    found[0] = re.sub("^study.yaml:? ", "", found[0])
    assert len(found) == len(said)
    for sentence, start in zip(found, said, strict=True):
        assert sentence.startswith(start)


def test_mistakes_are_in_the_order_of_the_file(file: Path) -> None:
    said = checking(file, "corpse: 1\ncheckpoints: [{repo: o/n}]\nname: a/b\n")
    assert [sentence.split(" is ")[0] for sentence in said] == [
        "study.yaml line 1: corpse",
        "line 2: checkpoints.0.context",
        "line 3: name",
    ]


def test_data_without_a_file_has_no_lines() -> None:
    data = {"name": "s", "defaults": {"contxt": 8}, "checkpoints": [{"repo": "o/n", "dtyp": "auto"}]}
    with pytest.raises(RopewalkError) as caught:
        parse_study(data)
    assert str(caught.value).split("\n  ") == [
        "the study: checkpoints.0.context is missing: add it",
        "defaults.contxt is not a known key: did you mean `context`?",
        "checkpoints.0.dtyp is not a known key: did you mean `dtype`?",
    ]


def test_checkpoints_given_as_a_tuple_take_the_defaults_too() -> None:
    checked = parse_study({"name": "s", "defaults": {"context": 8}, "checkpoints": ({"repo": "o/n"},)})
    assert checked.checkpoints[0].context == 8
    assert "defaults" not in checked.model_dump()


@pytest.mark.parametrize(
    ("changes", "start", "end"),
    [
        ({"x" * 9_999: 1}, "the study: xxxx", " is not a known key: known here: name, checkpoints, results, "),
        ({"name": "y" * 9_999 + "/"}, "the study: name is 'yyyy", "yyyy/': input should have at most 100 characters"),
        ({"checkpoints": "z" * 9_999}, "the study: checkpoints is 'zzzz", "zzzz': input should be a list"),
        (
            {"checkpoints": list(range(2_000))},
            "the study: checkpoints.0 is 0: input should be",
            "and 1,980 more mistakes",
        ),
        (
            {"checkpoints": [{"repo": "o/n", "context": 8, "name": "." * 9_999}]},
            "the study: checkpoints.0.name is '....",
            "....': input should have at most 1,000 characters",
        ),
        ({"a\nb": 1}, "the study: a b is not a known key", ""),
    ],
)
def test_a_message_holds_a_part_of_a_huge_value(changes: dict[str, Any], start: str, end: str) -> None:
    data = {"name": "s", "checkpoints": [{"repo": "o/n", "context": 8}], **changes}
    with pytest.raises(RopewalkError) as caught:
        parse_study(data)
    text = str(caught.value)
    assert text.startswith(start)
    assert end in text
    assert max(map(len, text.splitlines())) < 360
    assert len(text.splitlines()) <= SHOWN + 1


# --- the walk through a model


class Wheel(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: Annotated[int, Field(gt=0)]
    spokes: Literal["wood", "wire"] = "wood"


class Cart(BaseModel):
    model_config = ConfigDict(extra="forbid")

    wheels: Annotated[list[Wheel], Field(min_length=1)]
    spare: Wheel | None = None
    load: dict[str, Wheel | list[Wheel]] = {}
    axle: tuple[int, Wheel] | None = None
    pull: Literal["horse", "ox"] | int = 1
    built: date | None = None

    @field_validator("built")
    @classmethod
    def _old(cls, built: date | None) -> date | None:
        if built is not None and built.year > 1950:
            raise AssertionError("too new")
        return built


GOOD = {"size": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"wheels": [GOOD, {"size": 1, "spoke": 2}]}, "wheels.1.spoke is not a known key: did you mean `spokes`?"),
        ({"wheels": [GOOD, {"size": 0}]}, "wheels.1.size is 0: input should be greater than 0"),
        ({"wheels": []}, "wheels is []: input should have at least 1 item"),
        ({"spare": {"sise": 1, "size": 1}}, "spare.sise is not a known key: did you mean `size`?"),
        ({"spare": 3}, "spare is 3: input should be a mapping with size, spokes"),
        ({"load": {"top": {"size": 1, "siz": 1}}}, "load.top.siz is not a known key: did you mean `size`?"),
        ({"load": {"top": [GOOD, {"size": 1, "siz": 1}]}}, "load.top.1.siz is not a known key: did you mean `size`?"),
        ({"load": {"top": 3}}, "load.top is 3: input should be a mapping with size, spokes or a list"),
        ({"axle": [1, {"size": 1, "q": 1}]}, "axle.1.q is not a known key: known here: size, spokes"),
        ({"axle": [1]}, "axle.1 is missing: add it"),
        (
            {"pull": "hoarse"},
            "pull is 'hoarse': input should be 'horse' or 'ox' or a valid integer; did you mean 'horse'?",
        ),
        ({"built": "2000-01-01"}, "built: too new"),
    ],
)
def test_known_keys_are_those_of_the_model_at_the_place(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RopewalkError) as caught:
        validated(Cart, {"wheels": [GOOD], **changes}, "cart")
    assert str(caught.value) == f"cart: {said}"


def test_good_data_comes_back_as_the_model() -> None:
    assert validated(Wheel, GOOD, "wheel") == Wheel(size=1)
