"""Fingerprints: the same for values that mean the same, however they are written down."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def fingerprint(value: Any) -> str:
    """SHA-256 of plain data, whatever the order of its keys: 9000 is 9000.0, and a tuple is a list."""
    return hashlib.sha256(json.dumps(_canonical(value), sort_keys=True).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def file_fingerprint(path: Path) -> str:
    """SHA-256 of what a file holds, wherever it stands and whenever it was written."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def local_origin(contents: str) -> str:
    """How a record names what was read from a folder, where a path says nothing of what stood there."""
    return f"local folder, sha256 {contents}"
