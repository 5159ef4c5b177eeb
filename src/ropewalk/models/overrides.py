"""Changing a model's configuration before it is built: what a study's `overrides` mean."""

import math
from difflib import get_close_matches
from typing import Any

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters

from ropewalk.errors import RopewalkError
from ropewalk.models.documents import check_counts, walked
from ropewalk.text import cut, one_line, printable

KEPT = ("rope_theta", "partial_rotary_factor", "mrope_section")
"""What of RoPE's parameters is not scaling, and stays when `rope_scaling` changes."""

SIZES = ("num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
POSITIVE = (*SIZES, "num_hidden_layers", "intermediate_size", "vocab_size", "max_position_embeddings")
LARGEST_THETA = 1e30
"""Beyond it the angles are zero in the type they are computed in."""

ELSEWHERE = {
    "model_type": "it is what the model is",
    "architectures": "it is what the model is",
    "auto_map": "code is taken from the repository, with `trust_remote_code`",
    "transformers_weights": "weights have the names they usually have",
    "quantization_config": "the weights are what they are",
    "dtype": "set `dtype` of the checkpoint",
    "torch_dtype": "set `dtype` of the checkpoint",
    "attn_implementation": "set `attention` of the checkpoint",
    "_attn_implementation": "set `attention` of the checkpoint",
    "_name_or_path": "set `repo` of the checkpoint",
    "name_or_path": "set `repo` of the checkpoint",
    "transformers_version": "it is of the one who saved the model",
}
"""Configuration values that a study sets by a field of its own, or not at all."""

LENGTH = "original_max_position_embeddings"


def apply_overrides(config: Any, overrides: dict[str, Any]) -> None:
    """Set configuration values of a (text) model in place.

    `rope_theta` and `rope_scaling` live in `rope_parameters`, once for all layers or once per kind of layer; a mapping
    from kinds (such as full_attention) to values changes those kinds alone. `rope_scaling: null` removes scaling.
    """
    positions = _trained_positions(config)
    known = set(config.to_dict()) | set(config.attribute_map)
    for key, value in overrides.items():
        _check_value(key, value)
        if key in ELSEWHERE:
            raise RopewalkError(f"overrides.{key} is not for `overrides`: {ELSEWHERE[key]}")
        if key in ("rope_theta", "rope_scaling"):
            _override_rope(config, key, value, positions)
        elif key not in known:
            near = get_close_matches(key, sorted((known | {"rope_theta", "rope_scaling"}) - ELSEWHERE.keys()), 1)
            advice = f"did you mean `{near[0]}`?" if near else "check its spelling"
            name = cut(printable(key), 100)
            raise RopewalkError(
                f"overrides.{name} is not in the configuration of a {config.model_type} model: {advice}"
            )
        else:
            try:
                setattr(config, key, value)
            # The configurations check themselves, each in its own way; nothing of this project runs in here.
            except Exception as error:
                raise RopewalkError(f"overrides.{key} is {_shown(value)}: {_reason(error)}") from error
    if overrides:
        _check_sizes(config, overrides)


def _check_value(key: str, value: Any) -> None:
    """Refuse numbers that are none, and counts of parts that would fill the memory."""
    numbers = [number for _, number in walked({key: value})]
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        raise RopewalkError(f"overrides.{key} is {_shown(value)}: it must be a finite number")
    check_counts({key: value}, "`overrides`")


def _check_sizes(config: Any, overrides: dict[str, Any]) -> None:
    """Refuse sizes that cannot be those of attention, by the name of the override that makes them so.

    Many models are built of such sizes all the same, and fail when they run.
    """
    for key in overrides:
        own = config.attribute_map.get(key, key)
        value = getattr(config, own, None)
        # What is null is worked out from the rest, or missed when the model is built.
        if own in POSITIVE and value is not None and _whole(config, own) is None:
            raise RopewalkError(f"overrides.{key} is {_shown(value)}: it must be a positive whole number")
        if own == "partial_rotary_factor" and not (isinstance(value, int | float) and 0 <= value <= 1):
            raise RopewalkError(f"overrides.{key} is {_shown(value)}: it must be a share, from 0 to 1")
    heads, keys, width, head = (_whole(config, name) for name in SIZES)
    size_set = next((key for key in overrides if config.attribute_map.get(key, key) in SIZES), None)
    if size_set is None:
        return
    if heads and keys and heads % keys:
        raise RopewalkError(
            f"overrides.{size_set} leaves {heads} query heads and {keys} key heads: the former must be a multiple of "
            "the latter"
        )
    if heads and width and not head and width % heads:
        raise RopewalkError(
            f"overrides.{size_set} leaves a hidden_size of {width} and {heads} heads: the former must be a multiple of "
            "the latter"
        )
    if head and head % 2 and getattr(config, "rope_parameters", None):
        raise RopewalkError(f"overrides.{size_set} leaves a head_dim of {head}: RoPE turns pairs, it must be even")


def _whole(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _override_rope(config: Any, key: str, value: Any, positions: int | None) -> None:
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or not parameters:
        raise RopewalkError(f"overrides.{key}: a {config.model_type} model has no RoPE to change")
    change = _changed_theta if key == "rope_theta" else _changed_scaling
    kinds = [kind for kind, part in parameters.items() if isinstance(part, dict)]
    if not kinds:
        config.rope_parameters = change(parameters, value, positions)
    else:
        values = value if isinstance(value, dict) and set(value) <= set(kinds) else dict.fromkeys(kinds, value)
        changed = {kind: change(parameters[kind], own, positions) for kind, own in values.items()}
        config.rope_parameters = {**parameters, **changed}
    try:
        config.validate_rope()
    # Each kind of scaling checks itself in its own way; nothing of this project runs in here.
    except Exception as error:
        raise RopewalkError(f"overrides.{key} is {_shown(value)}: {_reason(error)}") from error


def _changed_theta(parameters: dict[str, Any], value: Any, _: int | None) -> dict[str, Any]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_THETA:
        raise RopewalkError(f"overrides.rope_theta is {_shown(value)}: it must be a positive number, such as 10000.0")
    return {**parameters, "rope_theta": float(value)}


def _changed_scaling(parameters: dict[str, Any], value: Any, positions: int | None) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise RopewalkError(
            f"overrides.rope_scaling is {_shown(value)}: it must be a mapping, such as {{rope_type: yarn, factor: 4.0}}"
        )
    scaling = dict(value or {})
    kind = scaling.setdefault("rope_type", scaling.pop("type", "default"))
    scaling.pop("type", None)
    kinds = ("default", *sorted(ROPE_INIT_FUNCTIONS))
    if kind not in kinds:
        raise RopewalkError(f"overrides.rope_scaling.rope_type is {_shown(kind)}: it must be one of {', '.join(kinds)}")
    for name in scaling:
        if name not in RopeParameters.__annotations__:
            near = get_close_matches(str(name), sorted(RopeParameters.__annotations__), 1)
            advice = f"did you mean `{near[0]}`?" if near else "check its spelling"
            raise RopewalkError(f"overrides.rope_scaling.{one_line(name, 100)} is not a parameter of RoPE: {advice}")
    for name, part in scaling.items():
        if name not in ("rope_type", "mrope_section", "mrope_interleaved") and not _is_factor(part):
            raise RopewalkError(
                f"overrides.rope_scaling.{name} is {_shown(part)}: it must be a positive number, or a list of them"
            )
    if kind in ("yarn", "llama3", "longrope") and positions:
        # Scaling is relative to the length the model was trained at, which is not the length it is given here.
        scaling.setdefault(LENGTH, parameters.get(LENGTH, positions))
    return {**{name: parameters[name] for name in KEPT if name in parameters}, **scaling}


def _is_factor(value: Any) -> bool:
    """Whether a value is one that scales RoPE; None and switches are left to the kind of scaling."""
    if value is None or isinstance(value, bool):
        return True
    parts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(part, int | float) and 0 < part < math.inf for part in parts)


def _shown(value: Any) -> str:
    return one_line(repr(value), 100)


def _trained_positions(config: Any) -> int | None:
    return getattr(config, LENGTH, None) or getattr(config, "max_position_embeddings", None)


def _reason(error: Exception) -> str:
    """The last line of a message: validation puts where it failed before it."""
    text = str(error.args[0] if error.args else "").strip()
    return one_line(text.splitlines()[-1]) if text else type(error).__name__
