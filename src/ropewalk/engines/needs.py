"""What a worker needs of a machine, from what the plan says of a checkpoint."""

import math

from ropewalk.capture.plan import Cost

BASE = 2 * 2**30
"""Bytes of a process that has torch and transformers loaded."""
SLACK = 1.5
"""Weights and sums with what is held beside them while they are read, and activations."""
CPU_SPEED, GPU_SPEED = 10e9, 10e12
"""Operations a second of one CPU and of one GPU, on the safe side: a job that is too long is killed."""
STEP = 10
"""Time limits are in steps of as many minutes."""


def memory_of(cost: Cost) -> int:
    """Bytes of memory that a worker needs, about: those of torch, and one and a half times the weights and sums."""
    return round(BASE + SLACK * ((cost.weights or 0) + cost.disk / max(1, cost.shards)))


def minutes_of(cost: Cost, shards: int, cpus: int, gpus: int) -> int:
    """A time limit for computing so many shards of a checkpoint: two operations a token and parameter, and a margin.

    Parameters are counted as four bytes each: of half precision there are twice as many, which run twice as fast.
    """
    tokens = (cost.tokens or 0) * shards / max(1, cost.shards)
    seconds = 2 * tokens * (cost.weights or 0) / 4 / (gpus * GPU_SPEED or cpus * CPU_SPEED)
    return STEP * math.ceil((STEP + seconds / 60) / STEP)
