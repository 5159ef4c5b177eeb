"""Parts of Markdown files that scripts write: what stands between two marks, `<!-- name -->` and `<!-- /name -->`."""

import re
from pathlib import Path

from ropewalk.files import write_text


def write_between(document: Path, name: str, text: str) -> None:
    """Replace what stands between the marks of a Markdown file."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    whole = document.read_text(encoding="utf-8")
    between = re.compile(f"(?<={re.escape(begin)}\n).*?(?={re.escape(end)})", re.DOTALL)
    if not between.search(whole):
        raise SystemExit(f"{document} has no marks for this: it needs the lines {begin} and {end}")
    write_text(document, between.sub(lambda _: f"\n{text}\n\n", whole))
