"""Documents from every source, of exactly one length, and the sentence for what cannot be read."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from helpers.tiny import make_texts
from ropewalk.capture.corpus import check_corpus, encode, prepare, stdlib_files, texts
from ropewalk.errors import RopewalkError
from ropewalk.study import Corpus


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
    (tmp_path / "000.txt").write_text(make_texts(1, seed=9)[0])
    assert prepare(corpus, tokenizer, 50, tmp_path / "tokens").path != first.path


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
        ("a.jsonl", '{"text": 3}\n', "jsonl", "column 'text' holds int, not text"),
        ("a.jsonl", "[1]\n", "jsonl", "line 1 has no column 'text' (it has: list)"),
        ("a.parquet", "not parquet", "parquet", "is not a Parquet file that can be read"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, content: str, source: Any, message: str) -> None:
    (tmp_path / name).write_text(content)
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
