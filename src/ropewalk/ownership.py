"""Whose a folder is: results belong to one study, the output of a training to that, and others are not touched."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError
from ropewalk.files import clear_leftovers, is_temporary, write_bytes
from ropewalk.seals import read_sealed_json, sealed_json

MARK = "ropewalk.json"
"""The file that says whose a folder is: the first to be written."""


@dataclass(frozen=True)
class Owner:
    """A study or a training: its name, the file it was read from ("" if from none), a fingerprint of what that said.

    The same file is the same owner, however it was edited; so is the same content in another file, as in a copy. One
    that is from no file is known by its name.
    """

    kind: str
    name: str
    file: str
    content: str

    def is_same(self, other: "Owner") -> bool:
        """Whether two are the same, one perhaps edited or copied since."""
        if self.kind != other.kind:
            return False
        if self.content == other.content:
            return True
        return self.file == other.file and (self.file != "" or self.name == other.name)

    def describe(self) -> str:
        """For messages: which study, and where it stands."""
        return f"the {self.kind} {self.name!r}" + (f" in {self.file}" if self.file else "")


def read_owner(folder: Path) -> Owner | None:
    """Whose a folder is; None where it does not say, or cannot be made out."""
    owner = (read_sealed_json(folder / MARK) or {}).get("owner")
    # It may come from a stranger, who can write a seal.
    if not isinstance(owner, dict) or owner.keys() != set(Owner.__dataclass_fields__):
        return None
    return Owner(**owner) if all(isinstance(one, str) for one in owner.values()) else None


def check_owner(folder: Path, owner: Owner, *, adopt: bool = False) -> None:
    """Stop unless a folder is new, empty or marked as the owner's; nothing is written.

    `adopt` takes it from another owner: one whose file moved and was edited too. What was never marked stays refused.
    """
    if is_free(folder):
        return
    _check_links(folder)
    known, remedy = read_owner(folder), f"choose another folder for {owner.describe()}"
    if known is None and not (folder / MARK).exists():
        raise RopewalkError(f"{folder} is not empty and was not made by ropewalk: {remedy}; nothing was written")
    if adopt or (known is not None and known.is_same(owner)):
        return
    taking = "run the same command with --adopt"
    if known is None:
        raise RopewalkError(
            f"{folder / MARK}, which says whose the folder is, is damaged: if it is of {owner.describe()}, {taking}; "
            f"else {remedy}"
        )
    same = "" if owner.kind != known.kind else f", or, if it is the same one that was moved and changed, {taking}"
    raise RopewalkError(f"{folder} holds {known.describe()}: {remedy}{same}; nothing was written")


def _check_links(folder: Path) -> None:
    """Stop at a folder within that is a link to elsewhere: who made it would choose where is written."""
    home = folder.resolve()
    for parent, names, _ in os.walk(folder):
        for path in (Path(parent) / name for name in names):
            if path.is_symlink() and not path.resolve().is_relative_to(home):
                raise RopewalkError(
                    f"{path} is a link to {path.resolve()}, out of {folder}: put a folder in its place, or give "
                    "--results a folder where all of the results may stand; nothing was written"
                )


def claim(folder: Path, owner: Owner, *, adopt: bool = False) -> None:
    """Mark a folder as the owner's before anything else is written into it, and clear what killed runs left there."""
    check_owner(folder, owner, adopt=adopt)
    page = noted_page(folder)
    facts = {"ropewalk": __version__, "owner": asdict(owner)}
    mark = sealed_json(facts if page is None else facts | {"page": page})
    try:
        write_bytes(folder / MARK, mark, replace=False)
    except FileExistsError:
        # Another process may have marked it since: it is asked again.
        check_owner(folder, owner, adopt=adopt)
        if read_owner(folder) != owner:
            write_bytes(folder / MARK, mark)
    clear_leftovers(folder)


@contextmanager
def claimed(folder: Path, owner: Owner, *, adopt: bool = False) -> Iterator[None]:
    """Claim a folder for what is done within; where that fails and leaves nothing there, the folder is as before."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    was_free = is_free(folder)
    claim(folder, owner, adopt=adopt)
    try:
        yield
    except BaseException:
        if was_free and not any(path.is_file() and path.name != MARK for path in folder.rglob("*")):
            (folder / MARK).unlink(missing_ok=True)
            for path in (*(path for path in folder.rglob("*") if path.is_dir()), *made):
                with suppress(OSError):  # another process has put something there
                    path.rmdir()
        raise
    # Another run that failed meanwhile may have taken the mark away as its own.
    claim(folder, owner, adopt=adopt)


def is_marked(folder: Path) -> bool:
    """Whether a folder is marked as somebody's: what has the name of a result there is one."""
    return (folder / MARK).is_file()


def note_page(folder: Path, name: str) -> None:
    """Write into the mark of a folder that a page was made there, so that it is missed when it is gone."""
    known = read_sealed_json(folder / MARK)
    if known is not None and known.get("page") != name:
        write_bytes(folder / MARK, sealed_json({**known, "page": name}))


def noted_page(folder: Path) -> str | None:
    """The name of the page that was made in a folder; None where none was, or it is not known."""
    return (read_sealed_json(folder / MARK) or {}).get("page")


def is_free(folder: Path) -> bool:
    """Whether a folder is not there, or holds nothing."""
    try:
        return all(is_temporary(path) for path in folder.iterdir())
    except FileNotFoundError:
        if folder.is_symlink():
            raise RopewalkError(
                f"{folder} is a link to a folder that is not there: make it, or remove the link"
            ) from None
        return True
    except NotADirectoryError:
        raise RopewalkError(f"{folder} is not a folder, or lies in a file: choose another folder to write to") from None
    except OSError as error:
        raise RopewalkError(f"{folder} cannot be read ({error.strerror}): choose another folder to write to") from error
