"""Watching a model while it trains: a callback for transformers' Trainer, an observer for any other loop."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.live.callback import PositionCallback
    from ropewalk.live.observer import Observer

_HOMES = {"Observer": "observer", "PositionCallback": "callback"}

__all__ = ["Observer", "PositionCallback"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: an observer does not need the Trainer."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ropewalk.live' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ropewalk.live.{_HOMES[name]}"), name)
