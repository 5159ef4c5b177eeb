"""Fonts as they are embedded in a PDF: the shapes of letters, without the tables for setting text."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import lru_cache
from typing import Any

from fontTools import subset

UNUSED = ("GDEF", "GPOS", "GSUB", "MATH", "kern")
"""Tables of how letters are put beside each other, which is done when a PDF is written."""
NAMING = frozenset({"cmap", "post"})
"""Tables of the names of glyphs and the characters that they stand for, of all glyphs however few are embedded."""

_load = subset.load_font


class _Bare(subset.Options):  # type: ignore[misc]
    """What is kept of a font: as asked for, without `UNUSED`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.drop_tables += UNUSED


@contextmanager
def bare_fonts() -> Iterator[None]:
    """Embed fonts without tables that no reader looks at: taking them apart is most of what a font costs."""
    before = subset.Options, subset.load_font
    subset.Options, subset.load_font = _Bare, _load_bare
    try:
        yield
    finally:
        subset.Options, subset.load_font = before


def _load_bare(file: Any, options: Any) -> Any:
    """A font that lacks the dropped tables from the start: the subsetter looks into them before it drops them.

    Names and characters of its thousands of glyphs come from a font that has read them already. They are copied as deep
    as the subsetter changes them: it puts shorter lists and mappings in their place.
    """
    content, known = _bare(file, options.font_number, frozenset(options.drop_tables))
    font = _load(io.BytesIO(content), options)
    font.setGlyphOrder(list(known.getGlyphOrder()))
    for tag in NAMING.intersection(known.keys()):
        font.tables[tag] = copy(known[tag])
    font["cmap"].tables = [copy(table) for table in known["cmap"].tables]
    return font


@lru_cache
def _bare(file: Any, number: int, dropped: frozenset[str]) -> tuple[bytes, Any]:
    """A font's file without some of its tables, the others as they were and in the same order; and the font in it."""
    options = subset.Options(font_number=number, recalc_bounds=False, recalc_timestamp=False)
    with _load(file, options) as font:
        for tag in dropped.intersection(font.keys()):
            del font[tag]
        content = io.BytesIO()
        font.save(content, reorderTables=False)
    known = _load(io.BytesIO(content.getvalue()), options)
    for table in known["cmap"].tables:
        table.ensureDecompiled()
    return content.getvalue(), known
