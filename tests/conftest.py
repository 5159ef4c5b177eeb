"""What tests share: one thread each, a tiny tokenizer, a tiny model with NoPE layers and grouped keys, texts."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hub_stand_in import HubStandIn

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

WORDS = [
    "rope",
    "walk",
    "head",
    "key",
    "query",
    "position",
    "angle",
    "layer",
    "token",
    "yarn",
    "strand",
    "fibre",
    "knot",
]


def make_texts(count: int, words: int = 400, seed: int = 0) -> list[str]:
    """Texts of so many words."""
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=words)) for _ in range(count)]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(make_texts(5), trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    return folder


def tiny_smollm3(**changes: object) -> transformers.PreTrainedModel:
    """A random SmolLM3 of five layers (layer 3 without RoPE), four query heads, two key heads, head_dim 16."""
    settings = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **changes,
    }
    torch.manual_seed(0)
    return transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(**settings)).eval()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_smollm3().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def texts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(make_texts(12)):
        (folder / f"{number:02d}.txt").write_text(text)
    (folder / "short.txt").write_text("too short")
    return folder


@pytest.fixture
def study_data(model_folder: Path, tokenizer_folder: Path, texts_folder: Path, tmp_path: Path) -> dict[str, object]:
    """A small study as plain data: the model at two contexts, twelve documents, four shards."""
    return {
        "name": "small",
        "results": str(tmp_path / "results"),
        "defaults": {"repo": str(model_folder), "tokenizer": str(tokenizer_folder), "context": 64, "device": "cpu"},
        "checkpoints": [
            {"name": "first", "label": "A", "phase": "one", "step": 1},
            {
                "name": "second",
                "label": "B",
                "phase": "two",
                "step": 2,
                "context": 96,
                "overrides": {"rope_theta": 500000.0},
            },
        ],
        "corpus": {"source": "files", "paths": [str(texts_folder / "*.txt")]},
        "capture": {"shards": 4, "batch_tokens": 130},
    }


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., HubStandIn]]:
    """Serve repositories on loopback as the hub that the client talks to."""
    with ExitStack() as stack:

        def start(repos: dict[str, dict[str, dict[str, bytes]]], **options: Any) -> HubStandIn:
            hub = stack.enter_context(HubStandIn(repos, **options))
            hub.connect(monkeypatch, tmp_path / "cache")
            return hub

        yield start
