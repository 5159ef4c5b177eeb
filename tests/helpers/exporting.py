"""Small models of every way to rotate, what was measured of them, and their vectors turned back by hand."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

import ropewalk
from helpers.model_types import tiny_model
from helpers.tiny import tiny_smollm3
from ropewalk.models.tap import Call, tap

CONTEXT, DOCUMENTS, SHARDS = 48, 6, 3
FULL = {"moments": {}, "frame": {"full": True}, "behaviour": {}}


@dataclass(frozen=True)
class Case:
    """A model type, as its configuration means it: rotated dimensions, how pairs lie, layers that do not rotate."""

    model_type: str
    rotated: int
    interleaved: bool
    nope: tuple[int, ...] = ()
    head_dim: int = 8

    def model(self) -> Any:
        """A random model whose queries and keys have a constant part, unlike those of random weights alone."""
        torch.manual_seed(5)
        biased = {} if self.model_type == "gpt_neox" else {"attention_bias": True}
        make = partial(tiny_model, self.model_type)
        model = (partial(tiny_smollm3, num_hidden_layers=4) if self.model_type == "smollm3" else make)(**biased)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name, weights in model.named_parameters():
                if any(part in name for part in ("q_proj.weight", "k_proj.weight", "query_key_value.weight")):
                    weights.copy_(0.4 * torch.randn(weights.shape, generator=generator))
                if any(part in name for part in ("q_proj.bias", "k_proj.bias", "query_key_value.bias")):
                    weights.copy_(torch.randn(weights.shape, generator=generator))
                if name.endswith(("q_norm.weight", "k_norm.weight")):
                    weights.copy_(0.5 + torch.rand(weights.shape, generator=generator))
        return model.eval()

    def pairs(self) -> tuple[list[int], list[int]]:
        count = self.rotated // 2
        if self.interleaved:
            return [2 * i for i in range(count)], [2 * i + 1 for i in range(count)]
        return list(range(count)), [i + count for i in range(count)]

    def turned_back(self, x: np.ndarray, layer: int, theta: float) -> np.ndarray:
        """Vectors [documents, tokens, d] before their rotation, token by token, in float64."""
        if layer in self.nope:
            return x
        first, second = self.pairs()
        frequencies = theta ** (-2 * np.arange(len(first)) / self.rotated)
        turned = x.copy()
        for t in range(x.shape[1]):
            z = (x[:, t, first] + 1j * x[:, t, second]) * np.exp(-1j * frequencies * t)
            turned[:, t, first], turned[:, t, second] = z.real, z.imag
        return turned


CASES = {
    "full": Case("llama", 8, False),
    "partial": Case("gpt_neox", 2, False),
    "partial and interleaved": Case("glm", 4, True),
    "interleaved, with NoPE layers": Case("cohere2", 8, True, (3,)),
    "NoPE layers": Case("smollm3", 16, False, (3,), 16),
    "QK-norm": Case("qwen3", 8, False),
}


def documents(seed: int = 0, count: int = DOCUMENTS, context: int = CONTEXT) -> list[list[int]]:
    found: list[list[int]] = np.random.default_rng(seed).integers(3, 60, (count, context)).tolist()
    return found


def measured(model: Any, count: int = DOCUMENTS, **options: Any) -> ropewalk.Results:
    chosen = {"statistics": FULL, "shards": SHARDS, **options}
    return ropewalk.measure(model, documents(count=count), context=CONTEXT, **chosen)


def tapped(model: Any, rows: list[list[int]]) -> list[Call]:
    """All attention calls of a forward pass over rows of tokens."""
    found: list[Call] = []
    with torch.inference_mode(), tap(model, found.append):
        model(input_ids=torch.tensor(rows), use_cache=False)
    return found


def vectors(call: Call, kind: str) -> np.ndarray:
    """[heads, documents, tokens, d] in float64."""
    return (call.query if kind == "q" else call.key).transpose(0, 1).double().numpy()


def theta_of(model: Any) -> float:
    return float(model.config.rope_parameters["rope_theta"])
