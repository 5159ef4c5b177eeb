"""A results folder belongs to one study: who may write into it, and what becomes of it where nothing was written."""

import json
import os
from pathlib import Path

import pytest

from ropewalk.errors import RopewalkError
from ropewalk.ownership import MARK, Owner, check_owner, claim, claimed, is_free, read_owner

MINE = Owner("study", "mine", "/a/study.yaml", "1")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (Owner("study", "mine", "/a/study.yaml", "2"), True),  # edited
        (Owner("study", "mine", "/b/study.yaml", "1"), True),  # copied
        (Owner("study", "mine", "/b/study.yaml", "2"), False),  # another of the same name
        (Owner("study", "other", "/b/study.yaml", "2"), False),
        (Owner("study", "mine", "", "2"), False),  # from no file
        (Owner("training", "mine", "/a/study.yaml", "1"), False),
    ],
)
def test_whose_a_folder_is(other: Owner, same: bool, tmp_path: Path) -> None:
    claim(tmp_path, MINE)
    before = files(tmp_path)
    if same:
        claim(tmp_path, other)
        assert read_owner(tmp_path) == other
        return
    with pytest.raises(RopewalkError, match=r"holds the study 'mine' in /a/study\.yaml: .*; nothing was written"):
        claim(tmp_path, other)
    assert files(tmp_path) == before


def test_without_a_file_the_name_counts(tmp_path: Path) -> None:
    claim(tmp_path, Owner("study", "a", "", "1"))
    claim(tmp_path, Owner("study", "a", "", "2"))
    with pytest.raises(RopewalkError, match="holds the study 'a': choose another folder for the study 'b'"):
        claim(tmp_path, Owner("study", "b", "", "3"))


@pytest.mark.parametrize("name", ["study.yaml", "qk.csv", "report.html", ".hidden", "captures/first/manifest.json"])
def test_what_is_not_ours_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("somebody's")
    for adopt in (False, True):
        with pytest.raises(RopewalkError, match=r"is not empty and was not made by ropewalk: .*; nothing was"):
            claim(tmp_path, MINE, adopt=adopt)
    assert files(tmp_path) == {Path(name).name: b"somebody's"}


def test_a_folder_is_taken_over_only_when_asked(tmp_path: Path) -> None:
    claim(tmp_path, MINE)
    other = Owner("study", "mine", "/b/study.yaml", "2")
    with pytest.raises(RopewalkError, match="run the same command with --adopt"):
        check_owner(tmp_path, other)
    claim(tmp_path, other, adopt=True)
    assert read_owner(tmp_path) == other


def test_a_damaged_mark_is_said_to_be_one(tmp_path: Path) -> None:
    claim(tmp_path, MINE)
    data = json.loads((tmp_path / MARK).read_text())
    data["owner"]["name"] = "other"
    (tmp_path / MARK).write_text(json.dumps(data))
    assert read_owner(tmp_path) is None
    with pytest.raises(RopewalkError, match=r"ropewalk\.json, which says whose the folder is, is damaged: .* --adopt"):
        claim(tmp_path, MINE)
    claim(tmp_path, MINE, adopt=True)
    assert read_owner(tmp_path) == MINE


@pytest.mark.parametrize("within", ["captures", "captures/first", "figures"])
def test_a_link_to_elsewhere_is_not_followed(within: str, tmp_path: Path) -> None:
    results, outside = tmp_path / "results", tmp_path / "outside"
    outside.mkdir()
    claim(results, MINE)
    (results / within).parent.mkdir(parents=True, exist_ok=True)
    (results / within).symlink_to(outside)
    with pytest.raises(RopewalkError, match=r"is a link to .*outside, out of .*; nothing was written"):
        claim(results, MINE)
    (results / within).unlink()
    (results / "there").mkdir()
    (results / within).symlink_to(results / "there")
    claim(results, MINE)


def test_of_two_studies_at_once_one_gets_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another study marks the folder after this one found it free."""
    other = Owner("study", "other", "/b/study.yaml", "2")
    real = os.link

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", real)
        claim(tmp_path, other)
        real(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(RopewalkError, match="holds the study 'other'"):
        claim(tmp_path, MINE)
    assert read_owner(tmp_path) == other


def test_without_links_on_the_disk_a_folder_is_marked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    claim(tmp_path, MINE)
    assert read_owner(tmp_path) == MINE
    with pytest.raises(RopewalkError, match="holds the study 'mine'"):
        claim(tmp_path, Owner("study", "other", "/b/study.yaml", "2"))


def fail(folder: Path, finished: str = "") -> None:
    """Claim a folder, make something in it, and fail."""
    with claimed(folder, MINE):
        (folder / "tokens").mkdir()
        if finished:
            (folder / finished).write_text("work")
        raise KeyError


def test_a_failure_leaves_a_new_folder_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        fail(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_what_was_finished(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        fail(tmp_path, "tokens/finished")
    assert set(files(tmp_path)) == {"finished", MARK}


def test_the_mark_comes_back_where_a_failed_run_took_it(tmp_path: Path) -> None:
    with claimed(tmp_path, MINE):
        with pytest.raises(KeyError), claimed(tmp_path, MINE):
            raise KeyError
        (tmp_path / MARK).unlink()
    assert read_owner(tmp_path) == MINE


def test_leftovers_make_no_folder_somebodys(tmp_path: Path) -> None:
    (tmp_path / ".shard.x.ropewalk-tmp").write_text("half")
    assert is_free(tmp_path)
    claim(tmp_path, MINE)
    assert [path.name for path in tmp_path.iterdir()] == [MARK]


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    for name, message in [
        ("file", "is not a folder, or lies in a file"),
        ("file/below", "is not a folder, or lies in a file"),
        ("link", "is a link to a folder that is not there"),
        ("x" * 300, "cannot be read"),
    ]:
        with pytest.raises(RopewalkError, match=message):
            is_free(tmp_path / name)
