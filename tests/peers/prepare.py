"""Write models, the tokens they ran over, and their folders for KVPress, which another environment then loads.

Small random ones of every kind, and SmolLM2-135M, which scripts/fetch_smollm2.py has put into build/smollm2.

Example: PYTHONPATH=tests python tests/peers/prepare.py build/kvpress
"""

import json
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import ropewalk
from helpers.exporting import CASES, documents
from ropewalk.capture.texts import stdlib_files
from ropewalk.models.loading import load_model, load_tokenizer
from ropewalk.models.source import ModelSource

CONTEXT, LONGER, DOCUMENTS, SKIP_FIRST = 48, 256, 8, 4
SMOLLM2 = Path(__file__).parents[2] / "build" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MODELS = ("full", "QK-norm", "NoPE layers", "partial and interleaved", "interleaved, with NoPE layers")
STATISTICS = {"moments": {}, "frame": {"full": True}, "behaviour": {}}


def prepare(folder: Path) -> None:
    """A folder for each model: `model/` with a tokenizer, `export/`, and `tokens.npy`."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in MODELS:
        case = CASES[name]
        rows = np.array(documents(1, DOCUMENTS, CONTEXT))
        write(folder / case.model_type, case.model(), rows, 64, case.nope)
    write(folder / "smollm2", *pretrained(), 49_152, [])


def write(target: Path, model: Any, rows: Any, words: int, nope: list[int]) -> None:
    """The folder of one model."""
    model.save_pretrained(target / "model")
    save_tokenizer(target / "model", words)
    np.save(target / "tokens.npy", rows)
    results = ropewalk.measure(
        model, rows, context=rows.shape[1], label=target.name, skip_first=SKIP_FIRST, statistics=STATISTICS
    )
    results.export(target / "export", to="kvpress")
    digits = len(str(words - 1))
    (target / "case.json").write_text(json.dumps({"nope": nope, "digits": digits, "context": rows.shape[1]}))


def pretrained() -> tuple[Any, Any]:
    """SmolLM2-135M, and tokens [documents, context] of files of the Python standard library."""
    source = ModelSource(repo=str(SMOLLM2.parent), gguf_file=SMOLLM2.name, label="smollm2", dtype="float32")
    tokenizer = load_tokenizer(source)
    texts = (path.read_text(encoding="utf-8", errors="ignore") for path in stdlib_files())
    rows = (tokenizer(text, add_special_tokens=False)["input_ids"][:LONGER] for text in texts if len(text) > 8 * LONGER)
    loaded = load_model(source)
    # Of a GGUF file transformers saves nothing: the same weights in a model that does not know where they come from.
    config = transformers.LlamaConfig(
        **{key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(loaded.state_dict())
    return model, np.array(list(islice((row for row in rows if len(row) == LONGER), DOCUMENTS)))


def save_tokenizer(folder: Path, words: int) -> None:
    """A tokenizer of so many words (`w00` to `w63`), none of which is a part of another."""
    digits = len(str(words - 1))
    vocabulary = {f"w{number:0{digits}d}": number for number in range(words)}
    unknown = next(iter(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=unknown).save_pretrained(folder)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
