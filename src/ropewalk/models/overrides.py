"""Changing a model's configuration before it is built: what a study's `overrides` mean."""

from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, RopeParameters

from ropewalk.errors import RopewalkError

KEPT = ("rope_theta", "partial_rotary_factor", "mrope_section")
"""What of RoPE's parameters is not scaling, and stays when `rope_scaling` changes."""

LENGTH = "original_max_position_embeddings"


def apply_overrides(config: Any, overrides: dict[str, Any]) -> None:
    """Set configuration values of a (text) model in place.

    `rope_theta` and `rope_scaling` live in `rope_parameters`, once for all layers or once per kind of layer; a mapping
    from kinds (such as full_attention) to values changes those kinds alone. `rope_scaling: null` removes scaling.
    """
    positions = _trained_positions(config)
    known = set(config.to_dict()) | set(config.attribute_map)
    for key, value in overrides.items():
        if key in ("rope_theta", "rope_scaling"):
            _override_rope(config, key, value, positions)
        elif key not in known:
            raise RopewalkError(
                f"overrides.{key} is not in the configuration of a {config.model_type} model: check its spelling"
            )
        else:
            try:
                setattr(config, key, value)
            except StrictDataclassError as error:
                raise RopewalkError(f"overrides.{key} is {value!r}: {_reason(error)}") from error


def _override_rope(config: Any, key: str, value: Any, positions: int | None) -> None:
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
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
    except (KeyError, ValueError) as error:
        raise RopewalkError(f"overrides.{key} is {value!r}: {_reason(error)}") from error


def _changed_theta(parameters: dict[str, Any], value: Any, _: int | None) -> dict[str, Any]:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise RopewalkError(f"overrides.rope_theta is {value!r}: it must be a positive number, such as 10000.0")
    return {**parameters, "rope_theta": float(value)}


def _changed_scaling(parameters: dict[str, Any], value: Any, positions: int | None) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise RopewalkError(
            f"overrides.rope_scaling is {value!r}: it must be a mapping, such as {{rope_type: yarn, factor: 4.0}}"
        )
    scaling = dict(value or {})
    kind = scaling.setdefault("rope_type", scaling.pop("type", "default"))
    scaling.pop("type", None)
    kinds = ("default", *sorted(ROPE_INIT_FUNCTIONS))
    if kind not in kinds:
        raise RopewalkError(f"overrides.rope_scaling.rope_type is {kind!r}: it must be one of {', '.join(kinds)}")
    for name in scaling:
        if name not in RopeParameters.__annotations__:
            raise RopewalkError(f"overrides.rope_scaling.{name} is not a parameter of RoPE: check its spelling")
    if kind in ("yarn", "llama3", "longrope") and positions:
        # Scaling is relative to the length the model was trained at, which is not the length it is given here.
        scaling.setdefault(LENGTH, parameters.get(LENGTH, positions))
    return {**{name: parameters[name] for name in KEPT if name in parameters}, **scaling}


def _trained_positions(config: Any) -> int | None:
    return getattr(config, LENGTH, None) or getattr(config, "max_position_embeddings", None)


def _reason(error: Exception) -> str:
    """The last line of a message: validation puts where it failed before it."""
    text = error.args[0] if error.args else ""
    return str(text).strip().splitlines()[-1].strip() if str(text).strip() else type(error).__name__
