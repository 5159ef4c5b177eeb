"""Workers of a run that are killed, at any moment: nothing is lost, and the end is the same to the byte."""

import random

from faults.workshop import Budget, Tally, Workshop, command, finish, start
from helpers.workers import Killer
from ropewalk.errors import IncompleteError


def workers(workshop: Workshop, budget: Budget, chance: random.Random) -> Tally:
    """Kill one of two workers a few times while a run lasts; where a shard had bad luck each time, run once more."""
    tally = Tally()
    words = ["run", str(workshop.study), "--results", "results", "--workers", "2"]
    for _ in budget:
        folder = workshop.trial()
        child = start(lambda: command(*words), folder)
        with Killer(chance, kills=chance.randint(1, 5), parent=child.pid) as killer:
            ended = finish(child)
        tally.tried["one of two workers, at any moment"] += killer.killed
        tally.besides["runs to the end, compared byte for byte"] += 1
        if ended.code == IncompleteError.exit_code:
            tally.besides["runs in which a shard was killed three times, and run again"] += 1
            ended = workshop.run(folder)
        if ended.code != 0:
            tally.wrong.append(f"a run whose workers were killed ended with {ended.code}: {ended.said[-500:]}")
        tally.wrong += [f"{name} is not what it is without kills" for name in workshop.differences(folder)]
    return tally
