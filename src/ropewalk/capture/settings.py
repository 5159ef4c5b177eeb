"""What of a study's settings decides a capture: the heads, what statistics may know, and the fingerprint of both."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ropewalk.models.layout import Head, Layout
from ropewalk.statistics.base import Scope, Statistic
from ropewalk.study import Capture, Checkpoint


def choose_heads(layout: Layout, capture: Capture) -> list[Head]:
    """The heads of a model that a study's capture settings pick."""
    return layout.heads(
        None if capture.heads == "all" else capture.heads,
        capture.seed,
        layers=capture.layers,
        pairs=capture.pairs,
        full_attention_only=capture.full_attention_only,
    )


def scope_of(capture: Capture, checkpoint: Checkpoint, documents: int) -> Scope:
    """What statistics may know of a capture."""
    return Scope(
        context=checkpoint.context,
        documents=documents,
        bucket_size=checkpoint.bucket,
        seed=capture.seed,
        skip_first=capture.skip_first,
        components=capture.components,
    )


def described(statistics: Sequence[Statistic]) -> dict[str, Any]:
    """Statistics as plain data: their options and revision by name."""
    return {one.name: {"revision": one.revision, "options": one.model_dump(mode="json")} for one in statistics}


def settings_fingerprint(capture: Capture, scope: Scope, statistics: Sequence[Statistic]) -> str:
    """Hash of the settings that decide sums.

    How many tokens run at once decides only speed and memory, how many components are read only tables.
    """
    decisive = {name: value for name, value in asdict(scope).items() if name != "components"}
    chosen = capture.model_dump(mode="json", include={"heads", "layers", "pairs", "full_attention_only", "pre_rope"})
    return hashlib.sha256(json.dumps((decisive, chosen, described(statistics)), sort_keys=True).encode()).hexdigest()
