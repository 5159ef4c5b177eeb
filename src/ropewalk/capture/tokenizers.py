"""The tokenizers of a study: each loaded once, and only when somebody asks for it."""

from collections.abc import Sequence
from typing import Any

from ropewalk.capture.corpus import vocabulary_hash
from ropewalk.models.loading import load_tokenizer
from ropewalk.models.source import TokenizerLocation
from ropewalk.study import Checkpoint


class Tokenizers:
    """Tokenizers by where they come from, and what they are: one that stands beside every revision is one tokenizer."""

    def __init__(self) -> None:
        self._loaded: dict[TokenizerLocation, Any] = {}
        self._vocabularies: dict[TokenizerLocation, str] = {}

    def of(self, checkpoint: Checkpoint) -> Any:
        """The tokenizer of a checkpoint."""
        location = checkpoint.tokenizer_location
        if location not in self._loaded:
            self._loaded[location] = load_tokenizer(checkpoint)
        return self._loaded[location]

    def vocabulary(self, checkpoint: Checkpoint) -> str:
        """Hash of what the tokenizer of a checkpoint is."""
        location = checkpoint.tokenizer_location
        if location not in self._vocabularies:
            self._vocabularies[location] = vocabulary_hash(self.of(checkpoint))
        return self._vocabularies[location]

    def length(self, checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> int:
        """Tokens of the documents of a checkpoint: the longest context of all `checkpoints` with its tokenizer.

        Those of longer contexts are asked from the longest on, so that of a series with one tokenizer no more than one
        other is opened.
        """
        longer = [one for one in checkpoints if one.context > checkpoint.context]
        for other in sorted(longer, key=lambda one: -one.context):
            same_location = other.tokenizer_location == checkpoint.tokenizer_location
            if same_location or self.vocabulary(other) == self.vocabulary(checkpoint):
                return other.context
        return checkpoint.context
