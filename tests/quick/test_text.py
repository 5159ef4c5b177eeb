"""Tables, sizes, counts and names as they are printed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.text import count, cut, one_line, printable, simplified, size, slug, some, spans, table


def test_a_table_is_as_wide_as_its_cells() -> None:
    lines = table(["name", "n", "note"], [["a", "1", "x"], ["longer name", "1,000", ""]], right=[1])
    assert lines == [
        "name             n  note",
        "a                1  x",
        "longer name  1,000",
    ]


def test_a_short_row_runs_on_and_widens_nothing() -> None:
    rows = [["a", "1", "2"], ["from elsewhere", "read from a folder with a long name"], ["b", "-"]]
    assert table(["name", "n", "m"], rows, right=[1, 2]) == [
        "name            n  m",
        "a               1  2",
        "from elsewhere  read from a folder with a long name",
        "b               -",
    ]


def test_columns_of_nothing_can_be_left_out() -> None:
    rows = [["-", "-", "1"], ["-", "-", "2"]]
    assert table(["", "phase", "step"], rows, unused="-") == ["   step", "-  1", "-  2"]
    assert table(["", "phase"], [["1", "-"]]) == ["   phase", "1  -"]
    assert table(["name", "n"], []) == ["name  n"]


def test_a_cell_is_one_line() -> None:
    assert table(["label"], [["two\nlines"]]) == ["label", "two lines"]


@given(st.lists(st.lists(st.text("ab \n", max_size=9), min_size=3, max_size=3)))
def test_columns_begin_at_one_place(rows: list[list[str]]) -> None:
    marked = [[f"<{cell.strip()}" for cell in row] for row in rows]
    lines = table(["<x", "<y", "<z"], marked)
    starts = [[at for at, letter in enumerate(line) if letter == "<"] for line in lines]
    assert len(lines) == len(rows) + 1
    assert all(found == starts[0] for found in starts)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.0 KB"),
        (1000, "1.0 KB"),
        (1_540_000, "1.5 MB"),
        (999_960, "1.0 MB"),
        (6.15e9, "6.2 GB"),
        (2.5e12, "2.5 TB"),
        (1e16, "10,000.0 TB"),
    ],
)
def test_sizes(number: float, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "checkpoint", "0 checkpoints"),
        (1, "other branch", "1 other branch"),
        (2, "other branch", "2 other branches"),
        (3, "phase", "3 phases"),
        (2, "family", "2 families"),
        (2, "key", "2 keys"),
        (2, "index", "2 indexes"),
        (12_000, "token", "12,000 tokens"),
    ],
)
def test_counts(number: int, noun: str, text: str) -> None:
    assert count(number, noun) == text


def test_some_names_and_how_many_more() -> None:
    assert some([]) == ""
    assert some("abc") == "a, b, c"
    assert some("abcd") == "a, b, c and 1 more"
    assert some(range(1500), limit=2) == "0, 1 and 1,498 more"


@given(st.text(), st.integers(10, 100))
def test_a_cut_text_keeps_its_ends(text: str, limit: int) -> None:
    short = cut(text, limit)
    assert len(short) <= limit
    if len(text) <= limit:
        assert short == text
    else:
        start, end = short.split("…", 1) if "…" not in text else (short[:1], short[-1:])
        assert text.startswith(start)
        assert text.endswith(end)


def test_an_exception_on_one_line() -> None:
    assert one_line(ValueError("first,\n   second.")) == "first, second"
    assert one_line(KeyError()) == "KeyError"
    assert one_line(ValueError("...")) == "ValueError"
    long = one_line(ValueError("x" * 1000 + " the end"))
    assert len(long) == 300
    assert long.endswith("x the end")


def test_slugs_are_names_of_folders() -> None:
    assert slug("stage 1/step: 5 (ü)") == "stage_1_step_5_-e73494de"
    assert slug("a.b_c-D9") == "a.b_c-D9"
    assert slug("a" * 80) == "a" * 80
    assert simplified("a.b_c-D9", keep="") == "a_b_c_D9"


ODD_NAMES = [
    "",
    ".",
    "..",
    "...",
    "a.",
    "con",
    "NUL",
    "nul.txt",
    "com1",
    "LPT9.a.b",
    "a" * 81,
    "a" * 300,
    "ü",
    "é",
    "\0",
]
ODD_NAMES += ["", "\ud800", "a/b", "a\\b", "a\nb", "日本語", "日本", "- -", "CON ", ".con"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_become_names_that_any_system_takes(name: str) -> None:
    found = slug(name)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,80}", found)
    assert not found.startswith(".") or name.startswith(".")
    assert not found.endswith(".")
    assert found.split(".")[0].lower() not in ("", "con", "nul", "com1", "lpt9")
    assert found not in {slug(other) for other in ODD_NAMES if other != name}


@given(st.text(max_size=100), st.text(max_size=100))
def test_different_names_have_different_slugs(one: str, other: str) -> None:
    assert (slug(one) == slug(other)) == (one == other)


def test_neighbouring_numbers_are_one_span() -> None:
    assert spans([0, 1, 2, 3, 7, 9, 10]) == "0-3, 7, 9-10"
    assert spans([5]) == "5"
    assert spans([]) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größer 东京 नमस्ते", "größer 东京 नमस्ते"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb\tc\x00", "a\\rb\\tc\\x00"),
        ("\x7f\x9b\x85", "\\x7f\\x9b\\x85"),
        ("\u202eevil\u2066\u200f", "\\u202eevil\\u2066\\u200f"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("می\u200cخواهم", "می\u200cخواهم"),
    ],
)
def test_what_steers_a_terminal_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_newlines_only_where_they_are_allowed() -> None:
    assert printable("a\nb\r\n") == "a\\nb\\r\\n"
    assert printable("a\nb\r\n", newlines=True) == "a\nb\\r\n"


def test_tables_lists_and_reasons_do_not_steer_a_terminal() -> None:
    bad = "\x1b[2J\u202e"
    shown = "\\x1b[2J\\u202e"
    assert table(("h",), [(bad,)])[1] == shown
    assert some([bad, "x\ny"]) == f"{shown}, x\\ny"
    assert one_line(ValueError(f"a\n{bad}")) == f"a {shown}"
    assert len(some(["x" * 10**6])) <= 100
