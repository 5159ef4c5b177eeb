"""Progress of a training run: loss, speed and time left."""

import time

from ropewalk.progress import Meter, logger
from ropewalk.train.recipe import Phase, Recipe
from ropewalk.train.state import Position


class TrainingProgress(Meter):
    """Counts work rather than steps, since a step costs more in a longer context; a line every `log_every` steps."""

    def __init__(self, recipe: Recipe, position: Position) -> None:
        total = sum(phase.steps * _work(phase) for phase in recipe.phases)
        done = sum(phase.steps * _work(phase) for phase in recipe.phases[: position.phase])
        done += position.step * _work(recipe.phases[position.phase])
        super().__init__(total, done, bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}")
        self._every = recipe.log_every
        self._losses: list[float] = []
        self._tokens, self._since = 0, self._start

    def advance(self, phase: Phase, step: int, loss: float) -> None:
        """Count one step of a phase."""
        self._tokens += phase.batch * phase.context
        self._losses.append(loss)
        self.add(_work(phase))
        if step % self._every and step != phase.steps:
            return
        now = time.monotonic()
        speed = self._tokens / max(now - self._since, 1e-9)
        note = f"loss {sum(self._losses) / len(self._losses):.3f}, {speed:,.0f} tokens/s"
        if self._bar is None:
            logger.info("%s: step %d/%d, %s, %s", phase.title, step, phase.steps, note, self.left)
        else:
            self._bar.set_description_str(f"{phase.title} {step}/{phase.steps}")
            self._bar.set_postfix_str(note)
        self._losses, self._tokens, self._since = [], 0, now


def _work(phase: Phase) -> float:
    # Measured: a token costs about twice as much at a context of 700 as at the shortest.
    return float(phase.batch * phase.context * (1 + phase.context / 700))
