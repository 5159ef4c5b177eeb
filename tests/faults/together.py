"""Several runs of one study at once, some of them killed: none disturbs another."""

import random
import signal

from faults.workshop import Budget, Tally, Workshop, command, finish, start


def together(workshop: Workshop, budget: Budget, chance: random.Random) -> Tally:
    """Two or three runs in one folder, begun within a moment of each other."""
    tally = Tally()
    words = ["run", str(workshop.study), "--results", "results"]
    for _ in budget:
        folder = workshop.trial()
        limits = [None, *(chance.choice((None, chance.uniform(0, 2 * workshop.seconds))) for _ in range(2))]
        limits = limits[: chance.choice((2, 3))]
        killed = False
        children = [start(lambda: command(*words), folder) for _ in limits]
        for child, limit in zip(children, limits, strict=True):
            ended = finish(child, limit)
            tally.tried["runs beside others"] += 1
            if ended.code != 0 and not (limit is not None and ended.code == -signal.SIGKILL):
                tally.wrong.append(f"a run beside others ended with {ended.code}: {ended.said[-500:]}")
            killed = killed or ended.code == -signal.SIGKILL
        if killed:
            # What a killed run was about to write again is written by the next one.
            workshop.run(folder)
        tally.wrong += [f"{name} differs after runs at once" for name in workshop.differences(folder)]
    return tally
