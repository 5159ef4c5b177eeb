"""Names are text: whatever they read like, they come through tables, figures and page as they are."""

import html
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.figure import Figure

import ropewalk
from helpers.tables import synthetic
from helpers.tiny import tiny_smollm3
from ropewalk.figures.style import plain
from ropewalk.tables import read_qk, write_csv
from ropewalk.yamlfile import dump_yaml

NAMES = [
    *("NA", "null", "nan", "None", "N/A", "-", "1.0", "007", "1e5", "True", "inf", "#N/A", "<NA>"),
    *('a "quoted" one', "comma, comma", "two\nlines", "line\r\nend", " spaces ", "\ttab", "=1+1", "@x"),
    *("日本語", "نص عربي", "é" * 300),
    *("<script>alert(1)</script>", "$x_1$", "\\alpha", "{braces}", "100%", "_", "."),
]


@pytest.mark.parametrize("column", ["checkpoint", "label", "phase", "family"])
def test_tables_give_names_back(column: str, tmp_path: Path) -> None:
    table = synthetic(len(NAMES), layers=2, heads=4, phases=1, models=column == "family")
    codes = pd.factorize(table["checkpoint"])[0]
    table[column] = [NAMES[code] for code in codes]
    write_csv(tmp_path / "qk.csv", table)
    read = read_qk(tmp_path)
    assert list(dict.fromkeys(read[column])) == NAMES
    view = ropewalk.load(tmp_path / "qk.csv").view
    if column == "checkpoint":
        assert list(view.lineup.names) == NAMES
    if column == "label":
        assert list(view.lineup.labels) == NAMES
    if column in ("phase", "family"):
        assert [group.name for group in view.lineup.groups] == NAMES


def test_a_missing_number_is_missing_however_it_is_written(tmp_path: Path) -> None:
    text = "checkpoint,layer,head,pc,explained_variance,r_q,r_k\nNA,0,0,0,0.5,NA,nan\nNA,0,1,0,0.5,,0.25\n"
    (tmp_path / "qk.csv").write_text(text)
    read = read_qk(tmp_path)
    assert list(read["checkpoint"]) == ["NA", "NA"]
    assert read["r_q"].isna().all()
    assert list(read["r_k"].isna()) == [True, False]


@pytest.mark.slow
def test_results_are_saved_and_shown_under_any_name(tmp_path: Path) -> None:
    names = ("NA", "two\nlines", "<script>alert(1)</script>", "$x_1$ \\alpha", "é" * 300, "日本語")
    tokens = np.random.default_rng(0).integers(0, 300, (4, 32))
    options = {"context": 32, "shards": 2, "statistics": ["moments"]}
    results = ropewalk.concat([ropewalk.measure(tiny_smollm3(), tokens, label=name, **options) for name in names])
    folder = results.save(tmp_path / "results")
    loaded = ropewalk.load(folder)
    assert loaded.view.lineup.labels == names
    replicates = loaded.replicates
    assert replicates is not None
    assert set(replicates["checkpoint"]) == set(results.heads["checkpoint"])
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    for name in names:
        assert loaded.head(0, 0, name).layer == 0
        assert html.escape(name.split("\n")[0][:30], quote=False) in page or not name.isprintable()


@pytest.mark.parametrize("name", ["_x", "\ufeffmark of order", "\u202eturned", "$\\frac{$", "a\x85b\u2028c"])
def test_figures_draw_any_name(name: str, tmp_path: Path) -> None:
    """Legends leave out what begins with an underscore, and an invisible character cannot be put into a PDF."""
    figure = Figure()
    ax = figure.subplots()
    ax.plot([0, 1], label=plain(name))
    ax.legend()
    assert [text.get_text().strip() for text in ax.get_legend().get_texts()] == [plain(name).strip()]
    for ending in ("pdf", "png"):
        figure.savefig(tmp_path / f"figure.{ending}")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
@example("a\x85b")
@example("\u2028 \u2029")
@example("\ufeff")
@example("no\nyes: [1]\r\n# x")
def test_a_record_gives_names_back(name: str) -> None:
    data = {"seal": "0", "name": name, "checkpoints": [{"label": name}], name: 1}
    for flow in (False, True, None):
        text = dump_yaml(data, flow=flow)
        for loader in {yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)}:
            try:
                assert yaml.load(text, Loader=loader) == data
            except yaml.reader.ReaderError:
                # Characters that no YAML holds are refused in studies, and so do not come here.
                assert not name.isprintable()
