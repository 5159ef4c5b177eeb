"""What the report says: every number, text and picture of the page, from the files of a results folder."""

import base64
import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ropewalk import figures
from ropewalk.figures.style import style
from ropewalk.figures.writing import PNG_METADATA
from ropewalk.report import numbers
from ropewalk.report.glossary import glossary
from ropewalk.report.parts import Picture, Report
from ropewalk.report.settings import entries, facts, read_study
from ropewalk.summary.view import View, view
from ropewalk.tables import read_qk, read_replicates


def report_data(results: Path) -> Report:
    """Everything the page of a results folder shows; captions and numbers come from `qk.csv`, pictures from `figures/`.

    A picture that is missing, or older than the table, is drawn afresh. `study.yaml` and the replicates are optional.
    """
    results = Path(results)
    table, replicates = read_qk(results), read_replicates(results)
    look = view(table, replicates)
    tracks = numbers.tracks(look)
    text, study = read_study(results)
    return Report(
        name=_name(study, results),
        lead=_lead(look),
        at=_at(look),
        cards=numbers.cards(look.lineup, tracks),
        pictures=tuple(_pictures(results, table, replicates, _inner(study, "figures").get("portraits"))),
        grids=tuple(numbers.grids(look, tracks)),
        head_columns=numbers.HEAD_COLUMNS,
        heads=numbers.heads(look),
        facts=facts(look, results, study),
        made=tuple(entries({name: part for name, part in study.items() if name != "created"})),
        study=text,
        terms=glossary(),
    )


def _name(study: Mapping[str, Any], results: Path) -> str:
    return str(_inner(study).get("name") or results.resolve().name)


def _inner(study: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """A part of the recorded study by its path; empty where there is none."""
    part: Any = study
    for name in ("study", *path):
        part = part.get(name) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _lead(look: View) -> str:
    lineup, counts = look.lineup, [len(part) for part in look.parts]
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


def _at(look: View) -> str:
    lineup = look.lineup
    if len(lineup) == 1:
        where = f"PC0 at {lineup.labels[0]}"
    elif lineup.training:
        where = f"PC0 at {lineup.labels[-1]}, the last of {len(lineup)} checkpoints"
    else:
        return f"PC0, lowest and highest of {len(lineup)} models."
    return (
        f"{where}; ± is one standard error."
        if look.has_errors
        else f"{where}, without standard errors, which need two shards."
    )


def _pictures(
    results: Path, table: pd.DataFrame, replicates: pd.DataFrame | None, portraits: Sequence[str] | None
) -> Iterator[Picture]:
    written = (results / "qk.csv").stat().st_mtime
    for spec in figures.FIGURES:
        options = {"checkpoints": portraits} if portraits and spec.draw is figures.phase_portraits else {}
        file = results / "figures" / spec.folder / "figure.png"
        # The caption is computed from the table as it is now, so a picture of an older table would contradict it.
        fresh = file.is_file() and file.stat().st_mtime >= written
        png = file.read_bytes() if fresh else _png(spec.draw(table, replicates, **options))
        # A PNG begins with its signature and the IHDR chunk, whose first two fields are width and height.
        width, height = struct.unpack(">II", png[16:24])
        uri = f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
        caption = spec.caption(table, replicates, f"{results.resolve().name}/qk.csv", **options)
        yield Picture(spec.folder, uri, width, height, caption)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format="png", metadata=PNG_METADATA)
    return buffer.getvalue()
