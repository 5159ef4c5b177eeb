"""The examination of a model: the proof that every capture makes, and what takes a forward pass for each layer."""

from collections.abc import Iterator

import torch
from torch import nn

from ropewalk.models.probe import probe_tokens, read_layout
from ropewalk.models.proof import Finding, Proof, logits, prove
from ropewalk.models.tap import Call, tap


@torch.inference_mode()
def examine(model: nn.Module) -> list[Finding]:
    """Run all checks on a model; the forward passes take a few tokens each."""
    layout = read_layout(model)
    calls = f"{len(layout.layers)} attention layers of {layout.depth}"
    proof = prove(model)
    return [Finding("attention goes through the registry", True, calls), *proof.findings, *_further(model, proof)]


def _further(model: nn.Module, proof: Proof) -> Iterator[Finding]:
    tokens = probe_tokens(model, proof.tokens)
    plain = logits(model, tokens)
    with tap(model, lambda _: None):
        logits(model, tokens)
    same = torch.equal(plain, logits(model, tokens))
    repeatable = proof.findings[0].passed is not None
    yield Finding(
        "the registry is as it was before",
        same or (False if repeatable else None),
        "logits after the tap was taken away",
    )
    still = [number for number in range(proof.calls) if torch.equal(_with_moved_key(model, tokens, number), plain)]
    yield Finding(
        "moving the tapped key moves the logits",
        not still,
        "in every layer" if not still else f"not in attention calls {still}",
    )


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
        return logits(model, tokens)
