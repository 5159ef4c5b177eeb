"""Reading tables back: what is filled in, and the sentence for what cannot be used."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ropewalk.errors import RopewalkError
from ropewalk.tables import check_qk, read_qk, read_replicates


def table(**changes: Any) -> pd.DataFrame:
    row = {"checkpoint": "a", "layer": 0, "head": 1, "pc": 0, "explained_variance": 0.5, "r_q": 0.1, "r_k": 0.2}
    return pd.DataFrame([{**row, **changes}])


def test_optional_columns_are_filled_in() -> None:
    checked = check_qk(table(layer=6))
    assert (checked["label"][0], checked["phase"][0], checked["layers"][0]) == ("a", "", 7)
    assert checked["rope"].isna().all()
    assert checked["step"].isna().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": "late"}, "something else than whole numbers in the column 'step'"),
        ({"layer": 0.5}, "something else than whole numbers in the column 'layer'"),
        ({"rope": "maybe"}, "something else than True and False in the column 'rope'"),
        ({"r_q": "high"}, "has text in the column 'r_q', which must hold numbers"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RopewalkError, match=re.escape(message)):
        check_qk(table(**changes))


def test_missing_columns_rows_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RopewalkError, match="has no column 'r_k'"):
        check_qk(table().drop(columns="r_k"))
    with pytest.raises(RopewalkError, match="has no rows"):
        check_qk(table().iloc[:0])
    with pytest.raises(RopewalkError, match="no table at"):
        read_qk(tmp_path)
    (tmp_path / "qk.csv").write_text("")
    with pytest.raises(RopewalkError, match="is not a table that can be read"):
        read_qk(tmp_path)


def test_damaged_replicates_are_said_and_absent_ones_are_none(tmp_path: Path) -> None:
    assert read_replicates(tmp_path, table()) is None
    (tmp_path / "replicates.parquet").write_text("not parquet")
    with pytest.raises(RopewalkError, match=r"replicates.parquet is damaged: make it again"):
        read_replicates(tmp_path, table())
