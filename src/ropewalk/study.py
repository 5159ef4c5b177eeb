"""A study is data: what one may say, field by field."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from ropewalk.corpora import Corpus
from ropewalk.fingerprint import fingerprint
from ropewalk.models.source import LayerNumber, VectorSource
from ropewalk.ownership import Owner
from ropewalk.placement import Placement
from ropewalk.schema import Part
from ropewalk.text import is_control, slug

BUCKETS = 16
"""Position buckets of a context, unless a bucket size is given."""

KIND = "study"  # as what a results folder is marked
LONGEST_NAME = 1000
"""Characters of a name: it stands in every row of the tables."""
LONGEST_CONTEXT = 2**24
"""Tokens of a document: more than any model reads, and arrays of this length still fit."""
MOST_COMPONENTS = 10_000
MOST_CHECKPOINTS, MOST_HEADS = 10_000, 10_000_000
"""Of a study; heads over all layers of a model."""
LARGEST_SEED = 2**63 - 1
"""What every generator of random numbers takes."""

Name = Annotated[str, Field(max_length=LONGEST_NAME)]
HeadNumber = Annotated[int, Field(ge=0, le=100_000)]


class Checkpoint(VectorSource):
    """One model at one moment of its training, or one model among several."""

    name: Name = Field("", description="Name in tables and folders; the revision or the folder's name by default.")
    phase: Name = Field("", description="Phase of training; checkpoints of one phase stand together.")
    family: Name = Field("", description="Family of models, for a study over models rather than over training.")
    step: int | None = Field(None, ge=0, lt=2**63, description="Training step.")
    context: int = Field(gt=1, le=LONGEST_CONTEXT, description="Tokens of each document that are read.")
    untrained: str = Field(
        "", description="Name of the checkpoint with random weights that is its null; `nulls` of the study sets it."
    )
    bucket_size: int | None = Field(
        None,
        gt=0,
        le=LONGEST_CONTEXT,
        description="Positions per bucket of kept vectors; a sixteenth of the context by default.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Checkpoint":
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
        return slug(self.name)

    @property
    def bucket(self) -> int:
        """Positions per bucket."""
        return self.bucket_size or max(1, -(-self.context // BUCKETS))


class Capture(Part):
    """What is captured of every document."""

    heads: int | Literal["all"] = Field("all", description="How many query heads to sample, or `all`.")
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="Seed of the sampling of heads and of kept vectors.")
    layers: tuple[LayerNumber, ...] | None = Field(None, min_length=1, description="Only these layers.")
    pairs: tuple[tuple[LayerNumber, HeadNumber], ...] | None = Field(
        None, min_length=1, description="Exactly these [layer, head] pairs, in place of a sample."
    )
    full_attention_only: bool = Field(False, description="Leave out layers with a sliding window.")
    skip_first: int = Field(
        0, ge=0, le=LONGEST_CONTEXT, description="Leave the first k tokens of each document out (attention sinks)."
    )
    pre_rope: bool = Field(
        False, description="Capture before the rotation, and a QK-norm that follows it, in place of after."
    )
    statistics: dict[str, dict[str, Any]] = Field(
        {"moments": {}, "frame": {}, "profile": {}, "behaviour": {}},
        description=(
            "What is summed: a list of names (`[moments, profile, sample]`), or a mapping from names to their options "
            "(`{moments: {}, sample: {rate: 0.5}}`; `{frame: full}` is `{frame: {full: true}}`). `moments` is always "
            "among them."
        ),
    )
    shards: int = Field(
        8, gt=0, le=100_000, description="Groups of documents: what a killed run repeats, and what errors come from."
    )
    batch_tokens: int = Field(4096, gt=0, le=10**9, description="Tokens of one forward pass; at least one document.")
    components: int = Field(10, gt=0, le=MOST_COMPONENTS, description="Principal components in the table.")

    @field_validator("statistics", mode="before")
    @classmethod
    def _with_options(cls, statistics: Any) -> Any:
        if isinstance(statistics, list | tuple):
            if not all(isinstance(name, str) for name in statistics):
                raise ValueError("must be a list of names, or a mapping from names to their options")
            statistics = dict.fromkeys(statistics)
        if isinstance(statistics, dict):
            chosen = {
                name: {} if options is None else {options: True} if isinstance(options, str) else options
                for name, options in statistics.items()
            }
            return {"moments": chosen.pop("moments", {}), **chosen}
        return statistics

    @field_validator("heads")
    @classmethod
    def _positive(cls, heads: int | str) -> int | str:
        if isinstance(heads, int) and not 1 <= heads <= MOST_HEADS:
            raise ValueError(f"must be a positive number (at most {MOST_HEADS:,}) or `all`")
        return heads


class Figures(Part):
    """Choices for the figures."""

    portraits: tuple[str, ...] | None = Field(
        None, description="Checkpoints of the phase portraits, by name or label; chosen by default."
    )
    axis: Literal["pooled", "centred", "drift"] = Field(
        "pooled",
        description=(
            "Axis of r_q and r_k: `pooled` (PC0 of queries and keys together, as published), `centred` (of both about "
            "their own means), `drift` (along which the means move with position)."
        ),
    )


class Study(Part):
    """A whole study."""

    name: Annotated[
        str,
        Field(
            max_length=100,
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
            description="Name of the study and of its results folder.",
        ),
    ]
    results: str = Field(
        "",
        max_length=LONGEST_NAME,
        description=(
            "Results folder, relative to where the command runs; `results/<name>` by default. A study file can only "
            "name one below there or below its own folder; any other is given with `--results`."
        ),
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict,
        # What they say stands in the checkpoints of the record.
        exclude=True,
        description="Fields that all checkpoints share; merged into each before it is checked.",
    )
    checkpoints: tuple[Checkpoint, ...] = Field(
        min_length=1, max_length=MOST_CHECKPOINTS, description="Checkpoints in order."
    )
    corpus: Corpus = Field(default_factory=Corpus, description="Where documents come from.")
    capture: Capture = Field(default_factory=Capture, description="What is captured.")
    nulls: tuple[Literal["permuted", "untrained"], ...] = Field(
        ("permuted",),
        description=(
            "What numbers are held against: `permuted` (positions shuffled within documents, from the same capture), "
            "`untrained` (the same architecture with random weights, captured on the same documents)."
        ),
    )
    downloads: Literal["keep", "discard"] = Field(
        "keep",
        description="What becomes of weights that the study fetched into the hub's cache, once they served.",
    )
    figures: Figures = Field(default_factory=Figures, description="Choices for the figures.")
    engine: Placement = Field(
        default_factory=Placement,
        # Results are the same from everywhere.
        exclude=True,
        description="Where shards are computed: `local`, `ray`, `slurm`, or one of them with its settings.",
    )
    _owner: Owner | None = PrivateAttr(None)

    @field_validator("results")
    @classmethod
    def _is_path(cls, path: str) -> str:
        if any(is_control(one) for one in path) or path.startswith("~"):
            raise ValueError("a path must be on one line, without control characters, and written out without `~`")
        return path

    @model_validator(mode="before")
    @classmethod
    def _merged(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError("a study is a mapping with `name` and `checkpoints`")
        defaults = data.get("defaults") or {}
        if not isinstance(defaults, dict):
            raise ValueError("`defaults` is a mapping of fields that all checkpoints share")
        merged = {**data, "defaults": defaults}
        checkpoints = data.get("checkpoints")
        if isinstance(checkpoints, list | tuple):
            # A key that is not known is said once and not for every checkpoint.
            shared = {key: value for key, value in defaults.items() if key in Checkpoint.model_fields}
            merged["checkpoints"] = [
                _named({**(shared if i else defaults), **c}, i) if isinstance(c, dict) else c
                for i, c in enumerate(checkpoints)
            ]
        return merged

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

    @property
    def owner(self) -> Owner:
        """As whose its results folder is marked: this study, from its file if it was read from one."""
        return self._owner or Owner(KIND, self.name, "", content_fingerprint(self.model_dump(mode="json")))

    def owned_by(self, owner: Owner) -> "Study":
        """The same study, known as what it was read from."""
        copy = self.model_copy()
        copy._owner = owner
        return copy


def content_fingerprint(data: Any) -> str:
    """A fingerprint of a study as it was written, wherever it is computed and its results go."""
    return fingerprint({key: value for key, value in data.items() if key not in ("results", "engine")})


def _named(data: dict[str, Any], index: int) -> dict[str, Any]:
    """Fill in the name and label of a checkpoint from its revision or place."""
    place = data.get("revision") or Path(str(data.get("repo") or data.get("source") or "")).name or index
    suffix = "-random" if data.get("random_weights") is True else ""
    # Not `or`: no and 0 are mistakes, to be named.
    name, label = (None if data.get(field) == "" else data.get(field) for field in ("name", "label"))
    name = f"{place}{suffix}" if name is None else name
    return {**data, "name": name, "label": name if label is None else label}
