"""From Python: measure, load, concat, and the results they give."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_t, pearsonr
from sklearn import decomposition

import ropewalk
from helpers.tiny import CONTEXT, make_texts, tiny_smollm3
from ropewalk.errors import RopewalkError
from ropewalk.models.tap import Call


@pytest.fixture(scope="module")
def results(model: Any, tokens: np.ndarray) -> ropewalk.Results:
    return ropewalk.measure(model, tokens, context=CONTEXT, shards=3, label="tiny", step=5, phase="one")


@pytest.mark.parametrize("batch", [1, 2, 6])
@pytest.mark.parametrize("shards", [1, 3])
def test_any_split_gives_the_same_table(model: Any, tokens: np.ndarray, batch: int, shards: int) -> None:
    whole = ropewalk.measure(model, tokens, context=64, shards=6, batch_tokens=64).table
    table = ropewalk.measure(model, tokens, context=64, shards=shards, batch_tokens=64 * batch).table
    first = table["pc"] == 0
    for column in ("explained_variance", "r_q", "r_k"):
        np.testing.assert_allclose(table[column][first], whole[column][first], atol=1e-7)


def test_the_table_against_scikit_learn_and_scipy(results: ropewalk.Results, by_hand: list[Call]) -> None:
    table = results.table
    positions = np.tile(np.arange(64), 6)
    for row in table[table["pc"] < 3].itertuples():
        q, k = (
            x[:, head].reshape(-1, x.shape[3]).double().numpy()
            for x, head in ((by_hand[row.layer].query, row.head), (by_hand[row.layer].key, row.head // 2))
        )
        oracle = decomposition.PCA(3, svd_solver="full").fit(np.concatenate([q, k]))
        assert row.explained_variance == pytest.approx(oracle.explained_variance_ratio_[row.pc], abs=1e-5)
        assert abs(row.r_q) == pytest.approx(
            abs(pearsonr(q @ oracle.components_[row.pc], positions).statistic), abs=1e-4
        )
        assert abs(row.r_k) == pytest.approx(
            abs(pearsonr(k @ oracle.components_[row.pc], positions).statistic), abs=1e-4
        )
        assert row.k_head == row.head // 2
        assert row.rope == (row.layer != 3)


def test_three_lines_of_python(model: Any, tokenizer: Any) -> None:
    results = ropewalk.measure(model, make_texts(4), tokenizer, context=64, shards=2)
    assert len(results.table) == 5 * 4 * 10
    assert results.table["se_r_q"].notna().all()
    assert repr(results) == "<Results 'measured': 1 checkpoints, 20 rows of heads, with standard errors>"


def test_what_was_measured_is_in_the_tables(results: ropewalk.Results) -> None:
    row = results.table.iloc[0]
    assert (row["checkpoint"], row["label"], row["step"], row["phase"]) == ("tiny", "tiny", 5, "one")
    assert len(results.heads) == 20
    assert len(results.replicates) == 20 * 3
    assert results.layout.model_type == "smollm3"
    np.testing.assert_array_equal(results.heads["r_q"], results.table.loc[results.table["pc"] == 0, "r_q"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"documents": ["short"]}, "documents are text, so a tokenizer is needed"),
        ({"documents": "one text"}, "documents are one text: give a list of texts"),
        ({"documents": [[1, 2, 3]]}, "none of the 1 documents has 64 tokens"),
        ({"documents": [[0.5] * 64]}, "a document is neither text nor a row of token ids"),
        ({"skip_first": 63}, "skip_first 63 leaves nothing of the context 64"),
        ({"pairs": ((1, 9),)}, "head 9 is not in layer 1, which has heads 0 to 3"),
        ({"layers": (7,)}, "layer 7 has no attention"),
        ({"context": 1}, r"measure\(\): .*context is 1"),
        ({"shard": 3}, r"measure\(\): capture.shard is not a known key"),
        ({"statistics": ["norm"]}, "no statistic is called 'norm'"),
        ({"statistics": {"sample": {"rates": 1}}}, "capture.statistics.sample: rates is not a known key: .* `rate`"),
        ({"statistics": {"sample": {"rate": 2}}}, "capture.statistics.sample: rate is 2: "),
    ],
)
def test_wrong_arguments_are_a_sentence(
    model: Any, tokens: np.ndarray, arguments: dict[str, Any], message: str
) -> None:
    given = {"documents": tokens, "context": 64, **arguments}
    with pytest.raises(RopewalkError, match=message):
        ropewalk.measure(model, **given)


def test_only_the_chosen_heads_and_their_keys(model: Any, tokens: np.ndarray, results: ropewalk.Results) -> None:
    table = ropewalk.measure(model, tokens, context=64, pairs=((1, 3), (4, 0))).table
    assert sorted(set(zip(table["layer"], table["head"], table["k_head"], strict=True))) == [(1, 3, 1), (4, 0, 0)]
    merged = table.merge(results.table, on=["layer", "head", "pc"], suffixes=("", "_whole"))
    np.testing.assert_allclose(merged["r_q"], merged["r_q_whole"], atol=1e-9)


def test_a_model_without_a_label_is_called_by_its_class(model: Any, tokens: np.ndarray) -> None:
    assert ropewalk.measure(model, tokens, context=64, label="").view.lineup.names == ("SmolLM3ForCausalLM",)


def test_a_model_in_training_stays_in_training(tokens: np.ndarray) -> None:
    model = tiny_smollm3().train()
    model.model.layers[1].eval()
    before = [module.training for module in model.modules()]
    ropewalk.measure(model, tokens, context=64)
    assert [module.training for module in model.modules()] == before


def test_a_head_looked_at_closely(results: ropewalk.Results, by_hand: list[Call]) -> None:
    head = results.head(2, 3)
    q, k = (x[:, number].double().numpy() for x, number in ((by_hand[2].query, 3), (by_hand[2].key, 1)))
    pooled = np.concatenate([q.reshape(-1, 16), k.reshape(-1, 16)])
    oracle = decomposition.PCA(svd_solver="full").fit(pooled)
    np.testing.assert_allclose(head.spectrum, oracle.explained_variance_ratio_, atol=1e-6)
    np.testing.assert_allclose(np.abs(head.components @ oracle.components_[:10].T), np.eye(10), atol=1e-4)
    np.testing.assert_allclose(head.mean_q, q.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(head.mean_k, k.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(head.path["q"], q.mean(axis=0) @ head.components[0], atol=1e-5)
    assert head.frame is not None
    assert head.distance is not None
    assert head.frame["fixed_q"].sum() == pytest.approx(head.row["fixed_share_q"])
    assert head.distance["mass"].sum() == pytest.approx(1)
    assert list(head.distance) == [
        "distance", "distance_stop", "kernel", "se_kernel", "score", "se_score", "mass", "se_mass"
    ]  # fmt: skip
    assert results.head(3, 0).frame is None
    assert head.path[["start", "stop", "tokens"]].iloc[5].tolist() == [5, 6, 6]
    assert np.sign(np.corrcoef(head.path["q"], head.path["start"])[0, 1]) == np.sign(head.row["r_q"])
    assert head.category == results.table.query("layer == 2 and head == 3 and pc == 0")["category"].iloc[0]
    assert "head 3 of layer 2 at tiny: r_q" in repr(head)
    with pytest.raises(
        RopewalkError, match=r"no head 9 of layer 2 was measured at 'tiny': layer 2 has heads 0, 1, 2, 3"
    ):
        results.head(2, 9)
    with pytest.raises(RopewalkError, match="layer 8 has no heads, but layers 0, 1, 2, 3, 4"):
        results.head(8, 0)
    with pytest.raises(RopewalkError, match="no checkpoint 'other' in the table"):
        results.head(0, 0, checkpoint="other")


def test_the_certainty_of_a_category(results: ropewalk.Results) -> None:
    """Against SciPy: the mass of Student's distribution with the jackknife's covariance in the category's region."""
    row = results.heads.iloc[4]
    own = results.replicates.query("layer == 1 and head == 0")[["r_q", "r_k"]].to_numpy()
    covariance = np.cov(own.T, bias=True) * (len(own) - 1)
    draws = multivariate_t([row["r_q"], row["r_k"]], covariance, len(own) - 1, allow_singular=True, seed=0).rvs(200_000)
    from ropewalk.geometry.taxonomy import classify

    share = np.mean(classify(draws[:, 0], draws[:, 1]) == row["category"])
    assert row["certainty"] == pytest.approx(share, abs=0.005)


def test_concat_puts_checkpoints_side_by_side(model: Any, tokens: np.ndarray, results: ropewalk.Results) -> None:
    later = ropewalk.measure(model, tokens[:, ::-1].copy(), context=64, shards=3, label="later", step=9, phase="two")
    both = ropewalk.concat([results, later])
    assert both.view.lineup.labels == ("tiny", "later")
    pd.testing.assert_frame_equal(both.table[both.table["checkpoint"] == "tiny"], results.table)
    track = both.track("mean_r_q")
    assert track.values[1] == pytest.approx(later.heads["r_q"].mean())
    assert track.change(0, 1).se > 0
    assert both.head(1, 1, checkpoint="later").row["r_q"] == later.head(1, 1).row["r_q"]
    with pytest.raises(RopewalkError, match="two of the results have the checkpoint 'tiny': give each its own label"):
        ropewalk.concat([results, results])
    with pytest.raises(RopewalkError, match="captured with different settings"):
        ropewalk.concat([results, ropewalk.measure(model, tokens, context=64, shards=2, label="x")])


def test_summary_has_errors(results: ropewalk.Results) -> None:
    summary = results.summary()
    row = summary[summary["quantity"] == "mean_r_q"].iloc[0]
    assert row["value"] == pytest.approx(results.heads["r_q"].mean())
    left_out = results.replicates.groupby("left_out")["r_q"].mean()
    assert row["se"] == pytest.approx(left_out.std(ddof=0) * np.sqrt(2))


def test_a_table_alone_can_be_loaded(results: ropewalk.Results, tmp_path: Path) -> None:
    results.table.to_csv(tmp_path / "qk.csv", index=False)
    alone = ropewalk.load(tmp_path / "qk.csv")
    assert alone.replicates is None
    assert alone.head(2, 3).components is None
    assert np.isnan(alone.head(2, 3).certainty)
    np.testing.assert_allclose(alone.heads["r_q"], results.heads["r_q"])
    assert alone.figure("phase_portraits")._repr_png_()[:4] == b"\x89PNG"
    with pytest.raises(RopewalkError, match="tables alone, which do not hold a layout"):
        _ = alone.layout
    with pytest.raises(RopewalkError, match="no results at"):
        ropewalk.load(tmp_path / "nowhere")


def test_an_old_results_folder_is_refused_with_a_remedy(results: ropewalk.Results, tmp_path: Path) -> None:
    results.table.to_csv(tmp_path / "qk.csv", index=False)
    (tmp_path / "study.yaml").write_text("ropewalk: {version: 0.1.0, format: 1}\nstudy: {}\n")
    with pytest.raises(RopewalkError, match=r"study.yaml has format 1 .* run the study again .* `ropewalk figures"):
        ropewalk.load(tmp_path)
    assert len(ropewalk.load(tmp_path / "qk.csv").table) == len(results.table)


def test_public_names_are_listed_and_explained() -> None:
    assert dir(ropewalk) == sorted(ropewalk.__all__)
    for name in ropewalk.__all__:
        if name != "__version__":
            assert len(getattr(ropewalk, name).__doc__) > 60, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ropewalk.nothing


def test_the_library_is_silent(model: Any, tokens: np.ndarray, capfd: pytest.CaptureFixture[str]) -> None:
    ropewalk.measure(model, tokens, context=64)
    assert capfd.readouterr() == ("", "")


def test_vectors_of_a_prompt(model: Any, tokens: np.ndarray, by_hand: list[Call], tokenizer: Any) -> None:
    found = ropewalk.capture_vectors(model, tokens[2], heads=[(1, 3), (3, 0)])
    assert set(found) == {(1, 3), (3, 0)}
    head = found[1, 3]
    assert (head.k_head, head.q.shape) == (1, (64, 16))
    np.testing.assert_allclose(head.q, by_hand[1].query[2, 3], atol=1e-5)
    np.testing.assert_allclose(head.k, by_hand[1].key[2, 1], atol=1e-5)
    np.testing.assert_array_equal(head.positions, np.arange(64))
    # The rotation turns pairs (i, i + d/2): lengths stay, vectors move, but for position 0.
    assert not np.allclose(head.q_before[1:], head.q[1:], atol=1e-3)
    np.testing.assert_allclose(head.q_before[0], head.q[0], atol=1e-6)
    pairs = [np.hypot(x[:, :8], x[:, 8:]) for x in (head.k_before, head.k)]
    np.testing.assert_allclose(*pairs, atol=1e-5)
    np.testing.assert_array_equal(found[3, 0].q_before, found[3, 0].q)
    by_text = ropewalk.capture_vectors(model, "rope walk head", tokenizer, heads=[(0, 0)])[0, 0]
    assert by_text.token_ids.tolist() == tokenizer("rope walk head")["input_ids"]
    for arguments, message in (
        ({"text": "rope", "heads": [(0, 0)]}, "so a tokenizer is needed"),
        ({"text": [], "heads": [(0, 0)]}, "the prompt has no tokens"),
        ({"text": [3, 4], "heads": []}, "no heads are asked for"),
        ({"text": [3, 4], "heads": [(0, 9)]}, "head 9 is not in layer 0"),
    ):
        with pytest.raises(RopewalkError, match=message):
            ropewalk.capture_vectors(model, **arguments)


def test_messages_of_results(model: Any, tokens: np.ndarray, results: ropewalk.Results, tmp_path: Path) -> None:
    with pytest.raises(RopewalkError, match=r"concat\(\) needs at least one result"):
        ropewalk.concat([])
    with pytest.raises(RopewalkError, match=r"no quantity is called 'mean_rq': did you mean mean_r_q or "):
        results.track("mean_rq")
    with pytest.raises(RopewalkError, match=r"no quantity is called 'zzz': there are mean_r_q, "):
        results.track("zzz")
    other = ropewalk.measure(tiny_smollm3(num_hidden_layers=2), tokens, context=64, shards=3, label="two layers")
    both = ropewalk.concat([results, other])
    with pytest.raises(RopewalkError, match="models with different layouts: use `layouts`, by checkpoint"):
        _ = both.layout
    assert {name: layout.depth for name, layout in both.layouts.items()} == {"tiny": 5, "two layers": 2}


def test_tables_alone_can_be_joined_and_saved(results: ropewalk.Results, tmp_path: Path) -> None:
    results.table.to_csv(tmp_path / "qk.csv", index=False)
    alone = ropewalk.load(tmp_path / "qk.csv")
    renamed = alone.table.assign(checkpoint="other", label="other")
    renamed.to_csv(tmp_path / "other.csv", index=False)
    both = ropewalk.concat([alone, ropewalk.load(tmp_path / "other.csv")])
    assert both.view.lineup.labels == ("tiny", "other")
    assert both.replicates is None
    mixed = ropewalk.concat([results, ropewalk.load(tmp_path / "other.csv")])
    assert len(mixed.replicates) == len(results.replicates)
    assert mixed.head(1, 1, checkpoint="other").components is None
