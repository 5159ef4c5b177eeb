"""Training a miniature SmolLM3 from scratch through its phases, and writing what a study needs."""

import hashlib
import json
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import SmolLM3Config, SmolLM3ForCausalLM

from ropewalk._version import __version__
from ropewalk.files import atomic_path, write_bytes, write_text
from ropewalk.fingerprint import file_fingerprint
from ropewalk.models.device import choose_device
from ropewalk.models.documents import CONFIG
from ropewalk.models.weights import WEIGHTS
from ropewalk.ownership import check_owner, claim
from ropewalk.progress import logger
from ropewalk.train.card import model_card
from ropewalk.train.memory import check_memory
from ropewalk.train.output import HELDOUT, RECORD, finish_output, is_finished, owner_of
from ropewalk.train.preset import study_text
from ropewalk.train.progress import TrainingProgress
from ropewalk.train.recipe import Phase, Recipe, load_recipe
from ropewalk.train.state import STATE, Position, check_state, load_state, save_state
from ropewalk.train.text import (
    SEPARATOR,
    Mixture,
    Tokens,
    corpus_hash,
    corpus_root,
    cut_heldout,
    encode,
    make_tokenizer,
    read_corpus,
    split_heldout,
)
from ropewalk.train.watch import Watch

FORMAT = 1


def train(
    recipe: Path | None, output: Path, *, device: str = "auto", adopt: bool = False, observe: Path | None = None
) -> Path:
    """Train the model of a recipe and write it to `output`; an interrupted run goes on where it was.

    Writes `checkpoints/<name>/` (bfloat16 weights and config), `tokenizer/`, `heldout.jsonl`, `losses.json`, a model
    card `README.md`, a study of all this (`study.yaml`) and the licence of the text. On the CPU the same recipe, text,
    library versions and thread count give the same weights, interrupted or not. The folder must be new, empty or of
    this training (`adopt` takes over one whose recipe was moved and edited); what is damaged is trained again. With
    `observe`, results over the held-out texts grow in that folder as the model trains. Returns `output`.
    """
    settings = load_recipe(recipe)
    output = Path(output)
    chosen = choose_device(device)
    check_memory(settings, chosen)
    documents = read_corpus(settings.corpus)
    identity = _identity(settings, corpus_hash(documents), chosen)
    owner = owner_of(settings, recipe)
    # Before it is marked: a folder of another training stays what it is.
    check_owner(output, owner, adopt=adopt)
    check_state(output / STATE, identity)
    if is_finished(output, identity):
        logger.info(f"{output} holds this training, finished: nothing to do")
        return output
    claim(output, owner, adopt=adopt)

    training, heldout = split_heldout(documents, settings.heldout)
    logger.info(f"{len(training)} files to learn from, {len(heldout)} held out; learning {settings.vocabulary} tokens")
    tokenizer = make_tokenizer(training, settings.vocabulary, settings.longest)
    rows = cut_heldout(heldout, settings.heldout, tokenizer)
    pools: dict[str, list[Tokens]] = {name: [] for name in settings.corpus.sources}
    for document, tokens in zip(training, encode([document.text for document in training], tokenizer), strict=True):
        pools[document.source].append(tokens)
    sizes = {name: sum(map(len, pool)) for name, pool in pools.items()}
    logger.info("tokens: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items()))

    write_text(output / HELDOUT, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    tokenizer.save_pretrained(output / "tokenizer")
    licence = corpus_root(settings.corpus) / "LICENSE.txt"
    if licence.exists():
        write_bytes(output / "LICENSE-python.txt", licence.read_bytes())

    separator = int(tokenizer.convert_tokens_to_ids(SEPARATOR))
    run = _Run(settings, output, chosen, identity)
    texts = encode([row["text"] for row in rows], tokenizer)
    watch = None if observe is None else Watch(settings, run.model, texts, observe)
    position = run.through_phases(pools, texts, separator, watch)
    record = {
        "format": FORMAT,
        "ropewalk": __version__,
        "python": platform.python_version(),
        "command": " ".join(["ropewalk train", *([Path(recipe).name] if recipe else []), "--output DIR"]),
        "identity": identity,
        "recipe": settings.model_dump(mode="json"),
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "tokens": sizes,
        "heldout_files": len(rows),
        "seconds": round(position.seconds),
        "checkpoints": position.checkpoints,
    }
    write_text(output / "README.md", model_card(record))
    write_text(output / "study.yaml", study_text(record, output.resolve().name))
    write_text(output / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    finish_output(output, identity)
    run.state_path.unlink(missing_ok=True)
    logger.info(_verdict(position.checkpoints))
    return output


def _identity(recipe: Recipe, text: str, device: torch.device) -> dict[str, str]:
    """Everything that the weights are a function of."""
    # How often states and lines are written changes no weight.
    content = recipe.model_dump_json(exclude={"state_every", "log_every"})
    return {
        "recipe": hashlib.sha256(content.encode()).hexdigest(),
        "corpus": text,
        **{name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy")},
        "device": device.type,
        "threads": str(torch.get_num_threads()),
    }


def phase_config(recipe: Recipe, phase: Phase, separator: int) -> Any:
    """The SmolLM3 configuration as of a phase: its context and rope_theta."""
    shape = recipe.model
    return SmolLM3Config(
        vocab_size=recipe.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_dim,
        no_rope_layer_interval=shape.nope_interval,
        initializer_range=shape.initializer_range,
        max_position_embeddings=phase.context,
        rope_parameters={"rope_type": "default", "rope_theta": phase.rope_theta},
        tie_word_embeddings=True,
        use_sliding_window=False,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=separator,
        attn_implementation="sdpa",
    )


def token_losses(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in nats of each next token: ids [rows, length + 1] to losses [rows * length]."""
    # Not the model's own loss, which copies the logits and takes half as long again as the whole step.
    hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    return nn.functional.cross_entropy(model.lm_head(hidden).flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")


@torch.no_grad()
def heldout_loss(model: Any, texts: Sequence[Tokens], context: int, longest: int) -> float:
    """Mean loss in nats per token over the first `longest` tokens of each text, cut into windows of `context`.

    Every context sees the same tokens, apart from the first of each window, which has nothing before it.
    """
    device = next(model.parameters()).device
    windows = np.concatenate([text[: longest - longest % context].reshape(-1, context) for text in texts])
    total, count = 0.0, 0
    size = max(1, 8192 // context)
    for start in range(0, len(windows), size):
        rows = torch.from_numpy(windows[start : start + size].astype(np.int64))
        losses = token_losses(model, rows.to(device))
        total, count = total + float(losses.double().sum()), count + losses.numel()
    return total / count


class _Run:
    """One training run: the model, its optimizer, and the way through the phases."""

    def __init__(self, recipe: Recipe, output: Path, device: torch.device, identity: dict[str, str]):
        self.recipe, self.output, self.device, self.identity = recipe, output, device, identity
        self.state_path = output / STATE
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.model = SmolLM3ForCausalLM(phase_config(recipe, recipe.phases[0], 0)).to(device).train()
        self.optimizer = _optimizer(recipe, self.model)

    def through_phases(
        self, pools: dict[str, list[Tokens]], texts: Sequence[Tokens], separator: int, watch: Watch | None = None
    ) -> Position:
        """Train whatever is left of all phases."""
        position = load_state(self.state_path, self.model, self.optimizer, self.identity) or Position()
        if position.checkpoints or position.step:
            logger.info(f"going on at step {position.step} of {self.recipe.phases[position.phase].title}")
        mixtures = [
            Mixture(pools, phase, separator, (self.recipe.seed, index))
            for index, phase in enumerate(self.recipe.phases)
        ]
        with TrainingProgress(self.recipe, position) as progress:
            for index in range(position.phase, len(self.recipe.phases)):
                phase = self.recipe.phases[index]
                self._enter(phase, separator)
                if watch is not None and (index, position.step) == (0, 0):
                    watch.observe(index, 0)
                for step in range(position.step if index == position.phase else 0, phase.steps):
                    started = time.perf_counter()
                    loss = self._step(phase, step, mixtures[index])
                    position.phase, position.step = index, step + 1
                    saving = position.step in phase.save
                    if saving:
                        row = self._checkpoint(index, position.step, texts)
                        position.checkpoints.append(row)
                        names = [f"checkpoints/{row['name']}/{name}" for name in (CONFIG, WEIGHTS)]
                        position.files |= {name: file_fingerprint(self.output / name) for name in names}
                        logger.info(_line(row))
                    position.seconds += time.perf_counter() - started
                    if watch is not None:
                        watch.observe(index, position.step)
                    if saving or position.step % self.recipe.state_every == 0:
                        save_state(self.state_path, self.model, self.optimizer, position, self.identity)
                    progress.advance(phase, position.step, loss)
        return position

    def _enter(self, phase: Phase, separator: int) -> None:
        """Give the model the context and the wavelengths of a phase; weights stay."""
        self.model.config = config = phase_config(self.recipe, phase, separator)
        for module in self.model.modules():
            if hasattr(module, "config"):
                module.config = config
        rotary = self.model.model.rotary_emb
        self.model.model.rotary_emb = type(rotary)(config).to(self.device)

    def _step(self, phase: Phase, step: int, mixture: Mixture) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = phase.rate(step)
        loss = token_losses(self.model, torch.from_numpy(mixture.batch(step)).to(self.device)).mean()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def _checkpoint(self, index: int, step: int, texts: Sequence[Tokens]) -> dict[str, Any]:
        """Write a checkpoint and return its row of the record; its loss is that of the rounded weights as written."""
        phase = self.recipe.phases[index]
        number = self.recipe.first_step(index) + step
        name = f"{phase.name}-step-{number}"
        folder = self.output / "checkpoints" / name
        rounded = {key: value.to(torch.bfloat16) for key, value in self.model.state_dict().items()}
        written = SmolLM3ForCausalLM(self.model.config).to(self.device).eval()
        written.load_state_dict(rounded)
        config = self.model.config.to_dict() | {"architectures": ["SmolLM3ForCausalLM"], "dtype": "bfloat16"}
        write_text(folder / CONFIG, json.dumps(config, indent=1) + "\n")
        del rounded["lm_head.weight"]  # tied to the embeddings
        with atomic_path(folder / WEIGHTS) as temporary:
            save_file(rounded, temporary, metadata={"format": "pt"})
        return {
            "name": name,
            "label": f"{phase.label}-{number}",
            "phase": phase.title,
            "step": number,
            "context": phase.context,
            "rope_theta": phase.rope_theta,
            "heldout_loss": round(heldout_loss(written, texts, phase.context, self.recipe.longest), 4),
        }


def _optimizer(recipe: Recipe, model: Any) -> torch.optim.AdamW:
    embeddings = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for parameter in model.parameters():
        (free if parameter.ndim < 2 or id(parameter) in embeddings else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": recipe.optimizer.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=recipe.optimizer.betas, fused=True)


def _line(row: dict[str, Any]) -> str:
    return f"{row['name']}: held-out loss {row['heldout_loss']:.4f} at context {row['context']}"


def _verdict(checkpoints: Sequence[dict[str, Any]]) -> str:
    """One sentence: whether the held-out loss fell from each checkpoint of a phase to the next."""
    for before, after in pairwise(checkpoints):
        if before["phase"] == after["phase"] and after["heldout_loss"] >= before["heldout_loss"]:
            return f"held-out loss did NOT fall from {before['name']} to {after['name']}: train longer or slower"
    return "held-out loss fell within every phase that has several checkpoints"
