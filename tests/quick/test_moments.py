"""Moments: streamed = whole, any split = no split, offsets cost nothing."""

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.capture.shards import Provenance
from ropewalk.capture.stored import MemoryCapture, StoredCapture, write_capture
from ropewalk.geometry.moments import Moments, merge_all, stack
from ropewalk.models.layout import AttentionLayer, Layout
from ropewalk.statistics.base import Scope, layers_of
from ropewalk.statistics.moments import cuts, moment_sums, moments_of
from ropewalk.statistics.stream import MomentStream, shuffle, shuffled_positions

FIELDS = ("n", "mean", "t_mean", "sxx", "sxt", "stt")


def vectors(heads: int, tokens: int, d: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    drift = np.arange(tokens)[None, :, None] * generator.normal(size=(heads, 1, d)) * 0.01
    return generator.normal(size=(heads, tokens, d)) + drift


def by_loop(x: np.ndarray, t: np.ndarray) -> dict[str, np.ndarray]:
    """One head, one token at a time."""
    d = x.shape[1]
    mean, t_mean = sum(x) / len(x), sum(t) / len(t)
    sxx, sxt, stt = np.zeros((d, d)), np.zeros(d), 0.0
    for vector, position in zip(x, t, strict=True):
        sxx += np.outer(vector - mean, vector - mean)
        sxt += (vector - mean) * (position - t_mean)
        stt += (position - t_mean) ** 2
    return {
        "n": np.array(len(x)),
        "mean": mean,
        "t_mean": np.array(t_mean),
        "sxx": sxx,
        "sxt": sxt,
        "stt": np.array(stt),
    }


def assert_close(a: Moments, b: Moments, tolerance: float = 1e-12) -> None:
    for name in FIELDS:
        left, right = getattr(a, name), getattr(b, name)
        np.testing.assert_allclose(
            left, right, rtol=tolerance, atol=tolerance * max(1.0, np.abs(right).max()), err_msg=name
        )


def test_moments_of_vectors_equal_a_plain_loop() -> None:
    x, t = vectors(2, 50, 5), np.arange(50.0)
    moments = Moments.of(x, t)
    for head in range(2):
        for name, value in by_loop(x[head], t).items():
            np.testing.assert_allclose(getattr(moments, name)[head], value, rtol=1e-10, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(1, 99), max_size=6, unique=True), offset=st.sampled_from([0.0, 1000.0]))
def test_any_split_merges_to_the_whole(cuts: list[int], offset: float) -> None:
    x, t = vectors(3, 100, 4) + offset, np.arange(100.0)
    borders = [0, *sorted(cuts), 100]
    parts = [Moments.of(x[:, a:b], t[a:b]) for a, b in pairwise(borders)]
    assert_close(merge_all(parts), Moments.of(x, t), 1e-10)


def test_without_is_the_inverse_of_merge() -> None:
    x, t = vectors(2, 90, 6) + 100, np.arange(90.0)
    parts = [Moments.of(x[:, a : a + 30], t[a : a + 30]) for a in (0, 30, 60)]
    assert_close(merge_all(parts).without(parts[1]), parts[0].merge(parts[2]), 1e-10)


def test_merging_a_head_without_tokens_changes_nothing() -> None:
    whole = Moments.of(vectors(2, 20, 3), np.arange(20.0))
    nothing = Moments(*(np.zeros_like(getattr(whole, name)) for name in FIELDS))
    assert_close(nothing.merge(whole), whole)
    assert_close(whole.merge(nothing), whole)


def test_moments_come_back_from_a_shard_as_they_were(tmp_path: Path) -> None:
    layout = Layout("tiny", 1, (AttentionLayer(0, 0, 3, 3, 8, 1.0, None),), False)
    q, k = (Moments.of(vectors(3, 40, 8, seed), np.arange(40.0)) for seed in (1, 2))
    sums = moment_sums({"q": q, "k": k}, {"q": q.sxt, "k": k.sxt})
    mark = Provenance("m", "t", "s")
    scope = Scope(context=40, documents=1, bucket_size=4)
    captured = MemoryCapture(layout, layout.heads(), scope, {"moments": {}}, [mark], [{("moments", 0): sums}])
    write_capture(tmp_path / "one", captured, "one")
    stored = StoredCapture(tmp_path / "one", "one")
    (heads,) = layers_of(layout, layout.heads())
    again = moments_of(stored.parts("moments", heads)[0], heads)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(again[0], name), getattr(q, name))
        np.testing.assert_array_equal(getattr(again[1], name), getattr(k, name))
    assert (stored.scope, stored.provenance) == (scope, captured.provenance)


def test_stack_and_choose() -> None:
    a, b = Moments.of(vectors(2, 20, 3, 1), np.arange(20.0)), Moments.of(vectors(1, 20, 3, 2), np.arange(20.0))
    both = stack([a, b])
    assert len(both) == 3
    np.testing.assert_array_equal(both[np.array([2])].mean, b.mean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_accumulated_equals_whole_batch(dtype: torch.dtype, offset: float) -> None:
    x = torch.from_numpy(vectors(4, 3 * 64, 16) + offset).to(dtype)
    documents = x.reshape(4, 3, 64, 16).transpose(0, 1)
    accumulator = MomentStream()
    accumulator.update(documents[:1], torch.arange(64))
    accumulator.update(documents[1:], torch.arange(64))
    exact = x.double().numpy()
    assert_close(accumulator.result(), Moments.of(exact, np.tile(np.arange(64.0), 3)), 1e-9)


@pytest.mark.parametrize("d", [1, 20, 21, 22, 45, 64])
def test_any_number_of_dimensions_and_documents_gives_what_a_whole_batch_gives(d: int) -> None:
    """Whatever a block is filled up with, and however many short documents it holds."""
    x = np.stack([vectors(2, 30, d, seed) for seed in range(5)])
    t = np.arange(30.0)
    whole = merge_all([Moments.of(one, t) for one in x])
    for batch in (1, 2, 5):
        stream = MomentStream([4], (2, d))
        for start in range(0, 5, batch):
            stream.update(torch.from_numpy(x[start : start + batch]), torch.arange(30))
        assert_close(stream.result(), whole, 1e-11)
        assert_close(stream.leading(4), merge_all([Moments.of(one[:, :4], t[:4]) for one in x]), 1e-11)
        scatter = stream.result().sxx
        np.testing.assert_array_equal(scatter, scatter.transpose(0, 2, 1))


def test_naive_float32_sums_would_fail_where_the_accumulator_does_not() -> None:
    """Negative control: raw float32 second moments of the same vectors lose the variance altogether."""
    x = (100 + 0.01 * torch.randn(1, 1, 5000, 4)).float()
    naive = (x[0, 0].T @ x[0, 0]) / 5000 - torch.outer(x[0, 0].mean(0), x[0, 0].mean(0))
    accumulator = MomentStream()
    accumulator.update(x, torch.arange(5000))
    variance = np.diag(accumulator.result().sxx[0]) / 5000
    truth = x[0, 0].double().var(dim=0, correction=0).numpy()
    np.testing.assert_allclose(variance, truth, rtol=1e-8)
    assert np.abs(np.diag(naive.numpy()) / truth - 1).max() > 0.5


def test_memory_does_not_grow_with_tokens() -> None:
    small, large = MomentStream(), MomentStream()
    small.update(torch.randn(1, 2, 10, 4), torch.arange(10))
    for _ in range(50):
        large.update(torch.randn(1, 2, 1000, 4), torch.arange(1000))
    assert len(pickle.dumps(small)) == len(pickle.dumps(large)) > 8 * 2 * 4 * 4


def test_a_stream_that_knows_its_shape_takes_nothing_more_during_a_pass() -> None:
    def takes_more(stream: MomentStream) -> bool:
        before = [id(value) for value in vars(stream).values()]
        stream.update(torch.randn(2, 3, 20, 4), torch.arange(20))
        return any(id(value) not in before for value in vars(stream).values())

    assert not takes_more(MomentStream([8], (3, 4)))
    assert takes_more(MomentStream([8]))


def test_nothing_given_is_an_error() -> None:
    with pytest.raises(ValueError, match="no vectors"):
        MomentStream().result()


def test_leading_tokens_and_shuffled_positions_are_those_of_a_plain_loop() -> None:
    documents, heads, tokens, d = 3, 2, 700, 5
    x = np.stack([vectors(heads, tokens, d, seed) for seed in range(documents)]).astype(np.float32).astype(float)
    positions = torch.arange(10, 10 + tokens)
    shuffled = [shuffled_positions(7, document, positions) for document in range(documents)]
    stream = MomentStream([4, 600])
    stream.update(torch.from_numpy(x[:2]).float(), positions, shuffled[:2])
    stream.update(torch.from_numpy(x[2:]).float(), positions, shuffled[2:])
    t = positions.numpy().astype(float)
    whole = merge_all([Moments.of(one, t) for one in x])
    assert_close(stream.result(), whole)
    for cut in (4, 600):
        leading = merge_all([Moments.of(one[:, :cut], t[:cut]) for one in x])
        assert_close(stream.leading(cut), leading)
        later = merge_all([Moments.of(one[:, cut:], t[cut:]) for one in x])
        assert_close(stream.result().without(stream.leading(cut)), later, 1e-9)
    null = merge_all([Moments.of(one, order.numpy().astype(float)) for one, order in zip(x, shuffled, strict=True)])
    np.testing.assert_allclose(whole.sxt + stream.shuffled(), null.sxt, rtol=1e-9, atol=1e-6)
    assert np.abs(null.sxt - whole.sxt).max() > 100


def test_positions_are_shuffled_by_seed_and_document_alone() -> None:
    positions = torch.arange(100)
    one = shuffled_positions(0, 3, positions)
    assert torch.equal(one, shuffled_positions(0, 3, positions))
    assert sorted(one.tolist()) == positions.tolist()
    assert not torch.equal(one, shuffled_positions(0, 4, positions))
    assert not torch.equal(one, shuffled_positions(1, 3, positions))
    assert shuffle(-1, 0, 5).tolist() != list(range(5))


@pytest.mark.parametrize(
    ("settings_", "expected"),
    [
        ({}, (4,)),
        ({"skip_first": 1}, (3,)),
        ({"skip_first": 3}, ()),
        ({"skip_first": 8}, ()),
        ({"common_context": 32}, (4, 32)),
        ({"common_context": 128}, (4,)),
        ({"common_context": 32, "skip_first": 8}, (24,)),
    ],
)
def test_what_is_kept_apart(settings_: dict[str, int], expected: tuple[int, ...]) -> None:
    assert cuts(Scope(context=128, documents=1, bucket_size=8, **settings_)) == expected
