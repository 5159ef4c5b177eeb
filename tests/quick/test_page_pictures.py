"""Pictures of the page: fewer bytes, no colour that is seen to differ, whatever comes."""

import io

import numpy as np
import pytest
from PIL import Image

from helpers.figures import draw
from helpers.tables import synthetic
from ropewalk.figures.style import png
from ropewalk.report import pictures
from ropewalk.report.pictures import small


def written(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def pixels(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


@pytest.mark.parametrize("name", ["taxonomy_evolution", "depth_heatmap_r_q"])
def test_figures_look_the_same(name):
    drawn = png(draw(name, synthetic(4, heads=40)))
    reduced = small(drawn)
    assert reduced == small(drawn)
    assert len(reduced) < 0.6 * len(drawn)
    difference = np.abs(pixels(drawn) - pixels(reduced)).max(axis=-1)
    assert difference.mean() < 0.5
    # Areas of one colour, which are most of a picture, keep it.
    assert np.mean(difference == 0) > 0.9


def test_few_colours_stay_exactly_what_they_are():
    colours = np.arange(200)[:, None] * [1, 0, -1] + [20, 130, 240]
    drawn = written(Image.fromarray(np.repeat(colours[None], 30, axis=0).repeat(40, axis=1).astype(np.uint8)))
    np.testing.assert_array_equal(pixels(small(drawn)), pixels(drawn))
    one = written(Image.new("RGBA", (7, 3), (1, 2, 3, 0)))
    assert np.unique(pixels(small(one)).reshape(-1, 3), axis=0).tolist() == [[1, 2, 3]]


def test_a_picture_of_noise_is_no_figure_and_takes_no_more_room(monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, (60, 50, 3), dtype=np.uint8)
    monkeypatch.setattr(pictures.np, "flatnonzero", lambda _: pytest.fail("its runs are not looked for"))
    shown = pixels(small(written(Image.fromarray(noise))))
    assert shown.shape == noise.shape
    assert np.abs(shown - noise).mean() < 30


def test_what_is_no_picture_or_too_large_is_left_out(monkeypatch):
    whole = written(Image.new("RGB", (30, 20)))
    assert small(b"") is small(whole[:45]) is small(b"nonsense" * 20) is None
    monkeypatch.setattr(pictures, "MOST_PIXELS", 599)
    assert small(whole) is None
