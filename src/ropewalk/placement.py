"""Where a study is computed: on this machine, on a Ray cluster, under SLURM."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ropewalk.schema import Part


class Placement(Part):
    """Where shards are computed. It decides nothing about their numbers: the same shards come from everywhere."""

    name: Literal["local", "ray", "slurm"] = Field(
        "local", description="`local` (this machine), `ray` (a Ray cluster) or `slurm` (an array of jobs)."
    )
    workers: int | None = Field(
        None,
        gt=0,
        le=10_000,
        description=(
            "How many shards are computed at once. By default: one process, or one for each GPU (`local`); one for "
            "each GPU of the cluster, or for each node if there are none (`ray`); all (`slurm`)."
        ),
    )
    address: str | None = Field(
        None, description="Address of the Ray cluster (`auto` finds one); a local one is started by default."
    )
    cpus: int | None = Field(None, gt=0, le=100_000, description="CPUs of one worker (`ray`, `slurm`).")
    gpus: int | None = Field(
        None,
        ge=0,
        le=1_000,
        description="GPUs of one worker. By default 1 where the cluster has some (`ray`), none (`slurm`).",
    )
    memory_gb: float | None = Field(
        None, gt=0, le=10**6, description="Memory of one worker (`ray`, `slurm`); from the plan by default."
    )
    minutes: int | None = Field(
        None, gt=0, le=10**6, description="Time limit of one job (`slurm`); from the plan by default."
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Passed to `sbatch` as they are (`slurm`), such as `{partition: gpu, account: physics}`.",
    )
    cluster: Literal["slurm", "here"] = Field(
        "slurm", description="`here` runs the jobs of `slurm` on this machine: to try it without a cluster."
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @field_validator("options")
    @classmethod
    def _plain(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name, value in options.items():
            # They become lines of a script that a shell reads.
            if not isinstance(value, str | int | bool) or not str(value).isprintable() or not name.isidentifier():
                raise ValueError(f"`{name}` must be text or a number on one line, named as sbatch does (`mail_user`)")
        return options

    @model_validator(mode="after")
    def _fitting(self) -> "Placement":
        for field, engines in OF_ENGINES.items():
            if field in self.model_fields_set and getattr(self, field) and self.name not in engines:
                raise ValueError(f"`{field}` is of {' and '.join(engines)}, and the engine is `{self.name}`")
        return self


OF_ENGINES = {
    "address": ("ray",),
    "cpus": ("ray", "slurm"),
    "gpus": ("ray", "slurm"),
    "memory_gb": ("ray", "slurm"),
    "minutes": ("slurm",),
    "options": ("slurm",),
    "cluster": ("slurm",),
}
"""Which engines a field is of, where not of all."""
