"""What the report says: every number, text and picture of the page."""

import base64
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from ropewalk.figures import Caption, gallery
from ropewalk.figures.style import png
from ropewalk.helpers import ALONE, Helpers
from ropewalk.record import Record
from ropewalk.report import numbers
from ropewalk.report.explorer import explorer
from ropewalk.report.glossary import glossary
from ropewalk.report.parts import Origin, Picture, Report
from ropewalk.report.pictures import small
from ropewalk.report.settings import entries, facts, proofs
from ropewalk.summary.view import View

SHARE = 6
"""Pictures that there must be for each process that reduces them."""


def report_data(
    view: View,
    *,
    name: str,
    source: str,
    hangs_on: pd.DataFrame,
    record: Record | None = None,
    folder: Path | None = None,
    options: Mapping[str, Mapping[str, Any]] = {},
    drawn: Mapping[str, bytes] = {},
    captions: Mapping[str, Caption] = {},
    made_from: str | None = None,
    origins: Mapping[str, Origin] = {},
    helpers: Helpers = ALONE,
) -> Report:
    """Everything the page shows of a view.

    `source` names the table in captions, `hangs_on` is the table of what numbers hang on (`Results.sensitivity`),
    `record` says how it was made, `options` are those of figures by name. Pictures that were `drawn` before
    and `captions` that were written, by the names of their folders, are used again. `made_from` is a digest of the
    tables; `helpers` are other processes that reduce pictures as well.
    """
    made = {} if record is None else {part: value for part, value in record.data.items() if part != "created"}
    explored = explorer(view)
    return Report(
        name=name,
        lead=_lead(view),
        at=_at(view),
        cards=numbers.cards(view),
        pictures=tuple(_pictures(view, drawn, captions, source, options, helpers)),
        grids=(*numbers.grids(view), *numbers.sensitivity_grid(view, hangs_on)),
        explorer=explored,
        head_columns=numbers.head_columns(view, explored.columns),
        filter_example=numbers.FILTER_EXAMPLE,
        facts=(*facts(view, _date(record, folder)), *proofs(origins)),
        made=tuple(entries(made)),
        study=None if record is None else record.text,
        terms=glossary(),
        made_from=made_from or "",
    )


def _date(record: Record | None, folder: Path | None) -> str | None:
    """When the results were begun, or else when their table was written."""
    if record is not None and record.data.get("created"):
        return str(record.data["created"])
    if folder is None or not (folder / "qk.csv").is_file():
        return None
    return datetime.fromtimestamp((folder / "qk.csv").stat().st_mtime, UTC).strftime("%Y-%m-%d")


def _lead(view: View) -> str:
    lineup, counts = view.lineup, [len(part) for part in view.parts]
    most = f"{max(counts):,}" if min(counts) == max(counts) else f"up to {max(counts):,}"
    heads = "head" if max(counts) == 1 else "heads"
    names = {group.name for group in lineup.groups if group.name}
    if len(lineup) == 1:
        where = f"at {lineup.labels[0]}"
    elif lineup.training:
        phases = f" in {len(names)} phases" if len(names) > 1 else ""
        where = f"at {len(lineup)} checkpoints{phases}, from {lineup.labels[0]} to {lineup.labels[-1]}"
    else:
        families = f" of {len(names)} families" if len(names) > 1 else ""
        where = f"in {len(lineup)} models{families}"
    return f"How strongly the queries and keys of {most} attention {heads} carry token position, {where}."


def _at(view: View) -> str:
    lineup = view.lineup
    if len(lineup) == 1:
        where = f"PC0 at {lineup.labels[0]}"
    elif lineup.training:
        where = f"PC0 at {lineup.labels[-1]}, the last of {len(lineup)} checkpoints"
    else:
        return f"PC0, lowest and highest of {len(lineup)} models."
    return (
        f"{where}; ± is one standard error."
        if view.has_errors
        else f"{where}, without standard errors, which need two shards."
    )


def _pictures(
    view: View,
    drawn: Mapping[str, bytes],
    captions: Mapping[str, Caption],
    source: str,
    options: Mapping[str, Mapping[str, Any]],
    helpers: Helpers,
) -> Iterator[Picture]:
    figures = gallery.shown(view)
    contents = [drawn.get(gallery.folder_name(figure), b"") for figure in figures]
    for figure, content in zip(figures, helpers.each(contents, small, small, SHARE), strict=True):
        name, own = gallery.folder_name(figure), options.get(figure.name, {})
        if content is None:
            content = small(png(figure.draw(view, **own)))
        assert content is not None, "what was just drawn is a picture"
        # A PNG begins with its signature and the IHDR chunk, whose first two fields are width and height.
        width, height = struct.unpack(">II", content[16:24])
        uri = f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"
        caption = captions[name] if name in captions else figure.caption(view, source, **own)
        yield Picture(name, uri, width, height, caption)
