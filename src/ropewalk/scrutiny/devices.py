"""Does a device compute what the CPU does? What a capture needs of it, tried on the machine that has it."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ropewalk.capture.collector import Collection, collect
from ropewalk.capture.shards import ShardSums
from ropewalk.errors import RopewalkError
from ropewalk.geometry.moments import Moments
from ropewalk.geometry.pca import combined_pca
from ropewalk.models.device import choose_device, memory_of, name_of
from ropewalk.models.loading import load_model
from ropewalk.models.probe import position_limit, read_layout, text_config
from ropewalk.models.proof import Finding, prove
from ropewalk.models.rotary import with_rotary
from ropewalk.models.source import ModelSource
from ropewalk.statistics.base import Observation, Scope, Statistic
from ropewalk.statistics.precision import products_in
from ropewalk.statistics.registry import build
from ropewalk.statistics.stream import MomentStream
from ropewalk.study import Capture
from ropewalk.text import one_line, size

OFFSETS, WITHIN_R = (0.0, 10.0, 1000.0), 1e-6
"""Means of the vectors of the oracle, in units of their spread, and how far r may be off."""
LIMITS = {"float32": 1e-3, "bfloat16": 0.2}
"""Largest difference from the CPU's sums in float32, as a share of the largest number of an array, by type.

Float32 is known to add in another order on each device, bfloat16 to have three digits: its limit tells another function
and no more.
"""
DOCUMENTS, CONTEXT = 4, 256
STATISTICS = (*Capture().statistics, "sample")
IMPOSSIBLE = 1 << 60
"""Bytes that no device has."""


def examine_device(name: str, source: ModelSource) -> Iterator[Finding]:
    """Try a device with a model, check by check; a device that is not there is an error.

    The same short documents are captured on the CPU in float32, and on the device in float32 and bfloat16.
    """
    device = choose_device(name)
    yield Finding("the device is there", True, _described(device))
    yield _float64(device)
    yield _moments(device)
    model = _loaded(source, "cpu", "float32")
    tokens = _tokens(model)
    expected = _captured(model, tokens)
    for dtype in LIMITS:
        # One model at a time: they may be large.
        del model
        try:
            model = _loaded(source, name, dtype)
            yield from (Finding(f"in {dtype}, {one.check}", one.passed, one.detail) for one in prove(model).findings)
            found = _captured(model, tokens)
        # Each backend lacks something else, and says so in its own way.
        except (RuntimeError, TypeError, RopewalkError) as error:
            yield Finding(f"a capture in {dtype} runs", False, one_line(error, 200))
            return
        apart, where = _apart(found, expected)
        yield Finding(
            f"a capture in {dtype} is that of the CPU in float32",
            apart <= LIMITS[dtype],
            f"sums of {', '.join(STATISTICS)} within {apart:.1e}{where}, limit {LIMITS[dtype]:.0e}",
        )
        if dtype == "float32":
            yield _recovery(model, tokens)


def _described(device: torch.device) -> str:
    there = memory_of(device)
    facts = [str(device), *([] if there is None else [size(there)]), f"torch {torch.__version__}"]
    if device.type == "cuda":
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        facts.insert(1, f"{torch.cuda.get_device_name(device)}, compute capability {capability}")
    return ", ".join(facts)


def _float64(device: torch.device) -> Finding:
    """How fast float64 is, and what moments are multiplied in for that."""
    chosen = name_of(products_in(device))
    try:
        ratio = _seconds(device, torch.float64) / _seconds(device, torch.float32)
        speed = f"float64 takes {ratio:.1f} times as long as float32"
    # A backend without float64 refuses to make a tensor of it, each with an error of its own.
    except (RuntimeError, TypeError):
        speed = "there is no float64"
    missing = speed.startswith("there") and chosen == "float64"
    return Finding("moments are multiplied in a type that the device has", not missing, f"{speed}; in {chosen}")


def _seconds(device: torch.device, dtype: torch.dtype) -> float:
    """The least time of some products of matrices, waited for by reading a number of the result."""
    a = torch.ones(512, 512, dtype=dtype, device=device)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        float((a @ a @ a @ a)[0, 0])
        times.append(time.perf_counter() - start)
    return min(times)


def _moments(device: torch.device) -> Finding:
    """r of vectors that drift, by the sums of the device and by NumPy's in float64."""
    worst = 0.0
    for offset in OFFSETS:
        q, k = (_drifting(seed, offset) for seed in (0, 1))
        found = combined_pca(_streamed(q, device), _streamed(k, device))
        expected = combined_pca(_by_numpy(q), _by_numpy(k))
        for one, other in ((found.r_q, expected.r_q), (found.r_k, expected.r_k)):
            worst = max(worst, float(np.abs(one - other).max()))
    return Finding(
        "moments are those of the CPU in float64",
        worst <= WITHIN_R,
        f"r within {worst:.1e}, limit {WITHIN_R:.0e}, of vectors with means up to {OFFSETS[-1]:.0f} times their spread",
    )


def _drifting(seed: int, offset: float) -> NDArray[np.float32]:
    """Vectors [documents, heads, tokens, d] with a falling spectrum that drift through their documents."""
    generator = np.random.default_rng(seed)
    scale = np.exp(-np.arange(32) / 8)
    drift = np.linspace(0, 1, 1500)[:, None] * generator.normal(size=(1, 3, 1, 32)) * scale
    return (generator.normal(size=(4, 3, 1500, 32)) * scale + drift + offset).astype(np.float32)


def _streamed(x: NDArray[np.float32], device: torch.device) -> Moments:
    stream = MomentStream()
    stream.update(torch.from_numpy(x).to(device), torch.arange(x.shape[2]))
    return stream.result()


def _by_numpy(x: NDArray[np.float32]) -> Moments:
    positions = np.tile(np.arange(x.shape[2], dtype=np.float64), len(x))
    return Moments.of(np.concatenate(list(x), axis=1).astype(np.float64), positions)


def _loaded(source: ModelSource, device: str, dtype: str) -> nn.Module:
    return load_model(source.model_copy(update={"device": device, "device_map": None, "dtype": dtype}))


def _tokens(model: nn.Module) -> NDArray[np.int32]:
    vocabulary = int(getattr(text_config(model), "vocab_size", 32) or 32)
    shape = (DOCUMENTS, min(CONTEXT, position_limit(model)))
    return np.random.default_rng(0).integers(min(3, vocabulary - 1), vocabulary, size=shape).astype(np.int32)


def _captured(
    model: nn.Module, tokens: NDArray[np.int32], batch: int = DOCUMENTS, more: Sequence[Statistic] = ()
) -> ShardSums:
    context = tokens.shape[1]
    layout = with_rotary(model, read_layout(model), context)
    statistics = [*build({name: {} for name in STATISTICS}), *more]
    scope = Scope(context=context, documents=len(tokens), bucket_size=max(1, context // 16))
    return collect(model, Collection(layout, layout.heads(), statistics, scope), tokens, batch=batch)


def _apart(found: ShardSums, expected: ShardSums) -> tuple[float, str]:
    """The largest difference of two captures, as a share of the largest number of an array, and where it is."""
    worst, where = 0.0, ""
    for (statistic, layer), arrays in expected.items():
        for name, array in arrays.items():
            other, largest = found[statistic, layer][name], float(np.abs(array).max(initial=0))
            same = other.shape == array.shape
            apart = float(np.abs(other - array).max(initial=0)) / (largest or 1.0) if same else np.inf
            if apart > worst:
                worst, where = apart, f" ({statistic} of layer {layer})"
    return worst, where


def _recovery(model: nn.Module, tokens: NDArray[np.int32]) -> Finding:
    """A capture during which the device refuses memory, twice, against one that asked for little from the start."""
    refused: list[BaseException] = []

    class Greedy(Statistic):
        """Asks for more memory than there is wherever more than one document is seen, in the last layer of all."""

        name = "greedy"

        def observe(self, seen: Observation) -> dict[str, torch.Tensor]:
            if len(seen.documents) > 1:
                try:
                    torch.empty(IMPOSSIBLE, dtype=torch.uint8, device=seen.query.device)
                except Exception as error:
                    refused.append(error)
                    raise
            return {}

    check = "a capture goes on where memory runs out"
    little = _captured(model, tokens, 1)
    try:
        found = _captured(model, tokens, DOCUMENTS, [Greedy()])
    except Exception as error:
        if not refused or error is not refused[-1]:
            raise
        return Finding(check, False, f"this is not taken for it: {one_line(error, 200)}")
    # Some kernels add in another order each time; documents that count twice are no matter of order.
    apart, where = _apart(found, little)
    return Finding(
        check,
        bool(refused) and apart <= LIMITS["float32"],
        f"memory was refused on purpose {len(refused)} times; sums are within {apart:.1e}{where} of those without",
    )
