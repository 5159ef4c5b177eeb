"""Where a model comes from and how it is loaded, as checked data."""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from ropewalk.errors import RopewalkError
from ropewalk.reading import check_name
from ropewalk.schema import Part


class TokenizerLocation(NamedTuple):
    """Repository or folder of a tokenizer, its revision, and the GGUF file that holds it."""

    repo: str | None
    revision: str | None
    gguf_file: str | None


class ModelSource(Part):
    """A model on the hub or in a folder."""

    repo: str | None = Field(
        None, description="Hub repository (`owner/name`) or folder, absolute or relative to the study file."
    )
    revision: str | None = Field(None, description="Branch, tag or commit on the hub, of `repo` or `source`.")
    gguf_file: str | None = Field(
        None, description="Name of a GGUF file in the repository or folder, to load in place of safetensors."
    )
    label: str = Field("", max_length=1000, description="Short name for axes and messages; the name by default.")
    overrides: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Configuration values to set before loading: rope_theta, max_position_embeddings, rope_scaling, ..."
        ),
    )
    tokenizer: str | None = Field(None, description="Repository or folder of the tokenizer, when it lives elsewhere.")
    tokenizer_revision: str | None = Field(None, description="Revision of the tokenizer's repository.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description=(
            "Type to compute in; `auto` is the stored one, or float32 where that is half precision and the device a "
            "CPU without instructions for it."
        ),
    )
    device: str = Field("auto", description="`auto` (a GPU where there is one), `cpu`, `cuda`, `cuda:1`, `mps`.")
    device_map: str | dict[str, int | str] | None = Field(
        None, description="Accelerate's device map (`auto` spreads a large model)."
    )
    attention: str | None = Field(
        None,
        description="Attention implementation (sdpa, flash_attention_2, eager, ...); the model's choice by default.",
    )
    random_weights: bool = Field(False, description="The same architecture untrained, as a null.")
    weights_seed: int = Field(0, ge=0, lt=2**63, description="Seed of the random weights.")
    trust_remote_code: bool = Field(False, description="Run modelling code that comes with the repository.")

    @property
    def tokenizer_location(self) -> TokenizerLocation:
        """Where the tokenizer comes from."""
        if self.tokenizer:
            return TokenizerLocation(self.tokenizer, self.tokenizer_revision, None)
        return TokenizerLocation(self.repo, self.tokenizer_revision or self.revision, self.gguf_file)


LayerNumber = Annotated[int, Field(ge=0, le=100_000)]
OF_VECTORS = ("key_heads", "depth", "nope_layers", "sliding_layers", "sliding_window")
"""Fields that say of vectors on disk what of a model is measured."""


class VectorSource(ModelSource):
    """A model, or vectors of one on disk in its place."""

    source: str | None = Field(
        None, description="Folder or hub dataset of vectors `l{LL}h{HH}{q|k}/data.parquet`, in place of a model."
    )
    key_heads: int | None = Field(
        None, gt=0, le=100_000, description="With `source`: key heads per layer, when the folder does not tell."
    )
    depth: int | None = Field(
        None,
        gt=0,
        le=100_000,
        description="With `source`: layers of the model; by default the last one with vectors is taken for the last.",
    )
    nope_layers: tuple[LayerNumber, ...] | None = Field(
        None, description="With `source`: layers without RoPE, `[]` if all have it; unknown by default."
    )
    sliding_layers: tuple[LayerNumber, ...] | None = Field(
        None, description="With `source`: layers with a sliding window, besides those whose files tell it."
    )
    sliding_window: int | None = Field(
        None, gt=0, lt=2**31, description="With `sliding_layers`: length of their window."
    )

    @model_validator(mode="after")
    def _one_of_the_two(self) -> "VectorSource":
        if (self.repo is None) == (self.source is None):
            raise ValueError("give `repo` (a model) or `source` (a folder of vectors), one of the two")
        stated = [field for field in OF_VECTORS if getattr(self, field) is not None]
        if stated and self.source is None:
            raise ValueError(f"`{stated[0]}` goes with `source`; of a model (`repo`) it is measured: remove it")
        if (self.sliding_layers is None) != (self.sliding_window is None):
            raise ValueError("`sliding_layers` and `sliding_window` go together: give both or neither")
        for field in ("nope_layers", "sliding_layers"):
            highest = max(getattr(self, field) or (), default=-1)
            if self.depth is not None and highest >= self.depth:
                raise ValueError(
                    f"`{field}` names layer {highest} and `depth: {self.depth}` leaves layers 0 to {self.depth - 1}: "
                    "correct one of the two"
                )
        return self


def locate(repo: str, base: Path = Path(), field: str = "the model") -> str:
    """A folder that exists, made absolute from `base`, or the name of a hub repository as it is."""
    folder = base / Path(repo).expanduser()
    if folder.exists():
        check_name(folder.resolve())
        return str(folder.resolve())
    looks_local = repo.startswith((".", "/", "~", "\\")) or repo.count("/") > 1
    if looks_local:
        raise RopewalkError(
            f"{field} is missing: there is no {folder}; give a folder that exists or a hub repository owner/name"
        )
    return repo
