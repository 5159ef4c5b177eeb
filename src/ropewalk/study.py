"""A study is data: one YAML file, checked whole before anything heavy starts."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ropewalk.errors import RopewalkError

BUCKETS = 16
"""Position buckets of a context, unless a bucket size is given."""


class Part(BaseModel):
    """Common to all parts: unknown keys are mistakes, and a checked study does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Checkpoint(Part):
    """One model at one moment of its training, or one model among several."""

    repo: str | None = Field(
        None, description="Hub repository (`owner/name`) or folder, absolute or relative to the study file."
    )
    source: str | None = Field(
        None, description="Folder or hub dataset of vectors `l{LL}h{HH}{q|k}/data.parquet`, in place of a model."
    )
    key_heads: int | None = Field(
        None, gt=0, description="With `source`: key heads per layer, when the folder does not tell."
    )
    revision: str | None = Field(None, description="Branch, tag or commit on the hub, of `repo` or `source`.")
    gguf_file: str | None = Field(
        None, description="Name of a GGUF file in the repository or folder, to load in place of safetensors."
    )
    name: str = Field("", description="Name in tables and folders; the revision or the folder's name by default.")
    label: str = Field("", description="Short name for axes; the name by default.")
    phase: str = Field("", description="Phase of training; checkpoints of one phase stand together.")
    family: str = Field("", description="Family of models, for a study over models rather than over training.")
    step: int | None = Field(None, ge=0, description="Training step.")
    context: int = Field(gt=1, description="Tokens of each document that are read.")
    bucket_size: int | None = Field(
        None, gt=0, description="Positions per bucket; a sixteenth of the context by default."
    )
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

    @model_validator(mode="after")
    def _consistent(self) -> "Checkpoint":
        if not self.slug.strip("."):
            raise ValueError(f"name {self.name!r} cannot be a folder's name: give a `name` with letters or digits")
        if (self.repo is None) == (self.source is None):
            raise ValueError("give `repo` (a model) or `source` (a folder of vectors), one of the two")
        limit = self.overrides.get("max_position_embeddings")
        if isinstance(limit, int) and self.context > limit:
            raise ValueError(
                f"context {self.context} is longer than overrides.max_position_embeddings {limit}: lower the "
                "one or raise the other"
            )
        return self

    @property
    def slug(self) -> str:
        """The name as a folder's name."""
        return re.sub(r"[^A-Za-z0-9._-]+", "_", self.name)

    @property
    def bucket(self) -> int:
        """Positions per bucket."""
        return self.bucket_size or max(1, -(-self.context // BUCKETS))

    @property
    def tokenizer_id(self) -> tuple[str | None, str | None, str | None]:
        """Where the tokenizer comes from: (place, revision, GGUF file)."""
        if self.tokenizer:
            return self.tokenizer, self.tokenizer_revision, None
        return self.repo, self.tokenizer_revision or self.revision, self.gguf_file


class Corpus(Part):
    """Where documents come from."""

    source: Literal["files", "jsonl", "parquet", "dataset", "python-stdlib"] = Field(
        "python-stdlib",
        description=(
            "Text files by glob, JSONL or Parquet with a text column, a hub dataset, or the installed standard library."
        ),
    )
    paths: tuple[str, ...] = Field((), description="Globs of files, absolute or relative to the study file.")
    column: str = Field("text", description="Column that holds the text.")
    repo: str | None = Field(None, description="Dataset on the hub, or a folder of one.")
    config: str | None = Field(None, description="Configuration of the dataset.")
    split: str = Field("train", description="Split of the dataset.")
    revision: str | None = Field(None, description="Revision of the dataset.")
    documents: int | None = Field(
        None, gt=0, description="How many documents to use, in their order; all that are long enough by default."
    )
    short_documents: Literal["leave_out", "join"] = Field(
        "leave_out",
        description=(
            "What to do with documents shorter than the context: leave them out, or join neighbours "
            "until they fill one."
        ),
    )
    special_tokens: bool = Field(True, description="Let the tokenizer add its special tokens (such as a leading BOS).")

    @model_validator(mode="after")
    def _complete(self) -> "Corpus":
        if self.source in ("files", "jsonl", "parquet") and not self.paths:
            raise ValueError(f"source `{self.source}` needs `paths`, a list of globs such as [texts/*.txt]")
        if self.source == "dataset" and not self.repo:
            raise ValueError("source `dataset` needs `repo`, such as owner/name")
        return self


class Capture(Part):
    """What is captured of every document."""

    heads: int | Literal["all"] = Field("all", description="How many query heads to sample, or `all`.")
    seed: int = Field(0, description="Seed of the sampling of heads and of kept vectors.")
    layers: tuple[int, ...] | None = Field(None, min_length=1, description="Only these layers.")
    pairs: tuple[tuple[int, int], ...] | None = Field(
        None, min_length=1, description="Exactly these [layer, head] pairs, in place of a sample."
    )
    full_attention_only: bool = Field(False, description="Leave out layers with a sliding window.")
    skip_first: int = Field(0, ge=0, description="Leave the first k tokens of each document out (attention sinks).")
    pre_rope: bool = Field(False, description="Capture before the rotation in place of after it.")
    keep: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Base rate of kept vectors: a position is kept with probability keep / bucket_size. 0 keeps none.",
    )
    keep_at_most: int = Field(
        2048, gt=0, description="Kept vectors of one head to expect at most; the rate is lowered to meet it."
    )
    shards: int = Field(
        8, gt=0, description="Groups of documents: what a killed run repeats, and what errors are computed from."
    )
    batch_tokens: int = Field(4096, gt=0, description="Tokens of one forward pass; at least one document.")
    components: int = Field(10, gt=0, description="Principal components in the table.")

    @field_validator("heads")
    @classmethod
    def _positive(cls, heads: int | str) -> int | str:
        if isinstance(heads, int) and heads < 1:
            raise ValueError("must be a positive number or `all`")
        return heads


class Figures(Part):
    """Choices for the figures."""

    portraits: tuple[str, ...] | None = Field(
        None, description="Checkpoints of the phase portraits, by name or label; chosen by default."
    )


class Study(Part):
    """A whole study. `defaults` are merged into each checkpoint before it is checked."""

    name: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the study and of its results folder.")
    ]
    results: str = Field(
        "", description="Results folder, relative to where the command runs; `results/<name>` by default."
    )
    checkpoints: tuple[Checkpoint, ...] = Field(min_length=1, description="Checkpoints in order.")
    corpus: Corpus = Field(default_factory=Corpus, description="Where documents come from.")
    capture: Capture = Field(default_factory=Capture, description="What is captured.")
    figures: Figures = Field(default_factory=Figures, description="Choices for the figures.")

    @model_validator(mode="before")
    @classmethod
    def _merged(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError("a study is a mapping with `name` and `checkpoints`")
        data = dict(data)
        defaults = data.pop("defaults", None) or {}
        if not isinstance(defaults, dict):
            raise ValueError("`defaults` is a mapping of fields that all checkpoints share")
        checkpoints = data.get("checkpoints")
        if isinstance(checkpoints, list):
            data["checkpoints"] = [
                _named({**defaults, **c}, i) if isinstance(c, dict) else c for i, c in enumerate(checkpoints)
            ]
        return data

    @model_validator(mode="after")
    def _unique(self) -> "Study":
        for field in ("name", "label", "slug"):
            seen: set[str] = set()
            for checkpoint in self.checkpoints:
                # Some file systems do not tell upper from lower case.
                value = getattr(checkpoint, field)
                if value.casefold() in seen:
                    raise ValueError(f"two checkpoints have the {field} {value!r}: give each its own name and label")
                seen.add(value.casefold())
        for named in self.figures.portraits or ():
            if not any(named in (checkpoint.name, checkpoint.label) for checkpoint in self.checkpoints):
                raise ValueError(f"figures.portraits names {named!r}, which is no checkpoint of this study")
        for checkpoint in self.checkpoints:
            if self.capture.skip_first >= checkpoint.context - 1:
                raise ValueError(
                    f"skip_first {self.capture.skip_first} leaves nothing of the context {checkpoint.context} "
                    f"of {checkpoint.label!r}"
                )
        return self

    @property
    def folder(self) -> Path:
        """The results folder."""
        return Path(self.results or f"results/{self.name}")


def load_study(path: Path | str) -> Study:
    """Read and check a study file; relative folders in it are taken from where the file stands."""
    path = Path(path)
    if not path.is_file():
        raise RopewalkError(f"no study at {path}: give the path of a YAML file")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RopewalkError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    return parse_study(data, base=path.parent, name=str(path))


def parse_study(data: Any, base: Path = Path(), name: str = "the study") -> Study:
    """Check a study given as plain data; see `load_study`."""
    try:
        study = Study.model_validate(data)
    except ValidationError as error:
        raise RopewalkError(_sentences(error, name)) from error
    checkpoints = tuple(_placed(checkpoint, base) for checkpoint in study.checkpoints)
    corpus = study.corpus.model_copy(
        update={
            "paths": tuple(str(base / pattern) for pattern in study.corpus.paths),
            "repo": study.corpus.repo and _place(study.corpus.repo, base, "corpus.repo"),
        }
    )
    return study.model_copy(update={"checkpoints": checkpoints, "corpus": corpus})


def _named(data: dict[str, Any], index: int) -> dict[str, Any]:
    """Fill in the name and label of a checkpoint from its revision or place."""
    place = data.get("revision") or Path(str(data.get("repo") or data.get("source") or index)).name
    suffix = "-random" if data.get("random_weights") is True else ""
    name = data.get("name") or f"{place}{suffix}"
    return {**data, "name": name, "label": data.get("label") or name}


def _placed(checkpoint: Checkpoint, base: Path) -> Checkpoint:
    places = {
        field: _place(getattr(checkpoint, field), base, f"{field} of checkpoint {checkpoint.label!r}")
        for field in ("repo", "tokenizer", "source")
        if getattr(checkpoint, field)
    }
    if checkpoint.gguf_file and checkpoint.repo and Path(places["repo"]).is_dir():
        file = Path(places["repo"]) / checkpoint.gguf_file
        if not file.is_file():
            raise RopewalkError(f"gguf_file of checkpoint {checkpoint.label!r} is missing: there is no {file}")
    return checkpoint.model_copy(update=places)


def _place(place: str, base: Path, field: str) -> str:
    """A folder that exists, made absolute from `base`, or the name of a hub repository as it is."""
    folder = base / Path(place).expanduser()
    if folder.exists():
        return str(folder.resolve())
    looks_local = place.startswith((".", "/", "~", "\\")) or place.count("/") > 1
    if looks_local:
        raise RopewalkError(
            f"{field} is missing: there is no {folder}; give a folder that exists or a hub repository owner/name"
        )
    return place


def _sentences(error: ValidationError, name: str) -> str:
    lines = []
    problems = error.errors()
    if len(problems) > 1:
        # A list whose items are wrong is also reported as too short.
        problems = [problem for problem in problems if problem["type"] != "too_short"] or problems
    for problem in problems:
        where = ".".join(str(part) for part in problem["loc"] if part not in ("int", "literal['all']")) or "study"
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = "is not a known key: check its spelling, or remove it"
        elif problem["type"] == "missing":
            message = "is missing: add it"
        elif problem["type"] != "value_error":
            message = f"is {problem['input']!r}: {message[0].lower()}{message[1:]}"
        lines.append(f"{where}: {message}" if problem["type"] == "value_error" else f"{where} {message}")
    return f"{name}: " + "\n  ".join(dict.fromkeys(lines))
