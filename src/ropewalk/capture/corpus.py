"""Documents: where they come from, and their tokens, cut to exactly one length."""

import glob
import hashlib
import json
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ropewalk.capture.pinned import is_on_hub, pinned
from ropewalk.errors import RopewalkError
from ropewalk.files import atomic_path, write_text
from ropewalk.fingerprint import fingerprint
from ropewalk.study import Corpus
from ropewalk.text import count, install_extra, one_line

CHARACTERS_PER_TOKEN = 12
"""More than any tokenizer averages: so much text is tried first, and the whole only if it was not enough."""

FORMAT = 1
"""Number of the layout of token files and their records."""

Tokens = NDArray[np.int32]


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


def find_files(corpus: Corpus) -> list[Path]:
    """The files a corpus is read from, sorted; a pattern without a file is a mistake."""
    if corpus.source == "python-stdlib":
        return stdlib_files()
    files: set[Path] = set()
    for pattern in corpus.paths:
        # Not Path.glob: patterns may be absolute.
        found = {Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file()}  # noqa: PTH207
        if not found:
            raise RopewalkError(f"corpus.paths: no file matches {pattern}")
        files |= found
    return sorted(files)


def stdlib_files() -> list[Path]:
    """The Python sources of the installed standard library, sorted by their place in it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)


def check_corpus(corpus: Corpus) -> None:
    """Find mistakes that need no reading: files and columns that are not there."""
    if corpus.source == "memory":
        raise RopewalkError("the documents were given from Python and are not on disk: name a corpus in the study")
    files = find_files(corpus) if corpus.source != "dataset" else []
    if corpus.source == "parquet":
        for path in files:
            _parquet(path, corpus.column)
    if corpus.source == "jsonl":
        for path in files:
            next(_jsonl_texts(path, corpus.column), None)


def texts(corpus: Corpus) -> Iterator[str]:
    """The documents' texts one at a time, in the order of the source."""
    if corpus.source == "dataset":
        yield from _dataset_texts(corpus)
        return
    for path in find_files(corpus):
        if corpus.source == "jsonl":
            yield from _jsonl_texts(path, corpus.column)
        elif corpus.source == "parquet":
            yield from _parquet_texts(path, corpus.column)
        else:
            try:
                yield path.read_text(encoding="utf-8")
            except OSError as error:
                raise RopewalkError(f"cannot read {path} ({error.strerror}): mend it or leave it out") from error
            except UnicodeDecodeError as error:
                # The standard library holds badly encoded files on purpose; elsewhere one is a mistake.
                if corpus.source == "files":
                    raise RopewalkError(
                        f"{path} is not UTF-8 text: convert it, or leave it out of corpus.paths"
                    ) from error


def prepare(corpus: Corpus, tokenizer: Any, length: int, folder: Path) -> Documents:
    """Tokenize a corpus into documents of exactly `length` tokens, once: the result is kept in `folder`.

    Shorter documents are left out (or joined); when there are fewer than asked for, it says so and nothing is kept. Of
    a hub dataset it is the commit that counts: tokens are made anew when its branch has moved.
    """
    corpus = pinned(corpus, folder)
    key = _key(corpus, tokenizer, length)
    record = folder / f"{key[:16]}.json"
    if record.is_file():
        known = json.loads(record.read_text(encoding="utf-8"))
        documents = Documents(**known, path=str(record.with_suffix(".bin")))
        if Path(documents.path).is_file() and Path(documents.path).stat().st_size == documents.documents * length * 4:
            return documents
    kept = left_out = empty = largest = 0
    with atomic_path(record.with_suffix(".bin")) as temporary:
        with temporary.open("wb") as file:
            for tokens in _cut(corpus, tokenizer, length):
                if len(tokens) < length:
                    left_out += 1
                    empty += len(tokens) == 0
                    continue
                largest = max(largest, int(tokens[:length].max()))
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
    dataset = f"{corpus.repo}@{corpus.revision}" if is_on_hub(corpus) else None
    documents = Documents(str(record.with_suffix(".bin")), kept, length, left_out, empty, largest, dataset)
    facts = {name: value for name, value in asdict(documents).items() if name != "path"}
    write_text(record, json.dumps(facts, indent=1))
    return documents


def encode(tokenizer: Any, text: str, length: int, special_tokens: bool = True) -> Tokens:
    """Token ids of a text; only as much of a long text as `length` tokens need is read."""
    head = text[: CHARACTERS_PER_TOKEN * length + 1000]
    for piece in (head, text):
        ids = tokenizer(piece, add_special_tokens=special_tokens, verbose=False)["input_ids"]
        # The cut may have split a word, so its last few tokens do not count.
        if len(piece) == len(text) or len(ids) >= length + 16:
            break
    return np.asarray(ids, dtype=np.int32)


def _cut(corpus: Corpus, tokenizer: Any, length: int) -> Iterator[Tokens]:
    if corpus.short_documents == "leave_out":
        for text in texts(corpus):
            yield (
                encode(tokenizer, text, length, corpus.special_tokens) if text.strip() else np.empty(0, dtype=np.int32)
            )
        return
    separator = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    waiting: list[int] = []
    for text in texts(corpus):
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


def _key(corpus: Corpus, tokenizer: Any, length: int) -> str:
    """Hash of all that decides the tokens: settings, the files as they stand, the tokenizer itself."""
    if is_on_hub(corpus):
        paths = []
    elif corpus.source == "dataset":
        paths = sorted(path for path in Path(str(corpus.repo)).rglob("*") if path.is_file())
    else:
        paths = find_files(corpus)
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return fingerprint([FORMAT, corpus.model_dump(mode="json"), length, files, vocabulary_hash(tokenizer)])


def _jsonl_texts(path: Path, column: str) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise RopewalkError(f"{path} line {number} is not JSON ({error.msg}): mend or remove it") from error
            if not isinstance(row, dict) or column not in row:
                known = ", ".join(row) if isinstance(row, dict) else type(row).__name__
                raise RopewalkError(
                    f"{path} line {number} has no column {column!r} (it has: {known}): set corpus.column"
                )
            yield _text(row[column], f"{path} line {number}", column)


def _parquet(path: Path, column: str) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise RopewalkError(f"{path} is not a Parquet file that can be read: fetch or write it again") from error
    if column not in file.schema_arrow.names:
        raise RopewalkError(
            f"{path} has no column {column!r} (it has: {', '.join(file.schema_arrow.names)}): set corpus.column"
        )
    return file


def _parquet_texts(path: Path, column: str) -> Iterator[str]:
    row = 0
    for batch in _parquet(path, column).iter_batches(batch_size=16, columns=[column]):
        for value in batch.column(0):
            yield _text(value.as_py(), f"{path} row {row}", column)
            row += 1


def _dataset_texts(corpus: Corpus) -> Iterator[str]:
    try:
        import datasets
    except ImportError as error:
        raise RopewalkError(f"hub datasets need an extra: {install_extra('datasets')}") from error
    try:
        rows: Iterable[dict[str, Any]] = datasets.load_dataset(
            corpus.repo, corpus.config, split=corpus.split, revision=corpus.revision, streaming=True
        )
        for number, row in enumerate(rows):
            if corpus.column not in row:
                raise RopewalkError(
                    f"dataset {corpus.repo} has no column {corpus.column!r} (it has: {', '.join(row)}): set "
                    "corpus.column"
                )
            yield _text(row[corpus.column], f"dataset {corpus.repo} row {number}", corpus.column)
    except (OSError, ValueError) as error:
        raise RopewalkError(
            f"dataset {corpus.repo} cannot be read ({one_line(error)}): check repo, split and network"
        ) from error


def _text(value: Any, where: str, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RopewalkError(f"{where}: column {column!r} holds {type(value).__name__}, not text: set corpus.column")
    return value
