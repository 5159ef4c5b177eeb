"""A figure on disk: picture, paper and caption in a folder of their own."""

from pathlib import Path

from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption, to_markdown
from ropewalk.figures.style import pdf, png
from ropewalk.files import write_bytes, write_text

FILES = ("figure.png", "figure.pdf", "README.md")
"""What is written of a figure."""


def write_figure(target: Path, drawn: Figure, caption: Caption) -> None:
    """Write `figure.png`, `figure.pdf` and `README.md` of a figure into its folder."""
    picture, paper, text = (target / name for name in FILES)
    write_bytes(picture, png(drawn))
    write_bytes(paper, pdf(drawn))
    write_text(text, to_markdown(caption))
