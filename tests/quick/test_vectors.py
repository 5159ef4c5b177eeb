"""Datasets of vectors in place of a capture, and the vectors that a capture keeps."""

import json
import os
import random
import re
import shutil
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
import yaml
from scipy.stats import pearsonr
from sklearn.decomposition import PCA
from tokenizers import Tokenizer, models, pre_tokenizers

from helpers.command import Run
from helpers.hub import HubStandIn, commit_of
from helpers.logs import heard
from ropewalk.capture.manifest import read_manifest
from ropewalk.capture.run import capture_study
from ropewalk.capture.shards import shard_path
from ropewalk.capture.stored import StoredCapture
from ropewalk.capture.vector_files import ROWS, batches
from ropewalk.errors import RopewalkError
from ropewalk.results import analyze
from ropewalk.statistics.base import layers_of
from ropewalk.statistics.sample import kept_positions
from ropewalk.study import Study
from ropewalk.studyfile import load_study, parse_study

CONTEXT = 32
DOCUMENTS = 6
LAYERS, QUERIES, KEYS, D = 2, 4, 2, 8
Rows = dict[str, Any]


def rows_of(seed: int, drift: float = 0.1) -> Rows:
    """Vectors of one head: noise, an offset, and a drift with position along a random direction."""
    generator = np.random.default_rng(seed)
    position = np.tile(np.arange(CONTEXT), DOCUMENTS)
    direction = generator.standard_normal(D)
    vector = generator.standard_normal((len(position), D)) + 3 + drift * position[:, None] * direction
    return {
        "bucket": position // 2,
        "example_id": np.repeat(np.arange(DOCUMENTS) * 7, CONTEXT),
        "position": position,
        "vector": list(vector.astype(np.float32)),
        "sliding_window": [None] * len(position),
    }


def head_rows(layer: int, head: int, kind: str) -> Rows:
    return rows_of(1000 * layer + 10 * head + (kind == "k"))


def write(folder: Path, layer: int, head: int, kind: str, rows: Rows | pa.Table) -> None:
    path = folder / f"l{layer:02d}h{head:02d}{kind}" / "data.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.table(rows), path)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """All query heads of two layers, and keys per key head."""
    folder = tmp_path / "vectors"
    for layer in range(LAYERS):
        for head in range(QUERIES):
            write(folder, layer, head, "q", head_rows(layer, head, "q"))
        for head in range(KEYS):
            write(folder, layer, head, "k", head_rows(layer, head, "k"))
    return folder


def study(source: Path | str, results: Path, capture: dict[str, Any] | None = None, **options: Any) -> Study:
    checkpoint = {"source": str(source), "name": "data", "context": CONTEXT, **options}
    settings = {"shards": 3, "components": 3, **(capture or {})}
    return parse_study({"name": "s", "results": str(results), "checkpoints": [checkpoint], "capture": settings})


def table_of(source: Path | str, results: Path, capture: dict[str, Any] | None = None, **options: Any) -> pd.DataFrame:
    capture_study(study(source, results, capture, **options))
    return analyze(results).table


def pc0(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["pc"] == 0].set_index(["layer", "head"])


def expected(q: Rows, k: Rows, skip_first: int = 0) -> tuple[float, float, float]:
    """(explained variance, |r_q|, |r_k|) of PC0 by scikit-learn and SciPy."""
    parts = []
    for rows in (q, k):
        position = np.asarray(rows["position"])
        parts.append((np.stack(rows["vector"]).astype(float)[position >= skip_first], position[position >= skip_first]))
    pca = PCA(n_components=1).fit(np.concatenate([parts[0][0], parts[1][0]]))
    r_q, r_k = (abs(pearsonr(pca.transform(vectors)[:, 0], position)[0]) for vectors, position in parts)
    return float(pca.explained_variance_ratio_[0]), float(r_q), float(r_k)


def assert_head(table: pd.DataFrame, layer: int, head: int, k_head: int, values: tuple[float, float, float]) -> None:
    row = pc0(table).loc[(layer, head)]
    assert row["k_head"] == k_head
    np.testing.assert_allclose((row["explained_variance"], abs(row["r_q"]), abs(row["r_k"])), values, rtol=1e-9)


# A dataset is analysed as a capture is


def test_moments_of_a_source_are_those_of_a_plain_loop(dataset: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    capture_study(study(dataset, results))
    folder = results / "captures" / "data"
    assert read_manifest(folder)["documents"] == DOCUMENTS
    assert (read_manifest(folder)["dtype"], read_manifest(folder)["proof"]) == (None, {"outcome": "no model"})
    stored = StoredCapture(folder, "data")
    for layer, chosen in enumerate(layers_of(stored.layout, stored.heads)):
        assert (chosen.heads, chosen.key_heads) == (tuple(range(QUERIES)), tuple(range(KEYS)))
        for shard, moments in enumerate(stored.parts("moments", chosen)):
            for kind, heads in (("q", QUERIES), ("k", KEYS)):
                for head in range(heads):
                    rows = head_rows(layer, head, kind)
                    own = [
                        i for i, document in enumerate(rows["example_id"]) if document in (14 * shard, 14 * shard + 7)
                    ]
                    x = np.stack([rows["vector"][i] for i in own]).astype(float)
                    t = np.array([rows["position"][i] for i in own], dtype=float)
                    sxx, sxt = np.zeros((D, D)), np.zeros(D)
                    for vector, position in zip(x, t, strict=True):
                        sxx += np.outer(vector - x.mean(0), vector - x.mean(0))
                        sxt += (vector - x.mean(0)) * (position - t.mean())
                    assert moments[f"{kind}.n"][head] == len(own)
                    np.testing.assert_allclose(moments[f"{kind}.mean"][head], x.mean(0), rtol=1e-12)
                    np.testing.assert_allclose(moments[f"{kind}.sxx"][head], sxx, rtol=1e-10, atol=1e-9)
                    np.testing.assert_allclose(moments[f"{kind}.sxt"][head], sxt, rtol=1e-10, atol=1e-9)
                    np.testing.assert_allclose(moments[f"{kind}.stt"][head], ((t - t.mean()) ** 2).sum(), rtol=1e-12)


def test_the_table_agrees_with_scikit_learn_and_scipy(dataset: Path, tmp_path: Path) -> None:
    table = table_of(dataset, tmp_path / "results", {"skip_first": 4})
    assert len(pc0(table)) == LAYERS * QUERIES
    for layer in range(LAYERS):
        for head in range(QUERIES):
            values = expected(head_rows(layer, head, "q"), head_rows(layer, head // 2, "k"), skip_first=4)
            assert_head(table, layer, head, head // 2, values)
    assert table["rope"].isna().all()
    assert (table["n_q"] == DOCUMENTS * (CONTEXT - 4)).all()
    assert (table["shards"] == 3).all()
    assert (pc0(table)["se_r_q"] > 0).all()
    assert (table["layers"] == LAYERS).all()


def test_positions_that_mean_nothing_give_no_correlation(tmp_path: Path) -> None:
    for kind in "qk":
        write(tmp_path / "v", 0, 0, kind, rows_of(1, drift=1.0))
    assert pc0(table_of(tmp_path / "v", tmp_path / "a"))["r_q"].iloc[0] > 0.9
    for kind in "qk":
        rows = rows_of(1, drift=1.0)
        write(tmp_path / "v", 0, 0, kind, rows | {"position": np.random.default_rng(5).permutation(rows["position"])})
    assert abs(pc0(table_of(tmp_path / "v", tmp_path / "b"))["r_q"].iloc[0]) < 0.25


@pytest.mark.parametrize("told", ["key_heads", "layout.json"])
def test_keys_stored_per_query_head(told: str, dataset: Path, tmp_path: Path) -> None:
    """Number 1 is then the second query head, which reads key head 0, and not key head 1."""
    for layer in range(LAYERS):
        for head in reversed(range(QUERIES)):
            write(dataset, layer, head, "k", head_rows(layer, head // 2, "k"))
    options: dict[str, Any] = {"key_heads": KEYS}
    if told == "layout.json":
        write_layout(dataset)
        options = {}
    table = table_of(dataset, tmp_path / "results", **options)
    for layer in range(LAYERS):
        for head in range(QUERIES):
            assert_head(
                table, layer, head, head // 2, expected(head_rows(layer, head, "q"), head_rows(layer, head // 2, "k"))
            )
    untold = table_of(dataset, tmp_path / "untold") if told == "key_heads" else None
    if untold is not None:
        assert pc0(untold)["k_head"].tolist() == [0, 1, 2, 3] * LAYERS


def write_layout(folder: Path, window: int | None = None) -> None:
    layers = [
        {
            "call": layer,
            "layer": layer,
            "query_heads": QUERIES,
            "key_heads": KEYS,
            "head_dim": D,
            "rotary": float(layer == 0),
            "window": window if layer == 1 else None,
        }
        for layer in range(LAYERS)
    ]
    layout = {"model_type": "tiny", "depth": 5, "layers": layers, "absolute_positions": False}
    (folder / "layout.json").write_text(json.dumps(layout))


def test_a_layout_file_tells_rope_depth_and_windows(dataset: Path, tmp_path: Path) -> None:
    write_layout(dataset, window=16)
    table = table_of(dataset, tmp_path / "results")
    assert table.groupby("layer")["rope"].first().tolist() == [True, False]
    assert table.groupby("layer")["sliding"].first().tolist() == [False, True]
    assert (table["layers"] == 5).all()
    only = table_of(dataset, tmp_path / "full", {"full_attention_only": True})
    assert set(only["layer"]) == {0}


def test_windows_are_read_from_the_files(dataset: Path, tmp_path: Path) -> None:
    for head in range(QUERIES):
        rows = head_rows(1, head, "q")
        write(dataset, 1, head, "q", rows | {"sliding_window": [16] * len(rows["position"])})
    assert table_of(dataset, tmp_path / "all").groupby("layer")["sliding"].first().tolist() == [False, True]
    assert set(table_of(dataset, tmp_path / "full", {"full_attention_only": True})["layer"]) == {0}


def test_a_sample_of_heads_without_its_last_ones(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    for layer, head in ((0, 0), (0, 2), (3, 1)):
        write(folder, layer, head, "q", head_rows(layer, head, "q"))
        write(folder, layer, head // 2, "k", head_rows(layer, head // 2, "k"))
    table = pc0(table_of(folder, tmp_path / "results", key_heads=2))
    assert table.index.tolist() == [(0, 0), (0, 2), (3, 1)]
    assert table["k_head"].tolist() == [0, 1, 0]
    assert (table["layers"] == 4).all()


def test_ids_may_be_text_and_vectors_of_other_types(dataset: Path, tmp_path: Path) -> None:
    plain = table_of(dataset, tmp_path / "plain")
    for path in dataset.glob("*/data.parquet"):
        rows = pq.read_table(path).to_pydict()
        flat = pa.array(np.concatenate(rows["vector"]).astype(np.float64))
        table = pa.table(
            {
                "example_id": [f"document {number:03d}" for number in rows["example_id"]],
                "position": pa.array(rows["position"], pa.uint16()),
                "vector": pa.FixedSizeListArray.from_arrays(flat, D),
            }
        )
        pq.write_table(table, path, row_group_size=50)
    other = table_of(dataset, tmp_path / "other")
    pd.testing.assert_frame_equal(plain, other, check_exact=False, rtol=1e-9)


def test_a_head_whose_folder_may_not_be_read_is_not_missing(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Path.lstat

    def refuse(path: Path) -> Any:
        # The tests may run as a user who may read everything.
        if path.parent.name == "l00h00q":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(Path, "lstat", refuse)
    with pytest.raises(
        RopewalkError, match=r"l00h00q.data.parquet cannot be read \(Permission denied\): check who may"
    ):
        table_of(dataset, tmp_path / "results")


def test_a_second_run_reads_nothing_and_a_changed_file_is_refused(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    first = table_of(dataset, results)
    before = {path: path.stat().st_mtime_ns for path in (results / "captures").rglob("shard-*")}
    lines: list[str] = []
    with heard(lines.append):
        pd.testing.assert_frame_equal(table_of(dataset, results), first)
    assert "data: 3 shards were there already" in lines
    assert {path: path.stat().st_mtime_ns for path in (results / "captures").rglob("shard-*")} == before
    shard_path(results / "captures" / "data", 1).unlink()
    pd.testing.assert_frame_equal(table_of(dataset, results), first)
    with pytest.raises(RopewalkError, match="was made from other capture settings than the study names now"):
        capture_study(study(dataset, results, {"skip_first": 2}))
    write(dataset, 0, 0, "q", rows_of(99))
    with pytest.raises(RopewalkError, match="was made from another model or `dtype` than the study names now"):
        capture_study(study(dataset, results))


# On the hub


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_hub_dataset_gives_the_same_table_and_fetches_only_its_heads(
    dataset: Path, tmp_path: Path, serve: Callable[..., HubStandIn]
) -> None:
    files = files_of(dataset) | {"README.md": b"#", "raw/other.parquet": b"large"}
    hub = serve({"datasets/org/qk": {"main": {}, "step-100": files}})
    pairs = {"pairs": [[0, 1], [1, 3]]}
    remote = table_of("org/qk", tmp_path / "remote", pairs, revision="step-100", key_heads=KEYS)
    local = table_of(dataset, tmp_path / "local", pairs, key_heads=KEYS)
    pd.testing.assert_frame_equal(remote, local)
    fetched = {path.split("/resolve/")[1].split("/", 1)[1] for path in hub.fetched()}
    assert fetched == {f"{name}/data.parquet" for name in ("l00h01q", "l00h00k", "l01h03q", "l01h01k")}
    pd.testing.assert_frame_equal(
        table_of("org/qk", tmp_path / "all", revision="step-100"), table_of(dataset, tmp_path / "every")
    )


def test_hub_mistakes(tmp_path: Path, serve: Callable[..., HubStandIn]) -> None:
    serve(
        {
            "datasets/org/qk": {"main": {"README.md": b"#"}},
            "datasets/org/closed": {"main": {"l00h00q/data.parquet": b"", "l00h00k/data.parquet": b""}},
        },
        gated=("datasets/org/closed",),
    )
    for source, options, message in [
        ("org/qk", {"revision": "step-1"}, "org/qk has no revision 'step-1'"),
        ("org/none", {}, "no repo org/none on the hub: check the spelling (owner/name)"),
        ("org/closed", {}, "org/closed is gated: ask for access on its page on the hub"),
        (
            "org/qk",
            {},
            "org/qk holds no vectors: it needs folders such as l00h00q and l00h00k, each with a data.parquet",
        ),
    ]:
        with pytest.raises(RopewalkError, match=f"^{re.escape(message)}"):
            capture_study(study(source, tmp_path / "results", **options))


# Mistakes


FIRST = head_rows(0, 0, "q")


def damaged(**columns: Any) -> Rows:
    return FIRST | columns


NAN = [np.full(D, np.nan, dtype=np.float32), *FIRST["vector"][1:]]
UNEVEN = [FIRST["vector"][0][:3], *FIRST["vector"][1:]]
NULL = [None, *FIRST["vector"][1:]]
NUMBERS = list(range(len(NULL)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            {"position": NUMBERS, "vector": NULL},
            "has no column 'example_id' (it has: position, vector): capture this head again",
        ),
        (
            {"example_id": NUMBERS, "vector": NULL},
            "has no column 'position' (it has: example_id, vector): capture this head again",
        ),
        (
            {"example_id": NUMBERS, "position": NUMBERS},
            "has no column 'vector' (it has: example_id, position): capture this head again",
        ),
        (damaged(vector=NAN), "holds NaN or infinite numbers in the column 'vector': capture this head again"),
        (
            damaged(vector=UNEVEN),
            "holds vectors of different lengths: every vector of a head must have head_dim numbers",
        ),
        (
            damaged(vector=NULL),
            "holds vectors of different lengths: every vector of a head must have head_dim numbers",
        ),
        (
            damaged(vector=["x"] * len(NULL)),
            "holds string in the column 'vector', not lists of numbers: capture this head again",
        ),
        (
            damaged(position=["x"] * len(NULL)),
            "holds string or missing values in the column 'position': capture this head again",
        ),
        (
            damaged(position=[None, *NUMBERS[1:]]),
            "holds NaN or infinite numbers in the column 'position': capture this head again",
        ),
        (
            damaged(example_id=[None] * len(NULL)),
            "holds null or missing values in the column 'example_id', where whole numbers or text belong: capture",
        ),
        (
            damaged(position=NUMBERS),
            "holds position 191, which is outside the context 32: set `context` to the length of its documents",
        ),
        (
            damaged(position=[-1] * len(NULL)),
            "holds position -1, which is outside the context 32: set `context` to the length",
        ),
        (
            {name: values[:0] for name, values in FIRST.items()} | {"vector": pa.array([], pa.list_(pa.float32()))},
            "holds no vectors: capture this head again",
        ),
    ],
    ids=[
        "id",
        "position",
        "vector",
        "nan",
        "uneven",
        "null",
        "text",
        "text position",
        "null position",
        "null id",
        "beyond",
        "before",
        "empty",
    ],
)
def test_a_damaged_file_is_named(rows: Rows, message: str, dataset: Path, tmp_path: Path) -> None:
    write(dataset, 0, 0, "q", rows)
    path = dataset / "l00h00q" / "data.parquet"
    with pytest.raises(RopewalkError, match=f"^{re.escape(f'{path} {message}')}"):
        capture_study(study(dataset, tmp_path / "results"))


def test_vectors_of_another_length_than_their_layer(dataset: Path, tmp_path: Path) -> None:
    rows = head_rows(1, 2, "q")
    write(dataset, 1, 2, "q", rows | {"vector": [vector[:5] for vector in rows["vector"]]})
    with pytest.raises(
        RopewalkError, match=r"holds vectors of 5 numbers where the others of its layer have 8: capture it again$"
    ):
        capture_study(study(dataset, tmp_path / "results"))


@pytest.mark.parametrize("size", [0, 10, -20])
def test_a_file_that_is_not_parquet(size: int, dataset: Path, tmp_path: Path) -> None:
    path = dataset / "l01h01k" / "data.parquet"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(
        RopewalkError, match=f"^{re.escape(str(path))} is not a Parquet file that can be read: fetch it again$"
    ):
        capture_study(study(dataset, tmp_path / "results"))


def test_heads_that_are_not_there(dataset: Path, tmp_path: Path) -> None:
    (dataset / "l01h01k" / "data.parquet").unlink()
    with pytest.raises(
        RopewalkError, match=r"vectors has no l01h01k: add it, or name the heads that are there with capture\.pairs$"
    ):
        capture_study(study(dataset, tmp_path / "results"))
    table = table_of(dataset, tmp_path / "pairs", {"pairs": [[0, 0], [1, 1]]}, key_heads=KEYS)
    assert pc0(table).index.tolist() == [(0, 0), (1, 1)]
    (dataset / "l00h03q" / "data.parquet").unlink()
    with pytest.raises(RopewalkError, match=r"vectors has no l00h03q: add it"):
        capture_study(study(dataset, tmp_path / "gone", {"pairs": [[0, 3]]}, key_heads=KEYS))
    with pytest.raises(RopewalkError, match="head 4 is not in layer 0, which has heads 0 to 3"):
        capture_study(study(dataset, tmp_path / "head", {"pairs": [[0, 4]]}))
    with pytest.raises(RopewalkError, match="layer 2 has no attention in this vectors model: choose among 0, 1"):
        capture_study(study(dataset, tmp_path / "layer", {"layers": [2]}))


def test_a_folder_without_vectors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RopewalkError, match="empty holds no vectors: it needs folders such as l00h00q and l00h00k"):
        capture_study(study(tmp_path / "empty", tmp_path / "results"))


def test_key_heads_that_do_not_divide(dataset: Path, tmp_path: Path) -> None:
    write(dataset, 0, 2, "k", head_rows(0, 2, "k"))
    with pytest.raises(
        RopewalkError, match=r"has query heads up to 3 and key heads up to 2: set `key_heads` in the study$"
    ):
        capture_study(study(dataset, tmp_path / "results"))


def layout_of(**changes: Any) -> dict[str, Any]:
    """A good layout of the dataset, with changes to the whole and, given as `layer`, to its second layer."""
    own = {"layer": 0, "query_heads": QUERIES, "key_heads": KEYS, "head_dim": D, "rotary": 1.0, "window": None}
    second = {**own, "call_index": 1, "layer": 1, **changes.pop("layer", {})}
    whole = {"model_type": "m", "depth": LAYERS, "layers": [own | {"call_index": 0}, second]}
    return {**whole, "absolute_positions": False, **changes}


PAIRS = {"first": [0], "second": [1], "frequencies": [1.0]}


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({}, "model_type: Field required"),
        ([], "Input should be a valid dictionary"),
        ("x", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        (b"\xff\xfe", "it is no JSON"),
        ("9" * 10_000, "it is no JSON"),
        (layout_of(depth=-1), "depth is -1: Input should be greater than or equal to 1"),
        (layout_of(depth=10**9), "depth is 1000000000: Input should be less than or equal to 10000"),
        (layout_of(depth=1), "it has a layer 1 and says depth 1"),
        (layout_of(depth="2"), "depth is '2': Input should be a valid integer"),
        (layout_of(depth=None), "depth is None: Input should be a valid integer"),
        (layout_of(layers=[]), "layers: List should have at least 1 item after validation, not 0"),
        (layout_of(layers={}), "layers: Input should be a valid list"),
        (layout_of(extra=1), "extra is 1: Extra inputs are not permitted"),
        (layout_of(layer={"layer": 0}), "layer 0 is there twice"),
        (layout_of(layer={"layer": -1}), "layers.1.layer is -1: Input should be greater than or equal to 0"),
        (layout_of(layer={"query_heads": 10**8}), "layers.1.query_heads is 100000000: Input should be less than"),
        (layout_of(layer={"query_heads": 99_998}), "it has 100,002 heads, and 100,000 are the most"),
        (layout_of(layer={"query_heads": True}), "layers.1.query_heads is True: Input should be a valid integer"),
        (layout_of(layer={"key_heads": 3}), "layers.1: 4 query heads cannot share 3 key heads evenly"),
        (layout_of(layer={"key_heads": 0}), "layers.1.key_heads is 0: Input should be greater than or equal to 1"),
        (layout_of(layer={"head_dim": 10**6}), "layers.1.head_dim is 1000000: Input should be less than or equal to"),
        (layout_of(layer={"rotary": float("nan")}), "layers.1.rotary is nan: Input should be a finite number"),
        (layout_of(layer={"window": 0}), "layers.1.window is 0: Input should be greater than or equal to 1"),
        (layout_of(layer={"rotary_pairs": PAIRS | {"first": [9]}}), "layers.1: rotary_pairs names a dimension twice,"),
        (layout_of(layer={"rotary_pairs": PAIRS | {"first": []}}), "layers.1: rotary_pairs has lists of different"),
    ],
)
def test_a_damaged_layout_file(layout: Any, reason: str, dataset: Path, tmp_path: Path) -> None:
    text = layout if isinstance(layout, str | bytes) else json.dumps(layout)
    (dataset / "layout.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RopewalkError) as caught:
        capture_study(study(dataset, tmp_path / "results"))
    said = str(caught.value).removeprefix(str(dataset / "layout.json"))
    assert said.startswith(f" is damaged ({reason}")
    assert said.endswith("): write it again, or remove it and set `key_heads` in the study")
    assert len(said) < 300
    assert not (tmp_path / "results").exists()


def test_a_layout_file_that_cannot_be_read(dataset: Path, tmp_path: Path) -> None:
    (dataset / "layout.json").symlink_to("nowhere")
    with pytest.raises(
        RopewalkError, match=r"layout\.json cannot be read \(it leads to 'nowhere', which is not there\)"
    ):
        capture_study(study(dataset, tmp_path / "results"))


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("l99999999h0q", "has a folder l99999999h0q, beyond the 10,000 layers and 100,000 heads that a model may have"),
        ("l0h99999999k", "has a folder l0h99999999k, beyond the 10,000 layers"),
        (f"l{'9' * 100}h0q", "has a folder l999"),
        ("l0h0q", "has both l00h00q/data.parquet and l0h0q/data.parquet, of the same head: remove one of the two"),
    ],
)
def test_folders_that_name_no_head(folder: str, message: str, dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset / "l00h00q", dataset / folder)
    with pytest.raises(RopewalkError, match=re.escape(message)):
        capture_study(study(dataset, tmp_path / "results"))
    assert not (tmp_path / "results").exists()


def changed(**columns: Any) -> pa.Table:
    return pa.table({**FIRST, **columns})


MANY = len(FIRST["position"])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (changed(example_id=["x"] * MANY), "has text in the column 'example_id' and"),
        (changed(example_id=[0.5] * MANY), "holds numbers that are not whole in the column 'example_id'"),
        (changed(example_id=[float("nan")] * MANY), "holds numbers that are not whole in the column 'example_id'"),
        (changed(example_id=[[1]] * MANY), "holds list<element: int64> or missing values in the column 'example_id'"),
        (changed(example_id=[True] * MANY), "holds bool or missing values in the column 'example_id'"),
        (changed(vector=[[1e200] * D] * MANY), "holds numbers beyond 3.4e+38 in the column 'vector', which no model"),
        (changed(vector=[[float("inf")] * D] * MANY), "holds NaN or infinite numbers in the column 'vector'"),
        (changed(vector=[[1.0] * 5000] * MANY), "holds vectors of 5,000 numbers, and 4,096 are the most"),
        (changed(vector=[["x"] * D] * MANY), "in the column 'vector', not lists of numbers"),
        (changed(vector=[[None] * D] * MANY), "in the column 'vector', not lists of numbers"),
        (changed(position=[0.5] * MANY), "holds position 0.5, which is not a whole number"),
        (changed(position=[2**62 + 1] * MANY), "which is outside the context 32"),
        (changed(sliding_window=["x"] * MANY), "holds string in the column 'sliding_window', not numbers"),
        (changed(sliding_window=[float("inf")] * MANY), "holds a sliding_window that is longer than any document"),
        (
            pa.Table.from_arrays([*changed().columns, changed()["position"]], [*changed().column_names, "position"]),
            "has the column 'position' 2 times",
        ),
    ],
)
def test_what_a_file_cannot_hold_is_said_before_anything_is_summed(
    table: pa.Table, message: str, dataset: Path, tmp_path: Path
) -> None:
    # The file of which the window of the layer is read.
    write(dataset, 0, 3, "q", table)
    with pytest.raises(RopewalkError, match=re.escape(message)) as caught:
        capture_study(study(dataset, tmp_path / "results"))
    assert "l00h03q" in str(caught.value)
    assert not list((tmp_path / "results").rglob("shard-*"))


def test_what_is_no_file_is_named(dataset: Path, tmp_path: Path) -> None:
    path = dataset / "l00h00q" / "data.parquet"
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(
        RopewalkError, match=r"data\.parquet cannot be read \(it leads to 'nowhere', which is not there\)"
    ):
        capture_study(study(dataset, tmp_path / "results"))
    path.unlink()
    path.mkdir()
    with pytest.raises(RopewalkError, match=r"data\.parquet cannot be read \(it is a folder\)"):
        capture_study(study(dataset, tmp_path / "results"))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(RopewalkError, match=r"source of 'data' is .*file, which is no folder: name the folder"):
        capture_study(study(file, tmp_path / "results"))


@pytest.mark.parametrize("huge", [1e12, 1e20, 1e30, 3e38])
def test_a_number_that_drowns_the_others_is_no_failure(huge: float, dataset: Path, tmp_path: Path) -> None:
    rows = head_rows(0, 0, "q")
    vectors = [vector.astype(np.float64) for vector in rows["vector"]]
    vectors[3][2] = huge
    write(dataset, 0, 0, "q", pa.table({**rows, "vector": vectors}))
    table = table_of(dataset, tmp_path / "results")
    assert len(pc0(table)) == LAYERS * QUERIES


def test_half_precision_and_whole_floats_are_numbers(dataset: Path, tmp_path: Path) -> None:
    expected_table = table_of(dataset, tmp_path / "expected")
    rows = head_rows(0, 0, "q")
    floats = {"example_id": rows["example_id"].astype(float), "position": rows["position"].astype(np.float32)}
    write(dataset, 0, 0, "q", pa.table({**rows, **floats}))
    pd.testing.assert_frame_equal(table_of(dataset, tmp_path / "floats"), expected_table)
    half = pa.array([vector.astype(np.float16) for vector in rows["vector"]], pa.list_(pa.float16()))
    write(dataset, 0, 0, "q", pa.table({**rows, "vector": half}))
    assert pc0(table_of(dataset, tmp_path / "half"))["r_q"].notna().all()


def test_settings_that_a_source_cannot_follow(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(
        RopewalkError, match=r"^pre_rope does not go with `source` of 'data': its vectors are what they are$"
    ):
        capture_study(study(dataset, tmp_path / "results", {"pre_rope": True}))
    rows = head_rows(0, 1, "q")
    short = {name: values[: CONTEXT * 3] for name, values in rows.items()}
    write(dataset, 0, 1, "q", short)
    with pytest.raises(
        RopewalkError, match=r"has no vectors of some of the 3 groups of documents: lower capture\.shards$"
    ):
        capture_study(study(dataset, tmp_path / "results"))


# Memory


def test_memory_does_not_grow_with_the_size_of_a_file(tmp_path: Path) -> None:
    def peak(rows: int, read: Callable[[Path], Iterable[object]]) -> int:
        """Most bytes that were held between two parts of the file."""
        vectors = np.random.default_rng(0).standard_normal((rows, 128)).astype(np.float32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 128).cast(pa.list_(pa.float32()))
        table = pa.table({"position": np.arange(rows), "example_id": np.arange(rows), "vector": lists})
        # One row group: the worst case, as a reader that takes a row group at a time would hold all of it.
        pq.write_table(table, tmp_path / "v.parquet", row_group_size=rows)
        del vectors, lists, table
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        try:
            arrow = max(pa.total_allocated_bytes() for _ in read(tmp_path / "v.parquet")) - before
            return int(arrow) + tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def streamed(path: Path) -> Iterable[object]:
        return batches(path, ("position", "example_id", "vector"))

    def by_row_group(path: Path) -> Iterable[object]:
        return pq.ParquetFile(path).iter_batches(batch_size=ROWS)

    assert peak(100_000, streamed) - peak(10_000, streamed) < 10e6
    assert peak(100_000, by_row_group) - peak(10_000, by_row_group) > 35e6


# What a capture keeps


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    config = transformers.SmolLM3Config(
        **sizes, num_key_value_heads=2, max_position_embeddings=CONTEXT, pad_token_id=0, no_rope_layers=[1, 1, 0]
    )
    transformers.SmolLM3ForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({str(number): number for number in range(32)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="0").save_pretrained(folder)
    generator = np.random.default_rng(0)
    lines = [" ".join(map(str, generator.integers(1, 32, CONTEXT + 3))) for _ in range(8)]
    for number, line in enumerate(lines):
        (folder / f"text{number}.txt").write_text(line)
    return folder


def captured(model: Path, results: Path, **capture: Any) -> Path:
    data = {
        "name": "m",
        "results": str(results),
        "checkpoints": [{"repo": str(model), "name": "m", "context": CONTEXT, "bucket_size": 4}],
        "corpus": {"source": "files", "paths": [str(model / "*.txt")]},
        "capture": {"shards": 2, "statistics": ["moments", "sample"], **capture},
    }
    capture_study(parse_study(data))
    return results / "captures" / "m" / "vectors"


def test_kept_vectors_are_laid_out_by_head(model: Path, tmp_path: Path) -> None:
    folder = captured(model, tmp_path, pairs=[[0, 1], [0, 3], [2, 0]], seed=5)
    assert sorted(path.parent.name for path in folder.glob("*/data.parquet")) == [
        "l00h00k",
        "l00h01k",
        "l00h01q",
        "l00h03q",
        "l02h00k",
        "l02h00q",
    ]
    for layer, name, kind in ((0, "l00h03q", "q"), (2, "l02h00k", "k")):
        table = pq.read_table(folder / name / "data.parquet")
        assert table.schema.names == ["bucket", "example_id", "position", "vector", "sliding_window"]
        assert [str(kind) for kind in table.schema.types] == [
            "int32",
            "int64",
            "int64",
            "list<element: float>",
            "int64",
        ]
        rows = table.to_pydict()
        assert rows["bucket"] == [position // 4 for position in rows["position"]]
        assert {len(vector) for vector in rows["vector"]} == {8}
        assert set(rows["sliding_window"]) == {None}
        kept = [
            (document, int(at))
            for document in range(8)
            for at in kept_positions(5, document, layer, kind, CONTEXT, 1 / 4)
        ]
        assert list(zip(rows["example_id"], rows["position"], strict=True)) == kept


def test_the_same_capture_writes_the_same_bytes(model: Path, tmp_path: Path) -> None:
    one, other = captured(model, tmp_path / "a"), captured(model, tmp_path / "b", batch_tokens=CONTEXT)
    assert files_of(one).keys() == files_of(other).keys()
    assert files_of(captured(model, tmp_path / "c")) == files_of(one)
    for name, data in files_of(one).items():
        if name.endswith(".parquet"):
            a, b = pq.read_table(pa.BufferReader(data)), pq.read_table(other / name)
            assert a.drop_columns("vector") == b.drop_columns("vector")
            np.testing.assert_allclose(np.stack(a["vector"].to_numpy()), np.stack(b["vector"].to_numpy()), atol=1e-6)


@pytest.mark.parametrize("heads", ["all", 5])
def test_kept_vectors_can_be_read_back_as_a_source(heads: int | str, model: Path, tmp_path: Path) -> None:
    """The table of a sample, read back as a dataset, is that of its vectors by scikit-learn and SciPy."""
    folder = captured(model, tmp_path / "captured", heads=heads)
    sampled = table_of(folder, tmp_path / "sampled", {"shards": 2})
    whole = analyze(tmp_path / "captured").table
    key = ["layer", "head", "k_head", "rope"]
    assert pc0(sampled).reset_index()[key].equals(pc0(whole).reset_index()[key])
    assert (sampled["n_q"] < whole["n_q"].iloc[0]).all()
    assert sampled["rope"].notna().all()
    for layer, head in pc0(sampled).index:
        q, k = (
            pq.read_table(folder / f"l{layer:02d}h{number:02d}{kind}" / "data.parquet").to_pydict()
            for kind, number in (("q", head), ("k", head // 2))
        )
        assert_head(sampled, layer, head, head // 2, expected(q, k))


def test_everything_kept_gives_the_table_of_the_capture(model: Path, tmp_path: Path) -> None:
    data = {
        "name": "m",
        "results": str(tmp_path / "captured"),
        "checkpoints": [{"repo": str(model), "name": "m", "context": CONTEXT, "bucket_size": 1}],
        "corpus": {"source": "files", "paths": [str(model / "*.txt")]},
        "capture": {"shards": 2, "statistics": {"sample": {"at_most": 10_000}}},
    }
    capture_study(parse_study(data))
    whole = analyze(tmp_path / "captured").table
    again = table_of(
        tmp_path / "captured" / "captures" / "m" / "vectors", tmp_path / "again", {"shards": 2, "components": 8}
    )
    merged = whole.merge(again, on=["layer", "head", "pc"], suffixes=("", "_again"), validate="one_to_one")
    assert len(merged) == len(whole) == len(again)
    for column in ("explained_variance", "r_q", "r_k", "n_q", "n_k"):
        np.testing.assert_allclose(merged[column].astype(float), merged[f"{column}_again"].astype(float), atol=1e-6)
    assert merged["rope"].equals(merged["rope_again"])


# What a study says of a dataset's model


def test_depth_and_layer_types_that_the_study_states(dataset: Path, tmp_path: Path) -> None:
    stated = {"depth": 30, "nope_layers": [1, 3, 7], "sliding_layers": [0, 4], "sliding_window": 16}
    table = table_of(dataset, tmp_path / "stated", **stated)
    assert (table["layers"] == 30).all()
    assert table.groupby("layer")["rope"].first().tolist() == [True, False]
    assert table.groupby("layer")["sliding"].first().tolist() == [True, False]
    assert set(table_of(dataset, tmp_path / "full", {"full_attention_only": True}, **stated)["layer"]) == {1}
    unstated = table_of(dataset, tmp_path / "unstated")
    assert unstated["rope"].isna().all()
    assert (unstated["layers"] == LAYERS).all()
    assert table_of(dataset, tmp_path / "all", nope_layers=[])["rope"].all()
    numbers = ["explained_variance", "r_q", "r_k", "se_r_q"]
    pd.testing.assert_frame_equal(table[numbers], unstated[numbers])


def test_the_files_tell_sliding_layers_besides_the_study(dataset: Path, tmp_path: Path) -> None:
    rows = head_rows(1, 0, "q")
    for head in range(QUERIES):
        write(dataset, 1, head, "q", head_rows(1, head, "q") | {"sliding_window": [8] * len(rows["position"])})
    table = table_of(dataset, tmp_path / "results", sliding_layers=[0], sliding_window=16)
    assert table.groupby("layer")["sliding"].first().tolist() == [True, True]
    layers = read_manifest(tmp_path / "results/captures/data")["layout"]["layers"]
    assert [layer["window"] for layer in layers] == [16, 8]


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"depth": 1}, "holds layer 1 and the study says `depth: 1` of 'data': it is at least 2"),
        (
            {"nope_layers": [3]},
            "`nope_layers` of 'data' names layer 3 and .* ends with layer 1: set `depth` to the layers",
        ),
        (
            {"sliding_layers": [2], "sliding_window": 8},
            "`sliding_layers` of 'data' names layer 2 and .* ends with layer 1: set `depth` to the layers of the model",
        ),
        ({"depth": 4, "nope_layers": [4]}, "`nope_layers` names layer 4 and `depth: 4` leaves layers 0 to 3: correct"),
        ({"nope_layers": [-1]}, r"nope_layers\.0 is -1: input should be greater than or equal to 0"),
        ({"depth": 0}, r"depth is 0: input should be greater than 0"),
        ({"sliding_layers": [0]}, "`sliding_layers` and `sliding_window` go together: give both or neither"),
        ({"sliding_window": 8}, "`sliding_layers` and `sliding_window` go together: give both or neither"),
    ],
)
def test_statements_that_cannot_be(stated: dict[str, Any], message: str, dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(RopewalkError, match=message):
        capture_study(study(dataset, tmp_path / "results", **stated))


@pytest.mark.parametrize(
    "stated",
    [
        {"key_heads": 2},
        {"depth": 30},
        {"nope_layers": [3]},
        {"sliding_layers": [3], "sliding_window": 8},
    ],
    ids=lambda stated: next(iter(stated)),
)
def test_statements_are_for_a_source_that_has_no_layout_file(
    stated: dict[str, Any], dataset: Path, tmp_path: Path
) -> None:
    field = next(iter(stated))
    checkpoint = {"repo": "org/m", "name": "m", "context": CONTEXT, **stated}
    with pytest.raises(RopewalkError, match=f"`{field}` goes with `source`; of a model .* it is measured: remove it"):
        parse_study({"name": "s", "checkpoints": [checkpoint]})
    write_layout(dataset)
    with pytest.raises(
        RopewalkError, match=rf"vectors has a layout\.json, which tells what its model is: remove it, or `{field}` from"
    ):
        capture_study(study(dataset, tmp_path / "results", **stated))


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"label": "D", "phase": "late", "step": 3}, None),
        ({"depth": 30, "nope_layers": [0], "sliding_layers": [1], "sliding_window": 8}, None),
        ({"key_heads": KEYS}, None),
        ({"key_heads": 1}, "other capture settings"),
        ({"context": CONTEXT + 1}, "other capture settings"),
        ({"capture": {"skip_first": 1}}, "other capture settings"),
        ({"capture": {"pairs": [[0, 1]]}}, "other capture settings"),
        ({"capture": {"components": 2, "batch_tokens": 5}}, None),
        # It shuffles positions.
        ({"capture": {"seed": 1}}, "other capture settings"),
        ({"capture": {"statistics": ["moments", "sample"]}}, None),
        ({"capture": {"shards": 2}}, "was captured in 3 shards and the study says 2 now: set `shards: 3` again"),
    ],
    ids=str,
)
def test_what_of_a_source_has_shards_refused(
    change: dict[str, Any], refused: str | None, dataset: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    capture_study(study(dataset, results))
    changed = study(dataset, results, **change)
    if refused is None:
        capture_study(changed)
        return
    with pytest.raises(RopewalkError, match=refused):
        capture_study(changed)


def test_a_source_is_known_by_what_its_files_hold(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied and touched files are the same; the same shape with other numbers is not, nor is another statistic."""
    results = tmp_path / "results"
    path = dataset / "l00h00q" / "data.parquet"
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table(head_rows(0, 0, "q")), path, **plain)
    capture_study(study(dataset, results))
    copy = shutil.copytree(dataset, tmp_path / "copy")
    for copied in copy.rglob("*.parquet"):
        os.utime(copied, (0, 0))
    capture_study(study(copy, results))
    monkeypatch.setattr("ropewalk.statistics.moments.MomentSums.revision", 99)
    with pytest.raises(RopewalkError, match="other capture settings"):
        capture_study(study(dataset, results))
    monkeypatch.undo()
    before = path.stat()
    rows = head_rows(0, 0, "q")
    pq.write_table(pa.table(rows | {"vector": rows["vector"][::-1]}), path, **plain)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    with pytest.raises(RopewalkError, match="was made from another model or `dtype` than the study names now"):
        capture_study(study(dataset, results))


def test_the_record_names_the_vectors(dataset: Path, tmp_path: Path, serve: Callable[..., HubStandIn]) -> None:
    serve({"datasets/org/qk": {"main": files_of(dataset)}})
    checkpoints = [
        {"source": source, "name": name, "context": CONTEXT}
        for source, name in ((str(dataset), "local"), ("org/qk", "remote"))
    ]
    data = {"name": "s", "results": str(tmp_path / "r"), "checkpoints": checkpoints, "capture": {"shards": 2}}
    capture_study(parse_study(data))
    local, remote = yaml.safe_load((tmp_path / "r/study.yaml").read_text())["origins"]
    assert local["vectors"].startswith("local folder, sha256 ")
    assert remote == {"checkpoint": "remote", "vectors": f"org/qk@{commit_of('datasets/org/qk', 'main')}"}
    # A run of one of them leaves what the record says of the other.
    (dataset / "l00h00q/data.parquet").unlink()
    capture_study(parse_study(data), only=["remote"])
    assert yaml.safe_load((tmp_path / "r/study.yaml").read_text())["origins"] == [local, remote]


# Heads that are there, and the plan


def test_fewer_heads_than_asked_for_are_said(dataset: Path, tmp_path: Path) -> None:
    for name in ("l00h01q", "l01h02q"):
        shutil.rmtree(dataset / name)

    def said(capture: dict[str, Any], results: str) -> tuple[list[str], list[tuple[int, int]]]:
        lines: list[str] = []
        with heard(lines.append):
            table = table_of(dataset, tmp_path / results, capture, key_heads=KEYS)
        return [line for line in lines if "asked for" in line], pc0(table).index.tolist()

    there = [(0, 0), (0, 2), (0, 3), (1, 0), (1, 1), (1, 3)]
    assert said({"heads": 300}, "many") == ([f"data: 6 of the 300 heads asked for are in {dataset}"], there)
    assert said({"heads": "all"}, "all") == ([f"data: 6 of the 8 heads asked for are in {dataset}"], there)
    assert said({"heads": 6}, "six") == ([], there)
    lines, chosen = said({"heads": 4}, "four")
    assert (lines, len(chosen)) == ([], 4)
    assert set(chosen) < set(there)
    assert said({"heads": "all", "layers": [1]}, "one") == (
        [f"data: 3 of the 4 heads asked for are in {dataset}"],
        [(1, 0), (1, 1), (1, 3)],
    )


def test_a_sample_of_whole_vectors_is_that_of_a_capture(dataset: Path, tmp_path: Path) -> None:
    table = pc0(table_of(dataset, tmp_path / "results", {"heads": 5, "seed": 3}))
    grid = [(layer, head) for layer in range(LAYERS) for head in range(QUERIES)]
    assert table.index.tolist() == sorted(random.Random(3).sample(grid, 5))


def test_the_plan_shows_documents_shards_and_heads_of_a_source(run: Run, dataset: Path, tmp_path: Path) -> None:
    shutil.rmtree(dataset / "l00h01q")
    data = {
        "name": "s",
        "results": str(tmp_path / "results"),
        "checkpoints": [{"source": str(dataset), "name": "data", "context": CONTEXT, "key_heads": KEYS}],
        "capture": {"shards": 3, "heads": 300},
    }
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(data))

    def planned() -> tuple[list[str], list[str]]:
        code, out, err = run("run", str(path), "--dry-run")
        assert code == 0, err
        _, _, row, *rest = out.splitlines()
        return re.split(r"\s{2,}", row.strip()), rest

    row, rest = planned()
    assert row[:7] == ["data", "32", "6", "–", "3 (0)", "7 of 300", "–"]
    assert rest[0] == f"data is read from {dataset}, which has 7 of the 300 heads asked for"
    assert rest[1].startswith("in all: 0 tokens, 3 shards to compute, ")
    assert not (tmp_path / "results").exists()
    planned_disk = row[7]
    capture_study(load_study(path))
    assert planned()[0][4] == "3 (3)"
    stored = sum(shard.stat().st_size for shard in (tmp_path / "results").rglob("shard-*"))
    assert float(planned_disk.removesuffix(" KB")) * 1000 == pytest.approx(stored, rel=0.5)


def test_no_head_that_is_asked_for_is_there(dataset: Path, tmp_path: Path) -> None:
    write_layout(dataset)
    for head in range(QUERIES):
        shutil.rmtree(dataset / f"l01h{head:02d}q")
    with pytest.raises(RopewalkError, match=r"^no head is left: none of those asked for is there$"):
        capture_study(study(dataset, tmp_path / "results", {"layers": [1]}))
