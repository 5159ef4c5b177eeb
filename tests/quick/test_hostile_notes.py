"""What runs remember, and tokenizers, from strangers: nonsense is no note, and text does not grow without bounds."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from ropewalk.capture import fetched
from ropewalk.capture.corpus import check_tokens, prepare
from ropewalk.capture.encoding import MOST_CHARACTERS, encode
from ropewalk.capture.pinned import COMMITS, pinned
from ropewalk.capture.run import capture_study
from ropewalk.corpora import Corpus
from ropewalk.digests import DIGESTS, Digests
from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import file_fingerprint
from ropewalk.models.hub import HubUnreachableError
from ropewalk.seals import read_sealed_json, sealed_json
from ropewalk.studyfile import parse_study

ODD: list[Any] = [None, 3, "x", [], ["a"], {"a": 1}, {"a": None}, {"a": [1]}, {"a": {}}, {"a": [[]]}, 10**300]


def write(path: Path, **data: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(sealed_json(data))


@pytest.mark.parametrize("odd", ODD, ids=str)
@pytest.mark.parametrize("key", ["files", "other"])
def test_digests_of_nonsense_are_not_believed(odd: Any, key: str, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"numbers")
    write(tmp_path / DIGESTS, **{key: odd})
    digests = Digests(tmp_path)
    assert digests(path) == file_fingerprint(path)
    digests.write()
    assert Digests(tmp_path)(path) == file_fingerprint(path)


@pytest.mark.parametrize("digest", ["../../x", "", "0" * 63, 3, None, "\x1b" * 64], ids=str)
def test_a_digest_that_is_none_is_not_believed(digest: Any, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"numbers")
    status = path.stat()
    state = [status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev, status.st_ctime_ns]
    write(tmp_path / DIGESTS, files={str(path.resolve()): {"state": state, "sha256": digest}})
    assert Digests(tmp_path)(path) == file_fingerprint(path)


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd != {"a": []}], ids=str)
def test_a_note_of_fetched_weights_that_is_nonsense_is_cleared(odd: Any, tmp_path: Path) -> None:
    write(tmp_path / fetched.FETCHED, commits=odd)
    assert fetched.noted(tmp_path) == {}
    fetched.clear_damaged(tmp_path)
    assert not (tmp_path / fetched.FETCHED).exists()
    fetched.note(tmp_path, "repo@commit", ["model.safetensors"])
    assert fetched.noted(tmp_path) == {"repo@commit": ["model.safetensors"]}


@pytest.mark.parametrize("odd", [*ODD, {"owner/name@main": "../.."}], ids=str)
def test_commits_of_nonsense_are_not_believed(odd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> str:
        raise HubUnreachableError("the hub cannot be reached")

    monkeypatch.setattr("ropewalk.capture.pinned.dataset_commit", unreachable)
    write(tmp_path / COMMITS, commits=odd)
    with pytest.raises(HubUnreachableError):
        pinned(Corpus(source="dataset", repo="owner/name", documents=1), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"documents": {}},
        {"documents": [1]},
        {"documents": {"documents": 10**12, "length": 10**6, "left_out": 0, "empty": 0, "largest": 1}},
        {"documents": {"documents": -1, "length": -100, "left_out": 0, "empty": 0, "largest": 1}},
        {"sha256": 3},
        {"read": []},
        {"read": {"files": 3, "to the end": True}},
        {"read": {"files": []}},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_a_record_of_tokens_that_is_nonsense_is_damage(change: dict[str, Any], tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("rope walk " * 100)
    corpus = Corpus(source="files", paths=[str(tmp_path / "a.txt")])
    documents = prepare(corpus, tokenizer, 50, tmp_path / "tokens")
    (record,) = (tmp_path / "tokens").glob("*.json")
    write(record, **{**(read_sealed_json(record) or {}), **change})
    assert check_tokens(record) == "damaged"
    assert prepare(corpus, tokenizer, 50, tmp_path / "tokens") == documents
    assert check_tokens(record) is None


def growing(tokenizer_folder: Path, folder: Path, *steps: tuple[str, str]) -> Any:
    """The tokenizer, with replacements before it reads."""
    from tokenizers import normalizers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(*step) for step in steps])
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    "steps",
    [[("r", "x" * 10**5)], [("k", "x" * 10**5)], [("r", "ab" * 1000), ("a", "b" * 1000)]],
    ids=["at once", "later", "in steps"],
)
def test_a_tokenizer_that_multiplies_text_is_refused(steps: Any, tokenizer_folder: Path, tmp_path: Path) -> None:
    tokenizer = growing(tokenizer_folder, tmp_path / "growing", *steps)
    with pytest.raises(
        RopewalkError, match=rf"the tokenizer at .*growing makes [\d,]+ characters .*{MOST_CHARACTERS} "
    ):
        encode(tokenizer, "rope walk " * 10_000, 50)


def test_a_tokenizer_may_write_text_at_length(tokenizer_folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    longer = growing(tokenizer_folder, tmp_path / "longer", ("r", "r" * 20))
    assert len(encode(longer, "rope walk", 50)) > len(encode(tokenizer, "rope walk", 50))


def test_a_tokenizer_of_another_model_leaves_nothing(study_data: dict[str, Any], tmp_path: Path) -> None:
    from helpers.tiny import tiny_smollm3

    tiny_smollm3(vocab_size=100).save_pretrained(tmp_path / "small")
    study_data["checkpoints"][1]["repo"] = str(tmp_path / "small")
    study = parse_study(study_data)
    with pytest.raises(RopewalkError, match=r"the tokenizer of 'B' gives token \d+ and the model knows 100"):
        capture_study(study)
    assert not [path for path in study.folder.rglob("*") if path.is_file()]
