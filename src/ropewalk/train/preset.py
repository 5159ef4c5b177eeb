"""The study over a training run's own checkpoints and held-out text, ready to run."""

from collections.abc import Mapping
from typing import Any

from ropewalk.text import LONGEST_SLUG, simplified
from ropewalk.yamlfile import dump_yaml

SHARDS = 16
"""Groups of held-out documents that standard errors are computed from."""
STATISTICS = ["moments", "frame", "profile", "behaviour", "sample"]
"""All that has figures, kept vectors included: held-out text is short."""


def study_text(record: Mapping[str, Any], name: str) -> str:
    """YAML of a study over the checkpoints of a record; its folders are relative to the folder of the training run.

    Float32 on the CPU, so that the numbers do not depend on the machine.
    """
    study = {
        "name": simplified(name)[:LONGEST_SLUG].strip("._-") or "training",
        "defaults": {"tokenizer": "./tokenizer", "dtype": "float32", "device": "cpu"},
        "checkpoints": [
            {"repo": f"./checkpoints/{row['name']}", **{key: row[key] for key in ("label", "phase", "step", "context")}}
            for row in record["checkpoints"]
        ],
        "corpus": {"source": "jsonl", "paths": ["heldout.jsonl"], "column": "text"},
        "capture": {"heads": "all", "shards": SHARDS, "statistics": STATISTICS},
    }
    return dump_yaml(study, flow=None)
