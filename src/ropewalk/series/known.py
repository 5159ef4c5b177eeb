"""What is known of some checkpoint series and cannot be read from their branches."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Known:
    """Facts about a series: where its tokenizer is, what it was trained at, what it is usually looked at with."""

    tokenizer: str
    """The repo that has it."""
    training: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Phase to the config values it was trained with; `max_position_embeddings` is also its context."""
    corpus: Mapping[str, Any] | None = None


_SHORT = {"max_position_embeddings": 4096, "rope_theta": 50_000}

KNOWN: Mapping[str, Known] = {
    "HuggingFaceTB/SmolLM3-3B-checkpoints": Known(
        tokenizer="HuggingFaceTB/SmolLM3-3B",
        training={
            "stage 1": _SHORT,
            "stage 2": _SHORT,
            "stage 3": _SHORT,
            "LC 4K->32K": {"max_position_embeddings": 32_768, "rope_theta": 2_000_000},
            "LC 32K->64K": {"max_position_embeddings": 65_536, "rope_theta": 5_000_000},
        },
        corpus={
            "source": "dataset",
            "repo": "viktoroo/longbench-pro-128k-plus",
            "split": "test",
            "column": "text",
            "documents": 500,
        },
    ),
    **{
        f"HuggingFaceTB/SmolLM2-{size}-intermediate-checkpoints": Known(tokenizer=f"HuggingFaceTB/SmolLM2-{size}")
        for size in ("135M", "360M", "1.7B")
    },
}
