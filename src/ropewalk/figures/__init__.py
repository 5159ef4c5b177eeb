"""The figures of a study: each is a module with its drawing and its caption, both functions of a view.

>>> from ropewalk.figures import find
>>> find("position_signal").draw(view)  # doctest: +SKIP
"""

from ropewalk.figures.caption import Caption, to_markdown
from ropewalk.figures.gallery import FIGURES, find, write_figures
from ropewalk.figures.spec import FigureSpec

__all__ = ["FIGURES", "Caption", "FigureSpec", "find", "to_markdown", "write_figures"]
