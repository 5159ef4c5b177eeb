"""Everything about a study's models that shows before one of them is loaded, checked for all of them together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.capture.manifest import known_manifest
from ropewalk.capture.shards import capture_folder, shard_path
from ropewalk.errors import RopewalkError
from ropewalk.models.device import compute_dtype, device_of
from ropewalk.models.footprint import check_fits_context
from ropewalk.models.hub import model_folder
from ropewalk.models.loading import built, check_weights
from ropewalk.models.weights import check_present, files_at_hand, read_header
from ropewalk.study import Capture, Checkpoint, Study


def check_models(study: Study, checkpoints: Sequence[Checkpoint], configs: Sequence[Any]) -> None:
    """Stop at the first checkpoint that could not be loaded or captured; nothing is computed, fetched or written.

    Devices and attention must be there, and have the memory, where something is left to compute; the architecture must
    be one that can be built; the layers and heads that the study names must be in it; weights must be whole and fit, as
    far as they are on this machine.
    """
    for checkpoint, config in zip(checkpoints, configs, strict=True):
        if is_computed(study, checkpoint):
            # Its tables can be made where the model could not run.
            runnable = checkpoint.model_copy(update={"attention": None, "device_map": "auto"})
        else:
            runnable, model = checkpoint, built(checkpoint, config)
            _check_device_map(checkpoint, model)
            # What other machines have is not known here.
            device = device_of(checkpoint) if study.engine.name == "local" else None
            if device is not None and checkpoint.device_map is None:
                name = compute_dtype(checkpoint, config)
                itemsize = 4 if name == "auto" else getattr(torch, name).itemsize
                check_fits_context(model, device, checkpoint.context, itemsize, checkpoint.label)
        check_choice(study.capture, checkpoint.label, config)
        check_weights(runnable, config, _files(checkpoint, needed=runnable is checkpoint))


def is_computed(study: Study, checkpoint: Checkpoint) -> bool:
    """Whether all shards of a checkpoint seem to be there: what they are of is found out later."""
    folder = capture_folder(study.folder, checkpoint.slug)
    shards = (known_manifest(folder) or {}).get("shards")
    return isinstance(shards, int) and shards > 0 and all(shard_path(folder, n).is_file() for n in range(shards))


def check_choice(capture: Capture, label: str, config: Any) -> None:
    """Stop at layers and heads of a study that a model does not have, as far as its configuration tells."""
    text = config.get_text_config(decoder=True)
    depth = getattr(text, "num_hidden_layers", None)
    # Where layers differ, the largest is the limit, and the model itself tells of each.
    counts: list[Any] = [getattr(text, "num_attention_heads", None)]
    counts += [value for name, value in vars(text).items() if name.endswith("num_attention_heads")]
    heads = max(counts) if all(isinstance(value, int) for value in counts) else None
    layers = [*(capture.layers or ()), *(layer for layer, _ in capture.pairs or ())]
    for layer in layers:
        if isinstance(depth, int) and layer >= depth:
            raise RopewalkError(
                f"layer {layer} is not in {label!r}, which has layers 0 to {depth - 1}: correct `layers` or `pairs` "
                "of `capture`"
            )
    for layer, head in capture.pairs or ():
        if heads is not None and head >= heads:
            raise RopewalkError(
                f"head {head} is not in layer {layer} of {label!r}, which has heads 0 to {heads - 1}: correct `pairs` "
                "of `capture`"
            )


def _check_device_map(checkpoint: Checkpoint, model: nn.Module) -> None:
    """A map by hand must give every tensor a device."""
    places = checkpoint.device_map
    if not isinstance(places, dict):
        return
    for name in model.state_dict():
        if not any(part in ("", name) or name.startswith(f"{part}.") for part in places):
            raise RopewalkError(
                f'device_map of {checkpoint.label!r} names no device for {name}: add it, or the rest by "": cpu'
            )


def _files(checkpoint: Checkpoint, *, needed: bool) -> list[Path] | None:
    """The weight files of a checkpoint, each whole, if all are at hand.

    Those of the hub must at least be listed, where they are `needed`. Those of a folder always are, to know it again.
    """
    repo = str(checkpoint.repo)
    folder = model_folder(repo, checkpoint.revision)
    if checkpoint.random_weights or checkpoint.gguf_file:
        return None
    if needed or folder == Path(repo):
        check_present(repo, folder)
    files, complete = files_at_hand(repo, folder)
    for path in files:
        read_header(path)
    return files if complete else None
