"""Proof, on the very model, that the tap sees the vectors that attention uses and changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ropewalk.models.probe import probe_tokens, read_layout
from ropewalk.models.tap import Call, replaced_attention, tap

TOKENS = 24


@dataclass(frozen=True)
class Finding:
    """The outcome of one check."""

    check: str
    passed: bool
    detail: str


@torch.inference_mode()
def examine(model: nn.Module) -> list[Finding]:
    """Run all checks on a model; the forward passes take a few tokens each."""
    layout = read_layout(model)
    calls = f"{len(layout.layers)} attention layers of {layout.depth}"
    return [Finding("attention goes through the registry", True, calls), *_checks(model)]


def _checks(model: nn.Module) -> Iterator[Finding]:
    tokens = probe_tokens(model, TOKENS)
    plain = _logits(model, tokens)
    seen: list[Call] = []
    with tap(model, seen.append):
        tapped = _logits(model, tokens)
    yield Finding("logits with and without the tap are identical", torch.equal(plain, tapped), "bit for bit")
    after = _logits(model, tokens)
    yield Finding("the registry is as it was before", torch.equal(plain, after), "logits after the tap was taken away")
    worst, where, compared = _worst_recomputation(model, tokens)
    tolerance = 1e-4 if seen[0].query.dtype == torch.float32 else 5e-2
    yield Finding(
        "softmax(qkᵀ)v from the tapped tensors is the attention output",
        compared > 0 and worst < tolerance,
        f"largest relative difference {worst:.1e} (call {where}), {compared} calls compared, limit {tolerance:.0e}",
    )
    still = [number for number in range(len(seen)) if torch.equal(_with_moved_key(model, tokens, number), plain)]
    yield Finding(
        "moving the tapped key moves the logits",
        not still,
        "in every layer" if not still else f"not in attention calls {still}",
    )


def _logits(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits.clone()


def _worst_recomputation(model: nn.Module, tokens: torch.Tensor) -> tuple[float, int, int]:
    """Recompute each call's output from q, k, v by hand; (largest relative difference, its call, calls compared)."""
    differences: list[float] = []

    def wrap(original: Any) -> Any:
        def compared(module: nn.Module, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
            result = original(module, query, key, value, *args, **options)
            if query.shape[2] == key.shape[2]:
                mask = args[0] if args else options.get("attention_mask")
                expected = recompute(module, query, key, value, mask, options)
                output = _wide(result[0]).reshape(expected.shape)
                differences.append(float((output - expected).abs().max() / expected.abs().max().clamp_min(1e-12)))
            return result

        return compared

    with replaced_attention(model, wrap):
        _logits(model, tokens)
    worst = max(range(len(differences)), key=differences.__getitem__) if differences else -1
    return (differences[worst] if differences else float("nan")), worst, len(differences)


def recompute(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, options: dict[str, Any]) -> torch.Tensor:
    """softmax(scale · qkᵀ + mask) v in float64, [batch, tokens, heads, d], with a model's sinks, soft caps and biases.

    Without a mask the attention is causal, within the sliding window if there is one.
    """
    q, k, v = _wide(query), _wide(key), _wide(value)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scale = options.get("scaling")
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if options.get("softcap"):
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    if options.get("position_bias") is not None:
        scores = scores + _wide(options["position_bias"])
    count = q.shape[2]
    if mask is None:
        causal = options.get("is_causal")
        if causal if causal is not None else getattr(module, "is_causal", True):
            near = torch.ones(count, count, dtype=torch.bool, device=q.device).tril()
            window = options.get("sliding_window")
            scores = scores.masked_fill(~(near.triu(1 - window) if window else near), -torch.inf)
    elif mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask[..., :count].cpu(), -torch.inf)
    else:
        scores = scores + _wide(mask[..., :count])
    sinks = options.get("s_aux")
    sinks = getattr(module, "sinks", None) if sinks is None else sinks
    if sinks is not None:
        column = _wide(sinks).reshape(1, -1, 1, 1).expand(q.shape[0], -1, count, 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    output: torch.Tensor = (weights @ v).transpose(1, 2)
    return output


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float64 on the CPU: not every device has it."""
    return tensor.cpu().double()


def _with_moved_key(model: nn.Module, tokens: torch.Tensor, number: int) -> torch.Tensor:
    """Logits when the key of one attention call is changed in place under the tap."""
    call_index = -1

    def move(call: Call) -> None:
        nonlocal call_index
        call_index += 1
        if call_index == number:
            # A common factor would leave a softmax over one key alone; noise moves every score.
            noise = torch.linspace(-1, 1, call.key.numel(), device=call.key.device).reshape(call.key.shape)
            call.key.add_((noise * call.key.abs().mean()).to(call.key.dtype))

    with tap(model, move):
        return _logits(model, tokens)
