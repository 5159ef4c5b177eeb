"""What a model shows before it is captured: its layout, and proof that what would be captured is what it uses."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from ropewalk.capture.collector import changes_after_rotation
from ropewalk.models.device import name_of
from ropewalk.models.footprint import check_fits_context
from ropewalk.models.layout import Layout
from ropewalk.models.probe import input_device, read_layout
from ropewalk.models.proof import UNPROVEN, prove
from ropewalk.models.rotary import with_rotary
from ropewalk.progress import logger


@dataclass(frozen=True)
class Ready:
    """A model that may be captured: its layout, the type of its weights, and the proof as plain data."""

    layout: Layout
    dtype: str
    proof: dict[str, Any]


def make_ready(model: nn.Module, label: str, context: int, pre_rope: bool = False) -> Ready:
    """Look at a model that is about to be captured; a proof that fails stops with a sentence."""
    weights = next((one for one in model.parameters() if one.is_floating_point()), None)
    check_fits_context(model, input_device(model), context, 4 if weights is None else weights.dtype.itemsize, label)
    layout = with_rotary(model, read_layout(model), context)
    unknown = [layer.layer for layer in layout.layers if layer.rope and layer.rotary_pairs is None]
    if unknown:
        logger.info("%s: layers %s move with position, but not as turning pairs do: they have no frame", label, unknown)
    proof = prove(model)
    proof.check(label)
    if proof.outcome == UNPROVEN:
        logger.warning("%s: %s", label, proof.open)
    if pre_rope and changes_after_rotation(model):
        logger.info("%s: its QK-norm comes after the rotation; pre_rope gives the vectors before both", label)
    return Ready(layout, "none" if weights is None else name_of(weights.dtype), proof.to_dict())
