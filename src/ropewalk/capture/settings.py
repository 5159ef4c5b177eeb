"""What of a study's settings decides a capture: the heads, what statistics may know, and the fingerprint of both."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from ropewalk.fingerprint import fingerprint
from ropewalk.models.layout import Head, Layout
from ropewalk.statistics.base import Scope, Statistic
from ropewalk.study import Capture, Checkpoint, Study


def choose_heads(layout: Layout, capture: Capture, present: Collection[tuple[int, int]] | None = None) -> list[Head]:
    """The heads of a model that a study's capture settings pick, among the (layer, head) that are `present`."""
    return layout.heads(
        None if capture.heads == "all" else capture.heads,
        capture.seed,
        layers=capture.layers,
        pairs=capture.pairs,
        full_attention_only=capture.full_attention_only,
        present=present,
    )


def scope_of(study: Study, checkpoint: Checkpoint, documents: int) -> Scope:
    """What statistics may know of a checkpoint's capture."""
    capture, contexts = study.capture, {one.context for one in study.checkpoints}
    return Scope(
        context=checkpoint.context,
        documents=documents,
        bucket_size=checkpoint.bucket,
        seed=capture.seed,
        skip_first=capture.skip_first,
        components=capture.components,
        common_context=min(contexts) if len(contexts) > 1 else None,
    )


def described(statistics: Sequence[Statistic]) -> dict[str, Any]:
    """Statistics as plain data: their options and revision by name."""
    return {one.name: {"revision": one.revision, "options": one.model_dump(mode="json")} for one in statistics}


def settings_fingerprint(capture: Capture, scope: Scope, statistics: Sequence[Statistic]) -> str:
    """Hash of the settings that decide sums.

    How many tokens run at once decides only speed and memory, how many components are read only tables, and documents
    are in the fingerprint of tokens. The shortest context of the study decides only which sums are there besides. Seed
    and bucket size count whatever is captured: a statistic may use them.
    """
    idle = ("components", "documents", "common_context")
    decisive = {name: value for name, value in asdict(scope).items() if name not in idle}
    return fingerprint([decisive, _choice(capture), capture.pre_rope, described(statistics)])


def _choice(capture: Capture) -> dict[str, Any]:
    """The settings that choose heads, in one form: with pairs nothing else does, and their order says nothing."""
    if capture.pairs is not None:
        return {"pairs": sorted(set(capture.pairs))}
    layers = None if capture.layers is None else sorted(set(capture.layers))
    return {"heads": capture.heads, "layers": layers, "full_attention_only": capture.full_attention_only}
