"""Documents: the tokens of texts, cut to exactly one length."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, StrictInt

from ropewalk.capture.encoding import Tokens, encode
from ropewalk.capture.pinned import is_on_hub, pinned
from ropewalk.capture.texts import find_files, texts, texts_of
from ropewalk.corpora import Corpus
from ropewalk.errors import RopewalkError
from ropewalk.files import atomic_path, write_bytes
from ropewalk.fingerprint import file_fingerprint, fingerprint
from ropewalk.notes import Note, read_note
from ropewalk.progress import logger
from ropewalk.seals import sealed_json
from ropewalk.text import count

FORMAT = 2
"""Number of the layout of token files and their records."""

_Count = Annotated[StrictInt, Field(ge=0, lt=2**63)]


@dataclass(frozen=True)
class Documents:
    """Token documents [documents, length] on disk, their largest token id, and what became of the others."""

    path: str
    documents: int
    length: int
    left_out: int
    empty: int
    largest: int
    dataset: str | None = None
    """The hub dataset that they come from, as `repo@commit`."""

    def tokens(self) -> Tokens:
        """The documents as a read-only map of the file: nothing is loaded until it is looked at."""
        return np.memmap(self.path, dtype=np.int32, mode="r", shape=(self.documents, self.length))

    def facts(self) -> dict[str, int | str]:
        """What a study's record says of them."""
        counts: dict[str, int | str] = {
            "documents": self.documents,
            "tokens": self.length,
            "shorter left out": self.left_out,
            "of them empty": self.empty,
        }
        return counts if self.dataset is None else counts | {"dataset": self.dataset}

    def describe(self) -> str:
        """One line for people."""
        empty = f" ({self.empty} of them empty)" if self.empty else ""
        return (
            f"{count(self.documents, 'document')} of {self.length} tokens; {self.left_out} shorter ones left out{empty}"
        )


class _Counts(Note):
    documents: _Count
    length: _Count
    left_out: _Count
    empty: _Count
    largest: _Count
    dataset: str | None = None


class _Read(Note):
    files: list[str]
    to_the_end: bool = Field(alias="to the end")


class TokenRecord(Note):
    """What the record of tokens holds."""

    documents: _Counts
    sha256: str
    read: _Read

    def is_of(self, path: Path) -> bool:
        """Whether a file is the one that the record is of."""
        counts = self.documents
        numbers = counts.documents * counts.length
        return path.stat().st_size == numbers * np.dtype(np.int32).itemsize and file_fingerprint(path) == self.sha256


def prepare(
    corpus: Corpus, tokenizer: Any, length: int, folder: Path, check: Callable[[int], object] = lambda _: None
) -> Documents:
    """Tokenize a corpus into documents of exactly `length` tokens, once: the result is kept in `folder`.

    Shorter documents are left out (or joined); when there are fewer than asked for, it says so and nothing is kept.
    Tokens are made anew when the files that were read for them hold something else now, when the branch of a hub
    dataset has moved, and when they are not what was written. `check` is asked about every new largest token id, and
    what it raises leaves nothing behind.
    """
    corpus = pinned(corpus, folder)
    record = _record(corpus, tokenizer, length, folder)
    known = _known(record, corpus)
    if known is not None:
        check(known.largest)
        return known
    reader, path = _Reader(corpus), record.with_suffix(".bin")
    kept = left_out = empty = largest = 0
    with atomic_path(path) as temporary:
        with temporary.open("wb") as file:
            for tokens in _cut(reader, tokenizer, length):
                if len(tokens) < length:
                    left_out += 1
                    empty += len(tokens) == 0
                    continue
                if int(tokens[:length].max()) > largest:
                    largest = int(tokens[:length].max())
                    check(largest)
                file.write(tokens[:length].tobytes())
                kept += 1
                if kept == corpus.documents:
                    break
        wanted = corpus.documents or 1
        if kept < wanted:
            raise RopewalkError(
                f"only {count(kept, 'document')} of the corpus {'has' if kept == 1 else 'have'} {length} tokens and "
                f"{wanted} are asked for ({left_out} are shorter): "
                "lower `documents` or `context`, add texts, or set `short_documents: join`"
            )
        digest = file_fingerprint(temporary)
    dataset = f"{corpus.repo}@{corpus.revision}" if is_on_hub(corpus) else None
    documents = Documents(str(path), kept, length, left_out, empty, largest, dataset)
    facts = {name: value for name, value in asdict(documents).items() if name != "path"}
    read = {"files": reader.digests, "to the end": reader.at_end}
    write_bytes(record, sealed_json({"documents": facts, "sha256": digest, "read": read}))
    return documents


def expect(
    corpus: Corpus, tokenizer: Any, length: int, folder: Path, check: Callable[[int], object] = lambda _: None
) -> Documents | None:
    """What `prepare` would find in `folder`, None where it would tokenize; nothing is written.

    Of a corpus that is not tokenized yet the first text is read: settings that cannot be right show there.
    """
    corpus = pinned(corpus, folder, note=False)
    known = _known(_record(corpus, tokenizer, length, folder), corpus)
    if known is None:
        next(texts(corpus), None)
    else:
        check(known.largest)
    return known


def check_tokens(record: Path) -> str | None:
    """What is wrong with a token file, known by the record beside it (`damaged`, `missing`); None if nothing is."""
    known, path = read_note(record, TokenRecord), record.with_suffix(".bin")
    if not path.exists() or not record.exists():
        return "missing"
    return None if path.is_file() and known is not None and known.is_of(path) else "damaged"


def _known(record: Path, corpus: Corpus) -> Documents | None:
    """The documents that were prepared earlier, if they are whole and still those of the corpus."""
    if not record.is_file():
        return None
    known, path = read_note(record, TokenRecord), record.with_suffix(".bin")
    if known is None or check_tokens(record) is not None:
        logger.warning("%s is damaged: the documents are tokenized again", record if known is None else path)
        return None
    files, read = _files(corpus), known.read.files
    fits = len(files) == len(read) if known.read.to_the_end else len(files) >= len(read)
    if not fits or any(_digest(file) != digest for file, digest in zip(files, read, strict=False)):
        return None
    return Documents(path=str(path), **known.documents.model_dump())


class _Reader:
    """The texts of a corpus, and the digests of the files that were read for them so far."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.digests: list[str] = []
        self.at_end = False

    def texts(self) -> Iterator[str]:
        """The texts one at a time."""
        if self.corpus.source == "dataset":
            # What of them is read, and when, is up to the library.
            self.digests = [_digest(path) for path in _files(self.corpus)]
            yield from texts(self.corpus)
        else:
            for path in find_files(self.corpus):
                self.digests.append(_digest(path))
                yield from texts_of(path, self.corpus)
        self.at_end = True


def _files(corpus: Corpus) -> list[Path]:
    """The files of a corpus in their order; none for a dataset on the hub, which is known by its commit."""
    if is_on_hub(corpus):
        return []
    if corpus.source == "dataset":
        return sorted(path for path in Path(str(corpus.repo)).rglob("*") if path.is_file())
    return find_files(corpus)


def _digest(path: Path) -> str:
    try:
        return file_fingerprint(path)
    except OSError as error:
        raise RopewalkError(f"{path} cannot be read ({error.strerror}): check who may read it, and the disk") from error


def _cut(reader: _Reader, tokenizer: Any, length: int) -> Iterator[Tokens]:
    corpus = reader.corpus
    if corpus.short_documents == "leave_out":
        for text in reader.texts():
            yield (
                encode(tokenizer, text, length, corpus.special_tokens) if text.strip() else np.empty(0, dtype=np.int32)
            )
        return
    separator = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    waiting: list[int] = []
    for text in reader.texts():
        tokens = encode(tokenizer, text, length, corpus.special_tokens) if text.strip() else np.empty(0, dtype=np.int32)
        if len(tokens) >= length or len(tokens) == 0:
            yield tokens
            continue
        waiting += [*tokens.tolist(), *separator]
        if len(waiting) >= length:
            yield np.asarray(waiting, dtype=np.int32)
            waiting = []


def vocabulary_hash(tokenizer: Any) -> str:
    """Hash of what a tokenizer is, wherever it was loaded from."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(vocabulary.encode()).hexdigest()


def _record(corpus: Corpus, tokenizer: Any, length: int, folder: Path) -> Path:
    """Where the record of tokens stands: by a hash of the settings that decide them and of the tokenizer.

    What the files hold is looked at apart.
    """
    settings = corpus.model_dump(mode="json", exclude={"paths"} if is_on_hub(corpus) else {"paths", "repo"})
    key = fingerprint([FORMAT, settings, length, vocabulary_hash(tokenizer)])
    return folder / f"{key[:16]}.json"
