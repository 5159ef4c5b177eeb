"""Files of figures: what is kept from one to the next changes no byte of them, and no picture is seen to differ."""

import gc
import io

import numpy as np
import pytest
from fontTools import subset
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import findfont
from PIL import Image

from helpers.figures import draw
from helpers.tables import synthetic
from ropewalk.figures import embedding, gallery
from ropewalk.figures.style import FONT, page, png, png_and_pdf, style
from ropewalk.summary.view import View


def embedded(text: str) -> bytes:
    """The letters of a text as matplotlib has them embedded."""
    content = io.BytesIO()
    with embedding.bare_fonts():
        options = subset.Options(glyph_names=True, recommended_glyphs=True, recalc_timestamp=False)
        with subset.load_font(findfont(FONT), options) as font:
            subsetter = subset.Subsetter(options=options)
            subsetter.populate(text=text)
            subsetter.subset(font)
            font.save(content, reorderTables=False)
    return content.getvalue()


def test_a_font_is_the_same_whichever_glyphs_were_embedded_before(monkeypatch):
    some, others = "head 0123456789", "Δη² tokens"
    embedding._bare.cache_clear()
    first = embedded(some)
    embedded(others)
    assert embedded(some) == first != embedded(others)
    # As read from the whole file each time.
    monkeypatch.setattr(embedding, "_load_bare", embedding._load)
    assert embedded(some) == first


def test_files_are_the_same_whatever_was_drawn_before():
    table = synthetic(4, heads=40)
    embedding._bare.cache_clear()
    first = png_and_pdf(draw("taxonomy_evolution", table))
    png_and_pdf(draw("depth_heatmap_r_q", table))
    assert png_and_pdf(draw("taxonomy_evolution", table)) == first


@pytest.mark.parametrize("name", ["position_signal", "depth_heatmap_r_q"])
def test_the_picture_is_that_of_matplotlib(name):
    table = synthetic(4, heads=40)
    with Image.open(io.BytesIO(png(draw(name, table)))) as picture:
        assert picture.mode == "RGB"
        shown, dots = np.asarray(picture), picture.info["dpi"]
    assert dots == pytest.approx((300, 300), abs=0.01)
    plain = draw(name, table)
    with style():
        plain.set_dpi(300)
        FigureCanvasAgg(plain).draw()
    drawn = np.asarray(plain.canvas.buffer_rgba())
    np.testing.assert_array_equal(drawn[..., :3], shown)
    assert (drawn[..., 3] == 255).all()


def test_a_page_that_is_seen_through_stays_so():
    figure = page(1, 1)
    figure.add_subplot().set_facecolor("none")
    figure.set_facecolor("none")
    with Image.open(io.BytesIO(png(figure))) as picture:
        assert picture.mode == "RGBA"
        assert picture.getchannel("A").getextrema() == (0, 255)


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_after_a_figure_if_it_was_before(enabled, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(gallery, "write_figure", lambda *_: seen.append(gc.isenabled()) or 1 / 0)
    task = gallery.Task("explained_variance", tmp_path, {})
    view = View.of(synthetic(2))
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ZeroDivisionError):
            gallery.write_task(task, view, "qk.csv")
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert seen == [False]
