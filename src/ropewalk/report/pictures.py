"""Pictures as the page carries them: with a palette of 256 colours of their own."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

MOST_PIXELS = 100_000_000
"""Of a picture: ten times those of the largest figure."""
SAMPLE = 100_000
"""Pixels that a palette is chosen by: as many of each colour as is its share of the picture, and at least one."""


def small(content: bytes) -> bytes | None:
    """The picture with a palette of its own 256 colours: a third of the bytes, and no difference that is seen.

    None where it is no picture, or larger than figures are: it may come from a stranger, who can write a seal.
    """
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                return None
            plain = picture.convert("RGB")
    # What is wrong with a picture is any of these, by where in the file it is.
    except (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, Image.DecompressionBombError):
        return None
    buffer = io.BytesIO()
    # Beyond this level it takes far longer, for a few bytes in a hundred.
    _reduced(plain).save(buffer, "PNG", compress_level=7)
    return buffer.getvalue()


def _reduced(picture: Image.Image) -> Image.Image:
    """The picture with a palette, by runs of pixels of one colour, of which figures have few."""
    pixels = np.asarray(picture.convert("RGBA")).view(np.uint32).ravel()
    begins = np.concatenate(([True], pixels[1:] != pixels[:-1]))
    if begins.mean() > 0.5:
        # No figure of ours: its runs would take many times the room of the picture.
        return _with_palette(picture)
    starts = np.flatnonzero(begins)
    lengths = np.diff(starts, append=len(pixels))
    colours, which = np.unique(pixels[starts], return_inverse=True)
    times = np.maximum(1, np.bincount(which, lengths) * SAMPLE / len(pixels)).astype(int)
    sample = Image.frombytes("RGBA", (int(times.sum()), 1), np.repeat(colours, times).tobytes()).convert("RGB")
    chosen = _with_palette(sample)
    numbers = np.asarray(chosen).ravel()[np.cumsum(times) - 1]
    reduced = Image.frombytes("P", picture.size, np.repeat(numbers[which], lengths).tobytes())
    reduced.putpalette(chosen.getpalette() or ())
    return reduced


def _with_palette(picture: Image.Image) -> Image.Image:
    return picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
