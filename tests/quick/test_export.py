"""Exports against a plain computation from raw vectors, for every way to rotate."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

import ropewalk
from helpers.command import Run
from helpers.exporting import CASES, CONTEXT, DOCUMENTS, FULL, Case, documents, measured, tapped, theta_of, vectors
from ropewalk.errors import RopewalkError
from ropewalk.export import formats
from ropewalk.models.layout import Rotary
from ropewalk.seals import is_intact

CLOSE = {"rtol": 1e-6, "atol": 1e-6}


class Measured:
    """A model of a case, its results, and its raw vectors."""

    def __init__(self, case: Case) -> None:
        self.case, self.model = case, case.model()
        self.results = measured(self.model)
        self.calls = tapped(self.model, documents())
        self.theta = theta_of(self.model)

    def raw(self, layer: int, kind: str, frame: str = "post") -> np.ndarray:
        """[heads, documents, tokens, d]."""
        x = vectors(self.calls[layer], kind)
        return x if frame == "post" else np.stack([self.case.turned_back(one, layer, self.theta) for one in x])

    def flat(self, layer: int, kind: str, frame: str = "post") -> np.ndarray:
        """[heads, tokens of all documents, d]."""
        x = self.raw(layer, kind, frame)
        return x.reshape(len(x), -1, x.shape[-1])

    @cached_property
    def bases(self) -> Path:
        """A folder of bases of rank 3."""
        folder = Path(mkdtemp())
        self.results.export(folder, to="bases", rank=3)
        return folder

    @property
    def errors(self) -> pd.DataFrame:
        return errors_of(self.bases)


def errors_of(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "errors.csv").set_index(["layer", "head", "basis", "rank"]).sort_index()


@pytest.fixture(scope="module", params=CASES)
def one(request: pytest.FixtureRequest) -> Iterator[Measured]:
    found = Measured(CASES[request.param])
    yield found
    rmtree(found.bases)


@pytest.fixture(scope="module")
def llama() -> Iterator[Measured]:
    found = Measured(CASES["full"])
    yield found
    rmtree(found.bases)


@pytest.fixture(scope="module")
def saved(llama: Measured, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama.results.save(tmp_path_factory.mktemp("saved") / "results")


def read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {name: file[name] for name in file.files if name != "ropewalk"}
    return dict(load_file(path))


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_statistics_are_those_of_raw_vectors(one: Measured, suffix: str, tmp_path: Path) -> None:
    (path,) = one.results.export(tmp_path / f"x.{suffix}", to=suffix)
    arrays = read(path)
    for layer in range(4):
        for kind in "qk":
            for frame in ("post", "pre"):
                x = one.flat(layer, kind, frame)
                prefix = f"l{layer:02d}.{kind}.{frame}"
                assert (arrays[f"{prefix}.count"] == DOCUMENTS * CONTEXT).all()
                np.testing.assert_allclose(arrays[f"{prefix}.mean"], x.mean(axis=1), **CLOSE)
                spread = [np.cov(head, rowvar=False, bias=True) for head in x]
                np.testing.assert_allclose(arrays[f"{prefix}.covariance"], spread, **CLOSE)
            first, second = one.case.pairs()
            if layer not in one.case.nope:
                u = one.flat(layer, kind, "pre")
                z = u[..., first] + 1j * u[..., second]
                order = [one.results.layout[layer].rotary_pairs.first.index(pair) for pair in first]
                for name, expected in {
                    "mean_re": z.mean(axis=1).real,
                    "mean_im": z.mean(axis=1).imag,
                    "length": np.abs(z).mean(axis=1),
                    "energy": (np.abs(z) ** 2).mean(axis=1),
                }.items():
                    np.testing.assert_allclose(arrays[f"l{layer:02d}.{kind}.frame.{name}"][:, order], expected, **CLOSE)
            else:
                assert not [name for name in arrays if name.startswith(f"l{layer:02d}.{kind}.frame")]


def test_the_two_frames_differ_where_layers_rotate(one: Measured, tmp_path: Path) -> None:
    """The negative control of the test above: what was not turned back would be seen."""
    arrays = read(one.results.export(tmp_path / "x.npz", to="npz")[0])
    for layer in range(4):
        gap = np.abs(arrays[f"l{layer:02d}.q.pre.covariance"] - arrays[f"l{layer:02d}.q.post.covariance"]).max()
        assert gap == 0 if layer in one.case.nope else gap > 1e-3


def test_facts_say_what_a_file_is_of(one: Measured, tmp_path: Path) -> None:
    from safetensors import safe_open

    (path,) = one.results.export(tmp_path / "x.safetensors", to="safetensors", dtype="float32")
    with safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["ropewalk"])
        assert file.get_tensor("l00.q.post.mean").dtype == np.float32
    assert is_intact(path)
    assert about["tokens"]["context"] == CONTEXT
    assert about["tokens"]["counted"] == DOCUMENTS * CONTEXT
    assert about["tokens"]["skip_first"] == 0
    assert about["model"]["fingerprint"].startswith("memory:")
    assert about["missing"] == []
    for layer in about["layers"]:
        rotates = layer["layer"] not in one.case.nope
        assert layer["rope"] is rotates
        assert layer["rotated_dimensions"] == (one.case.rotated if rotates else 0)
        # Two dimensions lie the same either way.
        kind = "half" if one.case.rotated == 2 or not one.case.interleaved else "interleaved"
        assert layer["pairing"] == (kind if rotates else None)
        if rotates:
            assert min(layer["frequencies"]) == pytest.approx(one.theta ** (2 / one.case.rotated - 1), rel=1e-5)


def test_kvpress_gets_queries_before_the_rotation(one: Measured, tmp_path: Path) -> None:
    one.results.export(tmp_path / "folder", to="kvpress")
    config = json.loads((tmp_path / "folder/config.json").read_text())
    arrays = load_file(tmp_path / "folder/model.safetensors")
    shape = (config["num_layers"], config["num_heads"], config["head_dim"])
    assert arrays["query_mean"].shape == shape == (4, 4, one.case.head_dim)
    filters = load_file(tmp_path / "folder/qfilters/model.safetensors")["q_filters"]
    for layer in range(4):
        x = one.flat(layer, "q", "pre")
        np.testing.assert_allclose(arrays["query_mean"][layer], x.mean(axis=1), **CLOSE)
        spread = [np.cov(head, rowvar=False) for head in x]
        np.testing.assert_allclose(arrays["query_cov"][layer], spread, rtol=1e-6, atol=2e-6)
        queries, keys = one.flat(layer, "q"), one.flat(layer, "k")
        group = len(queries) // len(keys)
        for head in range(len(keys)):
            pooled = np.concatenate(list(queries[head * group : (head + 1) * group]))
            u = np.linalg.svd(pooled, full_matrices=False)[2][0]
            u = u * np.sign(u @ pooled.mean(axis=0))
            np.testing.assert_allclose(filters[layer, head], -u, atol=1e-4)


def test_kvpress_patterns_rank_heads(llama: Measured, tmp_path: Path) -> None:
    llama.results.export(tmp_path / "folder", to="kvpress", column="r_q")
    pattern = np.loadtxt(tmp_path / "folder/duo/full_attention_heads.tsv", delimiter="\t")
    by_hand = llama.results.heads.groupby(["layer", "k_head"])["r_q"].mean().to_numpy().reshape(4, 2)
    np.testing.assert_allclose(pattern, (by_hand - by_hand.min()) / np.ptp(by_hand), rtol=1e-6, atol=1e-8)
    llama.results.export(tmp_path / "other", to="kvpress", column="-r_q")
    reverse = np.loadtxt(tmp_path / "other/duo/full_attention_heads.tsv", delimiter="\t")
    np.testing.assert_allclose(reverse, 1 - pattern, atol=1e-8)
    llama.results.export(tmp_path / "default", to="kvpress")
    default = np.loadtxt(tmp_path / "default/duo/full_attention_heads.tsv", delimiter="\t")
    distance = llama.results.heads.groupby(["layer", "k_head"])["score_r2_distance"].mean().to_numpy().reshape(4, 2)
    assert default.argmax() == distance.argmin()


def test_bases_are_those_of_raw_vectors(one: Measured) -> None:
    rank = 3
    arrays = load_file(one.bases / "bases.safetensors")
    for layer in range(4):
        queries, keys, before = (one.flat(layer, *of) for of in (("q",), ("k",), ("k", "pre")))
        group = len(queries) // len(keys)
        for head, q in enumerate(queries):
            k = keys[head // group]
            prefix = f"l{layer:02d}"
            plain = {
                "key": np.linalg.svd(k, full_matrices=False)[2],
                "query": np.linalg.svd(q, full_matrices=False)[2],
                "pre_key": np.linalg.svd(before[head // group], full_matrices=False)[2],
                "joint": np.linalg.svd(both := np.concatenate([q, k]), full_matrices=False)[2],
                "pooled": np.linalg.svd(both - both.mean(axis=0), full_matrices=False)[2],
            }
            for name, v in plain.items():
                basis = arrays[f"{prefix}.{name}"][head]
                assert basis.shape == (one.case.head_dim, rank)
                # Of directions, only what they span is one: signs are free.
                np.testing.assert_allclose(basis @ basis.T, v[:rank].T @ v[:rank], atol=1e-5)
            a, b = arrays[f"{prefix}.optimal.query"][head], arrays[f"{prefix}.optimal.key"][head]
            # The best scores of rank r are the truncated SVD of the whole matrix of scores.
            u, s, w = np.linalg.svd(q @ k.T, full_matrices=False)
            np.testing.assert_allclose((q @ a) @ (k @ b).T, (u[:, :rank] * s[:rank]) @ w[:rank], atol=1e-4)
            u = np.linalg.svd(q, full_matrices=False)[2][0]
            np.testing.assert_allclose(arrays[f"{prefix}.filter"][head], u * np.sign(u @ q.mean(axis=0)), atol=1e-4)


def test_errors_of_bases_are_those_of_all_scores(one: Measured) -> None:
    """Every query against every key, one by one."""
    table, arrays = one.errors, load_file(one.bases / "bases.safetensors")
    for layer in (0, 3):
        q, k = one.flat(layer, "q")[1], one.flat(layer, "k")[1 // (4 // len(one.flat(layer, "k")))]
        scores = q @ k.T
        norm = (scores**2).mean()
        for name in ("pooled", "joint", "key", "query"):
            v = arrays[f"l{layer:02d}.{name}"][1]
            off = ((scores - (q @ v) @ (k @ v).T) ** 2).mean() / norm
            assert table.loc[(layer, 1, name, 3), "error"] == pytest.approx(off, rel=1e-5)
        a, b = (arrays[f"l{layer:02d}.optimal.{side}"][1] for side in ("query", "key"))
        off = ((scores - (q @ a) @ (k @ b).T) ** 2).mean() / norm
        assert table.loc[(layer, 1, "optimal", 3), "error"] == pytest.approx(off, rel=1e-4)
        best = table.loc[(layer, 1)]["error"].unstack("rank")
        for name in ("pooled", "joint", "key", "query"):
            assert (best.loc["optimal"] <= best.loc[name] + 1e-7).all()


def test_keys_before_the_rotation_meet_queries_of_all_positions(llama: Measured) -> None:
    """Keys are set to every position in turn."""
    table, v = llama.errors, load_file(llama.bases / "bases.safetensors")["l01.pre_key"][1]
    q, u = llama.flat(1, "q")[1], llama.flat(1, "k", "pre")[0]
    square = total = 0.0
    frequencies = llama.theta ** (-2 * np.arange(4) / 8)
    for t in range(CONTEXT):
        # A key at position t sees a query turned back by t.
        z = (q[:, :4] + 1j * q[:, 4:]) * np.exp(-1j * frequencies * t)
        seen = np.concatenate([z.real, z.imag], axis=1)
        square += ((seen @ u.T - seen @ v @ (u @ v).T) ** 2).mean()
        total += ((seen @ u.T) ** 2).mean()
    assert table.loc[(1, 1, "pre_key", 3), "error"] == pytest.approx(square / total, rel=1e-5)


def test_centred_errors_are_of_what_a_softmax_sees(llama: Measured, tmp_path: Path) -> None:
    llama.results.export(tmp_path / "folder", to="bases", rank=3, centred=True)
    table = errors_of(tmp_path / "folder")
    arrays = load_file(tmp_path / "folder/bases.safetensors")
    assert "l01.pre_key" not in arrays
    q, k = llama.flat(1, "q")[2], llama.flat(1, "k")[1]
    a, b = arrays["l01.optimal.query"][2], arrays["l01.optimal.key"][2]

    def varying(scores: np.ndarray) -> np.ndarray:
        return scores - scores.mean(axis=1, keepdims=True)

    scores = varying(q @ k.T)
    off = ((scores - varying((q @ a) @ (k @ b).T)) ** 2).mean() / (scores**2).mean()
    assert table.loc[(1, 2, "optimal", 3), "error"] == pytest.approx(off, rel=1e-5)
    assert "Keys are taken about their mean" in (tmp_path / "folder/README.md").read_text()


def test_grouped_bases_are_of_all_queries_that_read_a_key_head(llama: Measured, tmp_path: Path) -> None:
    llama.results.export(tmp_path / "folder", to="bases", rank=3, grouped=True)
    arrays = load_file(tmp_path / "folder/bases.safetensors")
    assert arrays["l02.heads"].tolist() == [0, 2]
    q, k = np.concatenate(list(llama.flat(2, "q")[2:4])), llama.flat(2, "k")[1]
    u, s, w = np.linalg.svd(q @ k.T, full_matrices=False)
    a, b = arrays["l02.optimal.query"][1], arrays["l02.optimal.key"][1]
    np.testing.assert_allclose((q @ a) @ (k @ b).T, (u[:, :3] * s[:3]) @ w[:3], atol=1e-4)


def test_an_energy_share_decides_the_rank_of_each_head(llama: Measured, tmp_path: Path) -> None:
    llama.results.export(tmp_path / "folder", to="bases", energy=0.9)
    arrays = load_file(tmp_path / "folder/bases.safetensors")
    for layer in range(4):
        k = llama.flat(layer, "k")
        for head in range(4):
            values = np.linalg.svd(k[head // 2], compute_uv=False) ** 2
            needed = int((np.cumsum(values) / values.sum() < 0.9).sum()) + 1
            assert arrays[f"l{layer:02d}.key.ranks"][head] == needed
            basis = arrays[f"l{layer:02d}.key"][head]
            assert np.linalg.matrix_rank(basis) == needed
            assert (basis[:, needed:] == 0).all()


def test_head_scores_are_the_column(one: Measured, tmp_path: Path) -> None:
    one.results.export(tmp_path / "folder", to="heads", column="r_k")
    by_query, by_key = (np.load(tmp_path / f"folder/{name}.npy") for name in ("query_heads", "key_heads"))
    data = json.loads((tmp_path / "folder/scores.json").read_text())
    for row in one.results.heads.itertuples():
        assert by_query[row.layer, row.head] == row.r_k == data["query_heads"][row.layer][row.head]
    for (layer, k_head), own in one.results.heads.groupby(["layer", "k_head"]):
        assert by_key[layer, k_head] == pytest.approx(own["r_k"].mean())
    assert by_key.shape == (4, one.results.layout[0].key_heads)
    assert (tmp_path / "folder/scores.csv").read_text().startswith("layer,head,k_head,r_k,se_r_k\n")


def test_what_was_not_captured_is_missing(tmp_path: Path) -> None:
    model = CASES["NoPE layers"].model()
    results = measured(model, pairs=[(1, 2), (3, 0)])
    results.export(tmp_path / "folder", to="heads", column="r_q")
    by_query = np.load(tmp_path / "folder/query_heads.npy")
    assert np.isfinite(by_query).sum() == 2
    assert json.loads((tmp_path / "folder/scores.json").read_text())["key_heads"][0] == [None, None]
    arrays = read(results.export(tmp_path / "x.npz", to="npz")[0])
    assert arrays["l01.q.post.mean"].shape == (1, 16)
    with pytest.raises(RopewalkError, match="KVPress wants every head of all 4 layers, and 0 of 'model' have all"):
        results.export(tmp_path / "kvpress", to="kvpress")
    assert not (tmp_path / "kvpress").exists()


def test_without_second_moments_the_mean_is_there_and_the_rest_is_said(tmp_path: Path) -> None:
    case = CASES["NoPE layers"]
    model = case.model()
    results = measured(model, statistics={"frame": {}})
    (path,) = results.export(tmp_path / "x.npz", to="npz")
    arrays = read(path)
    calls = tapped(model, documents())
    u = np.stack([case.turned_back(x, 1, theta_of(model)) for x in vectors(calls[1], "q")])
    np.testing.assert_allclose(arrays["l01.q.pre.mean"], u.mean(axis=(1, 2)), **CLOSE)
    assert "l01.q.pre.covariance" not in arrays
    assert "l03.q.pre.covariance" in arrays  # a layer that does not rotate is the same before and after
    about = json.loads(bytes(np.load(path)["ropewalk"]))
    assert [one["layer"] for one in about["missing"]] == [0, 1, 2]
    with pytest.raises(RopewalkError, match=r"layer 0 of 'model': second moments before .* frame: \{full: true\}"):
        results.export(tmp_path / "kvpress", to="kvpress")


def test_vectors_captured_before_the_rotation_have_no_other_frame(tmp_path: Path) -> None:
    case = CASES["NoPE layers"]
    model = case.model()
    results = measured(model, statistics={"moments": {}}, pre_rope=True)
    arrays = read(results.export(tmp_path / "x.npz", to="npz")[0])
    calls = tapped(model, documents())
    u = np.stack([case.turned_back(x, 1, theta_of(model)) for x in vectors(calls[1], "q")])
    np.testing.assert_allclose(arrays["l01.q.pre.mean"], u.mean(axis=(1, 2)), **CLOSE)
    assert "l01.q.post.mean" not in arrays
    results.export(tmp_path / "kvpress", to="kvpress")
    assert not (tmp_path / "kvpress/qfilters").exists()
    with pytest.raises(RopewalkError, match="layer 0 of 'model': vectors were captured before the rotation"):
        results.export(tmp_path / "bases", to="bases")


def test_first_tokens_that_were_left_out_are_left_out(llama: Measured, tmp_path: Path) -> None:
    results = measured(llama.model, skip_first=5)
    (path,) = results.export(tmp_path / "x.npz", to="npz")
    np.testing.assert_allclose(
        read(path)["l02.q.pre.mean"], llama.raw(2, "q", "pre")[:, :, 5:].mean(axis=(1, 2)), **CLOSE
    )
    assert json.loads(bytes(np.load(path)["ropewalk"]))["tokens"]["skip_first"] == 5


def test_the_same_export_has_the_same_bytes(llama: Measured, tmp_path: Path) -> None:
    for to in ("safetensors", "npz"):
        first, second = (llama.results.export(tmp_path / f"{name}.{to}", to=to)[0] for name in "ab")
        assert first.read_bytes() == second.read_bytes()


def mistakes() -> Any:
    return [
        ("x.bin", {"to": "safetensors"}, r"x.bin does not end in .safetensors: give the file"),
        ("x.npz", {"to": "npz", "rank": 3}, r"the format npz has no option 'rank': it takes dtype"),
        ("x.npz", {"to": "nzp"}, r"no format is called 'nzp': did you mean 'npz'\?"),
        (
            "x",
            {"to": "heads", "column": "layer"},
            r"'layer' is not a number: choose a column such as explained",
        ),
        ("x", {"to": "heads", "column": "nope"}, r"'nope' is no column of heads.csv: choose a column such as"),
        ("x", {"to": "bases", "rank": 9}, r"rank 9 is more than the 8 dimensions of the heads of layer 0: give at"),
        ("x", {"to": "bases", "rank": 2, "energy": 0.5}, r"rank and energy are two ways to say how many directions"),
        ("x", {"to": "bases", "energy": 1.5}, r"export to bases: energy"),
        ("x.npz", {"to": "npz", "checkpoint": "other"}, r"no checkpoint 'other' in the table: choose from model"),
    ]


@pytest.mark.parametrize(("name", "options", "message"), mistakes(), ids=lambda value: str(value)[:40])
def test_mistakes_are_said(llama: Measured, tmp_path: Path, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RopewalkError, match=message):
        llama.results.export(tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(llama: Measured, saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    file.write_text("mine")
    with pytest.raises(RopewalkError, match=r"x.npz is there already: move it away, or give another file"):
        llama.results.export(file, to="npz")
    with pytest.raises(RopewalkError, match=r"x.npz is a file, and this format writes a folder"):
        llama.results.export(file, to="heads", column="r_q")
    assert file.read_text() == "mine"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "scores.csv").write_text("mine")
    with pytest.raises(RopewalkError, match=r"scores.csv is there already and was not written by ropewalk"):
        llama.results.export(folder, to="heads", column="r_q")
    assert (folder / "scores.csv").read_text() == "mine"
    llama.results.export(tmp_path / "ours", to="heads", column="r_q")
    llama.results.export(tmp_path / "ours", to="heads", column="r_k")
    assert (tmp_path / "ours/scores.csv").read_text().startswith("layer,head,k_head,r_k")
    with pytest.raises(RopewalkError, match="holds results: give a folder of its own to export to"):
        llama.results.export(saved, to="heads", column="r_q")


def test_tables_alone_cannot_be_exported(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(RopewalkError, match="the sums of 'model' are not at hand, only tables: load the folder"):
        ropewalk.load(saved / "qk.csv").export(tmp_path / "x.npz", to="npz")


def test_the_command_exports_what_was_saved(llama: Measured, saved: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "x.safetensors"
    assert run("export", str(saved), "--to", "safetensors", str(out)) == (0, f"{out}\n", "")
    (there,) = llama.results.export(tmp_path / "y.safetensors", to="safetensors")
    for name, array in read(there).items():
        assert np.array_equal(read(out)[name], array)
    code, _, error = run("export", str(saved), "--to", "heads", str(tmp_path / "h"), "--checkpoint", "model")
    assert code == 2
    assert "export to heads: column" in error


def test_sums_are_exported_without_torch(saved: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    blocked = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; from ropewalk.cli import main; "
    code = blocked + f"main(['export', {str(saved)!r}, '--to', 'kvpress', {str(tmp_path / 'out')!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out/model.safetensors").is_file()


def changed_layout(results: ropewalk.Results, layer: int, **changes: Any) -> ropewalk.Results:
    """The same results as if one layer had been found to be otherwise."""
    captured = results.captures["model"]
    layers = list(captured.layout.layers)
    layers[layer] = replace(layers[layer], **changes)
    sums = [{key: {} if key[0] == "frame" else one for key, one in shard.items()} for shard in captured.shards]
    changed = replace(captured, layout=replace(captured.layout, layers=tuple(layers)), shards=sums)
    return ropewalk.Results(results.tables, {"model": changed}, results.study)


def test_layers_that_cannot_be_turned_back_are_said(llama: Measured, tmp_path: Path) -> None:
    for changes, message in [
        ({"rotary": None, "rotary_pairs": None}, r"layer 0 of 'model': whether it rotates is not known"),
        ({"rotary_pairs": None}, r"layer 0 of 'model': its vectors move .* with `capture: \{pre_rope: true\}`"),
        ({}, r"layer 0 of 'model': second moments before the rotation were not captured: run the study with"),
    ]:
        with pytest.raises(RopewalkError, match=message):
            changed_layout(llama.results, 0, **changes).export(tmp_path / "x", to="kvpress")


def test_kvpress_wants_layers_alike_and_numbers(llama: Measured, tmp_path: Path) -> None:
    other = changed_layout(llama.results, 2, key_heads=4, rotary=0.0)
    with pytest.raises(RopewalkError, match=r"KVPress wants layers of one shape, and those of 'model' have 2 \(query"):
        other.export(tmp_path / "x", to="kvpress")
    heads = llama.results.heads.assign(r_q=np.nan)
    tables = replace(llama.results.tables, heads=heads)
    empty = ropewalk.Results(tables, llama.results.captures, llama.results.study)
    with pytest.raises(RopewalkError, match=r"no head has a number in 'r_q': choose another column of heads.csv"):
        empty.export(tmp_path / "x", to="kvpress", column="r_q")
    assert not (tmp_path / "x").exists()


def test_the_command_knows_all_formats() -> None:
    from ropewalk.cli.sharing import FORMATS

    assert tuple(formats.MODULES) == FORMATS
    assert all(formats.find(name).name == name for name in FORMATS)


def test_pairs_that_lie_otherwise_are_called_other() -> None:
    from ropewalk.export.source import pairing

    assert pairing(Rotary((0, 1), (3, 2), (1.0, 0.5))) == "other"
    assert pairing(Rotary((4, 5), (6, 7), (1.0, 0.5))) == "half"
    assert pairing(Rotary((4, 7), (5, 6), (1.0, 0.5))) == "interleaved"
    assert pairing(None) is None
    assert FULL["frame"] == {"full": True}
