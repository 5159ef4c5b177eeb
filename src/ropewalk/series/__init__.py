"""Checkpoint series on the hub: listed by branch name, audited by file metadata, written as a study."""

from ropewalk.series.branches import Branch, labels, parse_branch
from ropewalk.series.findings import Finding, audit
from ropewalk.series.hub import Series, list_series, scan, thin
from ropewalk.series.preset import describe, to_study

__all__ = [
    "Branch",
    "Finding",
    "Series",
    "audit",
    "describe",
    "labels",
    "list_series",
    "parse_branch",
    "scan",
    "thin",
    "to_study",
]
