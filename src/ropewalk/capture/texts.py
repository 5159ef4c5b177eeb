"""Texts: the files of a corpus in their order, and what stands in each."""

import glob
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ropewalk.corpora import Corpus
from ropewalk.errors import RopewalkError
from ropewalk.reading import START, check_searchable, is_folder, named, not_text, open_regular, unreadable, why
from ropewalk.text import cut, install_extra, one_line, size, some

MOST_FILES = 1_000_000
"""Files of a corpus; a pattern such as `/**` would go through a whole disk."""
ENDLESS = ("proc", "sys", "dev")
"""Folders of the system whose folders hold themselves."""
LONGEST_TEXT = 500_000_000
"""Bytes of a text file, or of a line of JSON, which is read at once."""
LEAVE_OUT = "mend it, or leave it out of corpus.paths"
CONVERT = "convert it to UTF-8, or leave it out of corpus.paths"


def find_files(corpus: Corpus) -> list[Path]:
    """The files a corpus is read from, sorted; a pattern without a file is a mistake."""
    if corpus.source == "python-stdlib":
        return stdlib_files()
    files: set[Path] = set()
    for pattern in corpus.paths:
        if not (found := _matches(pattern)):
            check_searchable(pattern)
            raise RopewalkError(f"corpus.paths: no file matches {named(pattern)}: correct the path or the pattern")
        files |= found
    return sorted(files)


def _matches(pattern: str) -> set[Path]:
    """What a pattern names: files, and whatever else (links, pipes) is named and is no folder."""
    try:
        base = Path(os.path.realpath(pattern.split("**")[0]))
        if "**" in pattern and (base == Path(base.anchor) or base.parts[1] in ENDLESS):
            raise RopewalkError(
                f"corpus.paths: {named(pattern)} would search all of {base}: name the folder of the texts"
            )
        # Not Path.glob: patterns may be absolute. Links that lead nowhere are found where they are matched by name.
        names = list(islice(glob.iglob(pattern, recursive=True), MOST_FILES + 1))  # noqa: PTH207
    except (OSError, ValueError, RecursionError) as error:
        raise RopewalkError(
            f"corpus.paths: {named(pattern)} cannot be searched ({why(error)}): correct the pattern"
        ) from error
    if len(names) > MOST_FILES:
        raise RopewalkError(
            f"corpus.paths: more than {MOST_FILES:,} files match {named(pattern)}: give a narrower pattern"
        )
    found = {Path(name) for name in names}
    folders = {path for path in found if is_folder(path)}
    if folders and folders == found and not glob.has_magic(pattern):
        raise RopewalkError(f"corpus.paths: {named(pattern)} is a folder: name its files, such as {pattern}/*.txt")
    return found - folders


def stdlib_files() -> list[Path]:
    """The Python sources of the installed standard library, sorted by their place in it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)


def check_corpus(corpus: Corpus) -> None:
    """Find mistakes that need no reading: files that are not there or cannot be opened, columns, the first line."""
    if corpus.source == "memory":
        raise RopewalkError("the documents were given from Python and are not on disk: name a corpus in the study")
    if corpus.source == "dataset":
        _library()
    if corpus.source in ("dataset", "python-stdlib"):
        return
    for path in find_files(corpus):
        if corpus.source == "parquet":
            _parquet(path, corpus.column)
            continue
        try:
            with open_regular(path) as file:
                _check_start(path, file.read(START))
                if corpus.source == "files":
                    _check_length(path, os.fstat(file.fileno()).st_size)
        except (OSError, ValueError) as error:
            raise unreadable(path, error, LEAVE_OUT) from error
        if corpus.source == "jsonl":
            next(_jsonl_texts(path, corpus.column), None)


def texts(corpus: Corpus) -> Iterator[str]:
    """The documents' texts one at a time, in the order of the source."""
    if corpus.source == "dataset":
        yield from _dataset_texts(corpus)
        return
    for path in find_files(corpus):
        yield from texts_of(path, corpus)


def texts_of(path: Path, corpus: Corpus) -> Iterator[str]:
    """The texts of one file of a corpus, in their order."""
    if corpus.source == "jsonl":
        yield from _jsonl_texts(path, corpus.column)
    elif corpus.source == "parquet":
        yield from _parquet_texts(path, corpus.column)
    else:
        try:
            with open_regular(path) as file:
                _check_length(path, os.fstat(file.fileno()).st_size)
                data = file.read()
        except (OSError, ValueError) as error:
            raise unreadable(path, error, LEAVE_OUT) from error
        # The standard library holds badly encoded files on purpose; elsewhere one is a mistake.
        if corpus.source == "files":
            _check_start(path, data)
            yield _whole_text(path, data)
        else:
            try:
                yield _lines(data.decode("utf-8"))
            except UnicodeDecodeError:
                return


def _whole_text(path: Path, data: bytes) -> str:
    if b"\0" in data:
        raise RopewalkError(f"{named(path)} holds NUL bytes (it is binary, or UTF-16): {CONVERT}")
    return _lines(_decoded(data, named(path), CONVERT))


def _lines(text: str) -> str:
    # How lines end differs between systems, and what a text says does not.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check_start(path: Path, start: bytes) -> None:
    if other := not_text(start):
        raise RopewalkError(f"{named(path)} {other}, or leave it out of corpus.paths")


def _check_length(path: Path, length: int) -> None:
    if length > LONGEST_TEXT:
        raise RopewalkError(
            f"{named(path)} has {size(length)}, more than the {size(LONGEST_TEXT)} that one text may have: cut it"
        )


def _decoded(data: bytes, where: str, remedy: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RopewalkError(f"{where} is not UTF-8 text (byte {error.start:,}): {remedy}") from error


def _jsonl_texts(path: Path, column: str) -> Iterator[str]:
    try:
        with open_regular(path) as file:
            number = 0
            while line := file.readline(LONGEST_TEXT):
                number += 1
                if number == 1:
                    _check_start(path, line)
                where = f"{named(path)} line {number}"
                if len(line) == LONGEST_TEXT:
                    raise RopewalkError(f"{where} has more than {size(LONGEST_TEXT)}: cut it into several lines")
                if line.strip():
                    yield _json_text(line, where, column)
    except (OSError, ValueError) as error:
        raise unreadable(path, error, LEAVE_OUT) from error


def _json_text(line: bytes, where: str, column: str) -> str:
    text = _decoded(line, where, CONVERT)
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise RopewalkError(f"{where} is not JSON ({error.msg} in column {error.colno}): mend or remove it") from error
    except RecursionError as error:
        raise RopewalkError(f"{where} is nested too deeply to be read: remove it") from error
    except ValueError as error:
        # Whole numbers of thousands of digits are not read by Python.
        raise RopewalkError(f"{where} holds a number that is too long to be read: remove it") from error
    if not isinstance(row, dict):
        raise RopewalkError(f"{where} is {_kind(row)} and not an object with a column {column!r}: mend or remove it")
    if column not in row:
        raise RopewalkError(_no_column(where, column, row))
    return _text(row[column], where, column)


def _parquet(path: Path, column: str) -> pq.ParquetFile:
    try:
        with open_regular(path) as file:
            _check_start(path, file.read(START))
        file = pq.ParquetFile(path, page_checksum_verification=True)
        schema = file.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _refused(path, error) from error
    if column not in (names := schema.names):
        raise RopewalkError(_no_column(named(path), column, names))
    if names.count(column) > 1:
        raise RopewalkError(f"{named(path)} has the column {column!r} {names.count(column)} times: rename all but one")
    kind = schema.field(column).type
    if not _holds_text(kind):
        raise RopewalkError(
            f"{named(path)}: column {column!r} holds {cut(one_line(kind), 80)}, not text: set corpus.column"
        )
    return file


def _refused(path: Path, error: BaseException, what: str = "is not a Parquet file that can be read") -> RopewalkError:
    """The sentence for a file that the system does not give, or that pyarrow does not understand."""
    if isinstance(error, OSError) and (error.errno is not None or error.strerror is not None):
        return unreadable(path, error, LEAVE_OUT)
    return RopewalkError(f"{named(path)} {what} ({why(error)}): fetch or write it again")


def _holds_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_null(kind)
        or str(kind) == "string_view"
    )


def _parquet_texts(path: Path, column: str) -> Iterator[str]:
    file, row = _parquet(path, column), 0
    try:
        for batch in file.iter_batches(batch_size=16, columns=[column]):
            for value in batch.column(0):
                where = f"{named(path)} row {row}"
                yield _text(_python(value, where), where, column)
                row += 1
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _refused(path, error, f"is damaged after row {row}") from error


def _python(value: Any, where: str) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        raise RopewalkError(f"{where} is not UTF-8 text: write the file again with text") from error


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise RopewalkError(f"hub datasets need an extra: {install_extra('datasets')}") from error
    return datasets


def _dataset_texts(corpus: Corpus) -> Iterator[str]:
    datasets = _library()
    try:
        rows: Iterable[dict[str, Any]] = datasets.load_dataset(
            corpus.repo, corpus.config, split=corpus.split, revision=corpus.revision, streaming=True
        )
        for number, row in enumerate(rows):
            where = f"dataset {corpus.repo}"
            if corpus.column not in row:
                raise RopewalkError(_no_column(where, corpus.column, row))
            yield _text(row[corpus.column], f"{where} row {number}", corpus.column)
    except RopewalkError:
        raise
    except Exception as error:
        # The library passes on whatever its many readers raise.
        raise RopewalkError(
            f"dataset {corpus.repo} cannot be read ({one_line(error)}): check repo, config, split and network"
        ) from error


def _no_column(where: str, column: str, names: Iterable[str]) -> str:
    return f"{where} has no column {column!r} (it has: {cut(some(names, 10), 200)}): set corpus.column"


def _text(value: Any, where: str, column: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return _decoded(value, where, "convert it, or set corpus.column")
    if not isinstance(value, str):
        raise RopewalkError(f"{where}: column {column!r} holds {_kind(value)}, not text: set corpus.column")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise RopewalkError(f"{where} holds half a character (a lone surrogate): mend or remove it")
    return value


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object", str: "text"}
    return kinds.get(type(value), "null" if value is None else type(value).__name__)
