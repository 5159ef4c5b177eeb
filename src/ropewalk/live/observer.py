"""Observing a model in training: the same documents again and again, as the checkpoints of a study that grows."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from ropewalk.analysis import tabulate
from ropewalk.capture.in_memory import MemoryJob, model_mark, token_rows
from ropewalk.capture.memory import enough_memory, give_back
from ropewalk.capture.readiness import Ready, make_ready
from ropewalk.capture.shards import ShardSums, capture_folder
from ropewalk.capture.stored import MemoryCapture, StoredCapture, write_capture
from ropewalk.errors import OutOfMemoryError, RopewalkError
from ropewalk.live.processes import Processes
from ropewalk.live.undisturbed import undisturbed, unwrapped
from ropewalk.ownership import check_owner, claim
from ropewalk.progress import logger
from ropewalk.record import read_record, write_record
from ropewalk.statistics.base import layers_of
from ropewalk.statistics.registry import build
from ropewalk.study import Checkpoint, Study
from ropewalk.studyfile import check_study
from ropewalk.summary.view import View
from ropewalk.text import slug

SCALARS = (
    *("mean_r_q", "mean_r_k", "mean_abs_r_k", "mean_explained_variance"),
    *("share_position-dominated", "share_content-focused"),
    *("mean_fixed_share_q", "mean_fixed_share_k", "mean_score_r2_distance", "mean_mass_first", "mean_mass_induction"),
)
"""What an observation tells at once, as far as its statistics have it: measures of `Results.summary`."""
SECONDS = "seconds"
NAME = "live"
"""Of the study that observations make up."""


Tokens = np.ndarray[tuple[int, int], np.dtype[np.int32]]


class Observer:
    """Looks at a model whenever `observe` is called, always over the same documents, and leaves it as it was.

    `documents` are texts (with a `tokenizer`) or rows of token ids, which the model should not train on. `context` is
    how many tokens of each are read, or all the numbers of them that will be, where a training changes it; `results` a
    folder for the results, which `ropewalk report` can show while the training runs. `capture` takes the fields of a
    study's `capture`. In a training of several processes all must observe at the same steps: each takes a part of the
    documents, and the first writes.

    >>> observer = Observer(model, documents, context=512, results="results/live")  # doctest: +SKIP
    >>> observer.observe(step=100)["mean_r_q"]  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        documents: Iterable[str] | Iterable[Iterable[int]],
        tokenizer: Any = None,
        *,
        context: int | Sequence[int],
        results: Path | str | None = None,
        **capture: Any,
    ) -> None:
        self.model = unwrapped(model)
        self.contexts = tuple(context) if isinstance(context, Sequence) else (context,)
        if not self.contexts:
            raise RopewalkError("`context` is empty: say how many tokens of each document are read")
        self.folder = None if results is None else Path(results)
        self.seconds = 0.0
        """What all observations took so far."""
        self._capture = capture
        # A study of all contexts, before anything is computed: what is wrong with the settings shows now.
        self._checked = self._study([_checkpoint(self.model, f"context {one}", one) for one in set(self.contexts)])
        # An unknown statistic, or an option that it does not have, is said by building it.
        build(self._checked.capture.statistics)
        self._tokens: Tokens = token_rows(documents, tokenizer, max(self.contexts))
        self._processes = Processes()
        self._ready: dict[str, Ready] = {}
        self._before: tuple[Checkpoint, ...] = ()
        if self.folder is not None:
            check_owner(self.folder, self._checked.owner)
            self._before = self._found()

    def observe(self, step: int, *, phase: str = "", label: str = "", context: int | None = None) -> dict[str, float]:
        """Measure the model now, as the checkpoint of this step; returns `SCALARS`, and the `seconds` that it took.

        Where there is no memory for it, that is said, and nothing is written or returned but the seconds: looking at a
        training does not end it. Where the folder holds observations of this step or of later ones of the same phase,
        training was taken up again before them: they are replaced as they come up.
        """
        started = time.perf_counter()
        named = self._named(step, phase, label, context)
        study = self._study([*_until(self._before, named), named])
        checkpoint = study.checkpoints[-1]
        job = self._job(study, checkpoint)
        own = self._collected(job, checkpoint)
        scalars: dict[str, float] = {}
        try:
            scalars = self._shared_or_raised(self._told(job, own, study))
            self._before = study.checkpoints
        except OutOfMemoryError as error:
            give_back(self.model)
            logger.warning("step %d is not observed: %s", step, error)
        seconds = time.perf_counter() - started
        self.seconds += seconds
        if scalars:
            logger.info(
                "step %d: %d x %d tokens observed in %.1f s", step, len(self._tokens), checkpoint.context, seconds
            )
        return {**scalars, SECONDS: seconds}

    def _named(self, step: int, phase: str, label: str, context: int | None) -> dict[str, Any]:
        if context is None and len(self.contexts) > 1:
            raise RopewalkError(f"this observer has the contexts {self.contexts}: say which, with context=...")
        chosen = self.contexts[0] if context is None else context
        if chosen not in self.contexts:
            raise RopewalkError(
                f"context {chosen} is none of this observer's ({', '.join(map(str, self.contexts))}): name it when the "
                "observer is made"
            )
        name = f"{slug(phase)}-step-{step}" if phase else f"step-{step}"
        shown = label or f"{phase} {step}".strip()
        return {**_checkpoint(self.model, name, chosen), "label": shown, "phase": phase, "step": step}

    def _study(self, checkpoints: Sequence[Checkpoint | Mapping[str, Any]]) -> Study:
        """The study that the observations make up."""
        data = {
            "name": NAME,
            "checkpoints": [
                one.model_dump(mode="json", exclude_defaults=True) if isinstance(one, Checkpoint) else one
                for one in checkpoints
            ],
            "corpus": {"source": "memory"},
            "capture": self._capture,
        }
        return check_study(data, "the observer")

    def _job(self, study: Study, checkpoint: Checkpoint) -> MemoryJob:
        """What is captured of the model as one checkpoint of the study.

        The study as it will be, with a checkpoint of every context, decides what is summed.
        """
        whole = study.model_copy(update={"checkpoints": (*study.checkpoints, *self._checked.checkpoints)})
        return MemoryJob.of(whole, checkpoint, np.ascontiguousarray(self._tokens[:, : checkpoint.context]))

    def _collected(self, job: MemoryJob, checkpoint: Checkpoint) -> "_Part | RopewalkError":
        """What this process saw of its shards; a mistake is passed on, so that no process waits for another."""
        mine = range(self._processes.rank, len(job.shards), self._processes.count)
        try:
            with undisturbed(self.model):
                with enough_memory("a few tokens beside the training", "lower what a step of it takes"):
                    ready = self._look(checkpoint)
                return _Part(ready, model_mark(self.model), {n: job.collect(self.model, ready, n) for n in mine})
        except RopewalkError as error:
            # Without its traceback, which holds whatever the model had on its device.
            return type(error)(str(error))

    def _look(self, checkpoint: Checkpoint) -> Ready:
        """Layout and proof, made anew where context or rotation are others than before."""
        known = f"{checkpoint.context} {getattr(self.model.config, 'rope_parameters', None)}"
        if known not in self._ready:
            pre_rope = self._checked.capture.pre_rope
            self._ready[known] = make_ready(self.model, checkpoint.label, checkpoint.context, pre_rope)
        return self._ready[known]

    def _told(self, job: MemoryJob, own: "_Part | RopewalkError", study: Study) -> "dict[str, float] | RopewalkError":
        """In the first process: write all shards and read the scalars."""
        parts = self._processes.gather(own)
        failed = next((part for part in parts if isinstance(part, RopewalkError)), None)
        if failed is not None or not parts:
            return failed or {}
        sums = {number: one for part in parts for number, one in part.sums.items()}
        captured = job.captured(parts[0].ready, parts[0].mark, [sums[number] for number in sorted(sums)])
        try:
            if self.folder is not None:
                self._write(self.folder, study, captured)
        except RopewalkError as error:
            return error
        return scalars_of(captured, study.checkpoints[-1])

    def _shared_or_raised(self, told: "dict[str, float] | RopewalkError") -> dict[str, float]:
        shared: dict[str, float] | RopewalkError = self._processes.share(told)
        if isinstance(shared, RopewalkError):
            raise shared
        return shared

    def _write(self, folder: Path, study: Study, captured: MemoryCapture) -> None:
        """Shards first, then the record that names them: whoever reads meanwhile sees the checkpoints before."""
        *before, now = study.checkpoints
        claim(folder, study.owner)
        target = capture_folder(folder, now.slug)
        if before and target.exists():
            write_record(folder, self._study(before))
        write_capture(target, captured, now.name)
        write_record(folder, study)

    def _found(self) -> tuple[Checkpoint, ...]:
        """The observations that the folder holds of an earlier part of this training."""
        assert self.folder is not None
        record = read_record(self.folder)
        if record is None:
            return ()
        # With the settings of now, which may be others.
        study = self._study(record.study.checkpoints)
        for checkpoint in study.checkpoints:
            job = self._job(study, checkpoint)
            stored = StoredCapture(capture_folder(self.folder, checkpoint.slug), checkpoint.label)
            if stored.provenances != job.provenances(stored.provenances[0].model):
                raise RopewalkError(
                    f"{self.folder} holds observations over other documents or with other settings: give another "
                    "folder as `results`"
                )
        return study.checkpoints


class _Part:
    """What one process saw: the model as it looked, its mark, and the sums of some shards."""

    def __init__(self, ready: Ready, mark: str, sums: dict[int, ShardSums]) -> None:
        self.ready, self.mark, self.sums = ready, mark, sums


def scalars_of(captured: MemoryCapture, checkpoint: Checkpoint) -> dict[str, float]:
    """`SCALARS` of a capture: means and shares over its heads, without errors."""
    merged = {
        (one.name, heads.layer.layer): one.merge(captured.parts(one.name, heads))
        for one in build(captured.statistics)
        for heads in layers_of(captured.layout, captured.heads)
    }
    # As one group of documents: the numbers are the same, and without errors they are there at once.
    whole = MemoryCapture(
        captured.layout,
        captured.heads,
        captured.scope,
        captured.statistics,
        captured.provenances[:1],
        [merged],
        dtype=captured.dtype,
        proof=captured.proof,
    )
    view = View.of(tabulate(whole, checkpoint).heads)
    values = {name: float(view.track(name).values[-1]) for name in SCALARS}
    return {name: value for name, value in values.items() if not np.isnan(value)}


def _checkpoint(model: nn.Module, name: str, context: int) -> dict[str, Any]:
    return {"repo": type(model).__name__, "name": name, "context": context}


def _until(before: Sequence[Checkpoint], now: Mapping[str, Any]) -> list[Checkpoint]:
    """The observations before this one; what comes after is from a training that was taken up again before it."""
    kept: list[Checkpoint] = []
    for one in before:
        same = one.phase == now["phase"]
        if (same and one.step is not None and one.step >= now["step"]) or (
            not same and any(earlier.phase == now["phase"] for earlier in kept)
        ):
            break
        kept.append(one)
    return kept
