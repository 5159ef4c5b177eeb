"""A figure on disk: picture, paper and caption in a folder of their own."""

from pathlib import Path

from matplotlib.figure import Figure

from ropewalk.figures.caption import Caption, to_markdown
from ropewalk.figures.style import png_and_pdf
from ropewalk.files import write_bytes

FILES = ("figure.png", "figure.pdf", "README.md")
"""What is written of a figure."""


def write_figure(target: Path, drawn: Figure, caption: Caption) -> None:
    """Write `figure.png`, `figure.pdf` and `README.md` of a figure into its folder."""
    contents = (*png_and_pdf(drawn), to_markdown(caption).encode())
    for name, content in zip(FILES, contents, strict=True):
        write_bytes(target / name, content)
