"""Observing the miniature while it trains: its held-out texts, at more steps than have checkpoints."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from ropewalk.live import Observer
from ropewalk.live.schedule import Schedule
from ropewalk.train.recipe import Recipe
from ropewalk.train.text import Tokens

PER_OCTAVE = 2
"""Observations a doubling of the step, within each phase."""
SHARDS = 16


class Watch:
    """Looks at the model at log-spaced steps of every phase, and where a checkpoint is saved.

    Weights are those in training, which checkpoints round to bfloat16.
    """

    def __init__(self, recipe: Recipe, model: nn.Module, texts: Sequence[Tokens], results: Path) -> None:
        self._recipe, self._schedule = recipe, Schedule(per_octave=PER_OCTAVE)
        contexts = sorted({phase.context for phase in recipe.phases})
        rows = [text[: recipe.longest] for text in texts]
        self._observer = Observer(model, rows, context=contexts, results=results, shards=SHARDS)

    def observe(self, index: int, step: int) -> None:
        """Look, if it is due at this step of a phase."""
        phase = self._recipe.phases[index]
        if step in self._schedule or step in phase.save:
            number = self._recipe.first_step(index) + step
            self._observer.observe(number, phase=phase.title, label=f"{phase.label}-{number}", context=phase.context)
