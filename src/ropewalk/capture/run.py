"""Computing the missing shards of a study."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ropewalk.capture.account import Account, Engine, InOneProcess, publish
from ropewalk.capture.jobs import Job, check_inputs, prepare_jobs
from ropewalk.capture.manifest import MODEL_FACTS, known_manifest
from ropewalk.capture.nulls import with_nulls
from ropewalk.capture.plan import describe
from ropewalk.capture.shards import capture_folder, shard_versions
from ropewalk.capture.vectors import SourceJob, prepare_sources, run_source
from ropewalk.capture.work import Bench
from ropewalk.capture.working import clear_notes, working
from ropewalk.errors import RopewalkError
from ropewalk.files import check_writable
from ropewalk.ownership import check_owner
from ropewalk.progress import logger
from ropewalk.record import is_recorded, note_versions, write_record
from ropewalk.study import Study


@dataclass(frozen=True)
class Work:
    """What a study asks for, checked whole: a job per checkpoint with a model, and one per dataset that is wanted."""

    wanted: set[str]
    jobs: list[Job]
    sources: list[SourceJob]

    @property
    def wanted_jobs(self) -> list[Job]:
        """The jobs of the checkpoints that are to be computed now."""
        return [job for job in self.jobs if job.checkpoint.name in self.wanted]

    def check_shards(self) -> None:
        """Stop at a shard of other inputs, before the record says that the results are this study's."""
        for job in self.wanted_jobs:
            job.missing()
        for source in self.sources:
            source.missing()


def capture_study(
    study: Study,
    *,
    only: Sequence[str] = (),
    shards: Sequence[int] | None = None,
    adopt: bool = False,
    engine: Engine | None = None,
) -> None:
    """Compute the missing shards of a study; finished ones are kept, those of other inputs refused.

    `only` names checkpoints (by name or label) and `shards` numbers, for a part of the work on one machine of many.
    The results folder must be new, empty or of this study; `adopt` takes over one of a study that was moved and edited.
    `engine` computes the shards: this process by default. Those that fail are an `UnfinishedError` when all others are
    done.
    """
    study = with_nulls(study)
    wanted = _wanted(study, only)
    work = _prepare(study, wanted, adopt=adopt)
    for job in work.wanted_jobs:
        for shard in shards or ():
            if not 0 <= shard < len(job.shards):
                raise RopewalkError(f"there is no shard {shard}: the study has shards 0 to {len(job.shards) - 1}")
    work.check_shards()
    # One entry for each tokenizer: all its checkpoints read the same documents.
    documents = [one.facts() for one in dict.fromkeys(job.documents for job in work.jobs)]
    origins = [*(job.origins for job in work.jobs), *(source.origins for source in work.sources)]
    write_record(study.folder, study, documents, origins)
    # Datasets first: reading them is quick, and a mistake in one shows before a model runs for hours.
    for source in work.sources:
        run_source(source)
    _compute(study, work.wanted_jobs, shards, engine or InOneProcess())
    folders = {one.name: capture_folder(study.folder, one.slug) for one in study.checkpoints}
    note_versions(study.folder, {name: shard_versions(folder) for name, folder in folders.items()})


def plan_study(study: Study, *, adopt: bool = False) -> str:
    """What a study will cost, as text; finds what a run would find before it computes anything, and writes nothing."""
    study = with_nulls(study)
    with TemporaryDirectory() as scratch:
        work = _prepare(study, _wanted(study, ()), adopt=adopt, scratch=Path(scratch))
        work.check_shards()
        return describe(study, work.jobs, work.sources)


def _wanted(study: Study, only: Sequence[str]) -> set[str]:
    """Names of the checkpoints that `only` names, all of them if it names none."""
    for name in only:
        if not any(name in (checkpoint.name, checkpoint.label) for checkpoint in study.checkpoints):
            raise RopewalkError(
                f"no checkpoint {name!r} in the study: choose among {', '.join(c.label for c in study.checkpoints)}"
            )
    return {one.name for one in study.checkpoints if not only or one.name in only or one.label in only}


def _prepare(study: Study, wanted: set[str], *, adopt: bool, scratch: Path | None = None) -> Work:
    """Check a study whole, and tokenize its documents: into its folder, which becomes its own, or into `scratch`."""
    # A mark that is damaged is written anew where the record says the same.
    adopt = adopt or is_recorded(study)
    check_owner(study.folder, study.owner, adopt=adopt)
    inputs, sources = check_inputs(study), prepare_sources(study, lambda checkpoint: checkpoint.name in wanted)
    check_writable(study.folder)
    return Work(wanted, prepare_jobs(study, inputs, adopt=adopt, scratch=scratch), sources)


def _compute(study: Study, jobs: Sequence[Job], shards: Sequence[int] | None, engine: Engine) -> None:
    """Let an engine compute what is missing of jobs, or those of it that are among `shards`."""
    orders, wanted = [], {}
    for number, job in enumerate(jobs, 1):
        order = job.order(study.capture, f"{job.checkpoint.label} ({number}/{len(jobs)})")
        missing = job.missing(shards)
        if missing:
            orders.append(order)
            wanted[order.name] = missing
        else:
            order.write_manifest(_known_facts(job) or Bench(order).facts)
            logger.info("%s: %d shards were there already", order.label, len(job.shards))
            publish(job)
    clear_notes(study.folder)
    with working(study.folder, engine.name) as note:
        account = Account(study, jobs, orders, wanted, note)
        with account.progress:
            engine.run(account)
    account.check()


def _known_facts(job: Job) -> dict[str, Any] | None:
    """What only the model can tell, as it was told when the shards were made; None where that is not known."""
    known, manifest = known_manifest(job.folder), job.manifest()
    if known is None or any(known.get(name) != manifest[name] for name in ("model", "settings")):
        return None
    return {name: known[name] for name in MODEL_FACTS if name in known}
