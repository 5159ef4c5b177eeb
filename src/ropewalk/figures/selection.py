"""Which checkpoints are shown by a figure that has room for a few of them."""

from collections.abc import Sequence

from ropewalk.summary.view import View

COUNT = 6
"""Checkpoints that are chosen where none are named."""

OPTIONS = ("checkpoints",)
"""Names or labels of the checkpoints to show, in that order."""


def selected(view: View, checkpoints: Sequence[str] | None, count: int = COUNT) -> View:
    """The named checkpoints; without names at most so many: the first, ends of groups, the last."""
    lineup = view.lineup
    return view.select(lineup.find(list(checkpoints)) if checkpoints else lineup.representative(count))


def selection_step(view: View, checkpoints: Sequence[str] | None, count: int = COUNT) -> str:
    """The step of a caption that says which checkpoints of a view are shown, and why these."""
    groups = "phases" if view.lineup.training else "families"
    reason = "chosen by name" if checkpoints else f"the first, ends of {groups}, the last"
    return f"**Selection**: {', '.join(selected(view, checkpoints, count).lineup.labels)} ({reason})."
