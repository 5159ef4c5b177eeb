"""A tiny model, its tokenizer and its texts."""

import random
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

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

DOCUMENTS, CONTEXT = 6, 64
"""Shape of the random documents that the tiny model is run on."""


def make_texts(count: int, words: int = 400, seed: int = 0) -> list[str]:
    """Texts of so many words."""
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=words)) for _ in range(count)]


def save_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer of 300 tokens that knows the words of `make_texts`."""
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


def furnish(home: Path, *, texts: int, words: int) -> None:
    """Put a tiny model, its tokenizer and texts into a folder, for a study that stands beside them."""
    tiny_smollm3(num_hidden_layers=2).save_pretrained(home / "model")
    save_tokenizer(home / "tokenizer")
    (home / "texts").mkdir()
    for number, text in enumerate(make_texts(texts, words=words)):
        (home / "texts" / f"{number}.txt").write_text(text)


def tabulated(home: Path, statistics: Any) -> Path:
    """Results of a small study of what `furnish` puts into a folder, with their tables: its results folder."""
    import yaml

    from ropewalk.capture.run import capture_study
    from ropewalk.results import analyze
    from ropewalk.studyfile import load_study

    furnish(home, texts=6, words=100)
    study = {
        "name": "small",
        "results": "results",
        "checkpoints": [
            {"name": "first", "repo": "./model", "tokenizer": "./tokenizer", "device": "cpu", "context": 32}
        ],
        "corpus": {"source": "files", "paths": ["texts/*.txt"]},
        "capture": {"shards": 3, "statistics": statistics},
    }
    (home / "study.yaml").write_text(yaml.safe_dump(study))
    capture_study(load_study(home / "study.yaml", home / "results"))
    analyze(home / "results")
    return home / "results"
