"""What decides numbers is fingerprinted, and nothing else: field by field of a study."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from tokenizers import processors

from helpers.hub import HubStandIn
from helpers.tiny import make_texts, save_tokenizer, tiny_smollm3
from ropewalk.capture.jobs import prepare_jobs
from ropewalk.capture.run import capture_study
from ropewalk.capture.settings import scope_of, settings_fingerprint
from ropewalk.corpora import Corpus
from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import file_fingerprint, fingerprint
from ropewalk.models import hub as hub_module
from ropewalk.models import identity
from ropewalk.models.identity import model_origin
from ropewalk.statistics.registry import build
from ropewalk.study import Capture, Checkpoint, Figures, Study
from ropewalk.studyfile import parse_study

Data = dict[str, Any]

SAME = None
MODEL, DOCUMENTS, SETTINGS = "another model", "other documents", "other capture settings"
"""What a message names; SAME where finished shards are taken."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, tokenizers and texts, each with a copy under another name and one that differs."""
    home = tmp_path_factory.mktemp("home")
    tiny_smollm3().save_pretrained(home / "model")
    tiny_smollm3(initializer_range=0.05).save_pretrained(home / "other model")
    save_tokenizer(home / "plain tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(home / "plain tokenizer")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", tokenizer.eos_token_id)]
    )
    tokenizer.save_pretrained(home / "tokenizer")
    # Two short ones, which make a whole document if they are joined.
    for number, text in enumerate([*make_texts(8, words=120), *make_texts(2, words=22, seed=1)]):
        for folder in ("texts", "copied texts"):
            (home / folder).mkdir(exist_ok=True)
            (home / folder / f"{number}.txt").write_text(text)
    lines = [json.dumps({"text": path.read_text()}) + "\n" for path in sorted((home / "texts").glob("*.txt"))]
    (home / "texts.jsonl").write_text("".join(lines))
    for name in ("model", "tokenizer"):
        shutil.copytree(home / name, home / f"copied {name}")
        for path in (home / f"copied {name}").iterdir():
            os.utime(path, (0, 0))
    config = home / "copied model" / "config.json"
    data = json.loads(config.read_text())
    config.write_text(json.dumps(dict(reversed(data.items())) | {"transformers_version": "0.0", "_name_or_path": "x"}))
    return home


def study_of(home: Path) -> Data:
    return {
        "name": "small",
        "results": str(home / "results"),
        "defaults": {"repo": str(home / "model"), "tokenizer": str(home / "tokenizer"), "context": 64},
        "checkpoints": [
            {
                "name": "one",
                "label": "A",
                "device": "cpu",
                "overrides": {"rope_theta": 9000, "max_position_embeddings": 250},
            }
        ],
        "corpus": {"source": "files", "paths": [str(home / "texts/*.txt")]},
        "capture": {
            "shards": 4,
            "heads": 6,
            "layers": [0, 1, 3],
            "statistics": {"moments": {}, "profile": {}, "sample": {"rate": 1}},
        },
    }


@pytest.fixture(scope="module")
def captured(home: Path) -> Data:
    """A study that was captured, as plain data."""
    data = study_of(home)
    capture_study(parse_study(deepcopy(data)))
    return data


SAMPLE = {"moments": {}, "profile": {}, "sample": {}}

CHANGES: Mapping[type, Mapping[str, list[tuple[Any, str | None]]]] = {
    Checkpoint: {
        "repo": [("{home}/copied model", SAME), ("{home}/other model", MODEL)],
        # Of a folder; what a revision is on the hub has a test of its own.
        "revision": [("main", SAME)],
        "label": [("B", SAME)],
        "overrides": [
            ({"max_position_embeddings": 250, "rope_theta": 9000.0}, SAME),
            ({"max_position_embeddings": 250, "rope_theta": 9001}, MODEL),
            ({"rope_theta": 9000}, MODEL),
        ],
        "tokenizer": [("{home}/copied tokenizer", SAME), ("{home}/plain tokenizer", DOCUMENTS)],
        "tokenizer_revision": [("main", SAME)],
        "dtype": [("bfloat16", MODEL)],
        "device": [("auto", SAME)],
        "device_map": [("auto", SAME)],
        "attention": [("eager", MODEL)],
        "random_weights": [(True, MODEL)],
        "weights_seed": [(1, SAME)],
        "trust_remote_code": [(True, SAME)],
        "name": [("two", SAME)],
        "phase": [("late", SAME)],
        "family": [("tiny", SAME)],
        "step": [(7, SAME)],
        "context": [(48, SETTINGS)],
        "untrained": [("one", SAME)],
        "bucket_size": [(4, SAME), (8, SETTINGS)],
    },
    Corpus: {
        "source": [("jsonl", SAME)],
        "paths": [(["{home}/copied texts/*.txt"], SAME), (["{home}/texts/[0-6].txt"], DOCUMENTS)],
        "column": [("body", SAME)],
        "repo": [("{home}/texts", SAME)],
        "config": [("en", SAME)],
        "split": [("test", SAME)],
        "revision": [("main", SAME)],
        "documents": [(8, SAME), (7, DOCUMENTS)],
        "short_documents": [("join", DOCUMENTS)],
        "special_tokens": [(False, DOCUMENTS)],
    },
    Capture: {
        "heads": [(7, SETTINGS), ("all", SETTINGS)],
        "seed": [(1, SETTINGS)],
        "layers": [([3, 1, 0, 0], SAME), ([0, 1], SETTINGS)],
        "pairs": [([[0, 1]], SETTINGS)],
        "full_attention_only": [(True, SETTINGS)],
        "skip_first": [(1, SETTINGS)],
        "pre_rope": [(True, SETTINGS)],
        "statistics": [
            (["sample", "profile"], SAME),
            ({"sample": {"rate": 1.0, "at_most": 2048}, "profile": {}}, SAME),
            (["moments", "sample"], SETTINGS),
            ({**SAMPLE, "sample": {"rate": 0.5}}, SETTINGS),
        ],
        "shards": [(3, "was captured in 4 shards and the study says 3 now: set `shards: 4` again, or give")],
        "batch_tokens": [(64, SAME)],
        "components": [(3, SAME)],
    },
    Figures: {"portraits": [(["A"], SAME)], "axis": [("drift", SAME)]},
    Study: {
        "nulls": [([], SAME)],
        "downloads": [("discard", SAME)],
        "engine": [({"workers": 2}, SAME)],
        "name": [("large", SAME)],
        "results": [("{home}/elsewhere", SAME)],
    },
}
ELSEWHERE = {
    Checkpoint: {"gguf_file", "source", "key_heads", "depth", "nope_layers", "sliding_layers", "sliding_window"},
    Study: {"defaults", "checkpoints", "corpus", "capture", "figures"},
}
"""GGUF files and sources have tests of their own (test_loading, test_vectors); parts of a study are tables here."""

CASES = [
    (part, field, value, verdict)
    for part, fields in CHANGES.items()
    for field, changes in fields.items()
    for value, verdict in changes
]


@pytest.mark.parametrize("part", CHANGES, ids=lambda part: part.__name__)
def test_every_field_of_a_study_is_in_the_table(part: Any) -> None:
    assert set(part.model_fields) == set(CHANGES[part]) | ELSEWHERE.get(part, set())


@pytest.mark.parametrize(
    ("part", "field", "value", "verdict"),
    CASES,
    ids=[f"{part.__name__}.{field}={value}"[:60] for part, field, value, _ in CASES],
)
def test_a_field_that_decides_numbers_has_shards_refused_and_no_other(
    part: type, field: str, value: Any, verdict: str | None, captured: Data, home: Path
) -> None:
    data = deepcopy(captured)
    value = json.loads(json.dumps(value).replace("{home}", str(home)))
    if part is Checkpoint:
        data["checkpoints"][0][field] = value
    elif part is Study:
        data[field] = value
    else:
        data.setdefault(part.__name__.lower(), {})[field] = value
    if (part, field) == (Corpus, "source"):
        data["corpus"]["paths"] = [str(home / "texts.jsonl")]
    (job,) = prepare_jobs(parse_study(data), adopt=True)
    if verdict is SAME:
        other_folder = (part, field) in ((Checkpoint, "name"), (Study, "results"))
        assert job.missing() == (list(range(4)) if other_folder else [])
        return
    with pytest.raises(RopewalkError) as caught:
        job.missing()
    assert verdict in str(caught.value)
    assert "give the study another `name` or `results`" in str(caught.value)


def test_another_number_of_shards_is_said_by_its_number_only_for_the_same_documents(
    captured: Data, home: Path, tmp_path: Path
) -> None:
    """Fewer documents than shards make fewer shards: there the documents are what changed."""
    (job,) = prepare_jobs(parse_study({**captured, "corpus": {**captured["corpus"], "documents": 3}}), adopt=True)
    assert len(job.shards) == 3
    with pytest.raises(
        RopewalkError, match="was made from other documents than the study names now: give the study another"
    ):
        job.missing()
    again = parse_study({**captured, "results": str(tmp_path / "copy")})
    shutil.copytree(home / "results", tmp_path / "copy")
    for shard in (tmp_path / "copy").glob("captures/one/shard-*"):
        shard.unlink()
    (job,) = prepare_jobs(again.model_copy(update={"capture": again.capture.model_copy(update={"shards": 2})}))
    assert job.missing() == [0, 1]


def test_pairs_choose_heads_alone_whatever_their_order() -> None:
    def of(**settings: Any) -> str:
        capture = Capture.model_validate(settings)
        one = {"repo": "m", "name": "m", "context": 8}
        study = Study.model_validate({"name": "s", "checkpoints": [one], "capture": settings})
        scope = scope_of(study, study.checkpoints[0], documents=1)
        return settings_fingerprint(capture, scope, build(capture.statistics))

    pairs = of(pairs=[[0, 1], [2, 3]])
    assert of(pairs=((2, 3), (0, 1), (0, 1)), heads=5, layers=[1], full_attention_only=True) == pairs
    assert of(pairs=[[0, 1], [3, 2]]) != pairs
    assert of(heads=5) != of(heads=5, layers=[1]) != of(heads=5, layers=[1], full_attention_only=True)


def test_values_that_mean_the_same_have_one_fingerprint() -> None:
    assert fingerprint({"a": 9000, "b": (1, 2.5)}) == fingerprint({"b": [1.0, 2.5], "a": 9000.0})
    assert fingerprint({1: None}) == fingerprint({"1": None})
    for one, other in [(9000, 9001), (1, True), ("1", 1), (None, ""), ([1, [2]], [[1], 2]), (0.5, 0.25), ([], {})]:
        assert fingerprint(one) != fingerprint(other)


def place(repo: Path | str, **options: Any) -> Checkpoint:
    return Checkpoint(repo=str(repo), name="m", context=8, **options)


def model_fingerprint(source: Checkpoint) -> str:
    """As of a configuration that names float32."""
    return identity.model_fingerprint(source, SimpleNamespace(dtype=torch.float32))


def test_random_weights_depend_on_the_configuration_and_not_on_the_weights(home: Path) -> None:
    random, seeded = {"random_weights": True}, {"random_weights": True, "weights_seed": 1}
    assert model_fingerprint(place(home / "model", **random)) == model_fingerprint(
        place(home / "copied model", **random)
    )
    assert model_fingerprint(place(home / "model", **random)) != model_fingerprint(place(home / "model", **seeded))
    assert model_fingerprint(place(home / "model", **random)) != model_fingerprint(
        place(home / "other model", **random)  # it has another initializer_range
    )


def test_modelling_code_that_comes_with_a_folder_counts_where_it_runs(home: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(home / "model", tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "modeling.Own"}}))
    (folder / "modeling.py").write_text("x = 1\n")
    trusted, untrusted = place(folder, trust_remote_code=True), place(folder)
    before = model_fingerprint(trusted), model_fingerprint(untrusted)
    assert before[0] != before[1]
    (folder / "modeling.py").write_text("x = 2\n")
    assert model_fingerprint(trusted) != before[0]
    assert model_fingerprint(untrusted) == before[1]


def test_a_model_of_the_hub_is_its_commit_and_not_its_branch(
    home: Path, serve: Callable[..., HubStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path.name: path.read_bytes() for path in (home / "model").iterdir()}
    hub = serve({"org/m": {"main": files, "tag": files}})
    first = model_fingerprint(place("org/m"))
    commit = model_origin(place("org/m")).removeprefix("org/m@")
    assert model_fingerprint(place("org/m", revision="main")) == first
    assert model_fingerprint(place("org/m", revision=commit)) == first
    untrained = model_fingerprint(place("org/m", random_weights=True))
    hub.commits["org/m", "main"] = "c" * 40
    hub_module._commit.cache_clear()
    assert model_origin(place("org/m")) == f"org/m@{'c' * 40}"
    assert model_fingerprint(place("org/m")) != first
    assert model_fingerprint(place("org/m", random_weights=True)) == untrained
    assert model_fingerprint(place(home / "model", random_weights=True)) == untrained


def test_a_file_is_what_it_holds(tmp_path: Path) -> None:
    for name, content in (("a", b"x"), ("b", b"x"), ("c", b"y")):
        (tmp_path / name).write_bytes(content)
    os.utime(tmp_path / "b", (0, 0))
    assert file_fingerprint(tmp_path / "a") == file_fingerprint(tmp_path / "b") != file_fingerprint(tmp_path / "c")
