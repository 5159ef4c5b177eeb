"""What a figure is: how it is drawn, what is said about it, and what can be chosen."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from ropewalk.errors import RopewalkError
from ropewalk.figures.caption import Caption
from ropewalk.summary.view import View

AXIS = "axis"
"""The option that all figures of r_q and r_k take: pooled, centred or drift."""


@dataclass(frozen=True)
class FigureSpec:
    """A figure: `drawing(view, **options)` makes it, `wording(view, source, **options)` describes it.

    `name` is that of its module and of its folder, `title` the one for people, `source` the file of the table as the
    caption names it. `own_options` are the keyword options that both functions take, all of them optional. A figure
    that is not `on_axis` shows the same whichever axis r_q and r_k are on. `columns` of heads and `tables` are what it
    cannot be drawn without, `statistic` the one that gives them. `applies` says whether the checkpoints are such that
    it has something to show, `unless` what they are where they are.
    """

    name: str
    title: str
    drawing: Callable[..., Figure]
    wording: Callable[..., Caption]
    own_options: tuple[str, ...] = ()
    on_axis: bool = True
    columns: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    statistic: str = ""
    applies: Callable[[View], bool] = lambda _: True
    unless: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """Everything that can be chosen."""
        return (*self.own_options, *((AXIS,) if self.on_axis else ()))

    def can_show(self, view: View) -> bool:
        """Whether the view has what the figure needs."""
        return view.lacks(self.columns, self.tables) is None and self.applies(view)

    def check_needs(self, view: View) -> None:
        """Say what the view lacks of what the figure needs."""
        lack = view.lacks(self.columns, self.tables)
        if lack is not None:
            raise RopewalkError(
                f"the figure {self.name} needs {lack}, which these results do not have: capture with the statistic "
                f"`{self.statistic}`"
            )
        if not self.applies(view):
            raise RopewalkError(f"the figure {self.name} needs {self.unless}, which these results do not have")

    def draw(self, view: View, *, axis: str | None = None, **options: Any) -> Figure:
        """The figure of a view."""
        return self.drawing(self._turned(view, axis), **options)

    def caption(self, view: View, source: str, *, axis: str | None = None, **options: Any) -> Caption:
        """Its caption, with the same options."""
        return self.wording(self._turned(view, axis), source, **options)

    def _turned(self, view: View, axis: str | None) -> View:
        """The view on the axis that is asked for; as published where the figure does not depend on it."""
        if not self.on_axis:
            return view.on("pooled")
        return view if axis is None else view.on(axis)

    def check_options(self, names: Iterable[str]) -> None:
        """Say which of these options the figure does not take."""
        for name in names:
            if name not in self.options:
                known = f"it takes {', '.join(self.options)}" if self.options else "it takes none"
                raise RopewalkError(f"the figure {self.name} has no option {name!r}: {known}")
