"""Statistics by name."""

import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

import ropewalk
from helpers.paths import ROOT
from ropewalk.errors import RopewalkError
from ropewalk.statistics import registry

NORMS = ROOT / "docs/examples/norms.py"


pytestmark = pytest.mark.usefixtures("registry_as_before")


def test_the_page_shows_the_file() -> None:
    page = (ROOT / "docs/statistics.md").read_text()
    assert f"```python\n{NORMS.read_text().rstrip()}\n```" in page
    assert len(NORMS.read_text().splitlines()) <= 35


def test_an_unknown_statistic_is_said_before_anything_is_read(study_data: dict[str, Any]) -> None:
    study_data["capture"] = {"statistics": ["moment"]}
    from ropewalk.capture.jobs import prepare_jobs
    from ropewalk.studyfile import parse_study

    with pytest.raises(RopewalkError, match="no statistic is called 'moment': did you mean `moments`"):
        prepare_jobs(parse_study(study_data))


def test_moments_are_always_captured(study_data: dict[str, Any]) -> None:
    from ropewalk.studyfile import parse_study

    study_data["capture"] = {"statistics": ["sample"]}
    assert list(parse_study(study_data).capture.statistics) == ["moments", "sample"]
    study_data["capture"] = {"statistics": {"sample": {"rate": 0.5}, "moments": None}}
    assert parse_study(study_data).capture.statistics == {"moments": {}, "sample": {"rate": 0.5}}


def test_registering() -> None:
    class Empty(ropewalk.Statistic):
        pass

    with pytest.raises(RopewalkError, match=r"there is a statistic 'moments' already: give .*Empty another name"):
        ropewalk.register("moments")(Empty)
    with pytest.raises(RopewalkError, match="cannot be called 'My stat': use lower-case letters"):
        ropewalk.register("My stat")
    with pytest.raises(RopewalkError, match=r"cannot be called 'heads': .* and not heads"):
        ropewalk.register("heads")
    ropewalk.register("empty")(Empty)
    assert ropewalk.register("empty")(Empty) is Empty
    assert registry.find("empty") is Empty
    with pytest.raises(NotImplementedError, match="'empty' defines neither observe"):
        Empty().observe(None)  # type: ignore[arg-type]


def test_plugins_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(RopewalkError, match=r"no plugin at .*: give the path of a Python file"):
        registry.load_plugin(tmp_path / "none.py")
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(RopewalkError, match=r"pipe.py cannot be read \(not a regular file\)"):
        registry.load_plugin(tmp_path / "pipe.py")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(RopewalkError, match="is not a Python file"):
        registry.load_plugin(tmp_path / "text.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"x = 1\ndef x(:\n", r"own.py fails in line 2 \(SyntaxError: invalid syntax"),
        (b"\xff", r"own.py fails .*SyntaxError: "),
        (b"x\0", r"own.py fails .*null bytes"),
        (b"x = 1\n\nraise ValueError('why')", r"own.py fails in line 3 \(ValueError: why\): mend it"),
        (b"import json\njson.loads('{')", r"own.py fails in line 2 \(JSONDecodeError: "),
        (b"import nowhere_at_all", r"own.py fails in line 1 \(ModuleNotFoundError: No module named 'nowhere_at_all'"),
        (b"import sys\nsys.exit(3)", r"own.py fails in line 2 \(SystemExit: 3\)"),
        (b"import ropewalk\nropewalk.register('mine')(3)", r"the statistic 'mine' is 3: derive a class from `Stat"),
    ],
)
def test_a_plugin_that_fails_says_where(text: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_bytes(text)
    with pytest.raises(RopewalkError, match=message):
        registry.load_plugin(tmp_path / "own.py")


def test_two_statistics_cannot_give_the_same_column() -> None:
    @ropewalk.register("mine")
    class Mine(ropewalk.Statistic):
        columns: ClassVar = {"r_q": "another r_q"}

    with pytest.raises(RopewalkError, match="the statistics 'moments' and 'mine' both give 'r_q': leave one out"):
        registry.build({"moments": {}, "mine": {}})


def test_statistics_are_read_after_those_they_build_on() -> None:
    from ropewalk.analysis import _in_order
    from ropewalk.statistics.base import Statistic

    class Own(Statistic):
        name: ClassVar = "own"
        after: ClassVar = ("behaviour", "sample")

    built = [Own(), *registry.build({name: {} for name in ("behaviour", "profile", "frame", "moments")})]
    order = [one.name for one in _in_order(built)]
    assert sorted(order) == ["behaviour", "frame", "moments", "own", "profile"]
    for one in built:
        assert all(order.index(name) < order.index(one.name) for name in one.after if name in order)

    class Circle(Own):
        name: ClassVar = "circle"
        after: ClassVar = ("circle",)

    assert [one.name for one in _in_order([Circle()])] == ["circle"]


@pytest.mark.parametrize("rows", ["the same", "in another order", "some", "twice"])
def test_columns_of_one_table_are_joined_by_the_columns_that_are_shared(rows: str) -> None:
    from ropewalk.analysis import _merged

    left = pd.DataFrame({"layer": 0, "head": [0, 0, 1, 1], "start": [0, 8, 0, 8], "a": [1.0, 2.0, np.nan, 4.0]})
    right = left.drop(columns="a").assign(b=[5.0, 6.0, 7.0, 8.0])
    if rows == "in another order":
        right = right.iloc[::-1].reset_index(drop=True)
    elif rows == "some":
        right = right.iloc[1:3].reset_index(drop=True)
    elif rows == "twice":
        left, right = (pd.concat([one, one], ignore_index=True) for one in (left, right))
    pd.testing.assert_frame_equal(_merged(left, right), left.merge(right, how="outer"))
