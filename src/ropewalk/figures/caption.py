"""A caption: what a figure shows, in words and numbers that are computed from the same view."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caption:
    """The text beside a figure.

    `shows` are paragraphs (one that starts with "- " is a bullet, **bold** is allowed), `produced` numbered steps.
    """

    title: str
    shows: tuple[str, ...]
    produced: tuple[str, ...]
    takeaway: str


def to_markdown(caption: Caption) -> str:
    """The README.md beside a `figure.png`."""
    lines = [f"# {caption.title}", "", "## File", "`figure.png`", "", "## What This Figure Shows", ""]
    for paragraph, following in zip(caption.shows, (*caption.shows[1:], ""), strict=True):
        lines.append(paragraph)
        if not (paragraph.startswith("- ") and following.startswith("- ")):
            lines.append("")
    lines += ["## How It Was Produced", ""]
    for number, step in enumerate(caption.produced, start=1):
        lines += [f"{number}. {step}", ""]
    lines += ["## Key Takeaway", "", caption.takeaway, ""]
    return "\n".join(lines)
