"""The state of an unfinished training run: one safetensors file, replaced atomically, for that run alone."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from ropewalk.errors import RopewalkError
from ropewalk.files import atomic_path

FORMAT = 1
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class Position:
    """How far a run has come: the next step is step `step` (0-based) of phase `phase`."""

    phase: int = 0
    step: int = 0
    seconds: float = 0.0
    checkpoints: list[dict[str, Any]] = field(default_factory=list)


def save_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, position: Position, identity: dict[str, str]
) -> None:
    """Write weights, optimizer moments, position and the run's identity to `path`.

    No random state is needed: after the initial weights nothing draws from one, since a step's text is a function of
    (seed, phase, step).
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"weight/{name}"] = parameter.detach().cpu().contiguous()
        for moment in MOMENTS:
            tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment].cpu().contiguous()
    header = json.dumps({"format": FORMAT, "position": asdict(position), "identity": identity})
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"state": header})


def load_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, identity: dict[str, str]
) -> Position | None:
    """Put a saved state back and return its position; None when there is none, an error when it is another run's."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as stored:
            header = json.loads((stored.metadata() or {})["state"])
            check_identity(path.parent, header["identity"], identity)
            if header["format"] != FORMAT:
                raise KeyError("format")
            for name, parameter in model.named_parameters():
                parameter.data.copy_(stored.get_tensor(f"weight/{name}"))
                moments = {moment: stored.get_tensor(f"{moment}/{name}") for moment in MOMENTS}
                # A fused optimizer wants its step count on the device of the parameter.
                optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in moments.items()}
    except RopewalkError:
        raise
    except Exception as error:
        raise RopewalkError(f"{path} is not a readable training state: delete it and train from the start") from error
    return Position(**header["position"])


def check_identity(folder: Path, stored: dict[str, str], current: dict[str, str]) -> None:
    """Refuse to go on in a folder that belongs to a run with another recipe, text, library version or thread count."""
    for key in current:
        if stored.get(key) != current[key]:
            raise RopewalkError(
                f"{folder} holds a training with {key} {_short(stored.get(key))}, this one has {_short(current[key])}: "
                "give another --output, or delete that folder"
            )


def _short(value: str | None) -> str:
    return "unknown" if value is None else value if len(value) <= 24 else f"{value[:12]}…"
