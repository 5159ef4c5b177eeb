"""Progress of a training run: loss, speed and time left."""

import time
from collections.abc import Callable

from tqdm import tqdm

from ropewalk.train.recipe import Phase, Recipe
from ropewalk.train.state import Position

Log = Callable[[str], None]
"""Takes one line for people."""


class TrainingProgress:
    """A bar on a terminal, lines in a log; time left is work left, since a step costs more in a longer context."""

    def __init__(self, recipe: Recipe, position: Position, log: Log):
        self.recipe, self.log = recipe, log
        self.total = sum(phase.steps * self._work(phase) for phase in recipe.phases)
        done = sum(phase.steps * self._work(phase) for phase in recipe.phases[: position.phase])
        self.done = done + position.step * self._work(recipe.phases[position.phase])
        self.worked, self.started = 0.0, time.perf_counter()
        self.losses: list[float] = []
        self.tokens, self.since = 0, self.started

    def __enter__(self) -> "TrainingProgress":
        """Start the bar; tqdm turns it off when there is no terminal."""
        scheme = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
        self.bar = tqdm(total=self.total, initial=self.done, disable=None, bar_format=scheme)
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    @staticmethod
    def _work(phase: Phase) -> float:
        # Measured: a token costs about twice as much at a context of 700 as at the shortest.
        return float(phase.batch * phase.context * (1 + phase.context / 700))

    def say(self, text: str) -> None:
        """Print a line without spoiling the bar."""
        if self.bar.disable:
            self.log(text)
        else:
            self.bar.write(text)

    def advance(self, phase: Phase, step: int, loss: float) -> None:
        """Count one step of a phase."""
        work = self._work(phase)
        self.worked, self.done = self.worked + work, self.done + work
        self.tokens += phase.batch * phase.context
        self.losses.append(loss)
        self.bar.update(work)
        if step % self.recipe.log_every and step != phase.steps:
            return
        now = time.perf_counter()
        left = max(0.0, self.total - self.done) / self.worked * (now - self.started)
        speed = self.tokens / (now - self.since)
        mean = sum(self.losses) / len(self.losses)
        self.bar.set_description_str(f"{phase.title} {step}/{phase.steps}")
        self.bar.set_postfix_str(f"loss {mean:.3f}, {speed:,.0f} tokens/s")
        if self.bar.disable:
            rest = f"{left / 60:.0f} min left"
            self.log(f"{phase.title}: step {step}/{phase.steps}, loss {mean:.3f}, {speed:,.0f} tokens/s, {rest}")
        self.losses, self.tokens, self.since = [], 0, now
