"""Documents from every source, of exactly one length, and the sentence for what cannot be read."""

import bz2
import errno
import gzip
import json
import lzma
import os
import random
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from helpers.tiny import make_texts
from ropewalk.capture.corpus import expect, prepare
from ropewalk.capture.encoding import encode
from ropewalk.capture.texts import check_corpus, find_files, stdlib_files, texts, texts_of
from ropewalk.corpora import Corpus
from ropewalk.errors import RopewalkError


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(tokenizer_folder)


def files(folder: Path, contents: list[str]) -> Corpus:
    for number, text in enumerate(contents):
        (folder / f"{number:03d}.txt").write_text(text)
    return Corpus(source="files", paths=(str(folder / "*.txt"),))


def test_every_source_gives_the_same_texts(tmp_path: Path) -> None:
    contents = make_texts(3, words=20)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in contents))
    pq.write_table(pa.table({"body": contents}), tmp_path / "a.parquet")
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"body": contents}), tmp_path / "data" / "train-0.parquet")
    assert list(texts(files(tmp_path, contents))) == contents
    for source in ("jsonl", "parquet"):
        assert list(texts(Corpus(source=source, paths=(str(tmp_path / f"*.{source}"),), column="body"))) == contents


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_dataset_of_the_hub_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = make_texts(3, words=20)
    pq.write_table(pa.table({"body": contents}), tmp_path / "train-0.parquet")
    corpus = Corpus(source="dataset", repo=str(tmp_path), column="body")
    assert list(texts(corpus)) == contents
    with pytest.raises(RopewalkError, match=r"has no column 'text' \(it has: body\)"):
        list(texts(corpus.model_copy(update={"column": "text"})))
    with pytest.raises(RopewalkError, match="cannot be read"):
        list(texts(corpus.model_copy(update={"split": "nosuch"})))


def test_a_dataset_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = (
        "hub datasets need an extra: pip install 'ropewalk[datasets]' "
        "(in a clone: pip install -c constraints.txt -e '.[datasets]')"
    )
    with pytest.raises(RopewalkError, match=f"^{re.escape(message)}$"):
        list(texts(Corpus(source="dataset", repo="org/texts")))


def test_documents_have_exactly_the_length_and_shorter_ones_are_left_out(tmp_path: Path, tokenizer: Any) -> None:
    contents = [*make_texts(4), "short", "", *make_texts(2, seed=1)]
    documents = prepare(files(tmp_path, contents), tokenizer, 100, tmp_path / "tokens")
    assert (documents.documents, documents.left_out, documents.empty) == (6, 2, 1)
    expected = [tokenizer(text)["input_ids"][:100] for text in contents if len(text) > 10]
    np.testing.assert_array_equal(documents.tokens(), expected)
    assert documents.describe() == "6 documents of 100 tokens; 2 shorter ones left out (1 of them empty)"


def test_only_as_many_documents_as_asked_for(tmp_path: Path, tokenizer: Any) -> None:
    corpus = files(tmp_path, make_texts(5)).model_copy(update={"documents": 2})
    assert prepare(corpus, tokenizer, 50, tmp_path / "tokens").documents == 2


def test_too_few_documents_is_an_error_and_nothing_is_kept(tmp_path: Path, tokenizer: Any) -> None:
    corpus = files(tmp_path, [*make_texts(2), "short"]).model_copy(update={"documents": 3})
    message = "only 2 documents of the corpus have 50 tokens and 3 are asked for (1 are shorter): lower `documents`"
    with pytest.raises(RopewalkError, match=re.escape(message)):
        prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    assert list((tmp_path / "tokens").iterdir()) == []


def test_short_documents_can_be_joined(tmp_path: Path, tokenizer: Any) -> None:
    corpus = files(tmp_path, make_texts(12, words=30)).model_copy(update={"short_documents": "join"})
    documents = prepare(corpus, tokenizer, 100, tmp_path / "tokens")
    assert documents.documents >= 3
    assert tokenizer.eos_token_id in documents.tokens()[0]


def test_tokens_are_made_once_and_anew_when_something_changes(tmp_path: Path, tokenizer: Any) -> None:
    corpus = files(tmp_path, make_texts(3))
    first = prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    stamp = Path(first.path).stat().st_mtime_ns
    assert prepare(corpus, tokenizer, 50, tmp_path / "tokens") == first
    assert Path(first.path).stat().st_mtime_ns == stamp
    before = first.tokens().copy()
    (tmp_path / "000.txt").write_text(make_texts(1, seed=9)[0])
    assert not np.array_equal(prepare(corpus, tokenizer, 50, tmp_path / "tokens").tokens(), before)


def test_a_text_that_changes_within_its_size_and_time_is_another(tmp_path: Path, tokenizer: Any) -> None:
    corpus = files(tmp_path, make_texts(3))
    first = prepare(corpus, tokenizer, 50, tmp_path / "tokens").tokens().copy()
    text, status = tmp_path / "000.txt", (tmp_path / "000.txt").stat()
    text.write_text(text.read_text()[::-1])
    os.utime(text, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert text.stat().st_size == status.st_size
    assert not np.array_equal(prepare(corpus, tokenizer, 50, tmp_path / "tokens").tokens(), first)


def test_copied_and_touched_texts_are_the_same(tmp_path: Path, tokenizer: Any) -> None:
    corpus = files(tmp_path, make_texts(3))
    first = prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    stamp = Path(first.path).stat().st_mtime_ns
    shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("tokens"))
    copied = corpus.model_copy(update={"paths": (str(tmp_path / "copy" / "*.txt"),)})
    assert prepare(copied, tokenizer, 50, tmp_path / "tokens") == first
    assert Path(first.path).stat().st_mtime_ns == stamp


def test_only_texts_that_were_read_count(tmp_path: Path, tokenizer: Any) -> None:
    corpus = files(tmp_path, make_texts(3)).model_copy(update={"documents": 2})
    first = prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    stamp = Path(first.path).stat().st_mtime_ns
    (tmp_path / "002.txt").write_text("another end")
    prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    assert Path(first.path).stat().st_mtime_ns == stamp
    (tmp_path / "0.txt").write_text(make_texts(1, seed=9)[0])
    assert not np.array_equal(prepare(corpus, tokenizer, 50, tmp_path / "tokens").tokens()[0], first.tokens()[1])
    assert Path(first.path).stat().st_mtime_ns != stamp


def test_tokens_that_are_not_there_are_not_made_for_a_plan(tmp_path: Path, tokenizer: Any) -> None:
    corpus = files(tmp_path, make_texts(3))
    assert expect(corpus, tokenizer, 50, tmp_path / "tokens") is None
    assert not (tmp_path / "tokens").exists()
    kept = prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    assert expect(corpus, tokenizer, 50, tmp_path / "tokens") == kept
    (tmp_path / "0.txt").write_text(make_texts(1, seed=9)[0])
    assert expect(corpus, tokenizer, 50, tmp_path / "tokens") is None


def test_a_cut_token_file_is_made_again(tmp_path: Path, tokenizer: Any) -> None:
    corpus = files(tmp_path, make_texts(3))
    first = prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    before = Path(first.path).read_bytes()
    Path(first.path).write_bytes(before[:-4])
    prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    assert Path(first.path).read_bytes() == before


def test_a_long_text_gives_the_same_tokens_as_a_whole_one(tokenizer: Any) -> None:
    text = make_texts(1, words=5000)[0]
    np.testing.assert_array_equal(encode(tokenizer, text, 64)[:64], tokenizer(text)["input_ids"][:64])
    spaced = "a" + " " * 3000 + text
    np.testing.assert_array_equal(encode(tokenizer, spaced, 64)[:64], tokenizer(spaced)["input_ids"][:64])


class Panic(BaseException):
    """As the tokenizers library raises it: no Exception."""


@pytest.mark.parametrize("failure", [Panic("no entry"), OverflowError("too large"), TypeError("'>' not supported")])
def test_a_tokenizer_that_loads_and_is_damaged_is_named(failure: BaseException) -> None:
    def broken(*_: object, **__: object) -> None:
        raise failure

    message = rf"the tokenizer does not read text \({failure}\): fetch it again, or name another as `tokenizer`"
    with pytest.raises(RopewalkError, match=message):
        encode(broken, "text", 64)
    failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        encode(broken, "text", 64)


def test_token_numbers_beyond_all_vocabularies_are_said() -> None:
    with pytest.raises(RopewalkError, match=r"does not read text .*4294967295"):
        encode(lambda *_, **__: {"input_ids": [2**32 - 1]}, "text", 64)


def test_the_standard_library_is_there() -> None:
    found = stdlib_files()
    assert len(found) > 300
    assert not any("site-packages" in path.parts for path in found)
    assert next(texts(Corpus(source="python-stdlib")))


@pytest.mark.parametrize(
    ("name", "content", "source", "message"),
    [
        ("a.jsonl", '{"body": "x"}\n', "jsonl", "line 1 has no column 'text' (it has: body): set corpus.column"),
        ("a.jsonl", '{"text": "x"}\n{"text"', "jsonl", "line 2 is not JSON"),
        ("a.jsonl", '{"text": 3}\n', "jsonl", "column 'text' holds a number, not text: set corpus.column"),
        ("a.jsonl", "[1]\n", "jsonl", "line 1 is a list and not an object with a column 'text': mend or remove it"),
        ("a.jsonl", "null\n", "jsonl", "line 1 is null and not an object"),
        ("a.jsonl", '{"text": NaN}\n', "jsonl", "line 1: column 'text' holds a number, not text"),
        ("a.jsonl", '{"text": "a"}\n{"text": true}\n', "jsonl", "line 2: column 'text' holds true or false, not text"),
        ("a.jsonl", '{"text": "a"}\n' + "[" * 200_000 + "\n", "jsonl", "line 2 is nested too deeply to be read"),
        ("a.jsonl", f'{{"text": {"9" * 10_000}}}\n', "jsonl", "line 1 holds a number that is too long to be read"),
        ("a.jsonl", '{"text": "\\ud800"}\n', "jsonl", "line 1 holds half a character (a lone surrogate)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', "jsonl", "line 2 is not UTF-8 text (byte 10): convert it"),
        (
            "a.jsonl",
            gzip.compress(b'{"text": "a"}', mtime=0),
            "jsonl",
            "is compressed (gzip): unpack it, or leave it out of",
        ),
        ("a.txt", gzip.compress(b"a", mtime=0), "files", "is compressed (gzip): unpack it"),
        ("a.txt", bz2.compress(b"a"), "files", "is compressed (bzip2): unpack it"),
        ("a.txt", lzma.compress(b"a"), "files", "is compressed (xz): unpack it"),
        ("a.txt", b"\x28\xb5\x2f\xfd rest", "files", "is compressed (zstd): unpack it"),
        ("a.txt", b"PK\x03\x04 rest", "files", "is compressed (zip): unpack it"),
        ("a.txt", "text".encode("utf-16"), "files", "is UTF-16 text: convert it to UTF-8"),
        ("a.txt", "text".encode("utf-16-le"), "files", "holds NUL bytes (it is binary, or UTF-16): convert it"),
        ("a.txt", b"ab\xffc", "files", "is not UTF-8 text (byte 2): convert it to UTF-8, or leave it out of"),
        ("a.parquet", "not parquet", "parquet", "is not a Parquet file that can be read"),
        ("a.parquet", b"", "parquet", "is not a Parquet file that can be read"),
        ("a.parquet", b"PAR1\xff\xff\xff\x7fPAR1", "parquet", "is not a Parquet file that can be read"),
        ("a.parquet", gzip.compress(b"a", mtime=0), "parquet", "is compressed (gzip): unpack it"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, name: str, content: str | bytes, source: Any, message: str
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RopewalkError, match=re.escape(message)):
        list(texts(Corpus(source=source, paths=(str(tmp_path / name),))))


def test_mistakes_are_found_before_reading(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(RopewalkError, match=r"has no column 'text' \(it has: body\)"):
        check_corpus(Corpus(source="parquet", paths=(str(tmp_path / "a.parquet"),)))
    with pytest.raises(RopewalkError, match="no file matches"):
        check_corpus(Corpus(source="files", paths=(str(tmp_path / "*.md"),)))
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    with pytest.raises(RopewalkError, match="is not UTF-8 text"):
        list(texts(Corpus(source="files", paths=(str(tmp_path / "latin.txt"),))))


def test_what_is_no_file_is_refused_before_reading(tmp_path: Path) -> None:
    folder, dangling, looping, pipe = (tmp_path / name for name in ("folder", "dangling", "looping", "pipe"))
    folder.mkdir()
    dangling.symlink_to("nowhere")
    looping.symlink_to(looping)
    os.mkfifo(pipe)
    remedy = "mend it, or leave it out of corpus.paths"
    said = {
        str(folder): f"corpus.paths: {folder} is a folder: name its files, such as {folder}/*.txt",
        str(dangling): f"{dangling} cannot be read (it leads to 'nowhere', which is not there): {remedy}",
        str(looping): f"{looping} cannot be read (Too many levels of symbolic links): {remedy}",
        str(pipe): f"{pipe} cannot be read (not a regular file): {remedy}",
        "/dev/zero": f"/dev/zero cannot be read (not a regular file): {remedy}",
        "/**": "corpus.paths: /** would search all of /: name the folder of the texts",
        "/proc/**/*.txt": "corpus.paths: /proc/**/*.txt would search all of /proc: name the folder of the texts",
        "a\0b": "corpus.paths: 'a\\x00b' cannot be searched (embedded null byte): correct the pattern",
    }
    for source in ("files", "jsonl", "parquet"):
        for path, sentence in said.items():
            for read in (check_corpus, lambda corpus: list(texts(corpus))):
                with pytest.raises(RopewalkError) as caught:
                    read(Corpus(source=source, paths=(path,)))
                assert str(caught.value) == sentence


def test_a_file_that_may_not_be_read_is_not_missing_or_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a")

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    # The tests may run as a user who may read everything.
    monkeypatch.setattr(os, "open", refuse)
    for source in ("files", "jsonl", "parquet"):
        with pytest.raises(RopewalkError, match=r"a cannot be read \(Permission denied\): mend it, or leave it out"):
            check_corpus(Corpus(source=source, paths=(str(tmp_path / "a"),)))


def test_a_folder_that_may_not_be_read_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts").mkdir()
    corpus = Corpus(source="files", paths=(str(tmp_path / "texts/**/*.txt"),))
    with pytest.raises(RopewalkError, match="no file matches"):
        check_corpus(corpus)
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "texts")
    with pytest.raises(RopewalkError, match=r"texts cannot be read \(Permission denied\): check who may read it"):
        check_corpus(corpus)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, 2]), "column 'text' holds int64, not text"),
        (pa.array([["a"]]), "column 'text' holds list<"),
        (pa.array([b"fine", b"\xff"]), "row 1 is not UTF-8 text (byte 0)"),
    ],
)
def test_columns_of_parquet_that_hold_no_text(tmp_path: Path, column: Any, message: str) -> None:
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(RopewalkError, match=re.escape(message)):
        list(texts(Corpus(source="parquet", paths=(str(tmp_path / "a.parquet"),))))


def test_parquet_that_is_damaged_inside_says_where(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    generator = random.Random(0)
    rows = ["".join(generator.choices("abcdefgh", k=500)) for _ in range(64)]
    pq.write_table(pa.table({"text": rows}), file, row_group_size=16, compression="zstd")
    corpus = Corpus(source="parquet", paths=(str(file),))
    assert list(texts(corpus)) == rows
    whole = bytearray(file.read_bytes())
    start = pq.ParquetFile(file).metadata.row_group(2).column(0).data_page_offset
    whole[start : start + 200] = b"\xff" * 200
    file.write_bytes(whole)
    check_corpus(corpus)
    with pytest.raises(RopewalkError, match=r"a\.parquet is damaged after row 32 \(.*\): fetch or write it again"):
        list(texts(corpus))


@pytest.mark.parametrize("failure", [KeyError("x"), TypeError("no"), RuntimeError("many\nlines"), OSError("gone")])
def test_whatever_the_dataset_library_raises_is_said(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=fail))
    with pytest.raises(RopewalkError, match=r"^dataset org/texts cannot be read \(.*\): check repo, config, split and"):
        list(texts(Corpus(source="dataset", repo="org/texts")))


def test_texts_of_the_files_are_the_texts(tmp_path: Path) -> None:
    corpus = files(tmp_path, ["one\n", "\ufefftwo\r\nlines\r", ""])
    assert list(texts(corpus)) == ["one\n", "two\nlines\n", ""]
    assert [text for path in find_files(corpus) for text in texts_of(path, corpus)] == list(texts(corpus))
