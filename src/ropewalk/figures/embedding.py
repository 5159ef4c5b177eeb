"""Fonts as they are embedded in a PDF: the shapes of letters, without the tables for setting text."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fontTools import subset

UNUSED = ("GDEF", "GPOS", "GSUB", "MATH")
"""Tables of how letters are put beside each other, which is done when a PDF is written."""


class _Bare(subset.Options):  # type: ignore[misc]
    """What is kept of a font: as asked for, without `UNUSED`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.drop_tables += UNUSED


@contextmanager
def bare_fonts() -> Iterator[None]:
    """Embed fonts without tables that no reader looks at: taking them apart is most of what a font costs."""
    before, subset.Options = subset.Options, _Bare
    try:
        yield
    finally:
        subset.Options = before
