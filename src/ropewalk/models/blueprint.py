"""A model without memory: built from its configuration alone, to see whether it can be built and filled at all."""

import copy
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.modeling_utils import str_to_torch_dtype

from ropewalk.errors import RopewalkError
from ropewalk.fingerprint import fingerprint
from ropewalk.models.classes import auto_class, quiet
from ropewalk.models.device import machine_memory
from ropewalk.models.documents import is_kernel
from ropewalk.models.source import ModelSource
from ropewalk.models.weights import Header
from ropewalk.text import one_line, size

KEPT = 8
"""Blueprints that are remembered: checkpoints of one series share one."""


class CannotBuildError(Exception):
    """transformers cannot make a model of a configuration; the message is its reason."""


_known: dict[str, nn.Module] = {}
_reports: dict[str, dict[str, Any] | None] = {}


def blueprint(source: ModelSource, config: Any) -> nn.Module:
    """The model of a configuration on the meta device, where weights take no memory.

    Raises `CannotBuildError` for a configuration of which nothing can be built, and a sentence for an attention that
    is not there.
    """
    check_attention(source)
    values = config.to_dict()
    if not source.trust_remote_code:
        # Where it was read does not matter, unless code stands there too.
        values.pop("_name_or_path", None)
    attention = source.attention or getattr(config, "_attn_implementation", None)
    key = fingerprint([values, type(config).__name__, attention, source.trust_remote_code])
    if key not in _known:
        options = {"attn_implementation": source.attention} if source.attention else {}
        try:
            with quiet(), torch.device("meta"):
                # Building may change the configuration.
                model = auto_class(config).from_config(
                    copy.deepcopy(config), trust_remote_code=source.trust_remote_code, **options
                )
        except ImportError as error:
            raise RopewalkError(_attention_refused(source, error)) from error
        # A configuration can say anything, and each architecture fails at it in its own way; nothing of this project
        # runs in here.
        except Exception as error:
            raise CannotBuildError(one_line(error, 200)) from error
        while len(_known) >= KEPT:
            del _known[next(iter(_known))]
        _known[key] = model
    return _known[key]


def check_attention(source: ModelSource) -> None:
    """Refuse the name of an attention that transformers does not have, or would fetch from elsewhere."""
    name = source.attention
    known = ["eager", *(name for name in AttentionInterface().valid_keys() if "|" not in name)]
    if name is None or name in known:
        return
    if is_kernel(name):
        raise RopewalkError(
            f"attention {one_line(name, 100)!r} of {source.label!r} is code on the hub, which is not run: "
            f"choose among {', '.join(known)}"
        )
    near = get_close_matches(name, known, 2)
    advice = f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose among {', '.join(known)}"
    raise RopewalkError(f"attention {one_line(name, 100)!r} of {source.label!r} is not known to transformers: {advice}")


def _attention_refused(source: ModelSource, error: Exception) -> str:
    reason = one_line(error, 200)
    if source.attention:
        return (
            f"attention {source.attention!r} of {source.label!r} cannot be used here ({reason}): install what it "
            "needs, or leave `attention` out"
        )
    return f"{source.label!r} needs what is not installed ({reason}): install it, or name another `attention`"


def check_fits_memory(source: ModelSource, model: nn.Module, dtype: torch.dtype) -> None:
    """Stop at a model whose weights are larger than the memory of this machine: the system would end the process."""
    needed, there = sum(one.numel() for one in model.parameters()) * dtype.itemsize, machine_memory()
    if source.device_map is None and there is not None and needed > there:
        raise RopewalkError(
            f"the weights of {source.label!r} need {size(needed)} and the memory of this machine is {size(there)}: "
            "set a smaller `dtype`, or a `device_map`, or correct its configuration"
        )


def check_fits_gguf(source: ModelSource, model: nn.Module, elements: int) -> None:
    """Stop at a GGUF file with far fewer numbers than its configuration asks for, before memory is given to them."""
    asked = sum(one.numel() for one in model.parameters())
    if asked > 2 * elements:
        raise RopewalkError(
            f"{source.gguf_file} of {source.repo} holds {elements:,} numbers and describes a model of {asked:,}: it is "
            "damaged or incomplete, fetch it again"
        )


def loading_report(model: nn.Module, config: Any, headers: Sequence[Header]) -> dict[str, Any] | None:
    """What transformers would report of loading tensors of these names and shapes, without reading any.

    None where it cannot be told: then loading tells it.
    """
    if getattr(config, "quantization_config", None) is not None:
        return None
    # The checkpoints of a series hold the same tensors with other values.
    key = fingerprint([config.to_dict() | {"_name_or_path": ""}, headers])
    if key not in _reports:
        while len(_reports) >= KEPT:
            del _reports[next(iter(_reports))]
        _reports[key] = _report(model, config, headers)
    return _reports[key]


def _report(model: nn.Module, config: Any, headers: Sequence[Header]) -> dict[str, Any] | None:
    try:
        state = {
            name: torch.empty(shape, dtype=str_to_torch_dtype[dtype], device="meta")
            for header in headers
            for name, dtype, shape in header
        }
        with quiet():
            _, report = type(model).from_pretrained(  # type: ignore[attr-defined]
                None,
                config=copy.deepcopy(config),
                state_dict=state,
                device_map={"": "meta"},
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    # transformers' own machinery with tensors that hold nothing: what fails here may still load.
    except Exception:
        return None
    return dict(report)
