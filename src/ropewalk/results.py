"""Results: the one object that the command line, figures, the report and a notebook stand on."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ropewalk.analysis import Tables, tabulate_all
from ropewalk.capture import stored
from ropewalk.compare import compare
from ropewalk.errors import RopewalkError
from ropewalk.export.formats import export
from ropewalk.export.source import Source
from ropewalk.figures import Caption, head_collage
from ropewalk.figures.gallery import FIGURES, Told, find, study_options, write_figures
from ropewalk.fingerprint import file_fingerprint
from ropewalk.freshness import fresh_pictures, pictures_made_from, stale_where_wrong, tables_digest, tables_made_from
from ropewalk.head import HeadDetail, head_detail
from ropewalk.helpers import ALONE, Helpers
from ropewalk.hubfiles import local_results
from ropewalk.models.layout import Layout
from ropewalk.ownership import claim, is_free, is_marked
from ropewalk.record import Record, need_record, note_versions, read_record, write_record
from ropewalk.report import PAGE, Report, origins, report_data, write_report
from ropewalk.statistics.registry import table_names
from ropewalk.study import Figures, Study
from ropewalk.summary.sensitivity import sensitivity
from ropewalk.summary.tracks import Track
from ropewalk.summary.view import NULLS, View, summarise

Capture = stored.StoredCapture | stored.MemoryCapture


class Results:
    """What was measured of one or several checkpoints.

    Made by `ropewalk.measure` (a model in hand), `ropewalk.load` (a results folder, or a table alone) and
    `ropewalk.concat` (several of them). `table` has a row per checkpoint, layer, head and component (`qk.csv`), `heads`
    one per checkpoint, layer and head (`heads.csv`), `replicates` the latter with each group of documents left out,
    which is where standard errors come from (None without). `captures` holds the sums behind them, by checkpoint;
    `digest` is of the tables as they were read from disk.

    >>> r = ropewalk.load("results/miniature")  # doctest: +SKIP
    >>> r.summary()  # doctest: +SKIP
    >>> r.head(3, 1, checkpoint="LC2-120").distance  # doctest: +SKIP
    >>> r.figure("phase_portraits")  # doctest: +SKIP
    """

    def __init__(
        self,
        tables: Tables,
        captures: Mapping[str, Capture] | None = None,
        study: Study | None = None,
        record: Record | None = None,
        folder: Path | None = None,
        digest: str | None = None,
    ) -> None:
        self.tables = tables
        self.captures = dict(captures or {})
        self.study = record.study if study is None and record is not None else study
        self.record = record
        self.folder = folder
        self.digest = digest
        self._captions: dict[str, Mapping[str, Caption]] = {}

    def __repr__(self) -> str:
        lineup, heads = self.view.lineup, len(self.heads)
        errors = "with standard errors" if self.view.has_errors else "without standard errors"
        return f"<Results {self.name!r}: {len(lineup)} {lineup.noun}s, {heads} rows of heads, {errors}>"

    @property
    def name(self) -> str:
        """Name of the study, or of the folder."""
        if self.study is not None:
            return self.study.name
        return self.folder.resolve().name if self.folder is not None else "results"

    @property
    def table(self) -> pd.DataFrame:
        """One row per (checkpoint, layer, head, component): the columns of `qk.csv`."""
        return self.tables.qk

    @property
    def heads(self) -> pd.DataFrame:
        """One row per (checkpoint, layer, head): the columns of `heads.csv`."""
        return self.tables.heads

    @property
    def replicates(self) -> pd.DataFrame | None:
        """The columns of `heads` that have errors, with each group of documents left out; None without groups."""
        return None if self.tables.replicates.empty else self.tables.replicates

    @property
    def missing(self) -> list[str]:
        """Labels of the study's checkpoints that are not in the tables: those that were not finished."""
        there = set(self.heads["checkpoint"])
        return [] if self.study is None else [one.label for one in self.study.checkpoints if one.name not in there]

    @property
    def layouts(self) -> dict[str, Layout]:
        """Layers and heads of the model of each checkpoint whose capture is at hand."""
        return {name: captured.layout for name, captured in self.captures.items()}

    @property
    def layout(self) -> Layout:
        """Layers and heads of the model, where all checkpoints have the same."""
        return stored.one_layout(list(self.layouts.values()))

    @cached_property
    def view(self) -> View:
        """The heads by checkpoint, as figures and summaries look at them."""
        nulls = NULLS if self.study is None else self.study.nulls
        return View.of(self.heads, self.replicates, nulls, self.tables.others)

    def summary(self) -> pd.DataFrame:
        """One row per (checkpoint, quantity): means and shares over heads, each with its standard error."""
        return summarise(self.view)

    def sensitivity(self, label: str | None = None) -> pd.DataFrame:
        """What the numbers of all checkpoints, or of one by its label, hang on; a row per change and quantity."""
        full = self.study is not None and self.study.capture.full_attention_only
        available = {name: len(one.heads(full_attention_only=full)) for name, one in self.layouts.items()}
        return sensitivity(self.view, available, label)

    def track(self, measure: str) -> Track:
        """One quantity of `summary` over the checkpoints: `values`, `errors`, `change(first, last)`."""
        return self.view.track(measure)

    def head(self, layer: int, head: int, checkpoint: str | None = None) -> HeadDetail:
        """Everything known of one head at one checkpoint (by name or label; the last by default)."""
        name = self._checkpoint(checkpoint)
        return head_detail(self.tables, self.captures.get(name), name, layer, head)

    def figure(self, name: str, **options: Any) -> Figure:
        """A figure by name, such as `position_signal`; in a notebook it shows itself. `figures()` lists them."""
        figure = find(name)
        figure.check_options(options)
        figure.check_needs(self.view)
        return figure.draw(self.view, **options)

    def collage(self, layer: int, head: int, checkpoint: str | None = None) -> Figure:
        """One head on one page: vectors, kernel, attention, plasticity, its way through training; see `head`."""
        return head_collage.draw(self.view, self.head(layer, head, checkpoint))

    def write_collage(self, folder: Path | str, layer: int, head: int, checkpoint: str | None = None) -> Path:
        """Write the collage of a head (PNG, PDF, caption) into a folder of its own below `folder`; returns it."""
        detail = self.head(layer, head, checkpoint)
        return head_collage.write(Path(folder), self.view, self._source, detail, pictures_made_from(self.digest, {}))

    @staticmethod
    def figures() -> list[str]:
        """Names of the figures."""
        return [figure.name for figure in FIGURES]

    def compare(self, published: str = "smollm3") -> pd.DataFrame:
        """These results beside published numbers: one row per (checkpoint, quantity) that both have."""
        return compare(self.view, published)

    def report(self, path: Path | str, helpers: Helpers = ALONE) -> Path:
        """Write one self-contained HTML page with figures, captions, tables and how they were made."""
        path = Path(path)
        file = path / PAGE if path.is_dir() else path
        return write_report(file, self.page(helpers), replace=is_marked(file.parent))

    def page(self, helpers: Helpers = ALONE) -> Report:
        """Everything that the report shows, as data."""
        made_from = pictures_made_from(self.digest, self.figure_options())
        return report_data(
            self.view.on(self.study.figures.axis) if self.study is not None else self.view,
            name=self.name,
            source=self._source,
            hangs_on=self.sensitivity(self.view.lineup.labels[-1]),
            record=self.record,
            folder=self.folder,
            options=self.figure_options(),
            drawn={} if self.folder is None else fresh_pictures(self.folder, made_from),
            captions=self._captions.get(made_from["options"], {}),
            made_from=self.digest,
            origins=origins(self.view.lineup, self.captures),
            helpers=helpers,
        )

    def figure_options(self, axis: str | None = None) -> Mapping[str, Mapping[str, Any]]:
        """What the study says of figures, by figure; r_q and r_k on another axis where it is given."""
        chosen = Figures() if self.study is None else self.study.figures
        return study_options(self.view.lineup.known(chosen.portraits or ()), axis or chosen.axis)

    @property
    def _source(self) -> str:
        file = "heads.csv" if self.folder is None or (self.folder / "heads.csv").is_file() else "qk.csv"
        return f"{self.name if self.folder is None else self.folder.resolve().name}/{file}"

    def write_figures(
        self, folder: Path | str, axis: str | None = None, done: Told = lambda _: None, helpers: Helpers = ALONE
    ) -> list[Path]:
        """Write every figure (PNG, PDF, caption) into a folder of its own below `folder`; returns these.

        `axis` is where r_q and r_k are measured, if not as the study says. `done` is called with each when written.
        Where there are `helpers`, other processes, they draw as well; the files are the same.
        """
        options = self.figure_options(axis)
        made_from = pictures_made_from(self.digest, options)
        written = write_figures(self.view, Path(folder), self._source, options, made_from, done, helpers)
        # The page says the same of the same view.
        self._captions[made_from["options"]] = {path.name: caption for path, caption in written.items()}
        return list(written)

    def write_tables(self, folder: Path, helpers: Helpers = ALONE) -> None:
        """Write `qk.csv`, `heads.csv`, the tables of statistics and the replicates, and the ledger of their digests."""
        made_from = {} if self.study is None else tables_made_from(self.study, self.captures)
        self.tables.write(folder, {"sensitivity": self.sensitivity}, made_from, helpers)

    def export(self, path: Path | str, to: str, checkpoint: str | None = None, **options: Any) -> list[Path]:
        """Write one checkpoint (the last by default) for other tools; returns the files that were written.

        `to` is safetensors, npz, kvpress, bases or heads; `options` are the format's own (docs/export.md).
        """
        name = self._checkpoint(checkpoint)
        source = Source.of(self.captures.get(name), name, self.heads, self.name, self.study, self.record)
        return export(source, Path(path), to, options)

    def _checkpoint(self, checkpoint: str | None) -> str:
        """Name of a checkpoint given by name or label; the last by default."""
        lineup = self.view.lineup
        return lineup.names[lineup.find([checkpoint])[0] if checkpoint is not None else len(lineup) - 1]

    def save(self, folder: Path | str) -> Path:
        """Write a results folder as a run of the command line would: record, shards, tables, figures, report.

        The folder must be new or empty. Tables alone (without captures) are saved as tables, figures and report.
        """
        folder = Path(folder)
        if not is_free(folder):
            raise RopewalkError(f"{folder} is not empty: give a new folder to save to")
        if self.study is not None:
            claim(folder, self.study.owner)
            known = {} if self.record is None else self.record.data
            write_record(folder, self.study, known.get("documents", []), begun=self.record)
            stored.write_captures(folder, self.study, self.captures)
            note_versions(folder, {name: captured.versions for name, captured in self.captures.items()})
        self.write_tables(folder)
        # Read back, so that figures and report are of what was written, to the last digit.
        saved = load(folder)
        saved.write_figures(folder / "figures")
        saved.report(folder)
        return folder


def load(path: Path | str) -> Results:
    """Results from the folder of a run, from a dataset `owner/name` on the hub that `ropewalk push` wrote, or from a
    `qk.csv` alone (then without sums, replicates and settings).

    >>> r = load("results/miniature")  # doctest: +SKIP
    """
    path = local_results(path)
    if path.is_file():
        return Results(Tables.read(path), folder=path.parent, digest=file_fingerprint(path))
    if not path.is_dir():
        raise RopewalkError(f"no results at {path}: give the folder of a run, or a qk.csv")
    record = need_record(path) if is_marked(path) else read_record(path)
    captures = {} if record is None else stored.tabulated_captures(path, record.study)
    others = {name for captured in captures.values() for name in table_names(captured.statistics)}
    # A folder without tables says so for itself.
    study = None if record is None else record.study
    digest = tables_digest(path, study, captures) if (path / "qk.csv").exists() else None
    with stale_where_wrong(path, made_here=record is not None):
        tables = Tables.read(path, others, captures)
    return Results(tables, captures, record=record, folder=path, digest=digest)


def analyze(folder: Path | str, helpers: Helpers = ALONE) -> Results:
    """Compute the tables of a results folder from its shards, with the help of other processes, and write them there.

    Checkpoints that are not finished are left out, and said (see `Results.missing`). The record says then with which
    versions these shards were made.
    """
    folder = Path(folder)
    record = need_record(folder)
    captures = stored.finished_captures(folder, record.study)
    results = from_captures(captures, record.study, record, folder, helpers)
    # Shards may have come from other machines since they were captured here.
    note_versions(folder, {name: captured.versions for name, captured in captures.items()})
    results.record = need_record(folder)
    results.write_tables(folder, helpers)
    return results


def from_captures(
    captures: Mapping[str, Capture],
    study: Study,
    record: Record | None = None,
    folder: Path | None = None,
    helpers: Helpers = ALONE,
) -> Results:
    """Results of checkpoints, those of a study whose sums are at hand."""
    known = [(captures[one.name], one) for one in study.checkpoints if one.name in captures]
    return Results(tabulate_all(known, helpers), captures, study, record, folder)
