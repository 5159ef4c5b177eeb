"""Files that are written whole or not at all, and known by their digests when they are read again."""

import errno
import os
import stat
from pathlib import Path

import pytest

from ropewalk import files
from ropewalk.errors import RopewalkError
from ropewalk.files import alone, atomic_path, check_writable, clear_leftovers, write_bytes
from ropewalk.seals import LEDGER, Ledger, is_intact, read_sealed_json, sealed_json


def test_every_bit_of_a_sealed_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    data = sealed_json({"numbers": [1, 2, 3], "text": "seal"})
    path.write_bytes(data)
    assert read_sealed_json(path) == {"numbers": [1, 2, 3], "text": "seal"}
    for at in range(len(data)):
        for bit in range(8):
            changed = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
            other = tmp_path / f"{at}-{bit}"
            other.write_bytes(changed)
            assert not is_intact(other), (at, bit)
            other.unlink()
    for length in range(len(data)):
        (tmp_path / f"{length}").write_bytes(data[:length])
        assert read_sealed_json(tmp_path / f"{length}") is None
    path.write_bytes(data + b" ")
    assert read_sealed_json(path) is None


def test_what_is_no_file_is_not_what_was_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "zeros"):
        assert not is_intact(tmp_path / name)
        assert read_sealed_json(tmp_path / name) is None
        assert Ledger({name: "0"}).state(tmp_path, name) == "damaged"
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "circle").symlink_to("circle")
    for name in ("none", "nowhere", "circle"):
        assert read_sealed_json(tmp_path / name) is None
        assert Ledger({name: "0"}).state(tmp_path, name) == "missing"


def test_a_ledger_says_what_is_not_as_written(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_text(name)
    Ledger.of(tmp_path, "abc", {"from": 1}).write(tmp_path)
    (tmp_path / "b").write_text("B")
    (tmp_path / "c").unlink()
    known = Ledger.read(tmp_path)
    assert known is not None
    assert known.made_from == {"from": 1}
    assert known.differs(tmp_path) == [("b", "damaged"), ("c", "missing")]
    with pytest.raises(RopewalkError, match=r"d is there already and was not written by ropewalk: move it away"):
        Ledger.begin(tmp_path, "d")
    Ledger.begin(tmp_path, "d", replace=True)
    known = Ledger.read(tmp_path)
    assert known is not None
    assert known.differs(tmp_path) == [
        *(("a", "unfinished"), ("b", "unfinished"), ("c", "missing"), ("d", "unfinished"))
    ]
    # A ledger that is damaged does not tell what is ours, but that something is.
    (tmp_path / LEDGER).write_text("{}")
    (tmp_path / "e").write_text("e")
    Ledger.begin(tmp_path, "e")


def test_what_stands_there_can_be_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_bytes(path, b"second", replace=False)
    assert path.read_bytes() == b"first"
    write_bytes(path, b"third")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("file", b"third")]


def test_results_are_ordinary_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, r"no space left for .*file: free some space and run the same command again"),
        (errno.EDQUOT, r"no space left for .*file"),
        (errno.EROFS, r"cannot write .*file \(Read-only file system\): choose another folder"),
    ],
)
def test_a_disk_that_refuses_is_a_sentence(
    number: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")

    def refused(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "_sync", refused)
    with pytest.raises(RopewalkError, match=message):
        write_bytes(tmp_path / "file", b"new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "old")]


def test_a_failure_of_another_file_is_not_blamed_on_this_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), atomic_path(tmp_path / "file"):
        (tmp_path / "elsewhere").read_bytes()


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file" / "below").mkdir(parents=True)
    with pytest.raises(RopewalkError, match=r"cannot write .*file: there is a folder in its place; move it away"):
        write_bytes(tmp_path / "file", b"")
    assert (tmp_path / "file" / "below").is_dir()


def test_only_what_the_dead_left_is_cleared(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    left = below / ".shard.abc.ropewalk-tmp"
    left.write_text("half")
    (tmp_path / "mine.ropewalk-tmp").write_text("mine")
    (tmp_path / ".link.ropewalk-tmp").symlink_to(tmp_path / "mine.ropewalk-tmp")
    with atomic_path(tmp_path / "living") as temporary:
        temporary.write_text("whole")
        assert clear_leftovers(tmp_path) == [left]
    assert (tmp_path / "living").read_text() == "whole"
    assert (tmp_path / "mine.ropewalk-tmp").read_text() == "mine"


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    check_writable(tmp_path / "new" / "below")
    with pytest.raises(RopewalkError, match=r"cannot write .* \(.*file is not a folder that can be written to\)"):
        check_writable(tmp_path / "file" / "below")
    for name in ("link", "link/below"):
        with pytest.raises(RopewalkError, match="is a link to a folder that is not there"):
            check_writable(tmp_path / name)


def test_one_holds_a_folder_while_another_waits(tmp_path: Path) -> None:
    import threading

    order = []

    def second() -> None:
        with alone(tmp_path):
            order.append("second")

    with alone(tmp_path):
        other = threading.Thread(target=second)
        other.start()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
