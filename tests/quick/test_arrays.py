"""Arrays as views of a file: the same as the library reads; and held to what they must be."""

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from ropewalk.capture.arrays import TYPES, ArrayFile
from ropewalk.statistics.arrays import Checked, Stored, counts


def test_views_are_what_the_library_reads(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    shapes = [(), (3,), (2, 5), (0, 4), (2, 3, 4)]
    arrays = {
        f"{name}/{number}": np.asarray(10 * generator.random(shape)).astype(dtype)
        for name, dtype in TYPES.items()
        if name != "C64"
        for number, shape in enumerate(shapes)
    }
    path = tmp_path / "some.safetensors"
    save_file(arrays, path, metadata={"of": "ours"})
    found = ArrayFile.open(path)
    assert found.metadata == {"of": "ours"}
    assert found.arrays.keys() == arrays.keys()
    with safe_open(path, framework="numpy") as file:
        for name in arrays:
            expected = file.get_tensor(name)
            assert found.read(name).dtype == expected.dtype
            np.testing.assert_array_equal(found.read(name), expected)
    with pytest.raises(ValueError, match="read-only"):
        found.read("F64/1")[0] = 1


def test_a_view_outlives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    save_file({"a": np.arange(4.0)}, path)
    found = ArrayFile.open(path).read("a")
    path.unlink()
    np.testing.assert_array_equal(found, np.arange(4.0))


def test_numbers_are_checked_when_they_are_asked_for_and_forms_at_once() -> None:
    arrays = {"right": np.zeros(2), "wrong": np.array([0.0, np.nan]), "low": np.array([-1.0, 0.0])}
    expected = {"right": Stored((2,)), "wrong": Stored((2,)), "low": counts(2)}
    checked = Checked(arrays, expected, ValueError)
    assert list(checked) == list(arrays)
    assert len(checked) == 3
    assert checked["right"] is arrays["right"]
    for name, said in (("wrong", "wrong holds a number that is not finite"), ("low", r"low holds -1\.0")):
        for _ in range(2):
            with pytest.raises(ValueError, match=said):
                checked[name]
    with pytest.raises(KeyError):
        checked["other"]
    with pytest.raises(ValueError, match="the array more is missing"):
        Checked(arrays, {**expected, "more": Stored(())}, ValueError)
