"""The whole way of a study: capture, tables, figures, report."""

from pathlib import Path

from ropewalk.analysis import analyze, recorded_study
from ropewalk.progress import say
from ropewalk.study import Study


def run_study(study: Study) -> Path:
    """Do all that is not done yet of a study and return its results folder."""
    from ropewalk.capture.run import capture_study

    capture_study(study)
    analyze(study.folder)
    say(f"tables: {study.folder / 'qk.csv'}")
    draw(study.folder)
    return study.folder


def draw(results: Path) -> Path:
    """Write the figures and the report of a results folder that has its tables; return the report's path."""
    from ropewalk.figures import write_figures
    from ropewalk.report import write_report

    write_figures(results, portraits=portraits(results), log=say)
    return write_report(results)


def portraits(results: Path) -> tuple[str, ...] | None:
    """The checkpoints that a study names for the phase portraits; None when it names none or is not recorded."""
    return recorded_study(results).figures.portraits if (results / "study.yaml").is_file() else None
