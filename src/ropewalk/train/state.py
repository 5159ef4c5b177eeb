"""The state of an unfinished training run: one safetensors file, replaced atomically, for that run alone."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn

from ropewalk.errors import RopewalkError
from ropewalk.files import write_bytes
from ropewalk.fingerprint import file_fingerprint
from ropewalk.progress import logger
from ropewalk.seals import BLANK, is_intact, seal

FORMAT = 2
STATE = "state.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class Position:
    """How far a run has come: the next step is step `step` (0-based) of phase `phase`.

    `checkpoints` has a row for each that was written, `files` the digests of their files by their names in the folder.
    """

    phase: int = 0
    step: int = 0
    seconds: float = 0.0
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


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
    header = json.dumps({"seal": BLANK, "format": FORMAT, "position": asdict(position), "identity": identity})
    write_bytes(path, seal(save(tensors, metadata={"state": header})))


def load_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, identity: dict[str, str]
) -> Position | None:
    """Put a saved state back and return its position; None where there is none, or what was written is damaged."""
    if not check_state(path, identity):
        return None
    with safe_open(path, framework="pt") as stored:
        for name, parameter in model.named_parameters():
            parameter.data.copy_(stored.get_tensor(f"weight/{name}"))
            moments = {moment: stored.get_tensor(f"{moment}/{name}") for moment in MOMENTS}
            # A fused optimizer wants its step count on the device of the parameter.
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in moments.items()}
        return Position(**_header(stored)["position"])


def check_state(path: Path, identity: dict[str, str]) -> bool:
    """Whether there is a state to go on from, whole like the checkpoints before it; one of another run is an error.

    What follows from a damaged state would be another model.
    """
    if not path.exists():
        return False
    if not is_intact(path):
        logger.warning("%s is damaged: the training begins again", path)
        return False
    with safe_open(path, framework="pt") as stored:
        header = _header(stored)
    if header["format"] != FORMAT:
        raise RopewalkError(
            f"{path} is of another version of ropewalk (format {header['format']}, this one reads {FORMAT}): go on "
            "with that version, or give another --output"
        )
    check_identity(path.parent, header["identity"], identity)
    for name, digest in header["position"]["files"].items():
        file = path.parent / name
        if not file.is_file() or file_fingerprint(file) != digest:
            logger.warning("%s is %s: the training begins again", file, "damaged" if file.is_file() else "missing")
            return False
    return True


def _header(stored: Any) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(stored.metadata()["state"])
    return header


def check_identity(folder: Path, stored: dict[str, str], current: dict[str, str]) -> None:
    """Refuse to go on in a folder that belongs to a run with another recipe, text, library version or thread count."""
    for key in current:
        if stored.get(key) != current[key]:
            raise RopewalkError(
                f"{folder} holds a training with {key} {_short(stored.get(key))}, this one has {_short(current[key])}: "
                "give another --output; what is there is kept"
            )


def _short(value: str | None) -> str:
    return "unknown" if value is None else value if len(value) <= 24 else f"{value[:12]}…"
