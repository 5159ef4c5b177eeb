"""From a study to shards on disk: what is to be done, what is done already, and doing the rest."""

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from torch import nn

from ropewalk._version import __version__
from ropewalk.capture import vectors
from ropewalk.capture.collector import Settings, ShardResult, collect
from ropewalk.capture.corpus import Documents, check_corpus, prepare, vocabulary_hash
from ropewalk.capture.shards import (
    FORMAT,
    Identity,
    is_done,
    known_manifest,
    layer_prefix,
    moments_arrays,
    shard_path,
    split_documents,
    write_manifest,
    write_shard,
)
from ropewalk.errors import RopewalkError
from ropewalk.files import write_text
from ropewalk.models.hub import model_folder
from ropewalk.models.layout import Head, Layout
from ropewalk.models.loading import load_config, load_model, load_tokenizer, model_fingerprint
from ropewalk.models.probe import read_layout
from ropewalk.models.weights import check_present
from ropewalk.progress import Progress, say
from ropewalk.study import Capture, Checkpoint, Study

RECORDED = ("numpy", "torch", "transformers", "tokenizers", "safetensors", "pandas", "pyarrow")


@dataclass(frozen=True)
class Job:
    """One checkpoint with its documents and the fingerprints of its shards."""

    checkpoint: Checkpoint
    config: Any
    documents: Documents
    shards: tuple[range, ...]
    keep: float
    folder: Path
    model: str
    settings: str

    @property
    def tokens(self) -> int:
        """Tokens of all shards together."""
        return self.documents.documents * self.checkpoint.context

    def identity(self, number: int) -> Identity:
        """Fingerprints of one shard."""
        rows = self.rows(number)
        digest = hashlib.sha256(np.ascontiguousarray(rows).tobytes())
        digest.update(f"{self.shards[number]}".encode())
        return Identity(self.model, digest.hexdigest(), self.settings)

    def rows(self, number: int) -> Any:
        """Tokens [documents, context] of one shard."""
        shard = self.shards[number]
        return self.documents.tokens()[shard.start : shard.stop, : self.checkpoint.context]

    def missing(self, wanted: Sequence[int] | None = None) -> list[int]:
        """Numbers of the shards still to be computed."""
        numbers = range(len(self.shards)) if wanted is None else wanted
        return [number for number in numbers if not is_done(shard_path(self.folder, number), self.identity(number))]


def capture_folder(results: Path, checkpoint: Checkpoint) -> Path:
    """Folder of a checkpoint's shards."""
    return results / "captures" / checkpoint.slug


def prepare_jobs(study: Study) -> list[Job]:
    """Check everything that can be checked without weights, tokenize the corpus, and cut it into shards.

    The same documents serve all checkpoints of one tokenizer: those as long as the longest of their contexts.
    """
    checkpoints = [checkpoint for checkpoint in study.checkpoints if checkpoint.source is None]
    if not checkpoints:
        return []
    check_corpus(study.corpus)
    configs = [load_config(checkpoint) for checkpoint in checkpoints]
    for checkpoint in checkpoints:
        if not checkpoint.random_weights and not checkpoint.gguf_file:
            place = str(checkpoint.repo)
            check_present(place, model_folder(place, checkpoint.revision))
    by_place = {c.tokenizer_id: c for c in checkpoints}
    tokenizers = {place: load_tokenizer(checkpoint) for place, checkpoint in by_place.items()}
    # Known by what they are: a tokenizer that stands beside every revision is one tokenizer.
    kinds = {place: vocabulary_hash(tokenizer) for place, tokenizer in tokenizers.items()}
    lengths: dict[str, int] = {}
    for checkpoint in checkpoints:
        kind = kinds[checkpoint.tokenizer_id]
        lengths[kind] = max(checkpoint.context, lengths.get(kind, 0))
    documents: dict[str, Documents] = {}
    jobs = []
    for checkpoint, config in zip(checkpoints, configs, strict=True):
        key = kinds[checkpoint.tokenizer_id]
        if key not in documents:
            tokenizer = tokenizers[checkpoint.tokenizer_id]
            documents[key] = prepare(study.corpus, tokenizer, lengths[key], study.folder / "tokens")
            say(f"corpus: {documents[key].describe()}")
        _check_vocabulary(checkpoint, config, documents[key])
        jobs.append(_job(study, checkpoint, config, documents[key]))
    return jobs


def capture_study(study: Study, *, only: Sequence[str] = (), shards: Sequence[int] | None = None) -> None:
    """Compute the missing shards of a study; finished ones are kept, those of other inputs refused.

    `only` names checkpoints (by name or label) and `shards` numbers, for a part of the work on one machine of many.
    """
    for name in only:
        if not any(name in (checkpoint.name, checkpoint.label) for checkpoint in study.checkpoints):
            raise RopewalkError(
                f"no checkpoint {name!r} in the study: choose among {', '.join(c.label for c in study.checkpoints)}"
            )
    jobs = prepare_jobs(study)

    def is_wanted(checkpoint: Checkpoint) -> bool:
        return not only or checkpoint.name in only or checkpoint.label in only

    # Datasets first: reading them is quick, and a mistake in one shows before a model runs for hours.
    for checkpoint in study.checkpoints:
        if checkpoint.source is not None and is_wanted(checkpoint):
            vectors.capture_source(checkpoint, study.capture, capture_folder(study.folder, checkpoint))
    wanted = [job for job in jobs if is_wanted(job.checkpoint)]
    for job in wanted:
        for shard in shards or ():
            if not 0 <= shard < len(job.shards):
                raise RopewalkError(f"there is no shard {shard}: the study has shards 0 to {len(job.shards) - 1}")
        # A shard of other inputs is refused before the record says that the results are this study's.
        job.missing()
    write_record(study, jobs)
    for number, job in enumerate(wanted, 1):
        run_job(job, study.capture, f"{job.checkpoint.label} ({number}/{len(wanted)})", shards)


def run_job(job: Job, capture: Capture, label: str, shards: Sequence[int] | None = None) -> None:
    """Compute the missing shards of one checkpoint and, when none is missing any more, lay out its kept vectors."""
    missing = job.missing(shards)
    facts = _facts(job)
    known = known_manifest(job.folder)
    if known is not None and any(known.get(name) != facts[name] for name in ("model", "settings")):
        known = None
    if missing or known is None:
        model = load_model(job.checkpoint, job.config)
        layout = read_layout(model)
        heads = layout.choose(capture)
        write_manifest(job.folder, {**facts, "heads": [list(head) for head in heads], "layout": layout.to_dict()})
        if missing:
            _compute(job, capture, label, missing, model, layout, heads)
        del model
    else:
        layout = Layout.from_dict(known["layout"])
        write_manifest(job.folder, {**facts, "heads": known["heads"], "layout": known["layout"]})
        say(f"{label}: {len(job.shards)} shards were there already")
    if capture.keep and not job.missing():
        vectors.write_vectors(job.folder, layout, facts["tokens_of_shards"], job.checkpoint.bucket)


def shard_arrays(result: ShardResult) -> dict[str, np.ndarray[Any, Any]]:
    """A shard's moments and sample as named arrays."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for (layer, kind), part in result.items():
        prefix = layer_prefix(layer, kind)
        arrays |= moments_arrays(prefix, part.moments)
        arrays[f"{prefix}.heads"] = np.asarray(part.heads, dtype=np.int64)
        arrays[f"{prefix}.kept.vectors"] = part.sample.vectors
        arrays[f"{prefix}.kept.document"] = part.sample.document
        arrays[f"{prefix}.kept.position"] = part.sample.position
    return arrays


def write_record(study: Study, jobs: Sequence[Job]) -> None:
    """Write the resolved study, the versions and the documents beside the results: how they were made."""
    record = {
        "ropewalk": {"version": __version__, "format": FORMAT},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in RECORDED}},
        "study": study.model_dump(mode="json", exclude_defaults=False),
        # One entry for each tokenizer: all its checkpoints read the same documents.
        "documents": [
            {
                "documents": one.documents,
                "tokens": one.length,
                "shorter left out": one.left_out,
                "of them empty": one.empty,
            }
            for one in dict.fromkeys(job.documents for job in jobs)
        ],
    }
    path = study.folder / "study.yaml"
    if path.is_file():
        before = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        # The date is that of the first start: a run that is resumed is the same run.
        record["created"] = before.get("created", record["created"]) if isinstance(before, dict) else record["created"]
    write_text(path, yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=120))


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
    settings = Settings(
        heads,
        job.checkpoint.bucket,
        keep=job.keep,
        seed=capture.seed,
        skip_first=capture.skip_first,
        pre_rope=capture.pre_rope,
    )
    done = job.tokens - sum(len(job.shards[number]) for number in missing) * context
    with Progress(label, job.tokens, done) as progress:
        for number in missing:
            place = f"shard {number + 1}/{len(job.shards)}"
            result = collect(
                model,
                layout,
                settings,
                job.rows(number),
                first_document=job.shards[number].start,
                batch=max(1, capture.batch_tokens // context),
                advance=lambda tokens, place=place: progress.advance(tokens, place),  # type: ignore[misc]
            )
            write_shard(shard_path(job.folder, number), shard_arrays(result), job.identity(number))
    say(f"{label}: {len(missing)} shards of {len(heads)} heads done")


def _check_vocabulary(checkpoint: Checkpoint, config: Any, documents: Documents) -> None:
    size = getattr(config.get_text_config(decoder=True), "vocab_size", None)
    if size is not None and documents.largest >= size:
        raise RopewalkError(
            f"the tokenizer of {checkpoint.label!r} gives token {documents.largest} and the model knows {size}: "
            "they do not belong together; name the model's own as `tokenizer`"
        )


def _job(study: Study, checkpoint: Checkpoint, config: Any, documents: Documents) -> Job:
    capture = study.capture
    per_head = documents.documents * checkpoint.context / checkpoint.bucket
    keep = min(capture.keep, capture.keep_at_most / per_head)
    settings = capture.model_dump(exclude={"shards", "components", "keep_at_most"}) | {
        "bucket": checkpoint.bucket,
        "context": checkpoint.context,
        "keep": keep,
    }
    return Job(
        checkpoint=checkpoint,
        config=config,
        documents=documents,
        shards=split_documents(documents.documents, capture.shards),
        keep=keep,
        folder=capture_folder(study.folder, checkpoint),
        model=model_fingerprint(checkpoint, config),
        settings=hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(),
    )


def _facts(job: Job) -> dict[str, Any]:
    """What a manifest says of a job without its model."""
    return {
        "checkpoint": job.checkpoint.name,
        "context": job.checkpoint.context,
        "documents": job.documents.documents,
        "shards": len(job.shards),
        "tokens": job.tokens,
        "tokens_of_shards": [job.identity(number).tokens for number in range(len(job.shards))],
        "model": job.model,
        "settings": job.settings,
    }
