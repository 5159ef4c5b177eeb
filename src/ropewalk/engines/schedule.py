"""Who computes which shard next, and how often one is tried."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ATTEMPTS = 3
"""How often a shard is tried when the process that computes it is lost or fails for no reason that is ours."""


@dataclass(frozen=True)
class Task:
    """One shard of a checkpoint, both by name and number."""

    checkpoint: str
    number: int


class Schedule:
    """Shards that wait, by checkpoint, in order.

    A worker stays with the checkpoint it has loaded while shards of it wait; then it goes where most is left for each
    worker that is there: shards, by how long one takes (`lengths`, all alike by default). So the short ones come last,
    and workers end at about the same time.
    """

    def __init__(self, wanted: Mapping[str, Sequence[int]], lengths: Mapping[str, float] | None = None) -> None:
        self._lengths = lengths or {}
        self._waiting = {name: list(numbers) for name, numbers in wanted.items()}
        self._taken: dict[Task, int] = {}
        self._tries: Counter[Task] = Counter()
        self._openings: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        """Whether nothing waits and nothing is being computed."""
        return not self._taken and not any(self._waiting.values())

    @property
    def waiting(self) -> int:
        """How many shards wait."""
        return sum(map(len, self._waiting.values()))

    def take(self, worker: int, loaded: str | None) -> Task | None:
        """The next shard for a worker that has the model of a checkpoint loaded, or none; None where none waits."""
        name = loaded if loaded is not None and self._waiting.get(loaded) else self._busiest()
        if name is None:
            return None
        task = Task(name, self._waiting[name].pop(0))
        self._taken[task] = worker
        return task

    def done(self, task: Task) -> None:
        """A shard needs no more work: it is there, or it failed for good."""
        del self._taken[task]

    def again(self, task: Task, *, opened: bool) -> list[int]:
        """A shard was lost: it waits again, or if it was tried often enough, the numbers that are given up.

        Where the model could not even be loaded, often enough, they are all that wait of the checkpoint.
        """
        del self._taken[task]
        self._tries[task] += 1
        self._openings[task.checkpoint] += not opened
        if self._openings[task.checkpoint] >= ATTEMPTS:
            return sorted([task.number, *self.give_up(task.checkpoint)])
        if self._tries[task] >= ATTEMPTS:
            return [task.number]
        self._waiting[task.checkpoint].insert(0, task.number)
        return []

    def give_up(self, checkpoint: str) -> list[int]:
        """Let nothing of a checkpoint wait any more; the numbers that did."""
        numbers, self._waiting[checkpoint] = self._waiting[checkpoint], []
        return numbers

    def _busiest(self) -> str | None:
        there = Counter(task.checkpoint for task in self._taken)
        waiting = [name for name, numbers in self._waiting.items() if numbers]
        return max(waiting, key=lambda name: self._left(name) / (1 + there[name]), default=None)

    def _left(self, name: str) -> float:
        return len(self._waiting[name]) * self._lengths.get(name, 1)
