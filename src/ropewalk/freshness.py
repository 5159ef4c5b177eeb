"""Whether tables and pictures on disk are whole, and of what they stand beside: else they are made again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import file_fingerprint, fingerprint
from ropewalk.geometry.axes import AXES
from ropewalk.seals import LEDGER, Ledger
from ropewalk.study import Study
from ropewalk.table_checks import TableError

PICTURES = "figures"
"""Folder of the pictures in a results folder."""


def picture_folders(results: Path) -> dict[Path, str | None]:
    """The folders of pictures in a results folder, with the axis that was asked for by `ropewalk figures --axis`."""
    named = {results / PICTURES: None, **{results / f"{PICTURES}_{axis}": axis for axis in AXES}}
    return {folder: axis for folder, axis in named.items() if folder.is_dir()}


class StaleTablesError(RopewalkError):
    """Tables that are damaged, unfinished, or of other shards or settings than those beside them."""

    def __init__(self, reason: str, folder: Path) -> None:
        super().__init__(f"{reason}: make the tables again with `ropewalk analyze {folder}`")
        self.reason = reason


@contextmanager
def stale_where_wrong(folder: Path, *, made_here: bool) -> Iterator[None]:
    """Tables that cannot be believed are stale where they were made in their folder: they can be made there again."""
    try:
        yield
    except TableError as error:
        if not made_here:
            raise
        raise StaleTablesError(error.reason, folder) from error


class _Capture(Protocol):
    @property
    def provenance(self) -> str: ...


def tables_made_from(study: Study, captures: Mapping[str, _Capture]) -> dict[str, Any]:
    """What tables are made from, as their ledger says it: the study, and the shards of each checkpoint."""
    # What is drawn of them, and how, is decided later; what becomes of weights decides no number.
    settings = study.model_dump(mode="json", exclude={"results", "figures", "downloads"})
    return {
        "study": fingerprint(settings),
        "shards": {name: fingerprint(captured.provenance) for name, captured in captures.items()},
    }


def tables_digest(folder: Path, study: Study | None = None, captures: Mapping[str, _Capture] | None = None) -> str:
    """A digest of the tables of a folder, checked to be whole and those of its study and shards.

    Shards that are not there any more are not asked about. Tables from elsewhere, without a ledger, are what they are.
    """
    ledger = Ledger.read(folder)
    if ledger is None:
        if study is not None or (folder / LEDGER).exists():
            what = "is damaged" if (folder / LEDGER).exists() else "is missing"
            raise StaleTablesError(f"{folder / LEDGER}, by which the tables are known to be whole, {what}", folder)
        found = [path for pattern in ("*.csv", "*.parquet") for path in sorted(folder.glob(pattern))]
        return fingerprint({path.name: file_fingerprint(path) for path in found})
    for name, state in ledger.differs(folder):
        raise StaleTablesError(f"{folder / name} is {state}", folder)
    if study is not None and captures is not None:
        now, then = tables_made_from(study, captures), ledger.made_from
        if now["study"] != then.get("study"):
            raise StaleTablesError(f"the tables in {folder} are of the study before it was changed", folder)
        for name, shards in now["shards"].items():
            if ledger.shards.get(name) != shards:
                raise StaleTablesError(f"the tables in {folder} are of other shards of {name!r} than now", folder)
    return fingerprint(ledger.files)


def pictures_made_from(tables: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """What pictures are made from, as their ledger says it: the digest of tables, options of figures, the version."""
    return {"tables": tables, "options": fingerprint(options), "ropewalk": __version__}


def fresh_pictures(results: Path, made_from: Mapping[str, Any]) -> dict[str, bytes]:
    """The pictures of a results folder that are whole and made from this, by the names of their folders."""
    folder = results / PICTURES
    ledger = Ledger.read(folder)
    if ledger is None or dict(ledger.made_from) != dict(made_from) or made_from["tables"] is None:
        return {}
    names = [name for name in ledger.files if name.endswith("/figure.png") and ledger.state(folder, name) is None]
    return {name.split("/")[0]: (folder / name).read_bytes() for name in names}
