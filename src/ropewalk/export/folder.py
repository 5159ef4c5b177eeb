"""A folder of exported files: ours from its first file on, and whole when its ledger says so."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import fingerprint
from ropewalk.ownership import is_marked
from ropewalk.seals import Ledger

TOOL = "ropewalk export"


@contextmanager
def writing(folder: Path, names: Sequence[str], facts: Mapping[str, Any]) -> Iterator[None]:
    """Write the files `names` of a folder within; the ledger beside them says what they were made from, last.

    Files that are not ours are not replaced; those of an earlier export into the same folder are.
    """
    if folder.exists() and not folder.is_dir():
        raise RopewalkError(f"{folder} is a file, and this format writes a folder: give another name")
    known = Ledger.read(folder)
    foreign = known is not None and known.made_from and known.made_from.get("tool") != TOOL
    if is_marked(folder) or foreign:
        raise RopewalkError(f"{folder} holds results: give a folder of its own to export to, such as {folder}-export")
    before = [] if known is None else [name for name in known.files if (folder / name).is_file()]
    Ledger.begin(folder, names)
    yield
    made_from = {"tool": TOOL, "facts": fingerprint(facts)}
    Ledger.of(folder, dict.fromkeys([*before, *names]), made_from).write(folder)
