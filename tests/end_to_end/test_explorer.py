"""The explorer in a real browser, without a network: every number against the tables, every control by its effect."""

import io
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from helpers.browser import Visit
from helpers.long_tables import long_study
from helpers.oracles import jackknife
from helpers.tables import heads_of, leave_one_out, synthetic, write_results
from ropewalk.analysis import Tables
from ropewalk.figures import gallery
from ropewalk.report.explorer import explorer
from ropewalk.results import Results, load

CHECKPOINTS, LAYERS, HEADS = 5, 8, 4
HOSTILE = "<img src=x onerror=alert(1)>\"'`&</script>"
WIDE = {"viewport": {"width": 1280, "height": 900}}


CELLS = """rows => rows.map((row) => [...row.cells].map((cell) =>
  [cell.firstChild.textContent, cell.querySelector("small")?.textContent ?? ""]))"""
"""Texts of the cells of rows, and the notes in them."""


@pytest.fixture(autouse=True, scope="module")
def _no_figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "FIGURES", ())
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A results folder with curves and errors, in which one head misses its correlations at one checkpoint."""
    study = long_study(checkpoints=CHECKPOINTS, layers=LAYERS, heads=HEADS)
    heads, replicates = study.heads, study.replicates
    # Heads that differ, and change: replicates move with them.
    moves = np.random.default_rng(1).normal(0, 0.15, (len(heads), 2))
    shards = len(replicates) // len(heads)
    for column, move in zip(("r_q", "r_k"), moves.T, strict=True):
        heads[column] += move
        replicates[column] += np.repeat(move, shards)
    gap = (heads["layer"] == 2) & (heads["head"] == 1) & (heads["checkpoint"] == heads["checkpoint"].unique()[1])
    heads.loc[gap, ["r_q", "se_r_q"]] = np.nan
    heads["sliding"] = heads["layer"] % 2 == 0
    heads["many_sizes"] = np.random.default_rng(0).lognormal(3, 4, len(heads))
    facts = ["checkpoint", "label", "phase", "step", "layer", "head", "explained_variance", "r_q", "r_k"]
    qk = heads[facts].assign(pc=0)
    results = Results(Tables(qk, heads, replicates, study.tables))
    folder = tmp_path_factory.mktemp("results")
    results.write_tables(folder)
    Results(Tables.read(folder, study.tables), folder=folder).report(folder)
    return folder


@pytest.fixture(scope="module")
def heads(folder):
    return pd.read_csv(folder / "heads.csv")


@pytest.fixture
def visit(browser, folder):
    opened = []

    def start(address="", path=folder / "report.html", **options):
        opened.append(Visit(browser, path, address, **(WIDE | options)))
        return opened[-1]

    yield start
    for one in opened:
        assert one.complaints == []
        assert all(url.startswith(("file://", "blob:")) for url in one.requests)
        one.page.close()


def rows_at(heads, index):
    return heads[heads["checkpoint"] == heads["checkpoint"].unique()[index]]


def row_of(heads, index, layer, head):
    own = rows_at(heads, index)
    return own[(own["layer"] == layer) & (own["head"] == head)].iloc[0]


def plain(text):
    return text.replace("−", "-")


def assert_same(text, value, name=""):
    """A displayed number is the table's, formatted to the digits that are shown."""
    text = plain(text)
    decimals = len(text.partition(".")[2])
    if decimals >= 3 and "e" not in text and f"{value:z.{decimals}f}" == text:
        return
    assert float(text) == float(f"{value:.5g}"), name


def assert_error(text, value):
    assert float(plain(text).removeprefix("± ")) == float(f"{value:.1e}")


def settle(page):
    """Wait until everything is drawn, and the address is written."""
    page.wait_for_timeout(450)


def cell(page, layer, head):
    """Where a cell of the matrix lies in its canvas."""
    grid = page.evaluate("(() => document.getElementById('explore').explorer.views[0].grid)()")
    return {"x": grid["left"] + (head + 0.5) * grid["width"], "y": grid["top"] + (layer + 0.5) * grid["height"]}


def points(page):
    return page.evaluate("document.getElementById('explore').explorer.views[1].points")


def drawn_pixels(page, view):
    return page.locator(f"#{view} canvas").evaluate("canvas => canvas.toDataURL()")


def choose(page, layer, head):
    page.locator("#matrix canvas").click(position=cell(page, layer, head))
    settle(page)


# Numbers


def test_every_number_of_a_head_is_that_of_the_table(visit, heads):
    opened = visit()
    page = opened.page
    page.locator("#head summary").evaluate("summary => { summary.parentElement.open = true; }")
    for index, layer, head in ((4, 5, 2), (0, 3, 1), (1, 2, 1)):
        page.locator("input[name=at]").fill(str(index))
        choose(page, layer, head)
        row = row_of(heads, index, layer, head)
        names = opened.column("#head table", 0)
        texts = opened.column("#head table", 1)
        expected = [
            name
            for name in heads.columns
            if pd.api.types.is_numeric_dtype(heads[name])
            and heads[name].dtype != bool
            and not name.startswith("se_")
            and name not in ("step", "layer", "head", "k_head", "layers", "context", "sliding", "rope")
            and np.isfinite(row[name])
        ]
        words = [name for name in names if name in ("category", "concordance")]
        assert sorted(names) == sorted(expected + words)
        for name, text in zip(names, texts, strict=True):
            if name not in words:
                assert_same(text, row[name], name)
        errors = page.locator("#head tbody tr").evaluate_all(
            "rows => rows.map((row) => [row.cells[0].textContent, row.cells[1].querySelector('small')?.textContent])"
        )
        for name, text in errors:
            if f"se_{name}" in heads and np.isfinite(row.get(f"se_{name}", np.nan)):
                assert_error(text, row[f"se_{name}"])
            else:
                assert text is None


def test_the_readout_says_the_numbers_of_the_head_under_the_pointer(visit, heads):
    page = visit("#explore?at=2").page
    for layer in range(LAYERS):
        for head in range(HEADS):
            page.locator("#matrix canvas").hover(position=cell(page, layer, head))
            row = row_of(heads, 2, layer, head)
            text = plain(page.locator(".readout").text_content())
            told = [f"{name} {row[name]:.4f} ± {row[f'se_{name}']:.1g}0" for name in ("r_q", "r_k")]
            assert text.startswith(f"L{layer}H{head}: {', '.join(told)}, ")


def test_points_lie_where_the_table_says(visit, heads):
    page = visit().page
    for index in (4, 0, 1):
        page.locator("input[name=at]").fill(str(index))
        settle(page)
        own = rows_at(heads, index).dropna(subset=["r_q", "r_k"])
        found = {point["key"]: (point["x"], point["y"]) for point in points(page)}
        assert set(found) == {f"{layer}.{head}" for layer, head in zip(own["layer"], own["head"], strict=True)}
        places = np.array([found[f"{layer}.{head}"] for layer, head in zip(own["layer"], own["head"], strict=True)])
        for axis, name in ((0, "r_q"), (1, "r_k")):
            slope, offset = np.polyfit(own[name], places[:, axis], 1)
            # Displayed values are rounded to 4 digits: well below a hundredth of a pixel's worth here.
            assert places[:, axis] == pytest.approx(slope * own[name].to_numpy() + offset, abs=0.05)


def test_the_table_of_heads_is_that_of_the_file(visit, heads):
    opened = visit()
    page = opened.page
    page.locator("#heads select").select_option("")
    names = page.locator("#heads th").evaluate_all("all => all.map((one) => one.dataset.column)")
    assert {"r_q", "r_k", "kernel_range", "eta2_q"} <= set(names)
    checked = 0
    while True:
        cells = page.locator("#heads tbody tr").evaluate_all(CELLS)
        for texts in cells:
            found = dict(zip(names, texts, strict=True))
            own = heads[heads["label"] == found["checkpoint"][0]]
            row = own[(own["layer"] == int(found["layer"][0])) & (own["head"] == int(found["head"][0]))].iloc[0]
            for name in ("r_q", "r_k", "explained_variance", "kernel_range", "kernel_misfit", "eta2_q", "eta2_k"):
                text, error = found[name]
                if np.isnan(row[name]):
                    assert (text, error) == ("–", "")
                    continue
                assert_same(text, row[name], name)
                if f"se_{name}" in heads:
                    assert_error(error, row[f"se_{name}"])
            checked += 1
        if page.locator("#heads button[name=next]").is_disabled():
            break
        page.locator("#heads button[name=next]").click()
    assert checked == len(heads) == CHECKPOINTS * LAYERS * HEADS


# Controls


def test_the_slider_moves_all_views(visit, heads):
    page = visit("#explore?head=L5H2").page
    before = {name: drawn_pixels(page, name) for name in ("matrix", "scatter")}
    rank = page.locator(".rank").text_content()
    slider = page.locator("input[name=at]")
    slider.focus()
    slider.press("Home")
    settle(page)
    labels = heads["label"].unique()
    assert page.locator("#explore output").text_content() == f"{labels[0]}, phase 1 (1 of 5)"
    assert slider.get_attribute("aria-valuetext") == f"{labels[0]}, phase 1"
    assert page.locator("#matrix figcaption").text_content() == f"r_q at {labels[0]}"
    assert all(drawn_pixels(page, name) != pixels for name, pixels in before.items())
    assert page.locator(".rank").text_content() != rank
    assert page.evaluate("location.hash") == "#explore?at=0&head=L5H2"
    slider.press("ArrowRight")
    settle(page)
    assert page.evaluate("location.hash") == "#explore?at=1&head=L5H2"


def test_play_goes_to_the_last_checkpoint_and_stops(visit):
    page = visit("#explore?at=3").page
    page.get_by_role("button", name="Play").click()
    assert page.get_by_role("button", name="Pause").is_visible()
    page.locator("#explore output", has_text="(5 of 5)").wait_for()
    page.get_by_role("button", name="Play").wait_for()


def test_colours_are_of_all_checkpoints_or_of_each(visit, heads):
    page = visit("#explore?matrix=kernel_range&at=0").page

    def ends():
        return [float(text.replace(",", "")) for text in page.locator("#matrix .ends span").all_text_contents()]

    every = heads["kernel_range"]
    assert ends()[0] == pytest.approx(every.min(), rel=0.01, abs=1e-3)
    assert ends()[-1] == pytest.approx(every.max(), rel=0.01)
    page.locator("select[name=scale]").select_option("each")
    settle(page)
    assert ends()[-1] == pytest.approx(rows_at(heads, 0)["kernel_range"].max(), rel=0.01)


def test_a_click_chooses_a_head_in_every_view(visit, heads):
    page = visit().page
    choose(page, 6, 3)
    assert page.locator("#head h3").text_content() == "Head 3 of layer 6"
    assert page.locator("#head select[name=layer]").input_value() == "6"
    point = next(one for one in points(page) if one["key"] == "1.2")
    page.locator("#scatter canvas").click(position={"x": point["x"], "y": point["y"]})
    settle(page)
    # Points may lie on each other: the click takes the nearest.
    near = page.locator("#head h3").text_content()
    chosen = next(one for one in points(page) if near == "Head {1} of layer {0}".format(*one["key"].split(".")))
    assert np.hypot(chosen["x"] - point["x"], chosen["y"] - point["y"]) < 1.5
    page.locator("#head button[name=close]").click()
    settle(page)
    assert not page.locator("#head .body").is_visible()
    assert page.evaluate("location.hash") in ("", "#explore")


def test_the_rank_and_the_nearest_heads_of_a_head(visit, heads):
    page = visit("#explore?head=L5H2&at=3").page
    own = rows_at(heads, 3)
    value = row_of(heads, 3, 5, 2)["r_q"]
    layer = own[own["layer"] == 5]["r_q"]
    words = {1: "highest", 2: "2nd highest", 3: "3rd highest"}
    in_layer = int((layer.round(4) > round(value, 4)).sum()) + 1
    text = page.locator(".rank").text_content()
    assert f"the {words.get(in_layer, f'{in_layer}th highest')} of 4 in its layer" in text
    both = heads.assign(key=heads["layer"].astype(str) + "." + heads["head"].astype(str))
    q, k = (both.pivot(index="key", columns="checkpoint", values=name) for name in ("r_q", "r_k"))
    away = ((q - q.loc["5.2"]) / np.ptp(both["r_q"].dropna())) ** 2
    away_k = ((k - k.loc["5.2"]) / np.ptp(both["r_k"])) ** 2
    distance = np.sqrt(pd.concat([away, away_k], axis=1).mean(axis=1)).drop("5.2").sort_values()
    expected = ["L{}H{}".format(*key.split(".")) for key in distance.index[:5]]
    assert page.locator(".nearest button").all_text_contents() == expected
    page.locator(".nearest button").first.click()
    settle(page)
    assert page.evaluate("location.hash").endswith(f"head={expected[0]}")


def test_the_curves_of_a_head_are_those_of_the_tables(visit, folder):
    page = visit("#explore?head=L5H2").page
    charts = page.locator("#head .curves .chart")
    assert charts.count() == 4
    distance = pd.read_csv(folder / "distance.csv")
    distance = distance[(distance["checkpoint"] == distance["checkpoint"].unique()[-1]) & (distance["layer"] == 5)]
    own = distance[distance["head"] == 2]
    dots = charts.nth(0).locator("circle").evaluate_all("all => all.map((one) => Number(one.getAttribute('cy')))")
    assert len(dots) == own["score"].notna().sum()
    assert np.corrcoef(dots, own["score"])[0, 1] == pytest.approx(-1, abs=1e-4)
    line = [float(pair.split(",")[1]) for pair in charts.nth(0).locator("polyline").get_attribute("points").split()]
    assert np.corrcoef(line, own["kernel"])[0, 1] == pytest.approx(-1, abs=3e-3)
    # A layer without RoPE has no kernel and no spectrum, and its other curves are there.
    page.locator("#head select[name=layer]").select_option("3")
    settle(page)
    assert charts.count() == 3
    assert charts.nth(0).locator("polyline").count() == 0
    assert charts.nth(0).locator("circle").count() > 0


def test_trajectories_run_over_checkpoints_or_steps(visit, heads):
    page = visit("#explore?head=L2H1").page
    chart = page.locator(".trajectories .chart").first
    q = heads[(heads["layer"] == 2) & (heads["head"] == 1)]

    def across():
        return chart.locator("circle").evaluate_all("all => all.map((one) => Number(one.getAttribute('cx')))")

    # The missing value leaves a gap, not a zero.
    assert len(across()) == q["r_q"].notna().sum() == CHECKPOINTS - 1
    assert chart.locator("line.marked").count() == CHECKPOINTS - 1
    assert page.locator(".cells span").count() == CHECKPOINTS
    assert chart.locator(".band").count() == 2
    known = q.dropna(subset=["r_q"])
    page.locator("select[name=time]").select_option("log")
    settle(page)
    assert np.corrcoef(across(), np.log(known["step"] + 1))[0, 1] == pytest.approx(1, abs=1e-6)
    page.locator("select[name=time]").select_option("step")
    settle(page)
    assert np.corrcoef(across(), known["step"])[0, 1] == pytest.approx(1, abs=1e-6)


def test_trails_show_where_heads_came_from(visit):
    page = visit().page
    before = drawn_pixels(page, "scatter")
    page.get_by_label("Trails").check()
    settle(page)
    assert drawn_pixels(page, "scatter") != before
    assert page.evaluate("location.hash") == "#explore?trails=1"


# Compare


def differences(heads, replicates, column, first, last):
    """Change and paired jackknife error of each head, by plain loops."""
    names = heads["checkpoint"].unique()
    found = {}
    for layer in range(LAYERS):
        for head in range(HEADS):
            rows = [row_of(heads, index, layer, head) for index in (first, last)]
            groups = [
                replicates[
                    (replicates["checkpoint"] == names[index])
                    & (replicates["layer"] == layer)
                    & (replicates["head"] == head)
                ].sort_values("left_out")[column]
                for index in (first, last)
            ]
            error = jackknife(groups[1].to_numpy() - groups[0].to_numpy())
            found[f"L{layer}H{head}"] = (rows[1][column] - rows[0][column], error)
    return found


def test_compare_lists_what_changed_most_with_paired_errors(visit, folder, heads):
    page = visit().page
    page.locator("select[name=matrix]").select_option("kernel_range")
    page.get_by_label("Compare two").check()
    page.locator("select[name=from]").select_option("1")
    page.locator("select[name=to]").select_option("3")
    settle(page)
    assert page.evaluate("location.hash") == "#explore?matrix=kernel_range&compare=1-3"
    expected = differences(heads, pd.read_parquet(folder / "replicates.parquet"), "kernel_range", 1, 3)
    expected = {name: change for name, change in expected.items() if not np.isnan(change[0])}
    largest = sorted(expected, key=lambda name: -abs(expected[name][0]))[:12]
    names = page.locator("#changes li button").all_text_contents()
    assert sorted(abs(expected[name][0]) for name in names) == pytest.approx(
        sorted(abs(expected[name][0]) for name in largest), abs=1.1e-3
    )
    for item in page.locator("#changes li").all():
        value, error = expected[item.locator("button").text_content()]
        change, shown = plain(item.locator(".amount").text_content()).split(" ± ")
        assert float(change) == pytest.approx(value, abs=1.1e-3)
        assert float(shown) == pytest.approx(error, rel=0.07)
    limit = student.ppf(0.975, 7)
    beyond = sum(abs(value) > limit * error for value, error in expected.values())
    told = page.locator("#changes .note").text_content()
    # Heads of NoPE layers have no kernel, and do not count.
    assert len(expected) == 3 * LAYERS * HEADS // 4
    assert f"{beyond} of {len(expected)} heads changed beyond the error" in told
    page.get_by_label("Only changes beyond").check()
    settle(page)
    shown = page.locator("#changes li button").all_text_contents()
    assert all(abs(expected[name][0]) > limit * expected[name][1] * 0.97 for name in shown)
    page.locator("#changes li button").first.click()
    settle(page)
    assert page.evaluate("location.hash").endswith(f"compare=1-3&beyond=1&head={shown[0]}")


def test_compare_of_categories_lists_those_that_changed(visit, heads):
    page = visit("#explore?matrix=category&compare=0-4").page
    words = [heads_of(rows_at(heads, index).assign(pc=0))["category"].to_numpy() for index in (0, 4)]
    changed = sum(a != b for a, b in zip(*words, strict=True))
    assert page.locator("#changes .note").text_content().startswith(f"category of {changed} of {LAYERS * HEADS} heads")


def test_models_of_other_shapes_are_not_compared(visit, tmp_path):
    parts = [synthetic(1, layers=layers, heads=20, models=True) for layers in (8, 12, 8)]
    table = pd.concat([part.assign(checkpoint=f"m{i}", label=f"M{i}") for i, part in enumerate(parts)])
    folder = write_results(tmp_path, table)
    page = visit("#explore?compare=0-1&head=L1H1", load(folder).report(folder)).page
    assert "not of one shape" in page.locator("#changes .note").text_content()
    page.locator("select[name=to]").select_option("2")
    settle(page)
    assert "Changes of r_q from M0 to M2" in page.locator("#changes .note").text_content()


# Brush


def summary(page):
    """Rows of the summary: name, number of heads, then texts with their errors."""
    return page.locator("#brush tbody tr").evaluate_all(CELLS)


def test_a_selection_is_summed_up_with_errors_from_groups_of_documents(visit, folder, heads):
    page = visit().page
    page.locator("#brush input[name=layers]").fill("1-2, 5")
    page.get_by_label("NoPE layers").uncheck()
    settle(page)
    selected, others = summary(page)
    own = rows_at(heads, CHECKPOINTS - 1)
    chosen = own[own["layer"].isin([1, 2, 5])]
    assert (selected[1][0], others[1][0]) == (str(len(chosen)), str(len(own) - len(chosen)))
    replicates = pd.read_parquet(folder / "replicates.parquet")
    replicates = replicates[replicates["checkpoint"] == own["checkpoint"].iloc[0]]
    replicates = replicates[replicates["layer"].isin([1, 2, 5])]
    for (text, error), name in zip(selected[2:4], ("r_q", "r_k"), strict=True):
        assert float(plain(text)) == pytest.approx(chosen[name].mean(), abs=1e-4)
        expected = jackknife(replicates.groupby("left_out")[name].mean())
        assert float(error.removeprefix("± ")) == pytest.approx(expected, rel=0.07)
    assert "from leaving out groups of documents" in page.locator("#brush .errors").text_content()
    categories = heads_of(chosen.assign(pc=0))["category"].value_counts()
    for word, count in categories.items():
        assert f"{word} {count}" in selected[4][0]


def test_types_categories_and_ranges_together(visit, heads):
    page = visit().page
    page.get_by_label("RoPE layers").check()
    page.get_by_label("sliding window").check()
    page.locator("#brush select[name=column]").select_option("r_q")
    page.locator("#brush input[name=low]").fill("0.4")
    page.get_by_role("button", name="Add").click()
    settle(page)
    own = rows_at(heads, CHECKPOINTS - 1)
    fits = own[own["rope"].astype(bool) & own["sliding"] & (own["r_q"].round(4) >= 0.4)]
    assert summary(page)[0][1][0] == str(len(fits))
    kinds = heads_of(fits.assign(pc=0))["category"]
    word = kinds.iloc[0]
    page.locator(f"#brush input[value='{word}']").check()
    settle(page)
    assert summary(page)[0][1][0] == str((kinds == word).sum())
    page.get_by_role("button", name="Remove the range").click()
    page.get_by_role("button", name="Select none").click()
    settle(page)
    assert summary(page)[0][0][0] == "all heads"
    assert page.evaluate("location.hash") in ("", "#explore")


def test_a_box_in_the_scatter_selects_and_the_selection_stays_while_the_slider_moves(visit, heads):
    page = visit().page
    box = page.locator("#scatter canvas").bounding_box()
    places = points(page)
    right = sorted(one["x"] for one in places)[len(places) // 2]
    corners = (box["x"] + right, box["y"] + 12), (box["x"] + box["width"] - 15, box["y"] + box["height"] - 45)
    page.mouse.move(*corners[0])
    page.mouse.down()
    page.mouse.move(*corners[1], steps=4)
    page.mouse.up()
    settle(page)
    inside = {one["key"] for one in places if one["x"] >= right}
    held = page.evaluate("[...document.getElementById('explore').explorer.last.selected]")
    assert len(set(held) ^ inside) <= 1
    for name in ("matrix", "scatter"):
        assert drawn_pixels(page, name)
    page.locator("input[name=at]").fill("0")
    settle(page)
    assert page.evaluate("[...document.getElementById('explore').explorer.last.selected]") == held
    page.get_by_label("Keep the same heads").uncheck()
    settle(page)
    ranges = page.evaluate("document.getElementById('explore').explorer.state.brush.ranges")
    own = rows_at(heads, 0)
    fits = np.all([own[name].round(4).between(low, high) for name, low, high in ranges], axis=0)
    assert len(page.evaluate("[...document.getElementById('explore').explorer.last.selected]")) == fits.sum()


def test_the_selection_leaves_as_csv(visit, heads):
    page = visit("#explore?layers=3").page
    with page.expect_download() as caught:
        page.get_by_role("button", name="Save the 4 selected heads as CSV").click()
    text = caught.value.path().read_text(encoding="utf-8")
    assert caught.value.suggested_filename == "heads_selected.csv"
    found = pd.read_csv(io.StringIO(text))
    expected = heads[heads["layer"] == 3].reset_index(drop=True)
    assert len(found) == len(expected) == CHECKPOINTS * HEADS
    for name in ("checkpoint", "label", "layer", "head", "step", "rope", "sliding"):
        assert found[name].tolist() == expected[name].tolist()
    for name in ("r_q", "r_k", "eta2_q", "bend_k"):
        decimals = len(text.splitlines()[1].split(",")[list(found).index(name)].partition(".")[2])
        assert decimals >= 4
        assert found[name].tolist() == [float(f"{value:.{decimals}f}") for value in expected[name]]
        assert found[f"se_{name}"].tolist() == [float(f"{value:.1e}") for value in expected[f"se_{name}"]]
    assert found["many_sizes"].tolist() == [float(f"{value:.5g}") for value in expected["many_sizes"]]
    assert found["kernel_range"].isna().all()


# Address


@pytest.mark.parametrize(
    "address",
    [
        "#explore?at=2",
        "#explore?at=1&matrix=kernel_range&x=eta2_q&y=bend_k&scale=each&time=log&trails=1&head=L5H2",
        "#explore?matrix=category&compare=1-3&beyond=1&head=L0H0",
        "#explore?layers=1-3%2C+5&types=rope+sliding&categories=mixed&range=r_q+0.1+0.9&range=bend_k+-Infinity+0.5&hold=2",
        "#explore?layers=2&hold=no",
    ],
)
def test_an_address_says_what_was_seen(visit, browser, folder, address):
    page = visit(address).page
    state = page.evaluate("document.getElementById('explore').explorer.state")
    page.evaluate("document.getElementById('explore').explorer.write()")
    written = page.evaluate("location.hash")
    assert written == address
    again = visit(written).page
    assert again.evaluate("document.getElementById('explore').explorer.state") == state
    assert drawn_pixels(again, "matrix") == drawn_pixels(page, "matrix")
    # The same page follows a link that is followed in it.
    page.evaluate("location.hash = '#explore?at=3&head=L7H3'")
    settle(page)
    assert page.locator("#head h3").text_content() == "Head 3 of layer 7"


@pytest.mark.parametrize(
    "address",
    [
        "#explore?at=99&head=L99H0&matrix=nothing&x=category&compare=7-8&layers=x&types=<b>&range=r_q",
        "#explore?" + "&".join(["at=-1", "compare=1", "categories=alert(1)", "hold=77", "range=a b c"]),
        "#figures",
        "#%",
    ],
)
def test_what_an_address_gets_wrong_is_as_at_the_beginning(visit, address):
    plain_state = visit().page.evaluate("document.getElementById('explore').explorer.state")
    assert visit(address).page.evaluate("document.getElementById('explore').explorer.state") == plain_state


# Keyboard and words


def test_heads_are_reached_and_chosen_with_the_keyboard(visit, heads):
    page = visit().page
    matrix = page.locator("#matrix canvas")
    matrix.focus()
    matrix.press("ArrowRight")
    assert page.locator(".readout").text_content().startswith("L0H0: ")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        matrix.press(key)
        settle(page)
    assert page.locator(".readout").text_content().startswith("L2H1: ")
    matrix.press("Enter")
    settle(page)
    assert page.locator("#head h3").text_content() == "Head 1 of layer 2"
    matrix.press("Escape")
    settle(page)
    assert page.locator("#head h3").text_content() == "One head"
    scatter = page.locator("#scatter canvas")
    scatter.focus()
    # From the cursor, by rising r_q.
    own = rows_at(heads, CHECKPOINTS - 1).sort_values("r_q")
    order = [f"L{layer}H{head}" for layer, head in zip(own["layer"], own["head"], strict=True)]
    scatter.press("ArrowRight")
    settle(page)
    assert page.locator(".readout").text_content().split(":")[0] == order[order.index("L2H1") + 1]


def test_every_control_is_reached_by_tab_and_has_a_name(visit):
    page = visit("#explore?head=L2H1").page
    page.locator("#explore select[name=matrix]").focus()
    reached = []
    for _ in range(80):
        reached.append(page.evaluate("document.activeElement.name || document.activeElement.parentElement.id"))
        page.keyboard.press("Tab")
    assert {"matrix", "x", "y", "play", "at", "scatter", "layer", "head", "layers", "csv", "clear"} <= set(reached)
    unnamed = page.locator("#explore").evaluate(
        """root => [...root.querySelectorAll("select, input, button, canvas")].filter((one) =>
          !one.getAttribute("aria-label") && !(one.labels && one.labels.length) && !one.textContent.trim()).length"""
    )
    assert unnamed == 0
    name = page.locator("#matrix canvas").get_attribute("aria-label")
    assert name.startswith("Matrix of 32 heads by layer and head: r_q at")
    assert page.locator(".readout").get_attribute("role") == "status"


# Looks


def test_a_phone_never_scrolls_sideways(visit):
    page = visit("#explore?head=L2H1", viewport={"width": 390, "height": 844}, color_scheme="dark").page
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    matrix, scatter = (page.locator(f"#{name}").bounding_box() for name in ("matrix", "scatter"))
    assert matrix["y"] + matrix["height"] <= scatter["y"]


def test_dark_and_light_differ_and_paper_is_light(visit):
    light = visit().page
    dark = visit(color_scheme="dark").page
    assert drawn_pixels(light, "matrix") != drawn_pixels(dark, "matrix")
    dark.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert drawn_pixels(light, "matrix") == drawn_pixels(dark, "matrix")
    dark.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert drawn_pixels(light, "matrix") != drawn_pixels(dark, "matrix")
    light.emulate_media(media="print")
    assert not light.locator("form.tools").is_visible()
    assert light.locator("#matrix canvas").is_visible()


# Odd studies


def open_table(visit, folder, table, replicates=None, address="", **options):
    path = load(write_results(folder, table, replicates)).report(folder)
    return visit(address, path, **options)


def test_one_checkpoint_and_one_head(visit, tmp_path):
    page = open_table(visit, tmp_path / "one", synthetic(1, layers=1, heads=1).assign(head=0)).page
    assert not page.locator("#explore input[name=at]").is_visible()
    assert not page.get_by_label("Compare two").is_visible()
    choose(page, 0, 0)
    assert "the highest of 1 in its layer" in page.locator(".rank").text_content()
    assert page.locator(".trajectories .chart").count() == 0
    assert page.locator("#brush .errors").text_content().endswith("There are no standard errors.")


def test_a_head_without_any_correlation(visit, tmp_path):
    row = {"checkpoint": "only", "layer": 0, "head": 0, "pc": 0, "explained_variance": 0.5}
    page = open_table(visit, tmp_path, pd.DataFrame([row | {"r_q": np.nan, "r_k": np.nan}])).page
    choose(page, 0, 0)
    assert "r_q is not known" in page.locator(".rank").text_content()
    assert points(page) == []
    page.locator("select[name=matrix]").select_option("explained_variance")
    settle(page)
    assert page.locator(".readout").text_content() == "L0H0: r_q –, r_k –, explained_variance 0.5000"


def test_many_checkpoints(visit, tmp_path):
    table = synthetic(150, layers=6, heads=20)
    page = open_table(visit, tmp_path, table, address="#explore?at=70&trails=1&head=L0H0").page
    layer, head = table[["layer", "head"]].iloc[0]
    choose(page, layer, head)
    assert page.locator(".trajectories circle").count() == 2 * 150
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_models_stand_beside_each_other_without_lines(visit, tmp_path):
    table = synthetic(4, layers=6, heads=20, models=True)
    page = open_table(visit, tmp_path, table, leave_one_out(table)).page
    layer, head = table[["layer", "head"]].iloc[0]
    choose(page, layer, head)
    assert page.locator(".trajectories circle").count() == 8
    assert page.locator(".trajectories polyline").count() == 0
    assert page.locator("#explore output").text_content() == "OLMo 2-1B, OLMo 2 (4 of 4)"
    assert ", then " not in page.locator(".strip p").text_content()


def test_the_barest_table_says_that_there_are_no_errors(visit, tmp_path):
    table = synthetic(3, layers=4, heads=12)[["checkpoint", "layer", "head", "pc", "explained_variance", "r_q", "r_k"]]
    page = open_table(visit, tmp_path, table, address="#explore?compare=0-2&beyond=1").page
    assert "There are no standard errors, so that none can be said" in page.locator("#changes .note").text_content()
    assert page.locator("#changes li").count() == 0
    assert page.locator("#brush fieldset.types").is_hidden()


def test_errors_without_groups_of_documents_are_said_to_be_taken_as_independent(visit, tmp_path):
    table = synthetic(2, layers=4, heads=12).assign(se_r_q=0.02)
    opened = open_table(visit, tmp_path, table)
    heads = table[(table["pc"] == 0) & (table["checkpoint"] == table["checkpoint"].unique()[1])]
    assert summary(opened.page)[0][2] == [f"{heads['r_q'].round(4).mean():.4f}", f"± {0.02 / np.sqrt(12):.4f}"]
    assert "takes the errors of heads as independent" in opened.page.locator("#brush .errors").text_content()


def test_missing_correlations_leave_heads_without_point_and_category(visit, tmp_path):
    table = synthetic(2, layers=4, heads=12)
    table.loc[table["layer"] == 1, "r_k"] = np.nan
    page = open_table(visit, tmp_path, table).page
    own = table[(table["pc"] == 0) & (table["layer"] == 1)].iloc[0]
    missing = ((table["layer"] == 1) & (table["pc"] == 0)).sum() // 2
    assert len(points(page)) == 12 - missing
    assert f"{missing} without a value" in page.locator("#scatter .legend").text_content()
    page.locator("#matrix canvas").hover(position=cell(page, 1, own["head"]))
    assert page.locator(".readout").text_content().endswith("r_k –, no category")


def test_hostile_names_stay_text(visit, tmp_path):
    table = synthetic(4, layers=4, heads=12)
    names = dict(zip(table["checkpoint"].unique(), (HOSTILE, "W" * 10_000, '"><b>bold</b>', "${1}"), strict=True))
    table["label"] = table["checkpoint"].map(names)
    table["phase"] = table["checkpoint"].map(names)
    table["checkpoint"] = table["checkpoint"].map(names)
    page = open_table(visit, tmp_path, table, address="#explore?at=0", viewport={"width": 390, "height": 844}).page
    assert page.locator("#explore img, #explore b").count() == 0
    assert page.locator("#explore output").text_content().startswith("<img src=x onerror=a…")
    layer, head = (int(value) for value in table[["layer", "head"]].iloc[0])
    choose(page, layer, head)
    for index in range(4):
        page.locator("input[name=at]").fill(str(index))
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.get_by_label("Compare two").check()
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    with page.expect_download() as caught:
        page.locator("button[name=csv]").click()
    found = pd.read_csv(caught.value.path())
    assert found["label"].tolist() == table[table["pc"] == 0]["label"].tolist()
    assert page.locator("img, b").count() == 0


def test_what_does_not_fit_is_said(visit, tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.report.content.explorer", partial(explorer, budget=1))
    table = synthetic(3, layers=4, heads=12)
    table["other"] = np.linspace(0, 1, len(table))
    page = open_table(visit, tmp_path, table).page
    assert page.locator(".left-out").text_content() == (
        "To keep the page small it leaves out the columns other: they are in heads.csv."
    )


def test_nothing_that_is_not_in_the_file_may_load_or_run(visit):
    opened = visit()
    page = opened.page
    policy = page.locator("meta[http-equiv]").get_attribute("content")
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    ran = page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          return window.ran === true;
        }"""
    )
    assert ran is False
    (complaint,) = opened.complaints
    assert "Content Security Policy" in complaint
    opened.complaints.clear()
