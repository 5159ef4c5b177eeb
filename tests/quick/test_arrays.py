"""Arrays as views of a file: the same as the library reads; and held to what they must be."""

from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("metadata", [None, {}, {"of": "ours"}, {"of": '}, "a/b": {é'}])
@pytest.mark.parametrize("names", [("a",), ("a/b/c", "a/d/é")])
def test_headers_are_what_the_library_wrote(tmp_path: Path, names: tuple[str, ...], metadata: Any) -> None:
    path = tmp_path / "some.safetensors"
    save_file({name: np.arange(number + 2.0) for number, name in enumerate(names)}, path, metadata=metadata)
    found = ArrayFile.open(path)
    assert found.metadata == (metadata or {})
    assert found.arrays.keys() == set(names)
    assert all(len(found.read(name)) == number + 2 for number, name in enumerate(names))


@pytest.mark.parametrize(
    "header",
    [
        '{ "__metadata__": {"of": "ours"}, %s}',
        '{"__metadata__":{"of":"ours"} ,  %s}',
        '{"__metadata__":{"of":"ours"}\n\t,\r\n%s}',
        '{%s,"__metadata__":{"of":"ours"}}',
    ],
)
def test_headers_that_others_wrote_are_read_as_well(tmp_path: Path, header: str) -> None:
    text = (header % '"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}').encode()
    path = tmp_path / "some.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + np.arange(2.0).tobytes())
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"of": "ours"}
    found = ArrayFile.open(path)
    assert found.metadata == {"of": "ours"}
    assert list(found.arrays) == ["a"]
    np.testing.assert_array_equal(found.read("a"), [0.0, 1.0])


def test_files_of_the_same_arrays_share_what_is_said_of_them_and_nothing_else(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for number, path in enumerate(paths):
        save_file({"a": np.full(2 + number // 2, float(number))}, path, metadata={"number": str(number)})
    one, two, other = map(ArrayFile.open, paths)
    assert one.contents is two.contents
    assert one.contents is not other.contents
    for number, file in enumerate((one, two, other)):
        assert file.metadata == {"number": str(number)}
        assert (file.read("a") == number).all()


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
