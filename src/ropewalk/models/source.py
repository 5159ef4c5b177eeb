"""Where a model comes from and how it is loaded, as checked data."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from ropewalk.errors import RopewalkError
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
    label: str = Field("", description="Short name for axes and messages; the name by default.")
    overrides: dict[str, Any] = Field(
        default_factory=dict,
        description=(
            "Configuration values to set before loading: rope_theta, max_position_embeddings, rope_scaling, ..."
        ),
    )
    tokenizer: str | None = Field(None, description="Repository or folder of the tokenizer, when it lives elsewhere.")
    tokenizer_revision: str | None = Field(None, description="Revision of the tokenizer's repository.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type of the weights; `auto` keeps the stored one."
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
    weights_seed: int = Field(0, ge=0, description="Seed of the random weights.")
    trust_remote_code: bool = Field(False, description="Run modelling code that comes with the repository.")

    @property
    def tokenizer_location(self) -> TokenizerLocation:
        """Where the tokenizer comes from."""
        if self.tokenizer:
            return TokenizerLocation(self.tokenizer, self.tokenizer_revision, None)
        return TokenizerLocation(self.repo, self.tokenizer_revision or self.revision, self.gguf_file)


def locate(repo: str, base: Path = Path(), field: str = "the model") -> str:
    """A folder that exists, made absolute from `base`, or the name of a hub repository as it is."""
    folder = base / Path(repo).expanduser()
    if folder.exists():
        return str(folder.resolve())
    looks_local = repo.startswith((".", "/", "~", "\\")) or repo.count("/") > 1
    if looks_local:
        raise RopewalkError(
            f"{field} is missing: there is no {folder}; give a folder that exists or a hub repository owner/name"
        )
    return repo
