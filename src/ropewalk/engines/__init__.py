"""Where shards are computed: processes of this machine, a Ray cluster, an array of SLURM jobs."""

from typing import TYPE_CHECKING

from ropewalk.placement import Placement

if TYPE_CHECKING:
    from ropewalk.capture.account import Engine


def choose_engine(placement: Placement, *, wait: bool = False) -> "Engine":
    """The engine that a study asks for. `wait` is for `slurm`: stay until its jobs are done."""
    if placement.name == "ray":
        from ropewalk.engines.ray import RayEngine

        return RayEngine(placement)
    if placement.name == "slurm":
        from ropewalk.engines.slurm import SlurmEngine

        return SlurmEngine(placement, wait=wait)
    from ropewalk.engines.local import LocalEngine

    return LocalEngine(placement.workers)
