"""Shards from strangers, who can write a right seal: nothing is computed from arrays that are not what they must be."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from helpers.tiny import tabulated
from ropewalk.errors import RopewalkError
from ropewalk.results import analyze, load
from ropewalk.seals import BLANK, read_sealed_json, seal, sealed_json
from ropewalk.verify import WRONG, repair, verify

SHARD = "captures/first/shard-0001.safetensors"
REMEDY = "move it out of the folder and run `ropewalk capture STUDY` again, which computes it anew"
Change = Callable[[np.ndarray], Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of all statistics, with its model."""
    home = tmp_path_factory.mktemp("hostile")
    others = ("moments", "profile", "behaviour", "sample", "buckets")
    tabulated(home, {"frame": {"full": True}, **{name: {} for name in others}})
    return home


@pytest.fixture
def results(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "results", tmp_path / "results"))


def rewrite(path: Path, change: Callable[[dict[str, Any]], object], marks: str | None = None) -> None:
    """Change the arrays of a shard, or what it says of itself, and seal it again."""
    with safe_open(path, framework="numpy") as file:
        arrays, known = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()["ropewalk"]  # noqa: SIM118
    change(arrays)
    text = json.dumps({**json.loads(known), "seal": BLANK}) if marks is None else marks
    path.write_bytes(seal(save(arrays, metadata={"ropewalk": text})))


def changed(name: str, change: Change) -> Callable[[dict[str, Any]], object]:
    return lambda arrays: arrays.update({name: np.array(change(arrays[name]), order="C")})


def refusal(results: Path) -> str:
    """What is said of a shard, by everything that reads it."""
    said = set()
    for read in (
        analyze,
        lambda folder: load(folder).head(0, 1),
        lambda folder: load(folder).export(folder / "out.npz", to="npz"),
        lambda folder: load(folder).save(folder / "elsewhere"),
    ):
        try:
            read(results)
        except RopewalkError as error:
            said.add(str(error))
    (message,) = said
    assert message.startswith(f"{results / SHARD} does not hold the sums that its manifest names (")
    assert message.endswith(f"): {REMEDY}")
    assert message.isprintable()
    assert len(message) < 600
    return message


CHANGES: dict[str, tuple[str, Change, str]] = {
    "a dimension more": (
        "moments/l00/q.sxx",
        lambda a: a[None],
        "q.sxx has the shape [1, 4, 16, 16] where [4, 16, 16]",
    ),
    "a head less": ("moments/l01/k.mean", lambda a: a[:-1], "in moments/l01/, k.mean has the shape [1, 16]"),
    "no heads": ("behaviour/l00/q.mass", lambda a: a[:0], "q.mass has the shape [0, 16] where [4, 16] is right"),
    "a wide vector": ("profile/l00/k.sum", lambda a: np.concatenate([a, a], -1), "k.sum has the shape [2, 32, 32]"),
    "a number for an array": ("frame/l00/q.length", lambda a: 3.0, "q.length has the shape [] where [4, 8] is right"),
    "an array for a number": ("frame/l00/n", lambda a: a[None], "n has the shape [1] where [] is right"),
    "positions fewer than vectors": ("sample/l00/position.q", lambda a: a[:-1], "position.q has the shape"),
    "positions beyond": ("sample/l00/position.k", lambda a: a + 32, "which it cannot"),
    "positions below": ("sample/l00/position.k", lambda a: a - 40, "which it cannot"),
    "positions in parts": ("sample/l00/position.q", lambda a: a / 2, "has the type float64 where int64 is right"),
    "whole vectors": ("sample/l00/q.vectors", lambda a: a.astype(int), "has the type int64 where float64 is right"),
    "half precision": ("buckets/l00/q.mean", lambda a: a.astype(np.float16), "has the type float16"),
    "complex": ("moments/l00/q.sxt", lambda a: a.astype(np.complex64), "has the type complex64"),
    "a NaN": ("moments/l00/q.sxx", lambda a: np.where(a == a.max(), np.nan, a), "q.sxx holds a number that is not fin"),
    "infinite": ("buckets/l01/k.scatter", lambda a: np.full_like(a, np.inf), "holds a number that is not finite"),
    "beyond all sums": ("profile/l00/q.square", lambda a: a * 1e200, "or beyond all that sums can be"),
    "less than nothing": ("moments/l00/q.n", lambda a: -a, "q.n holds -64.0, which it cannot"),
    "other heads": ("heads/l00/q", lambda a: a[::-1], "its heads of layer 0 are others"),
    "heads in a square": ("heads/l01/k", lambda a: np.stack([a, a]), "its heads of layer 1 are others"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_arrays_of_another_kind_are_refused(case: str, results: Path) -> None:
    name, change, message = CHANGES[case]
    rewrite(results / SHARD, changed(name, change))
    assert message in refusal(results)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("moments/l00/q.shuffled", "in moments/l00/, the array q.shuffled is missing"),
        ("moments/l00/q.first4.n", "in moments/l00/, the array q.first4.n is missing"),
        ("heads/l01/q", "its heads of layer 1 are others"),
    ],
)
def test_a_missing_array_is_named(name: str, message: str, results: Path) -> None:
    rewrite(results / SHARD, lambda arrays: arrays.pop(name))
    assert message in refusal(results)


def test_arrays_that_belong_to_nothing_are_refused(results: Path) -> None:
    rewrite(results / SHARD, lambda arrays: arrays.update({"frame/l00/\x1b[2J": np.zeros((2**40, 0))}))
    with pytest.raises(RopewalkError, match=r"the array '\\x1b\[2J' is none of this statistic"):
        analyze(results)


def test_a_statistic_that_one_shard_lacks_is_refused(results: Path) -> None:
    def drop(arrays: dict[str, Any]) -> None:
        for name in [name for name in arrays if name.startswith("behaviour/l01/")]:
            del arrays[name]

    rewrite(results / SHARD, drop)
    with pytest.raises(RopewalkError, match=r"its arrays behaviour/l01/ are not those of shard-0000.safetensors"):
        analyze(results)


def test_leading_tokens_are_kept_apart_or_not(results: Path) -> None:
    def drop(arrays: dict[str, Any]) -> None:
        for name in [name for name in arrays if ".first4." in name]:
            del arrays[name]

    rewrite(results / SHARD, drop)
    assert "r_q_skip4" not in analyze(results).heads


def test_a_type_that_numpy_does_not_have_is_refused(results: Path) -> None:
    path = results / SHARD
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header["moments/l00/q.n"] |= {"dtype": "F8_E4M3", "shape": [32]}
    marks = json.loads(header["__metadata__"]["ropewalk"])
    header["__metadata__"]["ropewalk"] = json.dumps({**marks, "seal": BLANK})
    # What is said of the file stands first, where its seal is looked for.
    text = json.dumps({"__metadata__": header.pop("__metadata__"), **header}).encode()
    path.write_bytes(seal(struct.pack("<Q", len(text)) + text + data[8 + length :]))
    assert "moments/l00/" in refusal(results)


@pytest.mark.parametrize(
    "marks",
    [
        f'["seal", "{BLANK}"]',
        f'{{"seal": "{BLANK}"',
        f'{{"seal": "{BLANK}"}}',
        f'{{"seal": "{BLANK}", "format": {"9" * 5000}}}',
        f'{{"seal": "{BLANK}", "format": 4, "model": [], "tokens": "t", "settings": "s"}}',
        f'{{"seal": "{BLANK}", "format": 4, "model": "m", "tokens": "t", "settings": "s", "versions": [1]}}',
        f'{{"seal": "{BLANK}", "format": 4, "versions": {"[" * 10**5}',
    ],
    ids=range(7),
)
def test_marks_of_nonsense_are_refused(marks: str, results: Path) -> None:
    rewrite(results / SHARD, lambda arrays: None, marks)
    assert "(what it says of its making cannot be read)" in refusal(results)


@pytest.mark.parametrize(
    "change",
    [
        {"context": 10**12},
        {"context": -1},
        {"bucket_size": 0},
        {"components": 10**9},
        {"documents": 0},
        {"skip_first": 32},
        {"skip_first": -1},
        {"common_context": 0},
        {"more": 1},
    ],
    ids=str,
)
def test_settings_that_no_study_has_are_damage(change: dict[str, int], results: Path) -> None:
    path = results / "captures/first/manifest.json"
    manifest = read_sealed_json(path)
    assert manifest is not None
    manifest["scope"] |= change
    path.write_bytes(sealed_json(manifest))
    with pytest.raises(RopewalkError, match=r"manifest.json is damaged: run `ropewalk capture STUDY` again"):
        analyze(results)


def test_the_remedy_works(home: Path) -> None:
    results, before = home / "results", (home / "results" / SHARD).read_bytes()
    rewrite(results / SHARD, changed("profile/l00/n", lambda a: a[:-1]))
    wrong = [check for check in verify(results) if check.state is not None]
    assert [(check.path, check.state) for check in wrong] == [(results / SHARD, WRONG)]
    repair(results, wrong)
    assert (results / SHARD).read_bytes() == before
    assert (results / f"{SHARD}.other-1").exists()
    assert not any(check.state for check in verify(results))
