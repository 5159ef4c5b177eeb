"""Computing the missing shards of a study."""

from collections.abc import Sequence

from torch import nn

from ropewalk.capture.collector import Collection, collect
from ropewalk.capture.downloads import Downloads, survey
from ropewalk.capture.jobs import Draft, Inputs, Job, check_inputs, draft_jobs, prepare_jobs
from ropewalk.capture.manifest import MODEL_FACTS, known_manifest, model_facts, write_manifest
from ropewalk.capture.nulls import with_nulls
from ropewalk.capture.plan import describe
from ropewalk.capture.readiness import make_ready
from ropewalk.capture.settings import choose_heads
from ropewalk.capture.shards import capture_folder, shard_path, shard_versions, write_shard
from ropewalk.capture.stored import StoredCapture
from ropewalk.capture.vectors import SourceJob, prepare_sources, run_source
from ropewalk.errors import RopewalkError
from ropewalk.files import check_writable
from ropewalk.models.layout import Head, Layout
from ropewalk.models.loading import load_model
from ropewalk.ownership import check_owner
from ropewalk.progress import Progress, logger
from ropewalk.record import is_recorded, note_versions, write_record
from ropewalk.statistics.base import layers_of
from ropewalk.study import Capture, Study


def capture_study(
    study: Study, *, only: Sequence[str] = (), shards: Sequence[int] | None = None, adopt: bool = False
) -> None:
    """Compute the missing shards of a study; finished ones are kept, those of other inputs refused.

    `only` names checkpoints (by name or label) and `shards` numbers, for a part of the work on one machine of many.
    The results folder must be new, empty or of this study; `adopt` takes over one of a study that was moved and edited.
    Checkpoints whose weights cannot be fetched are left out, and said at the end: an IncompleteError.
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
    downloads = Downloads(study, needs)
    for job in downloads.in_turn(jobs, shards):
        run_job(job, study.capture, f"{job.checkpoint.label} ({jobs.index(job) + 1}/{len(jobs)})", shards)
    folders = {one.name: capture_folder(study.folder, one.slug) for one in study.checkpoints}
    note_versions(study.folder, {name: shard_versions(folder) for name, folder in folders.items()})
    downloads.check_complete()


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


def run_job(job: Job, capture: Capture, label: str, shards: Sequence[int] | None = None) -> None:
    """Compute the missing shards of one checkpoint and, when none is missing any more, publish what statistics keep."""
    missing = job.missing(shards)
    manifest = job.manifest()
    known = known_manifest(job.folder)
    if known is not None and any(known.get(name) != manifest[name] for name in ("model", "settings")):
        known = None
    if missing or known is None:
        model = load_model(job.checkpoint, job.config)
        ready = make_ready(model, job.checkpoint.label, job.checkpoint.context, capture.pre_rope)
        heads = choose_heads(ready.layout, capture)
        write_manifest(job.folder, manifest | model_facts(ready.layout, heads, ready.dtype, ready.proof))
        if missing:
            _compute(job, capture, label, missing, model, ready.layout, heads)
        del model
    else:
        # What only the model can tell is as it was told when the shards were made.
        write_manifest(job.folder, manifest | {name: known[name] for name in MODEL_FACTS if name in known})
        logger.info("%s: %d shards were there already", label, len(job.shards))
    if not job.missing():
        captured = StoredCapture(job.folder, job.checkpoint.label)
        for statistic in job.statistics:
            statistic.publish(captured, job.folder)


def _compute(
    job: Job,
    capture: Capture,
    label: str,
    missing: Sequence[int],
    model: nn.Module,
    layout: Layout,
    heads: Sequence[Head],
) -> None:
    context = job.checkpoint.context
    collection = Collection(layout, heads, job.statistics, job.scope, capture.pre_rope)
    done = job.tokens - sum(len(job.shards[number]) for number in missing) * context
    with Progress(label, job.tokens, done) as progress:
        for number in missing:
            note = f"shard {number + 1}/{len(job.shards)}"
            sums = collect(
                model,
                collection,
                job.rows(number),
                first_document=job.shards[number].start,
                batch=max(1, capture.batch_tokens // context),
                advance=lambda tokens, note=note: progress.advance(tokens, note),  # type: ignore[misc]
            )
            write_shard(shard_path(job.folder, number), sums, layers_of(layout, heads), job.provenance(number))
    logger.info("%s: %d shards of %d heads done", label, len(missing), len(heads))
