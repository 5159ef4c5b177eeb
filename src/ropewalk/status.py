"""How far a study is: which of its shards are done, being computed, queued and missing, whatever computes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ropewalk.capture.manifest import known_manifest
from ropewalk.capture.shards import SHARDS, capture_folder, split_documents
from ropewalk.capture.working import Worker, workers
from ropewalk.engines.submissions import Submission, read_submissions
from ropewalk.errors import RopewalkError
from ropewalk.record import Record, need_record
from ropewalk.text import count, printable, spans, table

HEADERS = ("checkpoint", "shards", "done", "running", "queued", "missing")


@dataclass(frozen=True)
class CheckpointStatus:
    """The shards of one checkpoint: how many there are to be (None: not known yet), and the numbers in each state."""

    label: str
    shards: int | None
    done: tuple[int, ...]
    running: tuple[int, ...]
    queued: tuple[int, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Numbers that nobody computes."""
        known = {*self.done, *self.running, *self.queued}
        return tuple(number for number in range(self.shards or 0) if number not in known)


def study_status(results: Path) -> list[CheckpointStatus]:
    """The shards of every checkpoint of a results folder, as files and notes there tell; contents are not read."""
    return list(_statuses(results, need_record(results), workers(results), _living(results)))


def describe_status(results: Path) -> str:
    """The status as text: a line per checkpoint, the sums, and who computes."""
    record, notes, submissions = need_record(results), workers(results), _living(results)
    rows = list(_statuses(results, record, notes, submissions))
    cells = [
        [
            row.label,
            "?" if row.shards is None else str(row.shards),
            *(_shown(numbers) for numbers in (row.done, row.running, row.queued)),
            "?" if row.shards is None else _shown(row.missing),
        ]
        for row in rows
    ]
    lines = [printable(f"study {record.study.name}: {count(len(rows), 'checkpoint')} in {results}")]
    lines += [f"  {line}" for line in table(HEADERS, cells, right=(1,))]
    total, unknown = sum(row.shards or 0 for row in rows), any(row.shards is None for row in rows)
    done, running = sum(len(row.done) for row in rows), sum(len(row.running) for row in rows)
    queued, missing = sum(len(row.queued) for row in rows), sum(len(row.missing) for row in rows)
    lines.append(
        f"in all: {done} of {total}{' or more' if unknown else ''} shards done, {running} running, {queued} queued, "
        f"{missing} missing"
    )
    for note in notes:
        since = datetime.fromtimestamp(note.since, UTC).strftime("%Y-%m-%d %H:%M UTC")
        lines.append(printable(f"at work: {note.engine}, process {note.pid} on {note.host}, since {since}"))
    if missing and not notes and not submissions:
        lines.append("nobody computes the missing ones: `ropewalk run STUDY` goes on with them")
    return "\n".join(lines)


def _statuses(
    results: Path, record: Record, notes: list[Worker], submissions: list[Submission]
) -> Iterator[CheckpointStatus]:
    for checkpoint in record.study.checkpoints:
        folder = capture_folder(results, checkpoint.slug)
        manifest = known_manifest(folder) or {}
        done = {int(path.stem.removeprefix("shard-")) for path in folder.glob(SHARDS)}
        running = {number for note in notes for number in note.shards.get(checkpoint.name, ())} - done
        waiting = {number for one in submissions if one.checkpoint == checkpoint.name for number in one.shards}
        shards = manifest.get("shards") or _expected(record)
        yield CheckpointStatus(
            checkpoint.label,
            shards,
            tuple(sorted(number for number in done if shards is None or number < shards)),
            tuple(sorted(running)),
            tuple(sorted(waiting - done - running)),
        )


def _expected(record: Record) -> int | None:
    """Shards of a checkpoint that was not begun: all are cut alike where their documents are as many."""
    documents = {one["documents"] for one in record.data.get("documents", ())}
    return len(split_documents(documents.pop(), record.study.capture.shards)) if len(documents) == 1 else None


def _living(results: Path) -> list[Submission]:
    try:
        return [one for one in read_submissions(results) if not one.has_ended(results)]
    except RopewalkError:  # submitted elsewhere: here is nothing to ask SLURM with
        return read_submissions(results)


def _shown(numbers: tuple[int, ...]) -> str:
    return f"{len(numbers)} ({spans(numbers)})" if numbers else "0"
