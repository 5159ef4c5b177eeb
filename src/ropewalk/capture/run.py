"""Computing the missing shards of a study."""

from collections.abc import Sequence
from typing import Any

from ropewalk.capture.account import Account, Engine, InOneProcess, publish
from ropewalk.capture.downloads import Downloads, survey
from ropewalk.capture.jobs import Draft, Inputs, Job, check_inputs, draft_jobs, prepare_jobs
from ropewalk.capture.manifest import MODEL_FACTS, known_manifest
from ropewalk.capture.nulls import with_nulls
from ropewalk.capture.plan import describe
from ropewalk.capture.shards import capture_folder, shard_versions
from ropewalk.capture.vectors import SourceJob, prepare_sources, run_source
from ropewalk.capture.work import Bench
from ropewalk.capture.working import clear_notes, working
from ropewalk.errors import RopewalkError
from ropewalk.files import check_writable, clear_leftovers
from ropewalk.models.hub import without_bars
from ropewalk.ownership import check_owner
from ropewalk.progress import logger
from ropewalk.record import is_recorded, note_versions, write_record
from ropewalk.study import Study


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
    `engine` computes the shards: this process by default. What cannot be fetched or computed is left out, and said at
    the end: an IncompleteError.
    """
    study = with_nulls(study)
    # A mark that is damaged is written anew where the record says the same.
    adopt = adopt or is_recorded(study)
    inputs, sources = _check(study, only, adopt=adopt)
    needs = survey(study, inputs.checkpoints)
    if needs.weights:
        logger.info("%s", needs.describe())
    jobs = prepare_jobs(study, inputs, adopt=adopt)
    for job in jobs:
        for shard in shards or ():
            if not 0 <= shard < len(job.shards):
                raise RopewalkError(f"there is no shard {shard}: the study has shards 0 to {len(job.shards) - 1}")
    _check_shards(jobs, sources)
    # One entry for each tokenizer: all its checkpoints read the same documents.
    documents = [one.facts() for one in dict.fromkeys(job.documents for job in jobs)]
    origins = [*(job.origins for job in jobs), *(source.origins for source in sources)]
    write_record(study.folder, study, documents, origins, partial=bool(only))
    # Datasets first: reading them is quick, and a mistake in one shows before a model runs for hours.
    for source in sources:
        run_source(source)
    account = _compute(study, jobs, shards, engine or InOneProcess(), Downloads(study, needs))
    folders = {one.name: capture_folder(study.folder, one.slug) for one in study.checkpoints}
    note_versions(study.folder, {name: shard_versions(folder) for name, folder in folders.items()})
    account.check()


def plan_study(study: Study, *, only: Sequence[str] = (), adopt: bool = False) -> str:
    """What a study will cost, as text; tokenizes nothing and writes nothing.

    Finds what a run would find before it computes anything, but for what only the whole corpus shows. `only` names
    checkpoints, as of `capture_study`.
    """
    study = with_nulls(study)
    inputs, sources = _check(study, only, adopt=adopt or is_recorded(study))
    jobs = draft_jobs(study, inputs)
    _check_shards(jobs, sources)
    return describe(study, jobs, sources, survey(study, inputs.checkpoints))


def _wanted(study: Study, only: Sequence[str]) -> set[str]:
    """Names of the checkpoints that `only` names, all of them if it names none."""
    for name in only:
        if not any(name in (checkpoint.name, checkpoint.label) for checkpoint in study.checkpoints):
            raise RopewalkError(
                f"no checkpoint {name!r} in the study: choose among {', '.join(c.label for c in study.checkpoints)}"
            )
    return {one.name for one in study.checkpoints if not only or one.name in only or one.label in only}


def _check(study: Study, only: Sequence[str], *, adopt: bool) -> tuple[Inputs, list[SourceJob]]:
    """Check what is wanted of a study, and its folder: models, and vectors on disk; nothing is written."""
    wanted = _wanted(study, only)
    check_owner(study.folder, study.owner, adopt=adopt)
    # A GGUF file holds its own configuration: to check it is to fetch it.
    early = survey(study, [one for one in study.checkpoints if one.name in wanted and one.repo and one.gguf_file])
    if early.weights:
        logger.info("%s", early.describe())
    inputs = check_inputs(study, wanted)
    sources = prepare_sources(study, lambda checkpoint: checkpoint.name in wanted)
    check_writable(study.folder)
    return inputs, sources


def _check_shards(jobs: Sequence[Job | Draft], sources: Sequence[SourceJob]) -> None:
    """Stop at a shard of other inputs, before the record says that the results are this study's."""
    for one in (*jobs, *sources):
        one.missing()


def _compute(
    study: Study, jobs: Sequence[Job], shards: Sequence[int] | None, engine: Engine, downloads: Downloads
) -> Account:
    """Let an engine compute what is missing of jobs, or those of it that are among `shards`."""
    orders, wanted, done = [], {}, []
    for number, job in enumerate(jobs, 1):
        order = job.order(study.capture, f"{job.checkpoint.label} ({number}/{len(jobs)})")
        missing = job.missing(shards)
        if missing:
            orders.append(order)
            wanted[order.name] = missing
        else:
            order.write_manifest(_known_facts(job) or Bench(order).facts)
            logger.info("%s: %d shards were there already", order.label, len(job.shards))
            done.append(job)
    for job in done:
        if not job.missing():
            publish(job)
            downloads.release(job.checkpoint, list(wanted))
    clear_notes(study.folder)
    with working(study.folder, engine.name) as note, without_bars():
        account = Account(study, jobs, orders, wanted, note, downloads)
        with account.progress:
            engine.run(account)
    # Of workers that were killed while they wrote a shard, which others have written since.
    clear_leftovers(study.folder)
    return account


def _known_facts(job: Job) -> dict[str, Any] | None:
    """What only the model can tell, as it was told when the shards were made; None where that is not known."""
    known, manifest = known_manifest(job.folder), job.manifest()
    if known is None or any(known.get(name) != manifest[name] for name in ("model", "settings")):
        return None
    return {name: known[name] for name in MODEL_FACTS if name in known}
