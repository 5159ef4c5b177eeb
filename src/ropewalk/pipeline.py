"""The whole way of a study: capture, tables, figures, report."""

from pathlib import Path

from ropewalk.progress import logger
from ropewalk.results import Results, analyze, load
from ropewalk.study import Study


def run_study(study: Study) -> Results:
    """Do all that is not done yet of a study; its results are in `study.folder` then."""
    from ropewalk.capture.run import capture_study

    capture_study(study)
    analyze(study.folder)
    logger.info("tables: %s", study.folder / "qk.csv")
    # Read back, so that figures and report are of what was written, to the last digit.
    results = load(study.folder)
    draw(results, study.folder)
    return results


def draw(results: Results, folder: Path) -> Path:
    """Write the figures and the report of results into their folder; return the report's path."""
    results.write_figures(folder / "figures", done=lambda path: logger.info("%s", path))
    return results.report(folder)
