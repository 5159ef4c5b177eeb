"""The HTML report: its data against plain pandas, and the page in a browser."""

import base64
import html
import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.stats import t as student

from helpers.browser import Visit
from helpers.oracles import jackknife
from helpers.tables import random_table, write_results
from ropewalk.errors import RopewalkError
from ropewalk.figures import gallery, to_markdown
from ropewalk.figures.findings import Finding
from ropewalk.figures.style import png
from ropewalk.freshness import pictures_made_from
from ropewalk.geometry import taxonomy
from ropewalk.geometry.taxonomy import CATEGORIES, classify
from ropewalk.record import FORMAT
from ropewalk.report import render
from ropewalk.report.glossary import glossary
from ropewalk.report.page import finding, inline, prose
from ropewalk.report.parts import MISSING, Grid
from ropewalk.report.settings import entries
from ropewalk.results import load
from ropewalk.seals import Ledger
from ropewalk.summary.view import View

LAYERS, HEADS, SHARDS = 12, 8, 3
CHECKPOINTS = (("one", "A", "start"), ("two", "B", "start"), ("three", "C", "end"))
HOSTILE = "<script>alert(1)</script>"
RECORD = {
    "ropewalk": {"version": "0.0", "format": FORMAT},
    "created": "2026-01-02T03:04:05Z",
    "versions": {},
    "origins": [],
    "documents": [],
    "study": {
        "name": "tiny_study",
        "checkpoints": [
            {"repo": "o/n", "name": name, "label": label, "context": 64, "overrides": {"rope_theta": 50000}}
            for name, label, _ in CHECKPOINTS
        ],
    },
}


def make_table(checkpoints=CHECKPOINTS):
    facts = [
        {
            "checkpoint": name,
            "label": label,
            "phase": phase,
            "step": order * 100,
            "se_r_q": 0.012,
            "n_q": 640,
            "shards": SHARDS,
        }
        for order, (name, label, phase) in enumerate(checkpoints)
    ]
    return random_table(facts, layers=LAYERS, heads=HEADS, shards=SHARDS, noise=0.1, seed=1)


def hostile_record():
    checkpoint = {"repo": HOSTILE, "name": "one", "label": HOSTILE, "phase": HOSTILE, "context": 64}
    return {**RECORD, "study": {"name": "hostile", "checkpoints": [checkpoint]}, HOSTILE: HOSTILE}


def report_data(results):
    return load(results).page()


def write_report(results):
    return load(results).report(results)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    table, replicates = make_table()
    table.loc[(table["checkpoint"] == "one") & (table["layer"] == 2), ["r_q", "r_k"]] = np.nan
    return write_results(tmp_path_factory.mktemp("results"), table, replicates, RECORD)


@pytest.fixture(scope="module")
def data(results):
    return report_data(results)


@pytest.fixture
def no_figures(monkeypatch):
    monkeypatch.setattr(gallery, "FIGURES", ())


@pytest.fixture
def one_figure(monkeypatch):
    monkeypatch.setattr(gallery, "FIGURES", gallery.FIGURES[:1])


def pc0_of(results, name):
    table = pd.read_csv(results / "qk.csv")
    return table[(table["pc"] == 0) & (table["checkpoint"] == name)]


# Data


def decided_words(heads, replicates, name):
    """Concordance of each head, spelled out once more."""
    own = replicates[replicates["checkpoint"] == name].pivot(columns="left_out", index=["layer", "head"])
    own = own.reindex(pd.MultiIndex.from_frame(heads[["layer", "head"]]))
    shards = own["r_q"].shape[1]
    beyond = [
        heads[column].abs().to_numpy()
        > student.ppf(0.975, shards - 1) * own[column].apply(jackknife, axis=1).to_numpy()
        for column in ("r_q", "r_k")
    ]
    words = np.where(heads["r_q"] * heads["r_k"] < 0, "discordant", "concordant").astype(object)
    words[~(beyond[0] & beyond[1])] = "undecided"
    words[(heads["r_q"] * heads["r_k"]).isna()] = None
    return pd.Series(words, index=heads.index, dtype=object)


def test_headline_numbers_are_plain_pandas(results, data):
    first, last = pc0_of(results, "one"), pc0_of(results, "three")
    replicates = pd.read_parquet(results / "replicates.parquet")
    category = classify(last["r_q"], last["r_k"])
    words = decided_words(last, replicates, "three")
    expected = {
        "mean_r_q": f"{last['r_q'].mean():.3f}",
        "mean_r_k": f"{last['r_k'].mean():.3f}".replace("-", "−"),
        "mean_abs_r_k": f"{last['r_k'].abs().mean():.3f}",
        "discordant": f"{100 * (words == 'discordant').sum() / words.isin(['concordant', 'discordant']).sum():.1f}%",
        "share_position-dominated": f"{100 * (category == 'position-dominated').mean():.1f}%",
        "mean_explained_variance": f"{100 * last['explained_variance'].mean():.1f}%",
    }
    assert {card.quantity: card.value for card in data.cards} == expected

    def left_out(name, column):
        return replicates[replicates["checkpoint"] == name].groupby("left_out")[column].mean()

    card = data.cards[0]
    assert card.error == f"± {jackknife(left_out('three', 'r_q')):.3f}"
    change = last["r_q"].mean() - first["r_q"].mean()
    error = jackknife(left_out("three", "r_q") - left_out("one", "r_q"))
    assert card.detail == f"**{change:+.3f} ± {error:.3f}** since A".replace("-", "−")
    means = [pc0_of(results, name)["r_q"].mean() for name, *_ in CHECKPOINTS]
    assert card.trend == tuple(zip([0, 0.5, 1], pytest.approx(means).expected, strict=True))
    assert data.cards[3].detail.split("**")[1].endswith(" points")


def test_tables_per_checkpoint_are_plain_pandas(results, data):
    signal, taxonomy, phases, hangs_on = data.grids
    assert hangs_on.title == "What the numbers hang on"
    assert [row[0].text for row in signal.rows] == ["A", "B", "C"]
    assert [row[0].note for row in signal.rows] == ["start", "start", "end"]
    names = [column.title for column in signal.columns]
    for row, (name, *_) in zip(signal.rows, CHECKPOINTS, strict=True):
        heads = pc0_of(results, name)
        cells = dict(zip(names, row, strict=True))
        assert cells["heads"].key == LAYERS * HEADS
        assert cells["mean r_k"].key == pytest.approx(heads["r_k"].mean())
        assert cells["r_k NoPE"].key == pytest.approx(heads.loc[heads["layer"] % 4 == 3, "r_k"].mean())
        assert cells["r_k RoPE"].key == pytest.approx(heads.loc[heads["layer"] % 4 != 3, "r_k"].mean())
    names = [column.title for column in taxonomy.columns]
    for row, (name, *_) in zip(taxonomy.rows, CHECKPOINTS, strict=True):
        heads = pc0_of(results, name)
        known = pd.Series(classify(heads["r_q"], heads["r_k"])).dropna()
        cells = dict(zip(names, row, strict=True))
        for category in CATEGORIES[1:]:
            assert cells[category].key == pytest.approx((known == category).mean())
        halves = [cells[f"{CATEGORIES[0]}, {half}"].key for half in ("concordant", "discordant")]
        assert sum(halves) == pytest.approx(cells[f"{CATEGORIES[0]} heads"].key)
    assert [(row[0].text, row[0].note) for row in phases.rows] == [("start", "B"), ("end", "C")]
    means = {name: pc0_of(results, name)["r_q"].mean() for name, *_ in CHECKPOINTS}
    changes = [row[1].note.split(" ±")[0].replace("−", "-") for row in phases.rows]
    assert changes == [f"{means['two'] - means['one']:+.3f}", f"{means['three'] - means['two']:+.3f}"]


def test_script_and_style_name_what_exists(data):
    page = render(replace(data, pictures=()))
    headers = re.findall(r'<th [^>]*data-column="(\w+)"', page)
    assert headers == [column.key for column in data.head_columns]
    facts = ["checkpoint", "layer", "head", "k_head", "layer_type"]
    assert headers[:7] == [*facts, "category", "concordance"]
    assert set(headers) - set(facts) <= set(data.explorer.columns)
    # The style gives some headline numbers a colour, by the name of their measure.
    toned = set(re.findall(r"\.card\.(\w+)", page))
    assert toned == {"mean_r_q", "mean_r_k", "mean_abs_r_k", "discordant"}
    assert toned <= {card.quantity for card in data.cards}
    assert 'placeholder="L12, L12H3, NoPE, mixed, discordant"' in page


def test_lead_and_facts(data):
    assert data.name == "tiny_study"
    assert data.lead == (
        "How strongly the queries and keys of 96 attention heads carry token position, "
        "at 3 checkpoints in 2 phases, from A to C."
    )
    assert data.at == "PC0 at C, the last of 3 checkpoints; ± is one standard error."
    facts = {entry.name: entry.value for entry in data.facts}
    assert facts == {
        "checkpoints": "3",
        "heads per checkpoint": "96",
        "layers of the model": "12",
        "heads in NoPE layers": "24",
        "tokens per checkpoint": "640",
        "shards per checkpoint": "3",
        "date": "2026-01-02T03:04:05Z",
    }


def test_settings_nest_and_lists_of_settings_become_tables():
    settings = {
        "ropewalk": {"version": "0.0"},
        "created": "2026-01-02T03:04:05Z",
        "study": {
            "name": "tiny_study",
            "checkpoints": [
                {"name": "one", "context": 64, "overrides": {"rope_theta": 50000}, "revision": None, "family": ""},
                {"name": "two", "context": 128, "overrides": {}},
            ],
            "corpus": {"documents": 9, "columns": ["text", "body"], "shuffle": False, "paths": [], "repo": None},
            "figures": {"portraits": None},
        },
    }
    made = {entry.name: entry.value for entry in entries(settings)}
    assert list(made) == ["created", "ropewalk", "study"]
    study = {entry.name: entry.value for entry in made["study"]}
    assert list(study) == ["name", "checkpoints", "corpus"]
    assert study["name"] == "tiny_study"
    corpus = {entry.name: entry.value for entry in study["corpus"]}
    assert corpus == {"documents": "9", "columns": "text, body", "shuffle": "no"}
    table = study["checkpoints"]
    assert isinstance(table, Grid)
    assert [column.title for column in table.columns] == ["name", "context", "overrides.rope_theta"]
    assert [[cell.text for cell in row] for row in table.rows] == [["one", "64", "50000"], ["two", "128", MISSING]]
    assert [[cell.key for cell in row] for row in table.rows] == [["one", 64, 50000], ["two", 128, None]]


def test_a_study_over_models_has_ranges_and_no_changes(tmp_path, no_figures):
    table, replicates = make_table((("m1", "M1", ""), ("m2", "M2", ""), ("m3", "M3", "")))
    table["family"] = table["checkpoint"].map({"m1": "x", "m2": "y", "m3": "x"})
    data = report_data(write_results(tmp_path, table.drop(columns=["step", "phase"]), replicates))
    means = table[table["pc"] == 0].groupby("label")["r_q"].mean()
    assert data.lead.endswith("in 3 models of 2 families.")
    assert data.at == "PC0, lowest and highest of 3 models."
    assert data.cards[0].value == f"{means.min():.3f} to {means.max():.3f}"
    assert data.cards[0].detail == f"from {means.idxmin()} to {means.idxmax()}"
    assert data.cards[0].trend == ()
    assert [(row[0].text, row[0].note) for row in data.grids[0].rows] == [("M1", "x"), ("M3", "x"), ("M2", "y")]
    assert len(data.grids) == 3


def test_models_that_do_not_differ_share_a_value_and_unknown_columns_are_left_out(tmp_path, no_figures):
    table, _ = make_table((("m1", "M1", ""),))
    table = pd.concat([table, table.assign(checkpoint="m2", label="M2")]).drop(columns=["step", "rope"])
    data = report_data(write_results(tmp_path, table))
    assert data.cards[0].value == f"{table.loc[table['pc'] == 0, 'r_q'].mean():.3f}"
    assert data.cards[0].detail == "in every model"
    names = [column.title for column in data.grids[0].columns]
    assert "mean r_k" in names
    assert "r_k NoPE" not in names
    assert "heads in NoPE layers" not in [entry.name for entry in data.facts]


def test_the_barest_table_gives_a_page(tmp_path, no_figures):
    table = pd.DataFrame(
        [
            {
                "checkpoint": "only",
                "layer": 0,
                "head": 0,
                "pc": 0,
                "explained_variance": 0.5,
                "r_q": np.nan,
                "r_k": np.nan,
            }
        ]
    )
    data = report_data(write_results(tmp_path / "bare", table))
    assert data.name == "bare"
    assert data.lead == "How strongly the queries and keys of 1 attention head carry token position, at only."
    assert data.at == "PC0 at only, without standard errors, which need two shards."
    assert [card.value for card in data.cards] == [MISSING] * 5 + ["50.0%"]
    assert all(card.detail == "" and card.trend == () for card in data.cards)
    assert data.study is None
    assert "study.yaml" not in render(data)


# Mistakes


def test_no_table(tmp_path):
    with pytest.raises(RopewalkError, match=r"no table at .*qk\.csv: run `ropewalk analyze"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_an_empty_table(tmp_path):
    write_results(tmp_path, make_table()[0].iloc[:0])
    with pytest.raises(RopewalkError, match=r"qk\.csv has no rows: run `ropewalk analyze` on a finished capture$"):
        write_report(tmp_path)


def test_a_table_without_pc0(tmp_path):
    table = make_table()[0]
    write_results(tmp_path, table[table["pc"] == 1])
    with pytest.raises(RopewalkError, match="no row with pc 0"):
        write_report(tmp_path)


def test_a_study_that_is_not_yaml(tmp_path, no_figures):
    write_results(tmp_path, make_table()[0])
    (tmp_path / "study.yaml").write_text("a: [1", encoding="utf-8")
    with pytest.raises(RopewalkError, match=r"study\.yaml is not as it was written .*: run `ropewalk capture STUDY`"):
        write_report(tmp_path)


# Rendering


def test_hostile_names_are_text(tmp_path, no_figures):
    checkpoints = (("one", HOSTILE, HOSTILE), ("two", "B", 'x" onload="alert(2)'), ("three", "`**" + HOSTILE, "end"))
    table, replicates = make_table(checkpoints)
    page = write_report(write_results(tmp_path, table, replicates, hostile_record())).read_text(encoding="utf-8")
    assert HOSTILE not in page
    assert 'onload="alert' not in page
    assert html.escape(HOSTILE) in page
    # Data, numbers, and the one script that runs.
    assert len(re.findall(r"<script", page)) == 3
    embedded = re.search(r'id="explorer-data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(embedded.group(1))["checkpoints"][0]["label"] == HOSTILE


def test_the_study_stands_verbatim_in_the_page(results, data):
    page = render(data)
    shown = re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL).group(1)
    first, rest = (results / "study.yaml").read_text(encoding="utf-8").split("\n", 1)
    assert first.startswith("seal: ")
    assert html.unescape(shown) == rest


def test_the_policy_forbids_everything_but_the_page_itself(data):
    page = render(replace(data, pictures=()))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page).group(1)
    rules = dict(rule.strip().split(" ", 1) for rule in html.unescape(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert rules["script-src"].startswith("'sha256-")
    assert rules["style-src"].startswith("'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert not re.search(r"url\(|@import|https?:", page)


def test_captions_are_escaped_and_marked_up():
    assert inline("**a<b** and `c**d`") == "<strong>a&lt;b</strong> and <code>c**d</code>"
    assert prose(("one", "- two", "- **three**", "four")) == (
        "<p>one</p><ul><li>two</li><li><strong>three</strong></li></ul><p>four</p>"
    )


def test_the_glossary_takes_its_rules_from_the_taxonomy(monkeypatch):
    def rules():
        (term,) = [term for term in glossary() if term.name == "category"]
        return term.meaning[1:]

    assert rules()[0] == "- **position-dominated**: `r_q > 0.7` and `|r_k| > 0.7`"
    assert rules()[2] == "- **K-positional**: `r_q < 0.3` and `|r_k| > 0.7`"
    assert rules()[4] == "- **mixed**: every other head whose two correlations are known"
    assert [rule.split("**")[1] for rule in rules()] == list(CATEGORIES)
    monkeypatch.setattr(taxonomy, "RULES", (taxonomy.Rule("odd", (0.25, 0.5), (-np.inf, 0.125)),))
    assert rules()[0] == "- **odd**: `r_q > 0.25` and `r_q < 0.5` and `|r_k| < 0.125`"


def picture_of(colour):
    buffer = io.BytesIO()
    Image.new("RGBA", (30, 20), (*colour, 255)).save(buffer, "PNG")
    return buffer.getvalue()


def test_pictures_of_the_page_are_smaller_and_look_the_same(results, data, one_figure):
    figure = gallery.FIGURES[0]
    drawn = png(figure.draw(load(results).view))
    shown = base64.b64decode(data.pictures[0].uri.partition(",")[2])
    assert len(shown) < 0.6 * len(drawn)
    pixels = []
    for content in (drawn, shown):
        with Image.open(io.BytesIO(content)) as picture:
            pixels.append(np.asarray(picture.convert("RGB"), dtype=float))
    assert pixels[0].shape == pixels[1].shape
    assert np.abs(pixels[0] - pixels[1]).mean() < 0.5


def test_pictures_come_from_the_folder_if_they_are_whole_and_of_these_tables(results, data, one_figure):
    folder, name = results / "figures", "01_position_signal/figure.png"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    marked = picture_of((12, 34, 56))
    (folder / name).write_bytes(marked)
    loaded = load(results)
    made_from = pictures_made_from(loaded.digest, loaded.figure_options())
    shown = []
    try:
        for origin in (made_from, {**made_from, "tables": "others"}, {**made_from, "options": "others"}):
            Ledger.of(folder, [name], origin).write(folder)
            shown.append(report_data(results).pictures[0].uri)
        Ledger.of(folder, [name], made_from).write(folder)
        (folder / name).write_bytes(marked + b"damaged")
        shown.append(report_data(results).pictures[0].uri)
    finally:
        shutil.rmtree(folder)
    with Image.open(io.BytesIO(base64.b64decode(shown[0].partition(",")[2]))) as picture:
        assert picture.convert("RGB").getpixel((0, 0)) == (12, 34, 56)
    assert shown[1:] == [data.pictures[0].uri] * 3


def test_every_figure_is_in_the_report_with_its_caption(results, data):
    view = View.of(pd.read_csv(results / "qk.csv"), pd.read_parquet(results / "replicates.parquet"))
    figures = gallery.shown(view)
    assert [picture.folder for picture in data.pictures] == [gallery.folder_name(figure) for figure in figures]
    for picture, figure in zip(data.pictures, figures, strict=True):
        assert picture.caption == figure.caption(view, f"{results.name}/qk.csv")
    page = render(data)
    for picture in data.pictures:
        assert str(inline(picture.caption.reading)) in page
        assert all(str(inline(step)) in page for step in picture.caption.produced)


def test_the_page_says_what_the_readme_says(visit, data):
    """Findings, table, reading and steps of every figure, as they are read on the page and in Markdown."""

    def plain(text: str) -> str:
        return " ".join(text.replace("**", "").replace("`", "").replace("\\|", "|").split())

    articles = visit.page.locator(".figure")
    assert articles.count() == len(data.pictures)
    for place, picture in enumerate(data.pictures):
        article, readme = articles.nth(place), to_markdown(picture.caption)
        shown = [article.locator(".takeaway"), *article.locator(".findings li").all()]
        found = [line[2:] for line in readme.split("## Findings")[1].split("\n## ")[0].splitlines() if line[:2] == "- "]
        assert [plain(one.text_content()) for one in shown] == [plain(line) for line in found]
        rows = [line for line in readme.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
        cells = [
            [plain(cell.text_content()) for cell in row.locator("th, td").all()] for row in article.locator("tr").all()
        ]
        assert [plain(f"| {' | '.join(row)} |") for row in cells] == [plain(row) for row in rows]
        assert plain(article.locator("figcaption").text_content()) in plain(readme)
        steps = [plain(step.text_content()) for step in article.locator("ol li").all()]
        assert steps == [plain(step) for step in picture.caption.produced]


def test_a_hostile_caption_stays_text():
    caption = finding(Finding("<b>rises</b>", "<img src=x onerror=alert(1)> ± 2"))
    assert "<b>" not in caption
    assert "<img" not in caption
    assert caption.endswith(")</span>.")


def test_the_portraits_are_those_the_study_names(tmp_path, monkeypatch):
    portraits = gallery.find("phase_portraits")
    monkeypatch.setattr(gallery, "FIGURES", (portraits,))
    table, replicates = make_table()
    record = {**RECORD, "study": {**RECORD["study"], "figures": {"portraits": ["B"]}}}
    picture = report_data(write_results(tmp_path, table, replicates, record)).pictures[0]
    view, source = View.of(table, replicates), f"{tmp_path.name}/qk.csv"
    assert picture.caption == portraits.caption(view, source, checkpoints=["B"])
    assert picture.caption != portraits.caption(view, source)


def test_the_same_results_give_the_same_page(results, one_figure):
    first = write_report(results).read_bytes()
    assert write_report(results).read_bytes() == first


# In a browser


@pytest.fixture(scope="module")
def visit(browser, results, data):
    (results / "report.html").write_text(render(data), encoding="utf-8")
    opened = Visit(browser, results / "report.html", viewport={"width": 1280, "height": 900})
    yield opened
    opened.page.close()


def test_nothing_leaves_the_page_and_every_picture_loads(visit, data):
    assert visit.complaints == []
    assert visit.requests
    assert all(url.startswith(("file://", "data:")) for url in visit.requests)
    widths = visit.page.eval_on_selector_all("img", "images => images.map((image) => image.naturalWidth)")
    assert widths == [picture.width for picture in data.pictures]
    assert min(widths) > 0


def test_a_click_sorts_a_table(visit, data):
    table = "#tables .scroll:nth-of-type(1) table.sortable"
    before = visit.column(table, 2)
    by_value = [row[2].text for row in sorted(data.grids[0].rows, key=lambda row: row[2].key)]
    assert visit.sort(table, 2) == "ascending"
    assert visit.column(table, 2) == by_value
    assert visit.sort(table, 2) == "descending"
    assert visit.column(table, 2) == by_value[::-1]
    assert visit.sort(table, 0) == "ascending"
    assert visit.column(table, 2) == before
    assert visit.page.locator(f"{table} th").nth(2).get_attribute("aria-sort") == "none"


def test_heads_are_chosen_filtered_sorted_and_paged(visit, results):
    page, table = visit.page, "#heads table"
    status, choose = page.locator("#heads [role=status]"), page.locator("#heads select")
    last = pc0_of(results, "three")
    assert set(visit.column(table, 0)) == {"C"}
    assert status.text_content() == "1 to 50 of 96 rows"

    page.locator("#heads button[name=next]").click()
    assert status.text_content() == "51 to 96 of 96 rows"
    assert page.locator("#heads button[name=next]").is_disabled()

    # With the keyboard, as with the mouse.
    header = page.locator(f"{table} th").nth(8)
    header.locator("button").press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    expected = [f"{value:z.4f}".replace("-", "−") for value in sorted(last["r_k"])]
    assert visit.column(table, 8) == expected[:50]

    words = decided_words(last, pd.read_parquet(results / "replicates.parquet"), "three")
    found = ((last["layer"] % 4 == 3) & (words == "discordant")).sum()
    page.locator("#heads input").fill("nope discordant")
    assert status.text_content().endswith(f" of {found} rows")
    page.locator("#heads input").fill("L2H3")
    assert visit.column(table, 1) == ["2"]
    choose.select_option("")
    assert sorted(visit.column(table, 0)) == ["A", "B", "C"]
    # The head without a correlation comes last whichever way the column is sorted.
    for direction in ("descending", "ascending"):
        assert visit.sort(table, 8) == direction
        assert visit.column(table, 8)[-1] == MISSING
    page.locator("#heads input").fill("nothing")
    assert status.text_content() == "No head fits the filter."
    assert visit.complaints == []


def test_a_picture_opens_in_full_and_closes(visit):
    visit.page.locator("button.enlarge").first.click()
    assert visit.page.locator("dialog img").is_visible()
    visit.page.keyboard.press("Escape")
    visit.page.wait_for_selector("dialog", state="detached")


def test_a_phone_never_scrolls_sideways(browser, visit, results):
    phone = Visit(browser, results / "report.html", viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert phone.page.evaluate("document.documentElement.scrollWidth") == 390
    background = phone.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background != visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    detail = phone.page.locator(".figure details").first
    assert detail.get_attribute("open") is None
    detail.locator("summary").click()
    assert detail.locator("li").first.is_visible()
    assert phone.page.evaluate("document.documentElement.scrollWidth") == 390
    assert phone.complaints == []
    phone.page.close()


def test_print_leaves_controls_out(visit):
    visit.page.emulate_media(media="print")
    assert not visit.page.locator("#heads form").is_visible()
    assert not visit.page.locator("nav").is_visible()
    assert visit.page.locator(".takeaway").first.is_visible()
    assert visit.page.locator(".figure table").first.is_visible()
    assert visit.page.locator("figure").first.evaluate("figure => getComputedStyle(figure).breakInside") == "avoid"
    visit.page.emulate_media(media="screen")


def test_hostile_labels_do_not_run(browser, tmp_path, no_figures):
    table, replicates = make_table((("one", HOSTILE, HOSTILE), ("two", "<img src=x onerror=alert(2)>", "end")))
    path = write_report(write_results(tmp_path, table, replicates, hostile_record()))
    opened = Visit(browser, path)
    opened.page.locator("#heads select").select_option("")
    assert opened.complaints == []
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("h1").text_content() == "hostile"
    assert HOSTILE in opened.page.locator("#made").text_content()
    assert opened.column("#heads table", 0)[0] == HOSTILE
    opened.page.close()
