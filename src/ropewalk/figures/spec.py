"""What a figure is: how it is drawn, what is said about it, and what can be chosen."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from matplotlib.figure import Figure

from ropewalk.errors import RopewalkError
from ropewalk.figures.caption import Caption


@dataclass(frozen=True)
class FigureSpec:
    """A figure: `draw(view, **options)` makes it, `caption(view, source, **options)` describes it.

    `name` is that of its module and of its folder, `title` the one for people, `source` the file of the table as the
    caption names it. `options` are the keyword options that both functions take, all of them optional.
    """

    name: str
    title: str
    draw: Callable[..., Figure]
    caption: Callable[..., Caption]
    options: tuple[str, ...] = ()

    def check_options(self, names: Iterable[str]) -> None:
        """Say which of these options the figure does not take."""
        for name in names:
            if name not in self.options:
                known = f"it takes {', '.join(self.options)}" if self.options else "it takes none"
                raise RopewalkError(f"the figure {self.name} has no option {name!r}: {known}")
