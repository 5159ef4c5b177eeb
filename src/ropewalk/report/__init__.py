"""One self-contained HTML page of a results folder: its data is built in `content`, and rendered in `page`."""

from ropewalk.report.content import report_data
from ropewalk.report.page import PAGE, render, write_report
from ropewalk.report.parts import Origin, Report, origins

__all__ = ["PAGE", "Origin", "Report", "origins", "render", "report_data", "write_report"]
