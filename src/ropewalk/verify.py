"""Is everything in a results folder what was written, and of one piece? And making again what is not."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ropewalk.capture.corpus import TokenRecord, check_tokens
from ropewalk.capture.fetched import FETCHED, Fetched
from ropewalk.capture.manifest import MANIFEST
from ropewalk.capture.pinned import COMMITS, Commits
from ropewalk.capture.shards import (
    SHARDS,
    Provenance,
    WrongShardError,
    capture_folder,
    is_whole,
    open_shard,
    shard_path,
)
from ropewalk.capture.stored import StoredCapture, stored_captures
from ropewalk.digests import DIGESTS, Remembered
from ropewalk.errors import RopewalkError
from ropewalk.figures.head_collage import COLLAGES
from ropewalk.freshness import StaleTablesError, picture_folders, pictures_made_from
from ropewalk.notes import Note, read_note
from ropewalk.ownership import MARK, claim, note_page, noted_page, read_owner
from ropewalk.progress import logger
from ropewalk.reading import unreadable
from ropewalk.record import RECORD, OutdatedError, Record, need_record, read_record
from ropewalk.report.page import PAGE, is_current
from ropewalk.results import Results, analyze, load
from ropewalk.seals import LEDGER, Ledger, is_intact
from ropewalk.statistics.registry import build
from ropewalk.statistics.sample import VECTORS, kept_from
from ropewalk.study import KIND, Study
from ropewalk.studyfile import load_study
from ropewalk.tables import REPLICATES_FILE
from ropewalk.text import slug

STEPS = ("mark", "vectors", "capture", "tables", "figures", "report")
"""What makes files, in order: one step is made from those before it, but for the mark and kept vectors, which are made
of the record and of shards, and of which nothing else is made."""

NOTES: Mapping[str, type[Note]] = {DIGESTS: Remembered, FETCHED: Fetched}
"""What runs remember for the next one, where there is anything."""

OUT_OF_DATE = "out of date"
OTHER, WRONG = "of another capture", "not what its manifest says"
"""States of shards that are as they were written."""


@dataclass(frozen=True)
class Check:
    """What was found of one file: nothing (None), or that it is damaged, missing, unfinished or out of date."""

    path: Path
    step: str
    state: str | None = None


def verify(folder: Path) -> list[Check]:
    """Check every file of a results folder against its seal, and each step against what it was made from."""
    if not folder.is_dir():
        raise RopewalkError(f"no results at {folder}: give the folder of a run")
    # What is in a folder that may not be read would not be missed.
    for _ in os.walk(folder, onerror=_unreadable):
        pass
    owner = read_owner(folder)
    if owner is not None and owner.kind != KIND:
        raise RopewalkError(
            f"{folder} holds {owner.describe()} and no results: run `ropewalk train` on it again, which checks it"
        )
    if not (folder / MARK).exists() and not (folder / RECORD).exists():
        raise RopewalkError(f"{folder} is not a results folder: it has no {RECORD}; give the folder of a run")
    record: Record | None = None
    state: str | None = "missing"
    try:
        record = read_record(folder)
        state = None if record is not None else "missing"
    except OutdatedError:
        raise
    except RopewalkError as error:
        # What may not be read is not damaged.
        if isinstance(error.__cause__, OSError):
            raise
        state = "damaged"
    results = _results(folder)
    return [
        Check(folder / MARK, "mark", _state(folder / MARK, owner is not None)),
        Check(folder / RECORD, "capture", state),
        *(_noted(folder / name, kind) for name, kind in NOTES.items() if (folder / name).exists()),
        *_tokens(folder / "tokens"),
        *(check for captured in _captures(folder, record) for check in _captured(captured)),
        *_tables(folder, record),
        *(check for drawn, axis in picture_folders(folder).items() for check in _pictures(drawn, axis, results)),
        *(_drawn_heads(folder / COLLAGES, results) if (folder / COLLAGES).is_dir() else ()),
        *_report(folder / PAGE, results),
    ]


def _unreadable(error: OSError) -> None:
    raise unreadable(str(error.filename), error, "check who may read it, and the disk") from error


def _state(path: Path, whole: bool) -> str | None:
    return None if whole else "damaged" if path.exists() else "missing"


def _noted(path: Path, kind: type[Note]) -> Check:
    return Check(path, "capture", _state(path, read_note(path, kind) is not None))


def _tokens(folder: Path) -> Iterator[Check]:
    there = {path.with_suffix(".json") for ending in ("json", "bin") for path in folder.glob(f"*.{ending}")}
    for path in sorted(there):
        if path.name == COMMITS:
            yield _noted(path, Commits)
        else:
            record = _noted(path, TokenRecord)
            yield record
            yield Check(path.with_suffix(".bin"), "capture", check_tokens(path) if record.state is None else None)


def _captures(folder: Path, record: Record | None) -> list[Path]:
    """The folders of the checkpoints: those of the study, or where that cannot be read, those that are there."""
    if record is None:
        return sorted(path for path in (folder / "captures").glob("*") if path.is_dir())
    return [capture_folder(folder, checkpoint.slug) for checkpoint in record.study.checkpoints]


def _captured(folder: Path) -> Iterator[Check]:
    manifest, present = folder / MANIFEST, sorted(folder.glob(SHARDS))
    try:
        captured = StoredCapture(folder, folder.name)
    except RopewalkError:
        yield Check(manifest, "capture", _state(manifest, whole=False))
        yield from (Check(path, "capture", _state(path, is_whole(path))) for path in present)
        return
    yield Check(manifest, "capture")
    for number, expected in enumerate(captured.provenances):
        path = shard_path(folder, number)
        state = _state(path, path.is_file() and is_whole(path))
        if state is None:
            state = _shard_state(captured, number, path, expected)
        yield Check(path, "capture", state)
    kept = folder / VECTORS
    if kept.is_dir():
        yield from _ledger(kept, "vectors", kept_from(captured.provenance))


def _shard_state(captured: StoredCapture, number: int, path: Path, expected: Provenance) -> str | None:
    """What is wrong with a shard whose seal is right."""
    try:
        if open_shard(path).provenance != expected:
            return OTHER
        captured.check_shard(number)
    except WrongShardError:
        return WRONG
    return None


def _tables(folder: Path, record: Record | None) -> Iterator[Check]:
    if not any((folder / name).exists() for name in (LEDGER, "qk.csv", "heads.csv", REPLICATES_FILE)):
        return  # they were not made yet
    checks = list(_ledger(folder, "tables"))
    if record is not None and not any(check.state for check in checks):
        try:
            load(folder)
        except StaleTablesError:
            checks = [Check(check.path, "tables", OUT_OF_DATE) for check in checks]
        except RopewalkError:
            pass  # what it is of is damaged itself
    yield from checks


def _pictures(folder: Path, axis: str | None, results: Results | None) -> Iterator[Check]:
    made_from = None if results is None else pictures_made_from(results.digest, results.figure_options(axis))
    yield from _ledger(folder, "figures", made_from)


def _drawn_heads(folder: Path, results: Results | None) -> Iterator[Check]:
    """The pages about single heads: each has its own entry of what it was made from."""
    ledger, now = Ledger.read(folder), None if results is None else pictures_made_from(results.digest, {})
    then = {} if ledger is None else ledger.made_from
    for check in _ledger(folder, "figures"):
        stale = now is not None and check.path.name != LEDGER and then.get(check.path.parent.name) != now
        yield Check(check.path, check.step, check.state or (OUT_OF_DATE if stale else None))


def _report(path: Path, results: Results | None) -> Iterator[Check]:
    if path.exists():
        state = _state(path, is_intact(path))
        if state is None and results is not None and not is_current(path, str(results.digest)):
            state = OUT_OF_DATE
        yield Check(path, "report", state)
    elif noted_page(path.parent) == path.name:
        yield Check(path, "report", "missing")


def _results(folder: Path) -> Results | None:
    """The results of a folder; None where they cannot be read, which is said of their own files."""
    try:
        return load(folder)
    except RopewalkError:
        return None


def _ledger(folder: Path, step: str, made_from: dict[str, str] | None = None) -> Iterator[Check]:
    """The files of a ledger, and the ledger itself."""
    ledger = Ledger.read(folder)
    yield Check(folder / LEDGER, step, _state(folder / LEDGER, ledger is not None))
    if ledger is None:
        return
    stale = made_from is not None and dict(ledger.made_from) != made_from
    for name in ledger.files:
        yield Check(folder / name, step, ledger.state(folder, name) or (OUT_OF_DATE if stale else None))


def repair(folder: Path, checks: list[Check]) -> None:
    """Make again what is not as it was written, from the first step of which something is wrong.

    Shards and tokens are computed again from the model and the corpus, kept vectors and tables from shards, figures and
    report from tables. A step that was never taken is not taken now.
    """
    wrong = {check.step for check in checks if check.state is not None}
    taken = {check.step for check in checks}
    if "capture" in wrong:
        from ropewalk.capture.run import capture_study

        for check in checks:
            if check.state in (OTHER, WRONG):
                _set_aside(check.path, check.state)
        capture_study(_study(folder), adopt=True)
    else:
        # Neither needs the model, which may not be at hand any more.
        if "mark" in wrong:
            claim(folder, _study(folder).owner, adopt=True)
            if (folder / PAGE).exists():
                note_page(folder, PAGE)
        if "vectors" in wrong:
            _publish(folder)
    wrong -= {"mark", "vectors"}
    if not wrong:
        return
    first = STEPS.index(min(wrong, key=STEPS.index))
    if "tables" in taken and first <= STEPS.index("tables"):
        analyze(folder)
    results = load(folder) if {"figures", "report"} & taken else None
    if results is not None and "figures" in taken and first <= STEPS.index("figures"):
        for drawn, axis in picture_folders(folder).items():
            results.write_figures(drawn, axis, done=lambda path: logger.info("%s", path))
        for checkpoint, layer, head in _collages(folder, results):
            results.write_collage(folder / COLLAGES, layer, head, checkpoint)
    if results is not None and "report" in taken:
        results.report(folder)


def _set_aside(path: Path, state: str) -> None:
    """Move a shard that is whole, and not of this capture, out of the way: it is somebody's work."""
    number = 1
    while (aside := path.with_name(f"{path.name}.other-{number}")).exists():
        number += 1
    path.rename(aside)
    logger.warning("%s is %s: it is kept as %s", path, state, aside.name)


def _publish(folder: Path) -> None:
    """Lay out again what statistics keep beside shards."""
    for captured in stored_captures(folder, need_record(folder).study).values():
        for statistic in build(captured.statistics):
            statistic.publish(captured, captured.folder)


def _collages(folder: Path, results: Results) -> Iterator[tuple[str, int, int]]:
    """The heads of which a page was drawn: checkpoint, layer and head, by the names of their folders."""
    slugs = {slug(name): name for name in results.view.lineup.names}
    for path in sorted((folder / COLLAGES).glob("*")):
        match = re.fullmatch(r"(.+)_l(\d+)h(\d+)", path.name)
        if match and match[1] in slugs:
            yield slugs[match[1]], int(match[2]), int(match[3])


def _study(folder: Path) -> Study:
    """The study of a folder, from its record, else from the file that its mark names."""
    owner = read_owner(folder)
    try:
        record = read_record(folder)
    except RopewalkError:
        record = None
    if record is not None:
        study = record.study.model_copy(update={"results": str(folder)})
        return study if owner is None else study.owned_by(owner)
    if owner is None or not Path(owner.file).is_file():
        raise RopewalkError(
            f"neither {folder / RECORD} nor {folder / MARK} tells the study any more: run it again with "
            f"`ropewalk run STUDY --results {folder} --adopt`, which goes on with the shards that are there"
        )
    return load_study(owner.file, folder)
