"""Proof, on the very model, that the vectors the tap sees are those that attention uses.

Every capture begins with it: two forward passes over a few tokens, the second under the tap, where each attention call
is computed again by hand, softmax(scale · qkᵀ + mask) v in float64, from the tapped query, key and value.

The model's own attention function is held to that result in float32, whatever type the model runs in: a call in half
precision is made a second time with its tensors (and those of its options) converted to float32, so that the limit can
be narrow enough for a wrong scale, mask, window, sink or soft cap of one percent to show. No weight is converted, so
this costs a few tokens' tensors and not a second model. What half precision itself adds is said apart.

A score is a sum of d products, which float32 knows to about eps · Σ|qᵢkᵢ| · scale, and a softmax weight is as far off
as its score: where scores are large (as with large biases) that, and not 1e-5, is what a faultless function keeps.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask

from ropewalk.errors import RopewalkError
from ropewalk.models.device import name_of
from ropewalk.models.probe import position_limit, probe_tokens
from ropewalk.models.recomputation import recompute, score_size, wide
from ropewalk.models.tap import AttentionFunction, Call, replaced_attention, tap

TOKENS = 24
LIMIT = 1e-5
"""Largest relative difference in float32, where rounding does not make it larger."""
HALF_LIMIT = 5e-2
"""The same in half precision: too wide to prove much, but not for another function than in float32."""
UNPROVEN = "could not be proven"

IDENTICAL = "logits with and without the tap are identical"
RECOMPUTED = "softmax(qkᵀ)v from the tapped tensors is the attention output"

KNOWN = frozenset({"attention_mask", "position_bias", "position_ids", "s_aux"})
"""Tensors among the options of attention that are recomputed, or that attention does not read."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; `passed` is None where it could not be made."""

    check: str
    passed: bool | None
    detail: str


@dataclass(frozen=True)
class Proof:
    """The findings, and the numbers of the recomputation.

    `difference` is the largest relative difference of the `compared` calls, found in `dtype`, beside the `limit` for
    its call; `added` is what computing in half precision (`half`) adds to it, None where the model does not.
    """

    findings: tuple[Finding, ...]
    tokens: int
    calls: int
    compared: int
    dtype: str | None
    difference: float | None
    limit: float | None
    half: str | None
    added: float | None

    @property
    def outcome(self) -> str:
        """`proven`, `failed` or `could not be proven`."""
        passed = [finding.passed for finding in self.findings]
        return "failed" if False in passed else "proven" if all(passed) else UNPROVEN

    @property
    def open(self) -> str:
        """What could not be proven, and why."""
        return "; ".join(f"{one.check}: {one.detail}" for one in self.findings if one.passed is None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        data = asdict(self)
        return {"outcome": self.outcome, "checks": list(data.pop("findings")), **data}

    def check(self, label: str) -> None:
        """Stop with a sentence where a check failed."""
        for finding in self.findings:
            if finding.passed is False:
                raise RopewalkError(
                    f"what would be captured of {label!r} is not what its attention uses: it is not true that "
                    f"{finding.check} ({finding.detail}); see `ropewalk doctor`, or set another `attention`"
                )


@torch.inference_mode()
def prove(model: nn.Module) -> Proof:
    """Compare a short input's logits with and without the tap, and every attention output with its recomputation."""
    tokens = probe_tokens(model, min(TOKENS, position_limit(model)))
    shown: list[Call] = []
    found: list[_Comparison] = []

    def wrap(original: AttentionFunction) -> AttentionFunction:
        def comparing(module: nn.Module, query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
            result = original(module, query, key, value, *args, **options)
            if shown:
                found.append(_compare(original, shown.pop(), result[0], args, options))
            return result

        return comparing

    with _full_float32():
        plain = logits(model, tokens)
        # The tap stands outside: it is shown a call first, and the comparison has what it was shown.
        with replaced_attention(model, wrap), tap(model, shown.append):
            tapped = logits(model, tokens)
    return _judged(_identical(model, tokens, plain, tapped), found, tokens.shape[1])


def logits(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """What a model answers: its logits, or the hidden states of one without a vocabulary projection."""
    output = model(input_ids=tokens, use_cache=False)
    found: torch.Tensor = output.logits if hasattr(output, "logits") else output[0]
    return found.clone()


@dataclass(frozen=True)
class _Comparison:
    """One attention output beside its recomputation: relative differences and their limits; or why there is none.

    `half` is the type of the model's own call where that is not the one of `difference`.
    """

    difference: float = 0.0
    limit: float = LIMIT
    dtype: torch.dtype = torch.float32
    half: torch.dtype | None = None
    added: float = 0.0
    added_limit: float = HALF_LIMIT
    obstacle: str = ""

    @property
    def excess(self) -> float:
        """The larger of both differences, in units of their limits."""
        return max(self.difference / self.limit, self.added / self.added_limit)


def _compare(
    original: AttentionFunction, call: Call, output: torch.Tensor, args: tuple[Any, ...], options: dict[str, Any]
) -> _Comparison:
    mask = call.options.get("attention_mask")
    if not isinstance(mask, torch.Tensor | BlockMask | None):
        return _Comparison(obstacle=f"its mask is a {type(mask).__name__}")
    expected = recompute(call.module, call.query, call.key, call.value, call.options)
    if output.numel() != expected.numel():
        return _Comparison(obstacle=f"its output has the shape {list(output.shape)}")
    if not expected.isfinite().all():
        return _Comparison(obstacle="its vectors are not finite")
    size = score_size(call.query, call.key, options)
    dtype = call.query.dtype

    def difference(found: torch.Tensor) -> float:
        distance = float((wide(found).reshape(expected.shape) - expected).abs().max())
        return distance / max(float(expected.abs().max()), 1e-12) if isfinite(distance) else inf

    def limit(kind: torch.dtype) -> float:
        return max(LIMIT if kind.itemsize > 2 else HALF_LIMIT, torch.finfo(kind).eps * size)

    if dtype.itemsize > 2:
        comparison = _Comparison(difference(output), limit(torch.float32), dtype)
    else:
        single = _in_float32(original, call, args, options)
        own = difference(output)
        comparison = (
            _Comparison(own, limit(dtype), dtype)
            if single is None
            else _Comparison(difference(single), limit(torch.float32), half=dtype, added=own, added_limit=limit(dtype))
        )
    unknown = [name for name, value in options.items() if isinstance(value, torch.Tensor) and name not in KNOWN]
    # A difference that something unknown may explain is no fault of the tap.
    if unknown and comparison.excess >= 1:
        return _Comparison(obstacle=f"it is given {', '.join(unknown)}, of which the recomputation does not know")
    return comparison


def _in_float32(
    original: AttentionFunction, call: Call, args: tuple[Any, ...], options: dict[str, Any]
) -> torch.Tensor | None:
    """The output of an attention function for a call's tensors in float32; None of one that has no float32."""

    def converted(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    tensors = map(converted, (call.query, call.key, call.value, *args))
    try:
        output = original(call.module, *tensors, **{name: converted(value) for name, value in options.items()})[0]
    # Kernels that know half precision alone say so, or convert what they are given.
    except RuntimeError:
        return None
    return output if output.dtype == torch.float32 else None


def _identical(model: nn.Module, tokens: torch.Tensor, plain: torch.Tensor, tapped: torch.Tensor) -> Finding:
    if _same_bits(plain, tapped):
        return Finding(IDENTICAL, True, "bit for bit")
    # Some kernels add in another order each time (as those of experts on a GPU do): then no pass equals another.
    if not _same_bits(plain, logits(model, tokens)):
        return Finding(IDENTICAL, None, f"{UNPROVEN}: two passes without the tap differ too")
    largest = float((wide(plain) - wide(tapped)).abs().max())
    return Finding(IDENTICAL, False, f"they differ by up to {largest:.1e}")


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits; unlike numbers, those of a NaN are equal to themselves."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _judged(identical: Finding, found: list[_Comparison], tokens: int) -> Proof:
    compared = [one for one in found if not one.obstacle]
    obstacle = next((f"call {number}: {one.obstacle}" for number, one in enumerate(found) if one.obstacle), "")
    if not compared:
        reason = obstacle or "no attention call has as many queries as keys"
        findings = (identical, Finding(RECOMPUTED, None, f"{UNPROVEN}: {reason}"))
        return Proof(findings, tokens, len(found), 0, None, None, None, None, None)
    worst = max(compared, key=lambda one: one.excess)
    half = name_of(worst.half) if worst.half is not None else None
    added = max(one.added for one in compared) if half is not None else None
    detail = (
        f"largest relative difference {worst.difference:.1e} (call {found.index(worst)}), "
        f"{len(compared)} calls compared, limit {worst.limit:.0e}"
    )
    if half is not None:
        detail += f", in float32; {half} adds {added:.1e}"
        detail += f", limit {worst.added_limit:.0e}" if worst.added >= worst.added_limit else ""
    elif worst.dtype.itemsize <= 2:
        detail += f", in {name_of(worst.dtype)}, as the attention function has no float32"
    passed: bool | None = worst.excess < 1
    if passed and len(compared) < len(found):
        passed, detail = None, f"{UNPROVEN} of {len(found) - len(compared)} calls ({obstacle}); of the others: {detail}"
    return Proof(
        (identical, Finding(RECOMPUTED, passed, detail)),
        tokens,
        len(found),
        len(compared),
        name_of(worst.dtype),
        worst.difference,
        worst.limit,
        half,
        added,
    )


@contextmanager
def _full_float32() -> Iterator[None]:
    """While the block runs, float32 products are not rounded to fewer bits, even where somebody allowed it."""
    backends: Any = torch.backends
    before = [(part, part.fp32_precision) for part in (backends.cuda.matmul, backends.mkldnn.matmul)]
    try:
        for part, _ in before:
            part.fp32_precision = "ieee"
        yield
    finally:
        for part, precision in before:
            part.fp32_precision = precision
