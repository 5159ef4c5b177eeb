"""The whole way of a study: capture, tables, figures, report."""

from pathlib import Path

from ropewalk.capture.stored import stored_captures
from ropewalk.errors import IncompleteError, RopewalkError
from ropewalk.files import alone
from ropewalk.freshness import StaleTablesError
from ropewalk.helpers import ALONE, Helpers, spare_processes
from ropewalk.progress import logger
from ropewalk.record import need_record, read_record
from ropewalk.results import Results, analyze, load
from ropewalk.study import Study


def run_study(study: Study, *, adopt: bool = False, wait: bool = False) -> Results:
    """Do all that is not done yet of a study; its results are in `study.folder` then.

    The folder must be new, empty or of this study; `adopt` takes over one of a study that was moved and edited. The
    study's engine computes the shards; `wait` is for `slurm`: stay until its jobs are done. Where checkpoints could not
    be captured, an IncompleteError says so after the others are tabulated and drawn.
    """
    from ropewalk.capture.run import capture_study
    from ropewalk.engines import choose_engine

    try:
        capture_study(study, adopt=adopt, engine=choose_engine(study.engine, wait=wait))
    except IncompleteError:
        captures = stored_captures(study.folder, need_record(study.folder).study)
        if any(captured.is_complete for captured in captures.values()):
            _shown(study.folder)
        raise
    return _shown(study.folder)


def _shown(folder: Path) -> Results:
    """Tables, figures and report of what was captured."""
    with Helpers(spare_processes()) as helpers:
        results = _tabulated(folder, helpers)
        logger.info("tables: %s", folder / "qk.csv")
        draw(results, folder, helpers)
    return results


def up_to_date(path: Path, helpers: Helpers = ALONE) -> Results:
    """Results from a folder or a table; tables of a folder that are damaged or out of date are made again first."""
    if not path.exists():
        # What is drawn goes beside the tables: a dataset on the hub has no such place.
        raise RopewalkError(f"no results at {path}: give the folder of a run, or a qk.csv")
    if path.is_dir() and not (path / "qk.csv").exists() and read_record(path) is not None:
        # As of a training that is being observed.
        return _tabulated(path, helpers)
    try:
        return load(path)
    except StaleTablesError as error:
        logger.warning("%s: the tables are made again", error.reason)
        return _tabulated(path, helpers)


def _tabulated(folder: Path, helpers: Helpers) -> Results:
    """Tables made anew and read back, so that figures and report are of what was written, to the last digit."""
    # Another run of the same study writes the same, and they would be found half written.
    with alone(folder):
        analyze(folder, helpers)
        return load(folder)


def draw(results: Results, folder: Path, helpers: Helpers = ALONE) -> Path:
    """Write the figures and the report of results into their folder; return the report's path."""
    results.write_figures(folder / "figures", done=lambda path: logger.info("%s", path), helpers=helpers)
    return results.report(folder, helpers)
