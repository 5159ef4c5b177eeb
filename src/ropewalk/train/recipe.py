"""What a training run is made of, as data: one YAML file, checked whole before anything is read or trained."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from ropewalk.schema import Part
from ropewalk.validation import validated
from ropewalk.yamlfile import read_yaml

MINIATURE = Path(__file__).parents[1] / "data" / "recipes" / "miniature.yaml"
"""The recipe of the checkpoints that travel with the package."""

Positive = Annotated[int, Field(gt=0, le=10**9)]
Layers = Annotated[int, Field(gt=0, le=4096)]
Heads = Annotated[int, Field(gt=0, le=2**16)]
Size = Annotated[int, Field(gt=0, le=2**20)]
Rate = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class _Part(Part):
    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)


class Corpus(_Part):
    """Which files are text to learn from."""

    root: Path | None = None
    """Folder of the text; empty means the standard library of the Python that runs."""
    files: str = "**/*.py"
    """Glob below the root: which files are considered at all."""
    exclude: tuple[str, ...] = ()
    """Patterns of relative paths (`*` crosses folders) that are left out."""
    sources: dict[str, tuple[str, ...]]
    """Named groups of files by pattern, from which phases mix; a file belongs to the first group that matches it."""


class Heldout(_Part):
    """Which files are kept away from training and from the tokenizer, to measure on."""

    files: Positive
    """How many files, the first in the order of the SHA-256 of their relative paths."""
    sources: tuple[str, ...]
    """Groups of files to choose from."""
    min_characters: Positive
    """Shorter files are not chosen; the length in tokens is not known before there is a tokenizer."""
    min_tokens: Positive
    """Chosen files with fewer tokens than this stay away from training and are not measured either."""
    keep_tokens: Positive
    """Each text is cut at the end of the line in which this token lies."""


class Model(_Part):
    """Shape of the SmolLM3 model."""

    layers: Layers
    """Number of layers."""
    hidden: Size
    """Width of the residual stream."""
    intermediate: Size
    """Width of the feed-forward part."""
    heads: Heads
    """Query heads per layer."""
    key_heads: Heads
    """Key heads per layer, each shared by heads / key_heads query heads."""
    head_dim: Size
    """Length of one query or key vector."""
    nope_interval: Positive
    """Every so-many-th layer has no rotary embedding."""
    initializer_range: Annotated[float, Field(gt=0)]
    """Standard deviation of the random weights at the start."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.heads % self.key_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of key_heads {self.key_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} must be even, since the rotary embedding turns pairs")
        return self


class Optimizer(_Part):
    """AdamW and what surrounds it; learning rates belong to the phases."""

    betas: tuple[Decay, Decay]
    """Decay rates of the first and the second moment."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Weight decay of matrices; embeddings and norms have none."""
    clip: Annotated[float, Field(gt=0)]
    """Largest allowed norm of the gradient."""


class Phase(_Part):
    """One phase: a context, a text mix, a learning rate line, and the steps at which checkpoints are saved."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    """Start of the folder names of its checkpoints: `<name>-step-<step>`."""
    label: str
    """Start of the short labels of its checkpoints: `<label>-<step>`."""
    title: str
    """The phase as it is named in tables and figures."""
    continues: bool = False
    """Whether step numbers go on from the phase before rather than start at 0."""
    context: Annotated[int, Field(ge=2, le=2**24)]
    """Tokens per training sequence."""
    batch: Positive
    """Sequences per step."""
    rope_theta: Annotated[float, Field(gt=1, le=1e30)]
    """Base of the rotary embedding's wavelengths."""
    steps: Positive
    """Optimizer steps in this phase."""
    save: tuple[Positive, ...]
    """Steps of this phase, counted from its start, after which a checkpoint is saved; the last one is its end."""
    learning_rate: Rate
    """Learning rate at the phase's start, after warm-up."""
    end_learning_rate: Rate
    """Learning rate at the phase's end; the line between the two is straight."""
    warmup: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Steps over which the learning rate grows from nothing."""
    mix: Annotated[dict[str, Annotated[float, Field(gt=0, le=1e9)]], Field(min_length=1)]
    """Share of training sequences from each group of files, in any unit."""
    min_tokens: Annotated[int, Field(ge=0)] = 0
    """Only documents of at least so many tokens are drawn from."""

    @model_validator(mode="after")
    def _saves_fit(self) -> Self:
        if not self.save or self.save[-1] != self.steps or any(a >= b for a, b in pairwise(self.save)):
            raise ValueError(f"save {list(self.save)} must be increasing and end with the last step, {self.steps}")
        return self

    def rate(self, step: int) -> float:
        """Learning rate of a 0-based step: the straight line, times the warm-up factor `min(1, (step+1)/warmup)`."""
        line = self.learning_rate + (self.end_learning_rate - self.learning_rate) * step / max(self.steps - 1, 1)
        return line * min(1.0, (step + 1) / self.warmup) if self.warmup else line


class Recipe(_Part):
    """A whole training run."""

    name: str
    """What the model card calls the model."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the initial weights and of the order of the text."""
    corpus: Corpus
    """Text to learn from."""
    heldout: Heldout
    """Text to measure on."""
    vocabulary: Annotated[int, Field(ge=257, le=65536)]
    """Tokens of the byte-level BPE, the document separator included."""
    model: Model
    """Shape of the model."""
    optimizer: Optimizer
    """How weights are updated."""
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)]
    """What is trained, in order."""
    state_every: Positive = 50
    """Steps between saved states, from which an interrupted run goes on."""
    log_every: Positive = 20
    """Steps between lines of progress."""

    @field_validator("phases")
    @classmethod
    def _names_differ(cls, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        names = [phase.name for phase in phases]
        if len(set(names)) < len(names):
            raise ValueError(f"phase names {names} must differ, since checkpoints are named after them")
        return phases

    @model_validator(mode="after")
    def _sources_exist(self) -> Self:
        used = {*self.heldout.sources, *(name for phase in self.phases for name in phase.mix)}
        unknown = sorted(used - set(self.corpus.sources))
        if unknown:
            raise ValueError(f"no source is named {unknown[0]!r}; corpus.sources has {sorted(self.corpus.sources)}")
        if self.heldout.min_tokens < self.longest:
            raise ValueError(
                f"heldout.min_tokens {self.heldout.min_tokens} must be at least the longest context, {self.longest}"
            )
        if self.heldout.keep_tokens < self.heldout.min_tokens:
            raise ValueError(
                f"heldout.keep_tokens {self.heldout.keep_tokens} must be at least "
                f"heldout.min_tokens, {self.heldout.min_tokens}"
            )
        return self

    @property
    def memory(self) -> int:
        """Bytes that training takes at least: weights, gradients and two moments; what a step keeps of its tokens."""
        shape = self.model
        attention = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.key_heads)
        weights = self.vocabulary * shape.hidden + shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
        tokens = max(phase.batch * phase.context for phase in self.phases)
        return 4 * (4 * weights + tokens * (self.vocabulary + shape.layers * shape.hidden))

    @property
    def longest(self) -> int:
        """The longest context of any phase."""
        return max(phase.context for phase in self.phases)

    def first_step(self, index: int) -> int:
        """Number of steps that the step count of phase `index` starts from."""
        if not self.phases[index].continues or index == 0:
            return 0
        return self.first_step(index - 1) + self.phases[index - 1].steps


def load_recipe(path: Path | None = None) -> Recipe:
    """Read and check a recipe; without a path, the one of the packaged miniature."""
    path = MINIATURE if path is None else Path(path)
    file = read_yaml(path, "recipe")
    return validated(Recipe, file.data, str(path), file.line)
