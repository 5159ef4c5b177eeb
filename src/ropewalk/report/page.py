"""The report as one HTML file that loads nothing: style, script and pictures are inside it."""

import base64
import hashlib
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ropewalk._version import __version__
from ropewalk.errors import RopewalkError
from ropewalk.figures.findings import Finding
from ropewalk.files import write_bytes
from ropewalk.ownership import note_page
from ropewalk.report.parts import Report
from ropewalk.seals import BLANK, REACH, seal

_FOLDER = Path(__file__).parent
STYLES = ("report.css", "explorer.css")
SCRIPTS = (
    *("store.js", "drawing.js", "matrix.js", "scatter.js", "compare.js", "brush.js", "charts.js", "head.js"),
    *("state.js", "explorer.js", "heads_table.js", "page.js"),
)
"""In the order in which they need each other; the last one begins."""


PAGE = "report.html"
GENERATOR = re.compile(rb'<meta name="generator" content="ropewalk ')
MADE_FROM = re.compile(rb'<meta name="made-from" content="([0-9a-f]*)">')


def write_report(path: Path, data: Report, *, replace: bool = False) -> Path:
    """Write the page to a file and return its path; a file that is no such page is replaced only where told to."""
    if not replace and path.exists() and not (path.is_file() and GENERATOR.search(_beginning(path))):
        raise RopewalkError(
            f"{path} is there already and was not written by ropewalk: move it away, or write to another file"
        )
    write_bytes(path, seal(render(data).encode()))
    if path.name == PAGE:
        note_page(path.parent, PAGE)
    return path


def is_current(path: Path, tables: str) -> bool:
    """Whether a page was made from tables of this digest."""
    found = MADE_FROM.search(_beginning(path))
    return found is not None and found[1].decode() == tables


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(REACH)


def render(data: Report) -> str:
    """The page as text. All data is escaped; only the package's own style and script run, pinned by their hashes."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": prose, "inline": inline, "finding": finding, "breakable": breakable}
    style, script = (
        "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in names) for names in (STYLES, SCRIPTS)
    )
    script = f'"use strict";\n(() => {{\n{script}}})();\n'
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template("template.html.j2").render(
        data=data,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        version=__version__,
        seal=BLANK,
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def inline(text: str) -> Markup:
    """Escaped text in which `code` and **bold** are elements."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html))


def finding(found: Finding) -> Markup:
    """A finding: its sentence, and its numbers in brackets that stand back, each on one line with its error."""
    if not found.evidence:
        return inline(found.text)
    numbers = inline(found.evidence.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"))
    return inline(found.sentence) + Markup(' <span class="evidence">(') + numbers + Markup(")</span>.")


def prose(paragraphs: Sequence[str]) -> Markup:
    """Paragraphs as elements; those that start with "- " become one list where they stand together."""
    parts = []
    for bullets, group in groupby(paragraphs, key=lambda paragraph: paragraph.startswith("- ")):
        if bullets:
            items = "".join(f"<li>{inline(paragraph[2:])}</li>" for paragraph in group)
            parts.append(f"<ul>{items}</ul>")
        else:
            parts.extend(f"<p>{inline(paragraph)}</p>" for paragraph in group)
    return Markup("".join(parts))


def breakable(name: str) -> Markup:
    """A name that may break after an underscore, where the line is too short for it."""
    return Markup("_<wbr>").join(name.split("_"))
