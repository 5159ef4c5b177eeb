import hashlib
import json
import math
import os
import random
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, SmolLM3ForCausalLM

from helpers.logs import heard
from ropewalk.errors import RopewalkError
from ropewalk.progress import listening, logger
from ropewalk.results import analyze
from ropewalk.train import load_recipe, progress, text, train, trainer
from ropewalk.train.recipe import Corpus, Heldout, Phase
from ropewalk.train.state import Position
from ropewalk.train.text import Document, Mixture
from ropewalk.verify import verify

HELDOUT = 6
NAMES = ["first-step-4", "first-step-12", "second-step-16", "long-step-2", "long-step-6"]


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def marker(path: str) -> str:
    return "marker" + hashlib.sha256(path.encode()).hexdigest()[:12]


def write_corpus(root: Path) -> None:
    """Library, test and documentation files that can be learned from, each with a word of its own."""
    draw = random.Random(0)
    names = [f"module{i}.py" for i in range(24)] + [f"test/test_{i}.py" for i in range(12)] + ["docs/topics.py"]
    for name in names:
        lines = []
        for i in range(draw.choice([2, 30, 40])):
            word = draw.choice(["alpha", "beta", "gamma"])
            lines.append(f"def {word}_{i}(self, value):\n    # {marker(name)}\n    return self.{word} + value\n")
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines), encoding="utf-8")
    (root / "LICENSE.txt").write_text("the licence\n", encoding="utf-8")


def phase(name: str, context: int, batch: int, steps: int, save: list[int], **more: object) -> dict[str, object]:
    basis = {
        "name": name,
        "label": name[0].upper(),
        "title": f"phase {name}",
        "context": context,
        "batch": batch,
        "rope_theta": 100 * context,
        "steps": steps,
        "save": save,
        "learning_rate": 1e-2,
        "end_learning_rate": 1e-2,
        "mix": {"library": 1},
    }
    return basis | more


def tiny(root: Path) -> dict[str, object]:
    return {
        "name": "tiny",
        "seed": 3,
        "corpus": {
            "root": str(root),
            "sources": {"docs": ["docs/*"], "tests": ["test/*"], "library": ["*"]},
        },
        "heldout": {
            "files": HELDOUT,
            "sources": ["library", "tests"],
            "min_characters": 1500,
            "min_tokens": 70,
            "keep_tokens": 90,
        },
        "vocabulary": 300,
        "model": {
            "layers": 4,
            "hidden": 24,
            "intermediate": 32,
            "heads": 4,
            "key_heads": 2,
            "head_dim": 8,
            "nope_interval": 2,
            "initializer_range": 0.05,
        },
        "optimizer": {"betas": [0.9, 0.95], "weight_decay": 0.1, "clip": 1.0},
        "phases": [
            phase("first", 16, 8, 12, [4, 12], warmup=2),
            phase("second", 16, 8, 4, [4], continues=True, mix={"library": 2, "tests": 1, "docs": 1}),
            phase("long", 64, 2, 6, [2, 6], end_learning_rate=1e-3, min_tokens=65),
        ],
        "state_every": 3,
        "log_every": 1,
    }


def write_recipe(folder: Path, content: object) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def weights(output: Path, name: str = NAMES[-1]) -> bytes:
    return (output / "checkpoints" / name / "model.safetensors").read_bytes()


class StopError(Exception):
    pass


def stopping_at(start: str):
    def log(line: str) -> None:
        if line.startswith(start):
            raise StopError

    return log


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture
def recipe(root, tmp_path):
    return write_recipe(tmp_path, tiny(root))


@pytest.fixture(scope="module")
def finished(root, tmp_path_factory):
    """(output, log lines, training sequences as text, paths that the tokenizer learned from) of one whole run."""
    folder = tmp_path_factory.mktemp("run")
    lines, batches, learned = [], [], []
    with pytest.MonkeyPatch.context() as patch:
        make, batch = text.make_tokenizer, Mixture.batch

        def recording(documents, *rest):
            learned.extend(document.path for document in documents)
            return make(documents, *rest)

        def keeping(self, step):
            batches.append(batch(self, step))
            return batches[-1]

        patch.setattr(trainer, "make_tokenizer", recording)
        patch.setattr(Mixture, "batch", keeping)
        with heard(lines.append):
            output = train(write_recipe(folder, tiny(root)), folder / "out")
    tokenizer = AutoTokenizer.from_pretrained(output / "tokenizer")
    seen = [tokenizer.decode(row) for rows in batches for row in rows]
    return output, lines, seen, learned


def rows(output: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (output / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]


# --- the packaged recipe


def test_packaged_recipe_is_the_published_run_in_small():
    recipe = load_recipe()
    checkpoints = [
        (phase.title, phase.context, f"{phase.name}-step-{recipe.first_step(index) + step}")
        for index, phase in enumerate(recipe.phases)
        for step in phase.save
    ]
    assert Counter(title for title, _, _ in checkpoints) == {
        "stage 1": 4,
        "stage 2": 1,
        "stage 3": 1,
        "LC 256->1024": 2,
        "LC 1024->2048": 2,
    }
    assert len({name for _, _, name in checkpoints}) == 10
    assert recipe.first_step(2) == recipe.phases[0].steps + recipe.phases[1].steps
    assert recipe.first_step(3) == recipe.first_step(4) == 0
    with torch.device("meta"):
        model = SmolLM3ForCausalLM(trainer.phase_config(recipe, recipe.phases[0], 0))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert 1e6 < parameters < 2e6
    assert 10 * 2 * parameters < 30e6
    assert [layer for layer, rotates in enumerate(model.config.no_rope_layers) if not rotates] == [3, 7, 11]
    assert recipe.phases[2].end_learning_rate < recipe.phases[2].learning_rate / 10


def test_packaged_thetas_keep_the_published_wavelengths_per_context():
    published = {256: (50_000, 4096), 1024: (2_000_000, 32_768), 2048: (5_000_000, 65_536)}
    recipe = load_recipe()
    for phase in recipe.phases:
        theta, context = published[phase.context]
        there = theta ** (126 / 128) / context
        here = phase.rope_theta ** (14 / 16) / phase.context
        assert here == pytest.approx(there, rel=0.02)


# --- text


def test_corpus_takes_the_first_matching_source_and_leaves_out_what_is_not_text(tmp_path):
    contents = {
        "a.py": b"first\n",
        "copy.py": b"first\n",
        "test/b.py": b"second\n",
        "test/bad_syntax.py": b"third\n",
        "latin.py": b"\xe9\n",
        "empty.py": b" \n",
        "notes.txt": b"fourth\n",
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    settings = Corpus(root=tmp_path, exclude=("test/*bad*",), sources={"tests": ("test/*",), "library": ("*",)})
    found = text.read_corpus(settings)
    assert found == [Document("a.py", "library", "first\n"), Document("test/b.py", "tests", "second\n")]
    assert text.corpus_hash(found) != text.corpus_hash(found[:1])
    with pytest.raises(RopewalkError, match=r"no text in .* matches '\*\.md' and corpus\.sources: correct the recipe"):
        text.read_corpus(settings.model_copy(update={"files": "*.md"}))


def test_the_corpus_without_a_root_is_the_standard_library():
    assert (text.corpus_root(load_recipe().corpus) / "this.py").exists()


def test_heldout_files_are_the_first_by_hash_of_their_path():
    documents = [Document(f"{i}.py", "tests" if i % 3 else "docs", "x" * (100 + i)) for i in range(40)]
    settings = Heldout(files=5, sources=("tests",), min_characters=110, min_tokens=1, keep_tokens=1)
    training, heldout = text.split_heldout(documents, settings)
    eligible = [f"{i}.py" for i in range(10, 40) if i % 3]
    expected = sorted(eligible, key=lambda path: hashlib.sha256(path.encode()).digest())[:5]
    assert {document.path for document in heldout} == set(expected)
    assert sorted(training + heldout, key=documents.index) == documents
    with pytest.raises(
        RopewalkError,
        match=r"only 20 files have 110 characters or more, heldout\.files asks for 21: lower heldout\.files or heldout",
    ):
        text.split_heldout(documents, settings.model_copy(update={"files": 21}))


def test_a_tokenizer_needs_enough_text_and_heldout_files_enough_tokens(root):
    documents = text.read_corpus(Corpus(root=root, sources={"all": ("*",)}))
    with pytest.raises(
        RopewalkError, match=r"the text yields \d+ tokens, vocabulary asks for 60000: lower vocabulary or add text"
    ):
        text.make_tokenizer(documents, 60000, 64)
    tokenizer = text.make_tokenizer(documents, 300, 64)
    settings = Heldout(files=1, sources=("all",), min_characters=1, min_tokens=10**6, keep_tokens=10**6)
    with pytest.raises(
        RopewalkError, match=r"none of the 2 held-out files has 1000000 tokens: raise heldout\.min_char"
    ):
        text.cut_heldout(documents[:2], settings, tokenizer)
    sample = "def π(x):\n\treturn x  # ✓\n"
    assert tokenizer.decode(text.encode([sample], tokenizer)[0]) == sample


def mixture(pools: dict[str, list[int]], **changes: object) -> Mixture:
    """Documents of the given lengths; every token of the corpus is another number, so that its place can be told."""
    start, filled = 1, {}
    for name, lengths in pools.items():
        filled[name] = []
        for length in lengths:
            filled[name].append(np.arange(start, start + length, dtype=np.uint16))
            start += length
    settings = phase("mixed", 10, 64, 1, [1], mix=dict.fromkeys(pools, 1)) | changes
    return Mixture(filled, Phase.model_validate(settings), 0, (1, 2))


def test_sequences_depend_on_the_step_alone():
    mixed = mixture({"a": [50, 5], "b": [200]})
    forwards = [mixed.batch(step) for step in range(4)]
    backwards = [mixture({"a": [50, 5], "b": [200]}).batch(step) for step in reversed(range(4))]
    for one, other in zip(forwards, reversed(backwards), strict=True):
        np.testing.assert_array_equal(one, other)
    assert forwards[0].shape == (64, 11)
    assert not np.array_equal(forwards[0], forwards[1])


def test_long_documents_give_windows_of_one_document():
    mixed = mixture({"a": [50, 11, 300]})
    windows = np.concatenate([mixed.batch(step) for step in range(20)])
    assert (np.diff(windows, axis=1) == 1).all()
    ends = np.cumsum([50, 11, 300])
    first, last = (np.searchsorted(ends, windows[:, i] - 1, side="right") for i in (0, -1))
    np.testing.assert_array_equal(first, last)
    # In proportion to length, and the beginning of the long one as often as if it was cut into pieces of 11.
    assert np.bincount(first) / len(first) == pytest.approx(np.array([50, 11, 300]) / 361, abs=0.04)
    beginnings = (windows[first == 2, 0] == 62).mean()
    assert beginnings == pytest.approx(12 / 301, abs=0.02)


def test_short_documents_are_packed_with_the_separator():
    mixed = mixture({"a": [3, 4]})
    for row in mixed.batch(0):
        pieces = [[int(token) for token in piece] for piece in np.split(row, np.flatnonzero(row == 0))]
        whole = [piece[1:] if piece[0] == 0 else piece for piece in pieces]
        assert all(piece in ([1, 2, 3], [4, 5, 6, 7]) for piece in whole[:-1])
        assert whole[-1] in ([1, 2, 3][: len(whole[-1])], [4, 5, 6, 7][: len(whole[-1])])


def test_the_mix_decides_how_often_a_source_is_drawn():
    mixed = mixture({"a": [500], "b": [50]}, mix={"a": 1, "b": 3})
    windows = np.concatenate([mixed.batch(step) for step in range(20)])
    assert (windows[:, 0] > 500).mean() == pytest.approx(0.75, abs=0.04)


def test_short_documents_can_be_left_out():
    mixed = mixture({"a": [10, 500]}, min_tokens=11)
    assert mixed.batch(0).min() > 10
    with pytest.raises(RopewalkError, match="no document of 'a' has 501 tokens: lower min_tokens of phase 'mixed'"):
        mixture({"a": [10, 500]}, min_tokens=501)


# --- the run


def test_checkpoints_have_the_shape_and_the_context_of_their_phase(finished):
    output, *_ = finished
    assert sorted(folder.name for folder in (output / "checkpoints").iterdir()) == sorted(NAMES)
    for name in NAMES:
        folder = output / "checkpoints" / name
        assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}
        assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
        model = AutoModelForCausalLM.from_pretrained(folder)
        context = 64 if name.startswith("long") else 16
        config = model.config
        assert config.model_type == "smollm3"
        assert config.max_position_embeddings == context
        assert config.rope_parameters == {"rope_type": "default", "rope_theta": 100.0 * context}
        assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (4, 24, 32)
        assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 8)
        assert config.no_rope_layers == [1, 0, 1, 0]
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_heldout_text_never_enters_training_or_the_tokenizer(finished, root):
    output, _, seen, learned = finished
    held = {row["path"] for row in rows(output)}
    assert len(held) == HELDOUT
    assert not held & set(learned)
    everything = "".join(seen)
    assert not [path for path in held if marker(path) in everything]
    # The control: files as long as those, but trained on, do leave their mark.
    long = [path for path in learned if (root / path).stat().st_size >= 1500]
    assert sum(marker(path) in everything for path in long) > len(long) / 2


def test_heldout_texts_are_long_enough_and_cut_at_a_line(finished, root):
    output, *_ = finished
    tokenizer = AutoTokenizer.from_pretrained(output / "tokenizer")
    for row in rows(output):
        whole = (root / row["path"]).read_text(encoding="utf-8")
        assert whole.startswith(row["text"])
        assert row["text"].endswith("\n")
        assert 90 <= len(tokenizer(row["text"]).input_ids) < 130
    assert (output / "LICENSE-python.txt").read_text(encoding="utf-8") == "the licence\n"


def test_recorded_losses_are_those_of_the_written_checkpoints(finished):
    """Against transformers' own loss, window by window."""
    output, lines, *_ = finished
    tokenizer = AutoTokenizer.from_pretrained(output / "tokenizer")
    record = json.loads((output / "losses.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in record["checkpoints"]] == NAMES
    for row in record["checkpoints"]:
        model = AutoModelForCausalLM.from_pretrained(output / "checkpoints" / row["name"], dtype=torch.float32)
        losses = []
        for document in rows(output):
            ids = torch.tensor(tokenizer(document["text"]).input_ids[:64]).reshape(-1, row["context"])
            losses += [model(input_ids=window[None], labels=window[None]).loss.item() for window in ids]
        assert row["heldout_loss"] == pytest.approx(np.mean(losses), abs=2e-4)
        assert f"{row['name']}: held-out loss {row['heldout_loss']:.4f} at context {row['context']}" in lines


def test_the_loss_falls(finished):
    output, lines, *_ = finished
    losses = [row["heldout_loss"] for row in json.loads((output / "losses.json").read_text())["checkpoints"]]
    assert losses[0] < math.log(300)
    assert losses[1] < losses[0]
    assert losses[4] < losses[3]
    assert lines[-1] == "held-out loss fell within every phase that has several checkpoints"


def test_a_rising_loss_is_said():
    checkpoints = [{"name": name, "phase": "x", "heldout_loss": loss} for name, loss in [("a", 2.0), ("b", 2.5)]]
    assert trainer._verdict(checkpoints) == "held-out loss did NOT fall from a to b: train longer or slower"
    checkpoints[1]["phase"] = "y"
    assert "fell within every phase" in trainer._verdict(checkpoints)


def test_progress_names_loss_speed_and_time_left(finished):
    _, lines, *_ = finished
    steps = [
        line
        for line in lines
        if re.fullmatch(r"phase \w+: step \d+/\d+, loss [\d.]+, [\d,]+ tokens/s, \d+:\d\d left", line)
    ]
    assert len(steps) == 12 + 4 + 6
    assert steps[-1].endswith(" 0:00 left")


def test_the_card_holds_command_recipe_and_losses(finished):
    output, *_ = finished
    card = (output / "README.md").read_text(encoding="utf-8")
    record = json.loads((output / "losses.json").read_text(encoding="utf-8"))
    assert "    ropewalk train recipe.yaml --output DIR\n" in card
    assert f"torch {torch.__version__}" in card
    for row in record["checkpoints"]:
        assert f"`{row['name']}` | {row['label']} | {row['phase']}" in card
        assert f"| {row['heldout_loss']:.3f} |" in card
    assert "| phase second | 4 | 8 × 16 | 1,600 | 0.01 | library 50%, tests 25%, docs 25% |" in card
    assert "| 2 × 64 | 6,400 | 0.01 to 0.001 | library 100%; documents of 65 tokens or more |" in card
    assert str(output) not in card + json.dumps(record)


def test_a_finished_run_is_not_repeated(finished):
    output, *_ = finished
    before = weights(output)
    lines = []
    with heard(lines.append):
        train(output.parent / "recipe.yaml", output)
    assert lines == [f"{output} holds this training, finished: nothing to do"]
    assert weights(output) == before
    assert not (output / "state.safetensors").exists()


@pytest.mark.parametrize(
    "line", ["phase first: step 5/", "phase first: step 12/", "phase second: step 3/", "long-step-6:"]
)
def test_an_interrupted_run_ends_in_the_same_weights(finished, recipe, tmp_path, line):
    output, *_ = finished
    with pytest.raises(StopError), heard(stopping_at(line)):
        train(recipe, tmp_path / "out")
    assert (tmp_path / "out" / "state.safetensors").exists()
    lines = []
    with heard(lines.append):
        train(recipe, tmp_path / "out")
    assert any(line.startswith("going on at step") for line in lines)
    for name in NAMES:
        assert weights(tmp_path / "out", name) == weights(output, name)
    ours, theirs = (json.loads((folder / "losses.json").read_text()) for folder in (tmp_path / "out", output))
    assert ours["checkpoints"] == theirs["checkpoints"]


def test_a_training_that_is_observed_is_the_same_and_goes_on(finished, recipe, tmp_path):
    output, *_ = finished
    with pytest.raises(StopError), heard(stopping_at("phase second: step 3/")):
        train(recipe, tmp_path / "parts", observe=tmp_path / "live")
    train(recipe, tmp_path / "parts", observe=tmp_path / "live")
    train(recipe, tmp_path / "whole", observe=tmp_path / "at once")
    for name in NAMES:
        assert weights(tmp_path / "parts", name) == weights(tmp_path / "whole", name) == weights(output, name)
    live, whole = (analyze(tmp_path / name) for name in ("live", "at once"))
    assert list(live.view.lineup.labels) == [
        *(f"F-{step}" for step in (0, 1, 2, 3, 4, 6, 8, 11, 12)),
        *(f"S-{12 + step}" for step in (1, 2, 3, 4)),
        *(f"L-{step}" for step in (1, 2, 3, 4, 6)),
    ]
    pd.testing.assert_frame_equal(live.heads, whole.heads)


def test_another_seed_gives_other_weights_of_the_same_text(finished, root, tmp_path):
    output, *_ = finished
    train(write_recipe(tmp_path, tiny(root) | {"seed": 4}), tmp_path / "out")
    assert weights(tmp_path / "out") != weights(output)
    assert (tmp_path / "out" / "heldout.jsonl").read_bytes() == (output / "heldout.jsonl").read_bytes()
    assert (tmp_path / "out/tokenizer/tokenizer.json").read_bytes() == (
        output / "tokenizer/tokenizer.json"
    ).read_bytes()


def test_a_state_of_another_run_is_refused(recipe, root, tmp_path):
    with pytest.raises(StopError), heard(stopping_at("phase first: step 5/")):
        train(recipe, tmp_path / "out")
    other = write_recipe(tmp_path, tiny(root) | {"seed": 4})
    with pytest.raises(
        RopewalkError,
        match=r"a training with recipe \w{12}…, this one has \w{12}…: give another --output; what is there is kept",
    ):
        train(other, tmp_path / "out")
    # How often a state is written is not part of what a run is.
    again = write_recipe(tmp_path, tiny(root) | {"state_every": 7, "log_every": 2})
    with pytest.raises(StopError), heard(stopping_at("going on at step 4")):
        train(again, tmp_path / "out")


@pytest.mark.parametrize("name", ["state.safetensors", f"checkpoints/{NAMES[0]}/model.safetensors"])
def test_an_interrupted_run_that_is_damaged_begins_again(name, finished, recipe, tmp_path):
    output, *_ = finished
    with pytest.raises(StopError), heard(stopping_at("phase second: step 3/")):
        train(recipe, tmp_path / "out")
    damage(tmp_path / "out" / name)
    lines = []
    with heard(lines.append):
        train(recipe, tmp_path / "out")
    assert any(name in line and line.endswith("damaged: the training begins again") for line in lines)
    assert not any(line.startswith("going on") for line in lines)
    assert [weights(tmp_path / "out", one) for one in NAMES] == [weights(output, one) for one in NAMES]


@pytest.mark.parametrize(
    "name", ["seals.json", "losses.json", "heldout.jsonl", f"checkpoints/{NAMES[-1]}/model.safetensors"]
)
def test_a_finished_training_that_is_damaged_is_made_again(name, finished, tmp_path):
    output, *_ = finished
    copy = shutil.copytree(output, tmp_path / "copy")
    damage(copy / name)
    lines = []
    with heard(lines.append):
        train(output.parent / "recipe.yaml", copy)
    assert f"{copy / name} is damaged: the training begins again" in lines
    assert (copy / name).read_bytes() == (output / name).read_bytes() or name in (
        "losses.json",
        "seals.json",
    )  # how long it took differs
    assert train(output.parent / "recipe.yaml", copy) == copy


def test_a_state_of_another_format_is_not_read(recipe, tmp_path, monkeypatch):
    with pytest.raises(StopError), heard(stopping_at("phase first: step 5/")):
        train(recipe, tmp_path / "out")
    monkeypatch.setattr("ropewalk.train.state.FORMAT", 3)
    with pytest.raises(RopewalkError, match=r"another version of ropewalk \(format 2, this one reads 3\): go on with"):
        train(recipe, tmp_path / "out")


def test_a_finished_training_of_another_recipe_is_refused(finished, root, tmp_path):
    output, *_ = finished
    other = write_recipe(tmp_path, tiny(root) | {"seed": 4})
    with pytest.raises(RopewalkError, match=r"holds the training 'tiny' in .*: choose another folder for"):
        train(other, output)
    with pytest.raises(RopewalkError, match="holds a training with recipe"):
        train(other, output, adopt=True)


def test_a_folder_of_something_else_is_left_alone(recipe, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("mine")
    with pytest.raises(RopewalkError, match="is not empty and was not made by ropewalk: choose another folder"):
        train(recipe, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["README.md"]


def test_a_training_is_no_results(finished):
    output, *_ = finished
    with pytest.raises(RopewalkError, match="and no results: run `ropewalk train` on it again, which checks it"):
        verify(output)


def test_another_thread_count_is_refused(finished, monkeypatch):
    output, *_ = finished
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    with pytest.raises(
        RopewalkError, match=f"a training with threads {threads}, this one has {threads + 1}: give another"
    ):
        train(output.parent / "recipe.yaml", output)


def test_a_device_that_is_not_there(recipe, tmp_path):
    with pytest.raises(RopewalkError, match=r"^device 'nonsense' is not available here: use `auto` or `cpu`$"):
        train(recipe, tmp_path / "out", device="nonsense")


# --- pieces of the trainer


@pytest.fixture
def run(recipe, tmp_path):
    return trainer._Run(load_recipe(recipe), tmp_path, torch.device("cpu"), {})


def test_weight_decay_is_for_matrices_alone(run):
    decayed, free = (
        {id(parameter) for parameter in group["params"]}
        for group in sorted(run.optimizer.param_groups, key=lambda group: -group["weight_decay"])
    )
    for name, parameter in run.model.named_parameters():
        assert id(parameter) in (free if "norm" in name or "embed" in name else decayed), name


def test_entering_a_phase_changes_wavelengths_and_no_weight(run):
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    for phase in run.recipe.phases:
        run._enter(phase, 0)
        expected = [phase.rope_theta ** (-2 * i / 8) for i in range(4)]
        np.testing.assert_allclose(run.model.model.rotary_emb.inv_freq.numpy(), expected, rtol=1e-5)
        assert all(layer.self_attn.config.max_position_embeddings == phase.context for layer in run.model.model.layers)
    assert all(torch.equal(before[name], tensor) for name, tensor in run.model.state_dict().items())


def test_only_rope_layers_feel_the_wavelengths(run):
    """Queries and keys of each layer from the same input, with positions moved: NoPE layers do not notice."""
    hidden = torch.randn(1, 5, 24)
    moved = []
    for layer in run.model.model.layers:
        outputs = []
        for stretch in (1, 3):
            rotation = run.model.model.rotary_emb(hidden, stretch * torch.arange(5)[None])
            outputs.append(layer.self_attn(hidden, rotation, None)[0])
        moved.append(not torch.equal(*outputs))
    assert moved == [True, False, True, False]


def test_learning_rate_warms_up_and_runs_along_a_line():
    settings = Phase.model_validate(phase("x", 16, 1, 11, [11], warmup=4, learning_rate=1e-2, end_learning_rate=0.0))
    expected = [1e-2 * (1 - step / 10) * min(1, (step + 1) / 4) for step in range(11)]
    assert [settings.rate(step) for step in range(11)] == pytest.approx(expected)
    constant = Phase.model_validate(phase("x", 16, 1, 11, [11]))
    assert {constant.rate(step) for step in range(11)} == {1e-2}
    assert Phase.model_validate(phase("x", 16, 1, 1, [1])).rate(0) == 1e-2


def test_a_bar_on_a_terminal_takes_the_lines(recipe, monkeypatch, capsys):
    lines = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    settings = load_recipe(recipe)
    with listening(), heard(lines.append), progress.TrainingProgress(settings, Position()) as shown:
        shown.advance(settings.phases[0], 1, 2.0)
        logger.info("a checkpoint")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a checkpoint\n" in captured.err
    assert "phase first 1/12" in captured.err
    assert "loss 2.000" in captured.err
    assert lines == ["a checkpoint"]


# --- mistakes in a recipe


def changed(content: dict, path: str, value: object) -> dict:
    *parents, last = path.split(".")
    part = content
    for key in parents:
        part = part[int(key)] if key.isdigit() else part[key]
    part[last] = value
    return content


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model.heads", 5, "model: heads 5 must be a multiple of key_heads 2"),
        ("model.head_dim", 7, "model: head_dim 7 must be even, since the rotary embedding turns pairs"),
        ("model.layers", 0, "model.layers is 0: input should be greater than 0"),
        ("model.layers", 10**6, "model.layers is 1000000: input should be less than or equal to 4096"),
        ("model.initializer_range", float("inf"), "model.initializer_range is inf: input should be a finite number"),
        ("optimizer.betas", [0.9, 1.0], "optimizer.betas.1 is 1.0: input should be less than 1"),
        ("optimizer.clip", float("nan"), "optimizer.clip is nan: input should be a finite number"),
        ("phases.0.mix", {}, "phases.0.mix is {}: "),
        ("model.width", 3, "model.width is not a known key: known here: "),
        ("vocabulary", 100, "vocabulary is 100: input should be greater than or equal to 257"),
        ("phases", [], "phases is []: input should have at least 1 item"),
        ("phases.0.save", [4, 11], "phases.0: save [4, 11] must be increasing and end with the last step, 12"),
        ("phases.0.save", [12, 12], "phases.0: save [12, 12] must be increasing and end with the last step"),
        ("phases.0.save", [], "phases.0: save [] must be increasing and end with the last step, 12"),
        ("phases.1.name", "first", "phases: phase names ['first', 'first', 'long'] must differ, since checkpoints"),
        ("phases.2.mix", {"books": 1}, "no source is named 'books'; corpus.sources has ['docs', 'library', 'tests']"),
        ("heldout.sources", ["x"], "no source is named 'x'; corpus.sources has ['docs', 'library', 'tests']"),
        ("heldout.min_tokens", 63, "heldout.min_tokens 63 must be at least the longest context, 64"),
        ("heldout.keep_tokens", 69, "heldout.keep_tokens 69 must be at least heldout.min_tokens, 70"),
    ],
)
def test_a_wrong_recipe_is_one_sentence(root, tmp_path, field, value, message):
    path = write_recipe(tmp_path, changed(tiny(root), field, value))
    with pytest.raises(RopewalkError) as caught:
        load_recipe(path)
    # A mistake in one field has its line; one in how fields fit together is of the whole.
    assert re.match(re.escape(str(path)) + r"( line \d+)?: " + re.escape(message), str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("corpus.files", "/**", r"corpus.files is '/\*\*', no pattern of files below corpus.root"),
        ("corpus.files", "", "corpus.files is '', no pattern of files"),
        ("model.hidden", 2**20, r"training 'tiny' needs .* TB or more and the memory of this machine is "),
        ("phases.0.batch", 10**9, r"training 'tiny' needs .* TB or more and the memory of this machine is "),
    ],
)
def test_what_cannot_be_trained_is_refused_first(root, tmp_path, field, value, message):
    content = changed(tiny(root), "model.intermediate", 2**20) if field == "model.hidden" else tiny(root)
    path = write_recipe(tmp_path, changed(content, field, value))
    with pytest.raises(RopewalkError, match=message):
        train(path, tmp_path / "output", device="cpu")
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("kind", ["pipe", "dangling", "device"])
def test_a_file_of_the_text_that_cannot_be_read_is_named(root, tmp_path, kind):
    copy = Path(shutil.copytree(root, tmp_path / "texts"))
    path = copy / "odd.py"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    with pytest.raises(RopewalkError, match=r"odd.py cannot be read \(.*\): mend it, or leave it out with corpus.excl"):
        text.read_corpus(load_recipe(write_recipe(tmp_path, tiny(copy))).corpus)


def test_several_mistakes_are_listed(root, tmp_path):
    content = changed(changed(tiny(root), "seed", -1), "vocabulary", 3)
    with pytest.raises(RopewalkError) as caught:
        load_recipe(write_recipe(tmp_path, content))
    first, second = str(caught.value).splitlines()
    assert first.endswith(": seed is -1: input should be greater than or equal to 0")
    assert second.endswith(": vocabulary is 3: input should be greater than or equal to 257")


def test_a_recipe_that_cannot_be_read(tmp_path):
    with pytest.raises(RopewalkError, match=r"^no recipe at .*none.yaml: give the path of a YAML file$"):
        load_recipe(tmp_path / "none.yaml")
    path = tmp_path / "recipe.yaml"
    path.write_text("a: [", encoding="utf-8")
    with pytest.raises(RopewalkError, match=r"recipe.yaml line 1 is not valid YAML \(while parsing.*\): correct it$"):
        load_recipe(path)
    path.write_text("- a\n", encoding="utf-8")
    with pytest.raises(
        RopewalkError, match=r"recipe.yaml: it is \['a'\]: input should be a mapping with name, corpus, heldout and 7 "
    ):
        load_recipe(path)
