"""The explorer's data: unpacked once more by plain loops and held against the tables."""

import base64
import json
import struct
import zlib

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from helpers.long_tables import long_study
from helpers.oracles import jackknife
from helpers.tables import leave_one_out, random_table, synthetic
from ropewalk.geometry import taxonomy
from ropewalk.geometry.taxonomy import classify
from ropewalk.report.explorer import explorer
from ropewalk.report.packing import Packer, pack_errors, pack_values
from ropewalk.summary.view import View

FORMATS = {"u8": "B", "i8": "b", "i16": "h", "u16": "H", "i32": "i", "f32": "f"}


def unpack(content, spec):
    """Numbers of a packed array, one at a time."""
    letter, count = FORMATS[spec["type"]], spec["count"]
    size = struct.calcsize(letter)
    planes = [content[spec["start"] + plane * count :][:count] for plane in range(size)]
    numbers = [struct.unpack(f"<{letter}", bytes(plane[i] for plane in planes))[0] for i in range(count)]
    low, width = {"i16": (2**15, 2**16), "i32": (2**31, 2**32)}.get(spec["type"], (0, 2 ** (8 * size)))
    for i in range(spec.get("stride", count), count):
        numbers[i] = (numbers[i] + numbers[i - spec["stride"]] + low) % width - low
    return numbers


def inflated(packed):
    return zlib.decompress(base64.b64decode(packed))


def values_of(content, spec):
    codes = unpack(content, spec)
    if spec["type"] == "f32":
        return [None if np.isnan(code) else float(f"{code:.{spec['digits']}g}") for code in codes]
    missing = -(2**15) if spec["type"] == "i16" else -(2**31)
    return [None if code == missing else f"{code / 10 ** spec['decimals']:.{spec['decimals']}f}" for code in codes]


def errors_of(content, spec):
    codes = unpack(content, spec)
    return [
        None if code == 0 else 0.0 if code == 65535 else float(f"{(code - 1) % 90 + 10}e{(code - 1) // 90 - 364}")
        for code in codes
    ]


def columns_of(built):
    content = inflated(built.arrays)
    return content, {column["name"]: column for column in built.data["columns"]}


def test_values_are_what_formatting_the_table_gives():
    table = synthetic(checkpoints=6, heads=40)
    table["size"] = np.random.default_rng(0).lognormal(3, 4, len(table))
    table["count"] = np.arange(len(table)) * 1000
    view = View.of(table)
    content, columns = columns_of(explorer(view))
    rows = pd.concat(view.parts)
    for name in ("r_q", "r_k", "explained_variance"):
        assert columns[name]["values"]["decimals"] == 4
        assert values_of(content, columns[name]["values"]) == [f"{value:z.4f}" for value in rows[name]]
    assert values_of(content, columns["size"]["values"]) == [float(f"{value:.5g}") for value in rows["size"]]
    assert values_of(content, columns["count"]["values"]) == [str(value) for value in rows["count"]]
    words = columns["category"]
    codes = unpack(content, words["values"])
    assert [words["words"][code] for code in codes] == classify(rows["r_q"], rows["r_k"]).tolist()


@pytest.mark.parametrize("stride", [0, 7])
def test_numbers_at_the_borders_of_rounding(stride):
    halves = [0.12345, 0.00005, 0.99995, 1.00005, -0.12345, -0.00005, -1.0, 0.0, 2.5, -2.5, 0.30005, 1e-9]
    values = np.array([*halves, *(np.nextafter(half, 9) for half in halves), np.nan, np.inf])
    packer = Packer()
    spec = packer.add(pack_values(values, stride))
    found = values_of(inflated(packer.text()), spec)
    assert found == [f"{value:z.4f}" if np.isfinite(value) else None for value in values]


def test_errors_have_two_digits_whatever_their_size():
    generator = np.random.default_rng(1)
    errors = np.array([np.nan, 0.0, 0.0999, 0.0995, 0.1, 1.0, 99.5, 1e-12, 3e7, *generator.lognormal(-5, 3, 200)])
    packer = Packer()
    spec = packer.add(pack_errors(errors))
    found = errors_of(inflated(packer.text()), spec)
    assert found == [None if np.isnan(error) else float(f"{error:.1e}") for error in errors]


def test_groups_of_documents_give_errors_of_means():
    table = synthetic(checkpoints=3, heads=30)
    replicates = leave_one_out(table)
    content, columns = columns_of(explorer(View.of(table, replicates)))
    steps = unpack(content, columns["r_k"]["steps"])
    moves = np.reshape(unpack(content, columns["r_k"]["replicates"]), (90, 8)) * np.array(steps)[:, None]
    for index, (_, own) in enumerate(replicates.groupby("checkpoint", sort=False)):
        part = moves[30 * index : 30 * (index + 1)]
        expected = jackknife(own.groupby("left_out")["r_k"].mean())
        assert np.sqrt((part.mean(axis=0) ** 2).sum()) == pytest.approx(expected, rel=0.01)
        single = own.pivot(index=["layer", "head"], columns="left_out", values="r_k").apply(jackknife, axis=1)
        assert np.sqrt((part**2).sum(axis=1)) == pytest.approx(single.to_numpy(), rel=0.02)


def test_checkpoints_say_what_the_slider_needs():
    table, replicates = random_table(
        [
            {"checkpoint": f"c{i}", "label": f"C{i}", "phase": phase, "step": 10 * i}
            for i, phase in enumerate(("one", "one", "two"))
        ],
        layers=4,
        heads=2,
        shards=5,
        noise=0.01,
    )
    data = explorer(View.of(table, replicates)).data
    assert [(one["label"], one["group"], one["step"]) for one in data["checkpoints"]] == [
        ("C0", "one", 0),
        ("C1", "one", 10),
        ("C2", "two", 20),
    ]
    assert data["groups"] == [["one", 0, 2], ["two", 2, 3]]
    assert [one["reach"] for one in data["checkpoints"]] == pytest.approx([student.ppf(0.975, 4)] * 3)
    (shape,) = data["shapes"]
    assert shape["rope"] == [1, 1, 1, 1, 1, 1, 0, 0]
    assert data["thresholds"]["r_k"] == [-0.7, -0.3, 0.3, 0.7]
    words = [word for column in data["columns"] for word in column.get("words", ())]
    assert [one["name"] for one in data["looks"]] == words
    assert words[:5] == list(taxonomy.CATEGORIES)
    json.dumps(data, allow_nan=False)


def test_models_of_other_shapes_keep_their_own_heads():
    parts = [synthetic(1, layers=layers, heads=heads, seed=layers) for layers, heads in ((8, 20), (12, 30), (8, 20))]
    table = pd.concat([part.assign(checkpoint=f"m{i}", label=f"M{i}") for i, part in enumerate(parts)])
    view = View.of(table.drop(columns=["step", "phase"]).assign(family="f"))
    built = explorer(view)
    assert [one["shape"] for one in built.data["checkpoints"]] == [0, 1, 0]
    content, columns = columns_of(built)
    assert "stride" not in columns["r_q"]["values"]
    assert values_of(content, columns["r_q"]["values"]) == [f"{value:z.4f}" for value in pd.concat(view.parts)["r_q"]]


def test_curves_are_those_of_the_tables():
    study = long_study(checkpoints=3)
    built = explorer(study.view())
    content = inflated(built.arrays)
    curves = built.data["curves"]
    assert curves["at"] == [0, 1, 2]
    heads = [(layer, head) for layer in range(8) for head in range(4)]
    for name, x, column in (("distance", "distance", "score"), ("spectrum", "wavelength", "kernel_share")):
        found = curves["tables"][name]["1"]
        whole, middles, steps = (unpack(content, spec) for spec in found["columns"][column])
        table = study.tables[name]
        table = table[table["checkpoint"] == study.heads["checkpoint"].unique()[1]]
        start = own = 0
        for (layer, head), points in zip(heads, found["of"], strict=True):
            rows = table[(table["layer"] == layer) & (table["head"] == head)]
            # A layer without RoPE has no spectrum.
            assert (points == -1) == rows.empty
            if rows.empty:
                continue
            assert found["x"][points] == pytest.approx(rows[x].to_numpy(), rel=1e-5)
            shown = middles[own] + np.array(whole[start : start + len(rows)]) * steps[own]
            assert shown == pytest.approx(rows[column].to_numpy(), abs=1e-4 * np.ptp(rows[column]))
            start, own = start + len(rows), own + 1
        assert start == len(whole)


def test_a_small_budget_leaves_out_the_least_important_and_says_so():
    study = long_study(checkpoints=4)
    whole = explorer(study.view())
    assert whole.data["left_out"] == {}
    small = explorer(study.view(), budget=1)
    _, columns = columns_of(small)
    left_out = small.data["left_out"]
    assert {"r_q", "r_k", "explained_variance"} <= set(columns)
    assert "errors" in columns["r_q"]
    assert left_out["values"]
    assert set(left_out["values"]) | set(columns) == set(whole.columns)
    assert len(small.arrays) < 0.2 * len(whole.arrays)
    some = explorer(study.view(), budget=2 * len(whole.arrays)).data["curves"]
    assert some["at"][-1] == 3
    assert len(some["at"]) < 4


def test_another_axis_begins_with_its_own_columns():
    table = synthetic(checkpoints=2, heads=20)
    for name in ("r_q", "r_k"):
        table[f"{name}_drift"] = table[name] * 0.5
    built = explorer(View.of(table).on("drift"))
    assert built.data["first"] == {"category": "category_drift", "x": "r_q_drift", "y": "r_k_drift"}
    content, columns = columns_of(built)
    rows = table[table["pc"] == 0]
    assert values_of(content, columns["r_q"]["values"]) == [f"{value:z.4f}" for value in rows["r_q"]]
    assert list(columns)[:3] == ["r_q_drift", "r_k_drift", "explained_variance"]


def test_nothing_but_missing_numbers():
    row = {"checkpoint": "only", "layer": 0, "head": 0, "pc": 0, "explained_variance": 0.5}
    row |= {"r_q": np.nan, "r_k": np.nan}
    content, columns = columns_of(explorer(View.of(pd.DataFrame([row]))))
    assert values_of(content, columns["r_q"]["values"]) == [None]
    assert values_of(content, columns["explained_variance"]["values"]) == ["0.5000"]
    assert all("errors" not in column and "replicates" not in column for column in columns.values())
