"""Tiny random models of every decoder type of transformers, built offline, with what their layout must be.

`TYPES` is the table: what a type needs besides the shared sizes, and the layout it must be found to have, written down
from what its configuration means. `REFUSED` are types that dispatch and still cannot be studied, `NOT_BUILT` those
of which no tiny model can be built here, `NO_DISPATCH` those that do not use the registry at all.
"""

import copy
import functools
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ropewalk.models.doctor import examine
from ropewalk.models.layout import Layout
from ropewalk.models.probe import probe_tokens, read_layout
from ropewalk.models.proof import Finding
from ropewalk.models.tap import replaced_attention

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "intermediate_size": 32,
    "ffn_dim": 32,
    "num_hidden_layers": 4,
    "num_layers": 4,
    "n_layer": 4,
    "n_layers": 4,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "max_seq_len": 64,
    "max_target_positions": 64,
    "sliding_window": 8,
    "attention_chunk_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "n_group": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_ffn_dim": 32,
    "encoder_ffn_dim": 32,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "mamba_d_state": 8,
    "mamba_dt_rank": 4,
    "mamba_chunk_size": 8,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "vocab_size_per_layer_input": 64,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
    "num_mtp_layers": 0,
    "num_nextn_predict_layers": 0,
}

MLA = "latent attention: q and k are an unrotated and a rotated part put together, with a key head for each query head"
HYBRID = "hybrid: its attention layers only"
MULTIMODAL = "multimodal: its language model"
ADDED = "position embeddings are added to the tokens"
SCALED = "queries of the layers without RoPE are scaled by position"
INDEXED = "a learned index picks the keys that a query reads"
NORM_LAST = "QK-norm comes after the rotation; `pre_rope` gives the vectors before both"
NORM_ASKED = "QK-norm where the configuration asks for it"
SHARED = "the last layers read the keys of earlier ones"
S, F, L = "sliding_attention", "full_attention", "linear_attention"


@dataclass(frozen=True)
class Tiny:
    """What a type's tiny configuration needs beyond `SIZES`, and the layout that it must be found to have.

    `key_heads`, `head_dim`, `rotary` and `window` are one value for all layers, or one for each.
    """

    config: dict[str, Any] = field(default_factory=dict)
    layers: tuple[int, ...] = (0, 1, 2, 3)
    depth: int = 4
    key_heads: int | tuple[int, ...] = 2
    head_dim: int | tuple[int, ...] = 8
    rotary: float | tuple[float, ...] | None = 1.0
    window: int | tuple[int | None, ...] | None = None
    absolute: bool = False
    qk_norm: bool = False
    note: str = ""

    def each(self, name: str) -> tuple[Any, ...]:
        """A field's value for each attention layer."""
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * len(self.layers)


def _same(entry: Tiny, names: str) -> dict[str, Tiny]:
    return dict.fromkeys(names.split(), entry)


_LATENT = Tiny({"num_key_value_heads": 4, "head_dim": 4}, key_heads=4, head_dim=12, rotary=4 / 12, note=MLA)
_ADDED = Tiny(key_heads=4, rotary=0.0, absolute=True, note=ADDED)
_ENCODER = replace(_ADDED, config={"is_decoder": True}, note=f"an encoder's type, run as a decoder; {ADDED}")
_SEQ2SEQ = Tiny(
    layers=(0, 1),
    depth=2,
    key_heads=4,
    rotary=None,
    absolute=True,
    note=f"the decoder alone; {ADDED}; takes no position ids, so rotation is not measured",
)
_LAST_FULL = Tiny({"layer_types": [S, S, S, F]}, window=(8, 8, 8, None), qk_norm=True)
_LAST_NOPE = replace(_LAST_FULL, config={}, rotary=(1.0, 1.0, 1.0, 0.0))
_GEMMA4 = replace(
    _LAST_FULL,
    config={"layer_types": [S, S, S, F], "global_head_dim": 16},
    head_dim=(8, 8, 8, 16),
    rotary=(1.0, 1.0, 1.0, 0.25),
)
_GATED_DELTA = Tiny(layers=(3,), rotary=0.25, qk_norm=True, note=HYBRID)
_QWEN4 = {
    "hc_lowrank": 8,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 32,
    "indexer_compress_ratio": 4,
}
_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8}
_EVERY_SECOND = {"layers": (1, 3), "note": HYBRID}
_PROPORTIONAL = {"rope_type": "default", "rope_theta": 10000.0}


def _within(entry: Tiny, **changes: Any) -> Tiny:
    """The same for a multimodal type, whose language model's configuration is a part of its own."""
    return replace(entry, config={"text_config": entry.config}, **changes)


TYPES: dict[str, Tiny] = dict(
    sorted(
        {
            **_same(
                Tiny(),
                "arcee aria_text bitnet emu3 ernie4_5 ernie4_5_moe gemma granite granitemoe granitemoeshared "
                "helium hyperclovax jais2 llama mixtral olmo phi3 phi4_multimodal phimoe qwen2 qwen2_moe seed_oss "
                "solar_open starcoder2",
            ),
            **_same(
                Tiny(qk_norm=True),
                "apertus doge flex_olmo hy_v3 minimax_m2 olmo2 olmoe qwen3 qwen3_moe",
            ),
            **_same(Tiny(qk_norm=True, note=NORM_LAST), "hunyuan_v1_dense hunyuan_v1_moe nanochat"),
            **_same(Tiny(rotary=0.5), "glm glm4 nemotron"),
            **_same(Tiny(rotary=0.5, note=NORM_ASKED), "glm4_moe phi"),
            **_same(Tiny(window=8), "ministral mistral"),
            **_same(Tiny(window=(8, None, 8, None)), "gemma2 gpt_oss vaultgemma"),
            **_same(Tiny(window=(None, 8, 8, 8)), "cwm granite_swa granitemoe_swa"),
            **_same(replace(_LAST_NOPE, qk_norm=False), "cohere2 cohere2_moe"),
            **_same(_LAST_NOPE, "afmoe exaone4 exaone_moe"),
            **_same(
                _ENCODER,
                "bert bert-generation camembert data2vec-text electra ernie roberta roberta-prelayernorm xlm-roberta "
                "xlm-roberta-xl",
            ),
            **_same(_ADDED, "biogpt gpt-sw3 gpt2 opt"),
            **_same(_SEQ2SEQ, "bart bigbird_pegasus blenderbot blenderbot-small marian mbart pegasus plbart"),
            **_same(_LATENT, "axk1 deepseek_v2 deepseek_v3 glm4_moe_lite minicpm3 youtu"),
            **_same(replace(_LATENT, note=f"{MLA}; {INDEXED}"), "axk2 deepseek_v32 glm_moe_dsa hy_v4"),
            **_same(_GATED_DELTA, "qwen3_5_moe_text qwen3_5_text qwen3_next"),
            **_same(_within(_GATED_DELTA), "qwen3_5 qwen3_5_moe"),
            "bailing_hybrid": replace(
                _LATENT,
                config={"num_key_value_heads": 4, "layer_group_size": 2},
                layers=(1, 3),
                note=f"{HYBRID}; {MLA}",
            ),
            "bamba": Tiny({"attn_layer_indices": [1, 3], **_MAMBA2}, rotary=0.5, **_EVERY_SECOND),
            "beam": replace(_LAST_NOPE, note=SCALED),
            "cohere": Tiny(note=NORM_ASKED),
            "cohere_compass_text": Tiny(
                {"layer_types": [S, S, S, F], "rope_parameters": {S: _PROPORTIONAL, F: _PROPORTIONAL}},
                window=(8, 8, 8, None),
            ),
            "ctrl": replace(_ADDED, config={"dff": 32}),
            "dbrx": Tiny(
                {
                    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
                    "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 32},
                }
            ),
            "diffllama": Tiny(note="attention is called twice with the same q and k and other values; taken once"),
            "dots1": Tiny({"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}, qk_norm=True),
            "falcon_h1": Tiny(
                {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
                note="attention beside a state space in every layer",
            ),
            "flint": Tiny(rotary=(0.0, 0.0, 1.0, 0.0), window=(None, None, 8, None), qk_norm=True),
            "fuyu": Tiny(key_heads=4, rotary=0.5, qk_norm=True, note=f"{MULTIMODAL} (here a persimmon)"),
            "gemma3": _within(_LAST_FULL, note=MULTIMODAL),
            "gemma3_text": _LAST_FULL,
            "gemma3n_text": Tiny(
                {"num_hidden_layers": 6, "num_kv_shared_layers": 2, "layer_types": [S, F, S, F, S, F]},
                layers=(0, 1, 2, 3, 4, 5),
                depth=6,
                window=(8, None, 8, None, 8, None),
                qk_norm=True,
                note=SHARED,
            ),
            "gemma4": _within(_GEMMA4, note=MULTIMODAL),
            "gemma4_text": Tiny(
                {
                    "num_hidden_layers": 6,
                    "num_kv_shared_layers": 2,
                    "layer_types": [S, F, S, F, S, F],
                    "global_head_dim": 16,
                },
                layers=(0, 1, 2, 3, 4, 5),
                depth=6,
                head_dim=(8, 16) * 3,
                rotary=(1.0, 0.25) * 3,
                window=(8, None) * 3,
                qk_norm=True,
                note=SHARED,
            ),
            "gemma4_unified": _within(_GEMMA4, note=MULTIMODAL),
            "gemma4_unified_text": _GEMMA4,
            "got_ocr2": Tiny(note=f"{MULTIMODAL} (here a qwen2)"),
            "gpt_bigcode": replace(_ADDED, key_heads=1),
            "gpt_neox": Tiny(key_heads=4, rotary=0.25),
            "granitemoehybrid": Tiny(
                {
                    "layer_types": [L, F, L, F],
                    "shared_intermediate_size": 16,
                    "position_embedding_type": "rope",
                    **_MAMBA2,
                },
                **_EVERY_SECOND,
            ),
            "hrm_text": Tiny(
                {"num_hidden_layers": 1, "H_cycles": 1, "L_cycles": 2},
                layers=(0, 1, 2),
                depth=3,
                key_heads=4,
                note="its blocks run several times; a layer is one run, numbered in order",
            ),
            "inkling_text": Tiny(
                {
                    "swa_num_attention_heads": 4,
                    "swa_num_key_value_heads": 2,
                    "swa_head_dim": 8,
                    "sliding_window_size": 8,
                    "layer_types": ["hybrid_sliding"] * 3 + ["hybrid"],
                    "d_rel": 4,
                    "rel_extent": 32,
                },
                rotary=0.0,
                window=(8, 8, 8, None),
                qk_norm=True,
                note="position enters as a bias on the scores, not in q and k",
            ),
            "jamba": Tiny({"attn_layer_period": 2, "attn_layer_offset": 1}, rotary=0.0, **_EVERY_SECOND),
            "jetmoe": Tiny(
                {"kv_channels": 8}, key_heads=4, note="key heads come already repeated, one for each query head"
            ),
            "kimi_linear": replace(
                _LATENT,
                config={"num_key_value_heads": 4, "layer_types": [L, F, L, F]},
                layers=(1, 3),
                rotary=0.0,
                note=f"{HYBRID}; {MLA}",
            ),
            "kolibri1": replace(_LAST_FULL, rotary=(1.0, 1.0, 1.0, 0.0)),
            "laguna": Tiny(
                {"layer_types": [F, S, S, F]}, rotary=(0.5, 1.0, 1.0, 0.5), window=(None, 8, 8, None), qk_norm=True
            ),
            "lfm2": Tiny({"layer_types": ["conv", F, "conv", F]}, qk_norm=True, **_EVERY_SECOND),
            "lfm2_moe": Tiny({"layer_types": ["conv", F, "conv", F]}, qk_norm=True, **_EVERY_SECOND),
            "llava": Tiny(
                note=f"{MULTIMODAL} (here a llama); stands for the multimodal types that hold any language model"
            ),
            "llama4": _within(replace(_LAST_NOPE, note=f"{MULTIMODAL}; chunked windows; {SCALED}")),
            "llama4_text": replace(_LAST_NOPE, note=f"chunked windows; {SCALED}"),
            "longcat_flash": replace(
                _LATENT,
                config={
                    "num_layers": 2,
                    "num_key_value_heads": 4,
                    "head_dim": 4,
                    "ffn_hidden_size": 32,
                    "expert_ffn_hidden_size": 16,
                    "zero_expert_num": 2,
                    "moe_topk": 2,
                },
                note=f"{MLA}; two attention layers in each block",
            ),
            "mellum": Tiny({"layer_types": [F, S, S, F]}, window=(None, 8, 8, None), qk_norm=True),
            "mimo_v2_flash": Tiny(
                key_heads=(2, 4, 4, 4),
                rotary=0.25,
                window=(None, 8, 8, 8),
                note="sliding layers have other key heads than full ones",
            ),
            "minimax": Tiny({"block_size": 8}, layers=(0, 2), note=HYBRID),
            "minimax_m3_vl_text": Tiny(
                {
                    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
                    "rotary_dim": 4,
                    "dense_intermediate_size": 32,
                    "shared_intermediate_size": 16,
                },
                rotary=0.5,
                qk_norm=True,
            ),
            "ministral3": Tiny(note="queries are also scaled by position"),
            "mllama": _within(
                Tiny({"cross_attention_layers": [2]}),
                layers=(0, 1, 3),
                note=f"{MULTIMODAL}, without the cross-attention layers",
            ),
            "modernbert-decoder": Tiny(key_heads=4, window=(None, 8, 8, None)),
            "moshi": Tiny(note="its `sliding_window` is not used in its masks"),
            "moss_transcribe_diarize": Tiny(qk_norm=True, note=MULTIMODAL),
            "nemotron_h": Tiny(
                {
                    "mamba_num_heads": 4,
                    "mamba_head_dim": 8,
                    "ssm_state_size": 8,
                    "n_groups": 1,
                    "chunk_size": 8,
                    "moe_shared_expert_intermediate_size": 16,
                },
                layers=(2,),
                rotary=0.0,
                note=HYBRID,
            ),
            "olmo3": replace(_LAST_FULL, config={}),
            "olmo_hybrid": Tiny(layers=(3,), qk_norm=True, note=HYBRID),
            "persimmon": Tiny(key_heads=4, rotary=0.5, qk_norm=True),
            "qwen4_exp": _within(Tiny(_QWEN4), layers=(3,), qk_norm=True, note=f"{HYBRID}; {INDEXED}"),
            "qwen4_exp_text": Tiny(_QWEN4, layers=(3,), qk_norm=True, note=f"{HYBRID}; {INDEXED}"),
            "recurrent_gemma": Tiny({"attention_window_size": 8}, layers=(2,), rotary=0.5, window=8, note=HYBRID),
            "roc_bert": replace(
                _ENCODER,
                config={
                    "is_decoder": True,
                    "pronunciation_embed_dim": 8,
                    "pronunciation_vocab_size": 64,
                    "shape_embed_dim": 8,
                    "shape_vocab_size": 64,
                },
            ),
            "smollm3": Tiny(rotary=(1.0, 1.0, 1.0, 0.0)),
            "stablelm": Tiny(rotary=0.25, note=NORM_ASKED),
            "whisper": replace(_SEQ2SEQ, rotary=0.0, note=f"the decoder alone; {ADDED}"),
            "xmod": replace(_ENCODER, config={"is_decoder": True, "default_language": "en_XX"}),
            "zamba": Tiny(
                {"num_hidden_layers": 6, "layers_block_type": [L, L, "hybrid", L, "hybrid", L]},
                layers=(2, 4),
                depth=6,
                head_dim=16,
                rotary=0.0,
                note=f"{HYBRID}, which share one block",
            ),
            "zamba2": Tiny(
                {
                    "layers_block_type": [L, "hybrid", L, "hybrid"],
                    "n_mamba_heads": 4,
                    "mamba_ngroups": 1,
                    "chunk_size": 8,
                    "use_mem_rope": True,
                    "adapter_rank": 4,
                },
                layers=(1, 3),
                head_dim=16,
                note=f"{HYBRID}, which share one block",
            ),
            "zaya": Tiny(
                {
                    "num_experts_per_tok": 1,
                    "layer_types": ["hybrid_sliding", "hybrid"] * 2,
                    "sliding_window": 8,
                    "router_hidden_size": 16,
                },
                rotary=0.5,
                window=(8, None, 8, None),
                qk_norm=True,
            ),
        }.items()
    )
)

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "blt": (
        {
            "encoder_hash_byte_group_vocab": 16,
            "vocab_size": 260,
            "patcher_config": {"vocab_size": 260},
            "encoder_config": {"vocab_size": 260, "hidden_size_global": 64},
            "decoder_config": {"vocab_size": 260, "hidden_size_global": 64},
            "global_config": {"hidden_size": 64, "head_dim": 16},
        },
        "attends over patches of bytes, which are not tokens of the document",
    ),
    "deepseek_v4": ({}, "its keys are tokens and summaries of several tokens in one row, which have no one position"),
    "gemma4_unified_assistant": ({}, "drafts for another model, whose keys it reads, and does not run without it"),
    "git": (
        {},
        "the attention of its text layers does not go through the registry (only that of its image encoder does)",
    ),
}
"""By type: what its tiny configuration needs, and why `read_layout` refuses it."""

AUDIO = "its decoder takes audio codes, several at a step, and is not built from the whole model's configuration"
NOT_BUILT: dict[str, str] = {
    "gemma4_assistant": "drafts for another model, whose keys it reads, and does not run without it",
    "gemma3n": "its image encoder needs timm; its language model is checked as gemma3n_text",
    "musicgen": AUDIO,
    "musicgen_melody": AUDIO,
}

NO_DISPATCH = [
    "big_bird",
    "bloom",
    "codegen",
    "cpmant",
    "falcon",
    "falcon_mamba",
    "gpt_neo",
    "gpt_neox_japanese",
    "gptj",
    "mamba",
    "mamba2",
    "megatron-bert",
    "mpt",
    "mvp",
    "openai-gpt",
    "prophetnet",
    "reformer",
    "rembert",
    "roformer",
    "rwkv",
    "trocr",
    "xglm",
    "xlm",
    "xlnet",
    "xlstm",
]


def tiny_config(model_type: str, **changes: Any) -> Any:
    """The tiny configuration of a type, with changes."""
    needs = TYPES[model_type].config if model_type in TYPES else REFUSED.get(model_type, ({}, ""))[0]
    with _quiet():
        return _shrunk(CONFIG_MAPPING[model_type], {**needs, **changes})


def tiny_model(model_type: str, attention: str | None = None, **changes: Any) -> nn.Module:
    """A tiny model of a type in float32, the same each time; `attention` names an implementation."""
    config = tiny_config(model_type, **changes)
    auto = (
        transformers.AutoModelForCausalLM
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
        else transformers.AutoModelForImageTextToText
    )
    options = {"attn_implementation": attention} if attention else {}
    with torch.random.fork_rng(), _quiet():
        torch.manual_seed(0)
        model: nn.Module = auto.from_config(config, dtype=torch.float32, **options).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # Norms, biases and gates begin at a constant: a check on ones and zeros would not notice them.
                if parameter.numel() > 1 and (parameter == parameter.flatten()[0]).all():
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@dataclass(frozen=True)
class Checked:
    """What was found on the tiny model of a type; `visible` is how many keys the last query sees, for each layer."""

    layout: Layout
    findings: list[Finding]
    qk_norm: bool
    visible: tuple[int, ...]


TOKENS = 24
QK_NORM = re.compile(r"(q|k|qk|query|key)_?(layer)?norm")


@functools.cache
def check(model_type: str) -> Checked:
    """Build a type's tiny model, examine it and read its layout."""
    model = tiny_model(model_type)
    with _quiet():
        layout = read_layout(model)
        findings = examine(model)
        tokens = probe_tokens(model, TOKENS)
        visible: list[int] = []
        norms: list[bool] = []

        def wrap(original: Any) -> Any:
            def noting(module: nn.Module, *args: Any, **options: Any) -> Any:
                mask = args[3] if len(args) > 3 else options.get("attention_mask")
                visible.append(_seen_by_last(mask, tokens.shape[1]))
                norms.append(any(QK_NORM.fullmatch(name) for name, _ in module.named_children()))
                return original(module, *args, **options)

            return noting

        with torch.inference_mode(), replaced_attention(model, wrap):
            model(input_ids=tokens, use_cache=False)
    calls = [layer.call_index for layer in layout.layers]
    return Checked(layout, findings, any(norms[call] for call in calls), tuple(visible[call] for call in calls))


def _seen_by_last(mask: torch.Tensor | None, tokens: int) -> int:
    if mask is None:
        return tokens
    last = mask[0, 0, -1]
    return int((last if last.dtype == torch.bool else last > -1e4).sum())


def _shrunk(cls: Any, changes: dict[str, Any]) -> Any:
    default = cls()
    known = default.to_dict()
    # A window that is off by default stays off.
    values = {
        name: value for name, value in SIZES.items() if name in known and (name != "sliding_window" or known[name])
    }
    inner = {name: getattr(default, name, None) for name in getattr(cls, "sub_configs", {})}
    for name, config in inner.items():
        if config is not None:
            values[name] = _shrunk(type(config), changes.get(name, {})).to_dict()
    values |= {name: copy.deepcopy(value) for name, value in changes.items() if name not in inner}
    return cls(**values)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the remarks transformers makes on configurations that nobody would train."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            # Said by the modelling file of gpt_bigcode when it is imported.
            warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=DeprecationWarning)
            yield
    finally:
        transformers.logging.set_verbosity(level)
