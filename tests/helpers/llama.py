"""A tiny llama on disk in every form, and what can be wrong with it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from ropewalk.study import Checkpoint

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
Edit = Callable[[Path], object]
"""A change of a model's folder."""


def save_tokenizer(folder: Path, count: int = 64) -> None:
    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(count)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="0", eos_token="2").save_pretrained(
        folder
    )


def save_llama(folder: Path, *, shards: str = "1GB", **changes: Any) -> Path:
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **changes}))
    model.save_pretrained(folder, max_shard_size=shards)
    save_tokenizer(folder)
    return folder


def checkpoint(repo: Path | str, **options: Any) -> Checkpoint:
    return Checkpoint(**{"repo": str(repo), "name": "m", "label": "m", "context": 32, **options})


def tensors(edit: Callable[[dict[str, torch.Tensor]], object]) -> Edit:
    """An edit of the tensors in a model's one weight file."""

    def apply(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        edit(state)
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    return apply


def configured(**changes: Any) -> Edit:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return apply


def write_gguf(path: Path, seed: int = 0, leave_out: str = "") -> dict[str, Any]:
    """A two-layer llama in float32 with a character tokenizer; what was written, by GGUF's names."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    vocabulary = [
        "<unk>",
        "<s>",
        "</s>",
        *(chr(97 + number) for number in range(26)),
        "ab",
        "cd",
        *(f"t{number}" for number in range(33)),
    ]
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary)
    writer.add_token_types([1] * len(vocabulary))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd.weight": (64, 32), "output_norm.weight": (32,), "output.weight": (64, 32)}
    for layer in range(2):
        own = {
            "attn_norm": (32,),
            "ffn_norm": (32,),
            "attn_q": (32, 32),
            "attn_k": (16, 32),
            "attn_v": (16, 32),
            "attn_output": (32, 32),
        }
        own |= {"ffn_gate": (48, 32), "ffn_up": (48, 32), "ffn_down": (32, 48)}
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in own.items()}
    generator = np.random.default_rng(seed)
    written = {
        name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items() if name != leave_out
    }
    for name, array in written.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written
