"""Ticks that are found once for each place of a panel, not each time that matplotlib asks for them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from matplotlib.figure import Figure

METHODS = ("_update_ticks", "_get_ticklabel_bboxes")
"""Of an axis: its ticks, brought to their places and written on, and the boxes of their labels. A layout asks for them
about ten times an axis: for the axis, its label, its spines, the title, and all that is aligned with them.
"""


@contextmanager
def steady_ticks(figure: Figure) -> Iterator[None]:
    """While a figure is laid out or drawn, which changes nothing of its ticks but where they are."""
    with ExitStack() as afterwards:
        for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
            for name in METHODS:
                # An attribute of this axis alone; one that is there is from a layout that this one is part of.
                if name not in vars(axis):
                    setattr(axis, name, _remembered(axis, getattr(axis, name)))
                    afterwards.callback(delattr, axis, name)
        yield


def _remembered(axis: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, called again only where the panel, its limits, the resolution or an argument are no longer the same.

    What it gave before the last change is forgotten, because the ticks are no longer there.
    """
    last: list[Any] = [None, None]

    def asked(*arguments: Any) -> Any:
        ax = axis.axes
        state = (ax.bbox.bounds, ax.viewLim.bounds, ax.get_figure(root=True).dpi, arguments)
        if state != last[0]:
            last[:] = state, method(*arguments)
        return last[1]

    return asked
