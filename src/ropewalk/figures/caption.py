"""A caption: what a figure finds, the numbers behind it, how to read it and how it was made, from the same view."""

from dataclasses import dataclass

from ropewalk.figures.findings import Finding


@dataclass(frozen=True)
class Table:
    """A small table of texts: `header` over its columns, `rows` of as many cells, and a `note` on what it holds."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Caption:
    """The text beside a figure, as README.md and the page both give it.

    `findings` are one to three, the first of them the takeaway; `reading` says in a few sentences what is drawn,
    `produced` are numbered steps. In all of them `code` and **bold** are allowed.
    """

    title: str
    findings: tuple[Finding, ...]
    table: Table | None
    reading: str
    produced: tuple[str, ...]

    @property
    def takeaway(self) -> str:
        """The first finding."""
        return self.findings[0].text


def to_markdown(caption: Caption) -> str:
    """The README.md beside a `figure.png`."""
    lines = [f"# {caption.title}", "", "![figure](figure.png)", "", "## Findings", ""]
    lines += [f"- {finding.text}" for finding in caption.findings]
    if caption.table is not None:
        lines += ["", "## Numbers", "", *_table(caption.table)]
    lines += ["", "## How to read it", "", caption.reading, "", "## How it was made", ""]
    lines += [f"{number}. {step}" for number, step in enumerate(caption.produced, start=1)]
    return "\n".join([*lines, ""])


def _table(table: Table) -> list[str]:
    lines = [_row(table.header), _row(["---"] * len(table.header)), *(_row(cells) for cells in table.rows)]
    return [*lines, "", table.note] if table.note else lines


def _row(cells: "tuple[str, ...] | list[str]") -> str:
    # A bar or a line break of a name would begin another cell, or end the table.
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"
