"""One wrong input: what is changed in a folder that holds a right study, and the command that then runs there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

STUDY = "study.yaml"
Edit = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A wrong input.

    `late` is one that shows only when weights or documents are read, after a dry run. `writes` are the beginnings of
    names that the command may write or replace.
    """

    name: str
    edit: Edit
    words: Sequence[str] = ("capture", STUDY)
    late: bool = False
    writes: tuple[str, ...] = ()


def runs_study(words: Sequence[str]) -> bool:
    """Whether a command is one that has a dry run."""
    return bool(words) and words[0] in ("run", "capture")


def study_data() -> dict[str, Any]:
    """A right study of what `furnish` puts into a folder, in plain data."""
    return {
        "name": "bad",
        "checkpoints": [
            {
                "name": "first",
                "repo": "./model",
                "tokenizer": "./tokenizer",
                "device": "cpu",
                "dtype": "float32",
                "context": 32,
                "step": 1,
            }
        ],
        "corpus": {"source": "files", "paths": ["texts/*.txt"]},
        "capture": {"shards": 2, "statistics": ["moments"]},
    }


def write_study(folder: Path, data: Any) -> None:
    """Write plain data as the study of a folder."""
    (folder / STUDY).write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")


def furnish(folder: Path) -> int:
    """A folder with a tiny llama (safetensors and GGUF), a tokenizer, texts, vectors and a study of them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from helpers.llama import save_llama, save_tokenizer, write_gguf

    save_llama(folder / "model")
    save_tokenizer(folder / "tokenizer")
    (folder / "gguf").mkdir()
    write_gguf(folder / "gguf" / "tiny.gguf")
    (folder / "texts").mkdir()
    chance = np.random.default_rng(0)
    for number in range(4):
        words = " ".join(str(word) for word in chance.integers(3, 60, 60))
        (folder / "texts" / f"{number}.txt").write_text(words)
    for head in ("l00h00q", "l00h00k", "l01h00q", "l01h00k"):
        position = np.tile(np.arange(32), 4)
        vector = chance.standard_normal((len(position), 8)) + 0.05 * position[:, None]
        columns = {
            "bucket": position // 2,
            "example_id": np.repeat(np.arange(4), 32),
            "position": position,
            "vector": list(vector.astype(np.float32)),
            "sliding_window": [None] * len(position),
        }
        (folder / "vectors" / head).mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / "vectors" / head / "data.parquet")
    write_study(folder, study_data())
    return 0
