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
from ropewalk.figures.wording import CORRELATION
from ropewalk.files import write_text
from ropewalk.report.parts import MISSING, Report

_FOLDER = Path(__file__).parent


def write_report(path: Path, data: Report) -> Path:
    """Write the page to a file and return its path."""
    write_text(path, render(data))
    return path


def render(data: Report) -> str:
    """The page as text. All data is escaped; only the package's own style and script run, pinned by their hashes."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": prose, "inline": inline, "breakable": breakable}
    style, script = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
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
        missing=MISSING,
        digits=CORRELATION.digits,
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def inline(text: str) -> Markup:
    """Escaped text in which `code` and **bold** are elements."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html))


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
