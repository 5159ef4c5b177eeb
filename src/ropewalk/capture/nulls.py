"""The nulls of a study that need captures of their own: the same architectures with random weights."""

from typing import Any

from ropewalk.models.identity import model_fingerprint
from ropewalk.models.loading import load_config
from ropewalk.study import Checkpoint, Study

NAME = "untrained"


def with_nulls(study: Study) -> Study:
    """The study with an untrained checkpoint for every architecture and context, where `nulls` asks for them.

    Checkpoints whose configuration and context are the same share one. Vectors from a `source` have no architecture,
    and a checkpoint that names its null already keeps it. A study that has them already stays as it is.
    """
    if "untrained" not in study.nulls:
        return study
    founders: dict[Any, list[Checkpoint]] = {}
    for checkpoint in study.checkpoints:
        if checkpoint.source is None and not checkpoint.random_weights and not checkpoint.untrained:
            config = load_config(checkpoint, checkpoint.context)
            architecture = model_fingerprint(checkpoint.model_copy(update={"random_weights": True}), config)
            founders.setdefault((checkpoint.context, architecture), []).append(checkpoint)
    if not founders:
        return study
    taken = {one.casefold() for checkpoint in study.checkpoints for one in (checkpoint.name, checkpoint.label)}
    names: dict[str, str] = {}
    nulls = []
    for members in founders.values():
        first = members[0]
        name = NAME if len(founders) == 1 else f"{NAME} {first.label}"
        while name.casefold() in taken:
            name = f"{name} null"
        names |= {member.name: name for member in members}
        nulls.append(
            first.model_copy(
                update={
                    "name": name,
                    "label": name,
                    "phase": "",
                    "step": None,
                    "random_weights": True,
                    "untrained": name,
                }
            )
        )
    checkpoints = tuple(
        checkpoint.model_copy(update={"untrained": names.get(checkpoint.name, checkpoint.untrained)})
        for checkpoint in study.checkpoints
    )
    return study.model_copy(update={"checkpoints": (*checkpoints, *nulls)})
