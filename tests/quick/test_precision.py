"""Moments where float64 is missing or slow: products in float32, whose sums lose nothing; tried on the CPU."""

import numpy as np
import pytest
import torch

from ropewalk.geometry.moments import Moments
from ropewalk.geometry.pca import PCA, combined_pca
from ropewalk.statistics import stream
from ropewalk.statistics.precision import Products, products_in
from ropewalk.statistics.stream import MomentStream

TOKENS, DOCUMENTS, D = 1500, 8, 32


def vectors(offset: float, seed: int) -> torch.Tensor:
    """[documents, heads, tokens, d] in float32: a decaying spectrum that drifts, far from zero."""
    generator = np.random.default_rng(seed)
    scale = np.exp(-np.arange(D) / 8)
    drift = np.linspace(0, 1, TOKENS)[:, None] * generator.normal(size=(1, 3, 1, D)) * scale
    x = generator.normal(size=(DOCUMENTS, 3, TOKENS, D)) * scale + drift + offset
    return torch.from_numpy(x).float()


def streamed(x: torch.Tensor, cuts: tuple[int, ...] = ()) -> Moments:
    found = MomentStream(cuts)
    for document in x:
        found.update(document[None], torch.arange(TOKENS))
    return found.result()


def pca(offset: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> PCA:
    monkeypatch.setattr(stream, "products_in", lambda _: dtype)
    return combined_pca(streamed(vectors(offset, 0)), streamed(vectors(offset, 1)))


@pytest.mark.parametrize("offset", [0.0, 10.0, 1000.0])
def test_products_in_float32_give_r_to_six_digits(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = (pca(offset, dtype, monkeypatch) for dtype in (torch.float64, torch.float32))
    for name in ("r_q", "r_k", "explained_variance"):
        np.testing.assert_allclose(getattr(narrow, name), getattr(wide, name), rtol=0, atol=5e-7, err_msg=name)


def test_where_sums_are_cut_changes_no_digit_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "products_in", lambda _: torch.float32)
    x = vectors(10.0, 0)
    whole, cut = streamed(x), streamed(x, (4, 700))
    np.testing.assert_allclose(cut.sxx, whole.sxx, rtol=0, atol=1e-6 * np.abs(whole.sxx).max())
    np.testing.assert_allclose(cut.mean, whole.mean, rtol=1e-7)


def test_many_blocks_lose_no_more_than_one() -> None:
    """The control: the same products, added in float32 alone, are off a hundred times as far."""
    generator = np.random.default_rng(0)
    products, plain, exact = Products(1, 1, 1, torch.device("cpu"), torch.float32), torch.zeros(1, 1, 1), 0.0
    for _ in range(20_000):
        block = products.block(products.room(4), 1, 4)
        block[..., :1] = torch.from_numpy(generator.uniform(0.5, 1.5, (1, 4, 1))).float()
        product = block[0, ..., :1].transpose(1, 2) @ block[0, ..., :1]
        products.add(0, [block])
        plain += product
        exact += float(product)
    ours, theirs = (abs(float(one) / exact - 1) for one in (products.scatter(slice(None))[0, 0, 0], plain))
    assert ours < 1e-12
    assert theirs > 100 * max(ours, 1e-9)


def test_a_training_that_rounds_its_products_does_not_round_these() -> None:
    x = vectors(0.0, 0)[0, :, :512]
    found = []
    for precision in ("highest", "medium"):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            products = Products(1, 3, D, torch.device("cpu"), torch.float32)
            block = products.block(products.room(512), 1, 512)
            block[..., :D] = x
            products.add(0, [block])
            assert torch.get_float32_matmul_precision() == precision
        finally:
            torch.set_float32_matmul_precision(before)
        found.append(products.scatter(slice(None)))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("kind", "capability", "expected"),
    [
        ("cpu", None, torch.float64),
        ("mps", None, torch.float32),
        ("cuda", (8, 0), torch.float64),
        ("cuda", (9, 0), torch.float64),
        ("cuda", (8, 9), torch.float32),
        ("cuda", (12, 0), torch.float32),
    ],
)
def test_devices_multiply_in_what_they_are_fast_in(
    kind: str, capability: tuple[int, int] | None, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert products_in(torch.device(kind)) == expected
