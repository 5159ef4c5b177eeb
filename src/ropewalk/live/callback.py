"""A callback for transformers' Trainer: position in heads, among the other curves of a training."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import Trainer, TrainerCallback

from ropewalk.errors import RopewalkError
from ropewalk.live.observer import Observer
from ropewalk.live.schedule import Schedule
from ropewalk.progress import logger

PREFIX = "eval_ropewalk/"
"""How the names of what is logged begin: reporters show what begins with `eval_` among the evaluations."""
PER_OCTAVE = 2
"""Observations a doubling of the step, where they are log-spaced."""


class PositionCallback(TrainerCallback):  # type: ignore[misc]
    """Observes the model of a Trainer at step 0, `every` so many steps (or `log_spaced`), and at the end.

    About ten scalars go to the trainer's own log, as `eval_ropewalk/mean_r_q`, and so to every reporter; with
    `results`, ordinary results grow in that folder, which `ropewalk report` shows at any time. `documents`, `context`
    and `capture` are those of `Observer`: rows of held-out token ids, or texts that the trainer's tokenizer encodes.
    The training is the same to the bit as without.

    >>> callback = PositionCallback(documents, context=512, log_spaced=True, results="results/live")  # doctest: +SKIP
    >>> Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()  # doctest: +SKIP
    """

    def __init__(
        self,
        documents: Iterable[str] | Iterable[Iterable[int]],
        *,
        context: int | None = None,
        every: int | None = None,
        log_spaced: bool = False,
        results: Path | str | None = None,
        **capture: Any,
    ) -> None:
        self.schedule = Schedule(every, PER_OCTAVE if log_spaced else None)
        self._documents: Sequence[Any] = list(documents)
        self._context = self._shortest() if context is None else context
        self._results, self._capture = results, capture
        self._last: int | None = None
        self.observer: Observer | None = None
        """The observer, once the training has begun."""

    def on_train_begin(self, _: Any, state: Any, control: Any, **given: Any) -> None:
        """Make the observer, and look at the model as it begins."""
        self.observer = Observer(
            given["model"],
            self._documents,
            given.get("processing_class"),
            context=self._context,
            results=self._results,
            **self._capture,
        )
        self._observe(state, control)

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        """Look at the model where it is due, and where the training is about to end: reporters still listen."""
        if state.global_step in self.schedule or control.should_training_stop:
            self._observe(state, control)

    def on_train_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        """Look at the model as it ends, and say what looking has cost."""
        if state.global_step != self._last:
            self._observe(state, control)
        if self.observer is not None and state.is_world_process_zero:
            logger.info("all observations took %.1f s", self.observer.seconds)

    def _observe(self, state: Any, control: Any) -> None:
        assert self.observer is not None
        found = self.observer.observe(state.global_step)
        self._last = state.global_step
        # Logging says that what was due to be logged is logged, which it is not yet.
        due = control.should_log
        _trainer().log({f"{PREFIX}{name}": value for name, value in found.items()})
        control.should_log = due

    def _shortest(self) -> int:
        """Where documents are rows of token ids: as many as the shortest has."""
        if not self._documents or any(isinstance(document, str) for document in self._documents):
            raise RopewalkError("say how many tokens of each document are read: PositionCallback(texts, context=512)")
        return min(len(document) for document in self._documents)


def _trainer() -> Trainer:
    """The trainer whose event this is: callbacks are not told, but it is what calls them."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    raise RopewalkError("no Trainer is training: use ropewalk.live.Observer in a loop of your own")
