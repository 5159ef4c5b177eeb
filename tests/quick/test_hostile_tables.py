"""Tables from strangers, whose ledger fits: one sentence that names the file, and what was made here is made again."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from helpers.tiny import tabulated
from ropewalk.errors import RopewalkError
from ropewalk.figures import gallery
from ropewalk.freshness import StaleTablesError
from ropewalk.pipeline import up_to_date
from ropewalk.results import load
from ropewalk.seals import Ledger
from ropewalk.verify import OUT_OF_DATE, verify

_picture = io.BytesIO()
Image.new("RGB", (64, 64)).save(_picture, "PNG")
PNG = _picture.getvalue()
Change = Callable[[pd.DataFrame], pd.DataFrame | str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of everything, beside their shards."""
    return tabulated(tmp_path_factory.mktemp("tables"), ["moments", "profile", "frame", "behaviour", "sample"])


@pytest.fixture
def results(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "results"))


def rewrite(path: Path, change: Change) -> None:
    """Change a table, and make the ledger of its folder fit."""
    packed = path.suffix == ".parquet"
    changed = change(pd.read_parquet(path) if packed else pd.read_csv(path))
    if isinstance(changed, str):
        path.write_text(changed)
    elif packed:
        changed.to_parquet(path, index=False)
    else:
        changed.to_csv(path, index=False)
    ledger = Ledger.read(path.parent)
    if ledger is not None:
        Ledger.of(path.parent, ledger.files, ledger.made_from).write(path.parent)


def first(column: str, value: Any) -> Change:
    """Another value in the first row."""
    return lambda table: table.assign(**{column: [value, *table[column].astype(object)[1:]]})


def everywhere(column: str, value: Any) -> Change:
    return lambda table: table.assign(**{column: value})


CHANGES: dict[str, tuple[str, Change, str]] = {
    "no heads": ("heads.csv", lambda t: t.drop(columns="head"), "has no column 'head'"),
    "no checkpoints": ("heads.csv", lambda t: t.drop(columns="checkpoint"), "has no column 'checkpoint'"),
    "no correlations": ("heads.csv", lambda t: t.drop(columns="r_q"), "has no column 'r_q'"),
    "text": ("heads.csv", first("fixed_share_q", "much"), "something else than numbers in the column 'fixed_share_q'"),
    "flags": ("heads.csv", everywhere("se_r_k", True), "something else than numbers in the column 'se_r_k'"),
    "infinite": ("heads.csv", first("rank_q", np.inf), "numbers in the column 'rank_q' that are beyond 1e+30"),
    "huge": ("qk.csv", first("explained_variance", -1e300), "'explained_variance' that are beyond 1e+30"),
    "sliding somewhat": ("heads.csv", first("sliding", "somewhat"), "something else than True and False"),
    "a layer less": ("heads.csv", first("layer", np.nan), "whole numbers from 0 to 9,999 in the column 'layer'"),
    "a negative head": ("qk.csv", first("head", -1), "in the column 'head'"),
    "a million layers": ("heads.csv", first("layer", 10**6), "in the column 'layer'"),
    "half a step": ("heads.csv", everywhere("step", 0.5), "in the column 'step'"),
    "a step beyond": ("heads.csv", everywhere("step", 1e19), "in the column 'step'"),
    "a context beyond": ("heads.csv", everywhere("context", 1e12), "in the column 'context'"),
    "a depth beyond": ("heads.csv", everywhere("layers", 10**9), "in the column 'layers'"),
    "a row twice": ("heads.csv", lambda t: pd.concat([t, t[:1]]), "has two rows of checkpoint 'first', layer '0', he"),
    "a component twice": ("qk.csv", lambda t: pd.concat([t, t[-1:]]), "qk.csv has two rows of checkpoint 'first'"),
    "another head": ("qk.csv", first("head", 99), "head 99 of layer 0 of 'first', which heads.csv has not"),
    "a head too many": (
        "heads.csv",
        lambda t: pd.concat([t, t[:1].assign(head=99)]),
        "heads.csv has head 99 of layer 0 of 'first', which was not measured",
    ),
    "no rows": ("qk.csv", lambda t: t[:0], "qk.csv has no rows"),
    "too wide": ("heads.csv", lambda t: ",".join(f"c{n}" for n in range(10**5)) + "\n", "100,000 columns, and 10,000"),
    "not a table": ("heads.csv", lambda _: '"', "is not a table that can be read"),
    "a spectrum without pairs": ("spectrum.csv", lambda t: t.drop(columns="pair"), "has no column 'pair'"),
    "a spectrum of another": ("spectrum.csv", everywhere("checkpoint", "other"), "which heads.csv has not"),
    "distances in words": (
        "distance.csv",
        first("kernel", "far"),
        "something else than numbers in the column 'kernel'",
    ),
    "no distances": ("distance.csv", lambda t: t.drop(columns="distance"), "has no column 'distance'"),
    "no contexts": ("spectrum.csv", lambda t: t.drop(columns="context"), "has no column 'context'"),
    "contexts of some": ("profiles.csv", first("context", np.nan), "profiles.csv has rows without a context"),
    "profiles of nothing": ("profiles.csv", lambda _: "", "profiles.csv is not a table that can be read"),
    "a map beyond": ("plasticity_map.csv", first("plasticity", np.inf), "'plasticity' that are beyond 1e+30"),
    "replicates without groups": ("replicates.parquet", lambda t: t.drop(columns="left_out"), "no column 'left_out'"),
    "replicates in words": ("replicates.parquet", everywhere("r_q", "x"), "something else than numbers in the column"),
    "replicates of another": ("replicates.parquet", everywhere("checkpoint", "x"), "which heads.csv has not"),
    "too few replicates": ("replicates.parquet", lambda t: t[1:], "has 23 rows of 'first' where its heads and groups"),
    "too many replicates": ("replicates.parquet", lambda t: pd.concat([t, t[:1]]), "replicates.parquet has two rows"),
    "groups of their own": (
        "replicates.parquet",
        lambda t: t.assign(left_out=np.arange(len(t))),
        "has 24 rows of 'first' where its heads and groups make 192",
    ),
    "no Parquet": ("replicates.parquet", lambda _: "PAR1", "replicates.parquet is damaged"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_table_of_nonsense_is_a_sentence(case: str, results: Path) -> None:
    name, change, message = CHANGES[case]
    rewrite(results / name, change)
    with pytest.raises(RopewalkError) as caught:
        load(results)
    text = str(caught.value)
    assert message in text
    assert str(results / name) in text
    assert "ropewalk analyze" in text
    assert text.isprintable()
    assert len(text) < 600


def test_tables_that_cannot_be_believed_are_made_again(results: Path, whole: Path) -> None:
    rewrite(results / "heads.csv", everywhere("r_q", "x"))
    assert {one.state for one in verify(results) if one.step == "tables"} == {OUT_OF_DATE}
    with pytest.raises(StaleTablesError):
        load(results)
    assert not up_to_date(results).heads.empty
    assert (results / "heads.csv").read_bytes() == (whole / "heads.csv").read_bytes()
    assert not any(one.state for one in verify(results))


@pytest.mark.parametrize("odd", [None, 3, "x", [], ["first"], {"first": [1]}], ids=str)
def test_a_ledger_that_names_no_shards_is_of_others(odd: Any, results: Path) -> None:
    ledger = Ledger.read(results)
    assert ledger is not None
    Ledger(ledger.files, {**ledger.made_from, "shards": odd}).write(results)
    with pytest.raises(StaleTablesError, match=r"are of other shards of 'first' than now"):
        load(results)
    assert {one.state for one in verify(results) if one.step == "tables"} == {OUT_OF_DATE}


@pytest.mark.parametrize(
    "content", [b"", b"x" * 100, PNG[:-30], PNG[:16] + b"\0\1" * 4 + PNG[24:], PNG.replace(b"IDAT", b"IDOT")]
)
def test_a_picture_of_nonsense_is_drawn_again(content: bytes, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "FIGURES", tuple(one for one in gallery.FIGURES if one.name == "explained_variance"))
    loaded = load(results)
    loaded.write_figures(results / "figures")
    (picture,) = (results / "figures").glob("*/figure.png")
    picture.write_bytes(content)
    ledger = Ledger.read(results / "figures")
    assert ledger is not None
    Ledger.of(results / "figures", ledger.files, ledger.made_from).write(results / "figures")
    (shown,) = loaded.page().pictures
    assert shown.width > 500


def test_a_wavelength_may_have_no_end(results: Path) -> None:
    rewrite(results / "spectrum.csv", first("wavelength", np.inf))
    load(results)


def alone(folder: Path, **changes: Any) -> Path:
    """A table from elsewhere of two rows, with changes in the first."""
    row = {"checkpoint": "a", "layer": 0, "head": 1, "pc": 0, "explained_variance": 0.5, "r_q": 0.1, "r_k": 0.2}
    pd.DataFrame([{**row, **changes}, {**row, "head": 2}]).to_csv(folder / "qk.csv", index=False)
    return folder / "qk.csv"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r_q": "x"}, "has something else than numbers in the column 'r_q'"),
        ({"r_k": np.inf}, "has numbers in the column 'r_k' that are beyond"),
        ({"se_r_q": "x"}, "has something else than numbers in the column 'se_r_q'"),
        ({"head": 2}, "has two rows of checkpoint 'a', layer '0', head '2', pc '0'"),
        ({"head": 10**9}, "in the column 'head'"),
        ({"layer": 9_999, "head": 999_999}, "has layers and heads beyond what a model has"),
    ],
    ids=str,
)
def test_a_table_alone_is_held_to_the_same(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RopewalkError) as caught:
        load(alone(tmp_path, **changes))
    assert message in str(caught.value)


def test_a_table_alone_may_have_columns_of_its_own(tmp_path: Path) -> None:
    assert load(alone(tmp_path, note="mine")).heads["note"][0] == "mine"
