"""For a researcher with a model in hand: from Python objects to results, without files."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from ropewalk.capture.in_memory import MemoryJob, model_mark, token_rows
from ropewalk.capture.readiness import make_ready
from ropewalk.models.tap import evaluating
from ropewalk.progress import Progress
from ropewalk.results import Results, from_captures
from ropewalk.studyfile import check_study


def measure(
    model: nn.Module,
    documents: Iterable[str] | Iterable[Iterable[int]],
    tokenizer: Any = None,
    *,
    context: int,
    label: str = "model",
    step: int | None = None,
    phase: str = "",
    family: str = "",
    **capture: Any,
) -> Results:
    """Measure a loaded model over documents: texts with a tokenizer, or rows of token ids without.

    Documents shorter than `context` tokens are left out, longer ones cut. `label`, `step`, `phase` and `family` say
    what the model is among others (see `ropewalk.concat`). `capture` takes the fields of a study's `capture`: heads,
    seed, layers, pairs, statistics, skip_first, pre_rope, shards, batch_tokens, components, ... The model is left as
    it was, and the numbers are those that `ropewalk run` gives for the same documents. Before the first document the
    model proves that what is captured is what its attention uses (see `ropewalk doctor`).

    >>> r = measure(model, texts, tokenizer, context=2048)  # doctest: +SKIP
    >>> r.figure("phase_portraits")  # doctest: +SKIP
    """
    checkpoint_data = {
        "repo": type(model).__name__,
        "name": label,
        "label": label,
        "step": step,
        "phase": phase,
        "family": family,
        "context": context,
    }
    study = check_study(
        {"name": "measured", "checkpoints": [checkpoint_data], "corpus": {"source": "memory"}, "capture": capture},
        "measure()",
    )
    checkpoint = study.checkpoints[0]
    tokens = token_rows(documents, tokenizer, context)
    job = MemoryJob.of(study, checkpoint, tokens)
    with evaluating(model):
        ready = make_ready(model, label, context, study.capture.pre_rope)
        with Progress(label, tokens.size) as progress:
            sums = [job.collect(model, ready, number, progress.advance) for number in range(len(job.shards))]
    return from_captures({checkpoint.name: job.captured(ready, model_mark(model), sums)}, study)
