"""Text to learn from: files, the tokenizer made from them, what is held out, and the training sequences of a phase."""

import fnmatch
import hashlib
import json
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ropewalk.errors import RopewalkError
from ropewalk.reading import open_regular, unreadable
from ropewalk.text import one_line
from ropewalk.train.recipe import Corpus, Heldout, Phase

SEPARATOR = "<|endoftext|>"
"""The token between two documents of one sequence."""

Tokens = np.ndarray[tuple[int], np.dtype[np.uint16]]


@dataclass(frozen=True)
class Document:
    """One file of the corpus."""

    path: str
    source: str
    text: str


def corpus_root(settings: Corpus) -> Path:
    """The folder that holds the text."""
    return settings.root or Path(sysconfig.get_path("stdlib"))


def read_corpus(settings: Corpus) -> list[Document]:
    """All documents in the order of their paths; files that are not UTF-8 and repeated texts are left out."""
    root = corpus_root(settings)
    documents, seen = [], set()
    try:
        files = sorted(file for file in root.glob(settings.files) if not file.is_dir())
    except (ValueError, NotImplementedError) as error:
        raise RopewalkError(
            f"corpus.files is {one_line(repr(settings.files), 100)}, no pattern of files below corpus.root "
            f"({one_line(error, 100)}): correct it"
        ) from error
    for file in files:
        path = file.relative_to(root).as_posix()
        source = next((name for name, patterns in settings.sources.items() if _matches(path, patterns)), None)
        if source is None or _matches(path, settings.exclude):
            continue
        try:
            text = _text(file)
        except UnicodeDecodeError:
            continue
        # A copy of a held-out file under another name would be trained on.
        if text.strip() and text not in seen:
            seen.add(text)
            documents.append(Document(path, source, text))
    if not documents:
        raise RopewalkError(f"no text in {root} matches {settings.files!r} and corpus.sources: correct the recipe")
    return documents


def _text(file: Path) -> str:
    try:
        with open_regular(file) as opened:
            # How lines end differs between systems, and what a text says does not.
            return opened.read().decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise unreadable(file, error, "mend it, or leave it out with corpus.exclude") from error


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def corpus_hash(documents: Iterable[Document]) -> str:
    """SHA-256 over paths, sources and texts."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(json.dumps([document.path, document.source, document.text]).encode())
    return digest.hexdigest()


def split_heldout(documents: Sequence[Document], settings: Heldout) -> tuple[list[Document], list[Document]]:
    """(training, held out): held out are the first `settings.files` eligible files by the SHA-256 of their path."""
    eligible = [
        document
        for document in documents
        if document.source in settings.sources and len(document.text) >= settings.min_characters
    ]
    if len(eligible) < settings.files:
        raise RopewalkError(
            f"only {len(eligible)} files have {settings.min_characters} characters or more, heldout.files asks for "
            f"{settings.files}: lower heldout.files or heldout.min_characters"
        )
    eligible.sort(key=lambda document: hashlib.sha256(document.path.encode()).hexdigest())
    chosen = {document.path for document in eligible[: settings.files]}
    return (
        [document for document in documents if document.path not in chosen],
        [document for document in documents if document.path in chosen],
    )


def make_tokenizer(documents: Sequence[Document], vocabulary: int, longest: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `vocabulary` tokens, the separator first, learned from the documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.text for document in documents), trainer, length=len(documents))
    if tokenizer.get_vocab_size() < vocabulary:
        raise RopewalkError(
            f"the text yields {tokenizer.get_vocab_size()} tokens, vocabulary asks for {vocabulary}: "
            "lower vocabulary or add text"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SEPARATOR,
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
    )


def encode(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast) -> list[Tokens]:
    """Token ids of each text, without separators."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    encoded: list[Tokens] = []
    for start in range(0, len(texts), 64):  # a whole corpus at once would hold millions of Python objects
        encoded += [
            np.array(part.ids, dtype=np.uint16) for part in backend.encode_batch_fast(texts[start : start + 64])
        ]
    return encoded


def cut_heldout(
    documents: Sequence[Document], settings: Heldout, tokenizer: PreTrainedTokenizerFast
) -> list[dict[str, str]]:
    """Rows (path, text) of the held-out texts that are long enough, each cut to whole lines."""
    rows = []
    for document in documents:
        offsets = tokenizer.backend_tokenizer.encode(document.text).offsets
        if len(offsets) < settings.min_tokens:
            continue
        last = offsets[min(settings.keep_tokens, len(offsets)) - 1][1]
        line_end = document.text.find("\n", max(last - 1, 0))
        rows.append({"path": document.path, "text": document.text[: line_end + 1] if line_end >= 0 else document.text})
    if not rows:
        raise RopewalkError(
            f"none of the {len(documents)} held-out files has {settings.min_tokens} tokens: "
            "raise heldout.min_characters"
        )
    return rows


class Mixture:
    """Training sequences of one phase; those of a step depend on (seed, phase, step) and on nothing else."""

    def __init__(self, pools: Mapping[str, Sequence[Tokens]], phase: Phase, separator: int, seed: tuple[int, int]):
        """`pools` holds the documents of each group as token ids, `seed` the run's seed and the phase's number."""
        self.phase, self.separator, self.seed = phase, separator, seed
        self.pools: list[list[Tokens]] = []
        for name in phase.mix:
            pool = [tokens for tokens in pools.get(name, ()) if len(tokens) >= phase.min_tokens]
            if not pool:
                raise RopewalkError(
                    f"no document of {name!r} has {phase.min_tokens} tokens: lower min_tokens of phase {phase.name!r}"
                )
            self.pools.append(pool)
        # Where each document ends when its pool is laid end to end: a random token picks in proportion to length.
        self.ends = [np.cumsum([len(tokens) for tokens in pool]) for pool in self.pools]
        shares = np.array(list(phase.mix.values()))
        self.shares = shares / shares.sum()

    def batch(self, step: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Token ids [batch, context + 1] of a 0-based step."""
        random = np.random.default_rng((*self.seed, step))
        return np.stack([self._sequence(random) for _ in range(self.phase.batch)])

    def _sequence(self, random: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """A window of one document, or short documents one after the other until the sequence is full."""
        length = self.phase.context + 1
        source = int(random.choice(len(self.pools), p=self.shares))
        pool, ends = self.pools[source], self.ends[source]
        sequence = np.empty(0, dtype=np.int64)
        while len(sequence) < length:
            tokens = pool[int(np.searchsorted(ends, random.integers(ends[-1]), side="right"))]
            start = 0
            if not len(sequence) and len(tokens) >= length:
                # A window that would begin before the document begins with it, so that beginnings, where measuring
                # starts, are seen as often as if documents were cut into consecutive pieces.
                start = max(0, int(random.integers(-length, len(tokens) - length + 1)))
            head = [self.separator] if len(sequence) else []
            sequence = np.concatenate([sequence, head, tokens[start : start + length]]).astype(np.int64)
        return sequence[:length]
