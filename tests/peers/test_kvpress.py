"""KVPress loads what `ropewalk export --to kvpress` writes, and its presses run on it as on statistics of their own.

Run by `make kvpress` in an environment of its own, on what tests/peers/prepare.py wrote. ropewalk is not in there.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from kvpress import DuoAttentionPress, ExpectedAttentionStatsPress, QFilterPress
from kvpress.presses import duo_attention_press, expected_attention_with_stats
from kvpress.presses.expected_attention_with_stats import ExpectedAttentionStats, collect_queries
from kvpress.presses.qfilter_press import QFilters
from transformers import DynamicCache

BUILT = Path(os.environ["ROPEWALK_KVPRESS"])
SKIP_FIRST = 4
RIGHT = ("llama", "qwen3", "smollm2")
"""Models of which KVPress's own statistics are right: every layer rotates all dimensions, in halves."""


class Peer:
    """A model that ropewalk measured, in the transformers of this environment."""

    def __init__(self, name: str) -> None:
        self.folder = BUILT / name
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            self.folder / "model", dtype=torch.float32
        ).eval()
        self.tokens = torch.from_numpy(np.load(self.folder / "tokens.npy"))
        self.export = self.folder / "export"
        case = json.loads((self.folder / "case.json").read_text())
        self.nope, self.digits, self.context = case["nope"], case["digits"], case["context"]

    def own(self, monkeypatch: pytest.MonkeyPatch, characters: int = 10_000) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and covariance by KVPress's own function, on the same tokens: a token is a word."""
        texts = [" ".join(f"w{number:0{self.digits}d}" for number in row.tolist()) for row in self.tokens]
        dataset = Dataset.from_dict({"chapter": texts})
        monkeypatch.setattr(expected_attention_with_stats, "load_dataset", lambda *_, **__: dataset)
        _, mean, spread = collect_queries(self.model, "local", len(texts), characters, SKIP_FIRST)
        return mean, spread

    def kept(self, press: Any) -> list[torch.Tensor]:
        """Keys that are left in the cache of each layer after a press."""
        cache = DynamicCache()
        with torch.no_grad(), press(self.model):
            self.model(self.tokens[:1], past_key_values=cache)
        return [layer.keys for layer in cache.layers]


@pytest.fixture(scope="module", params=RIGHT)
def peer(request: pytest.FixtureRequest) -> Peer:
    return Peer(request.param)


def test_versions() -> None:
    from importlib.metadata import version

    assert version("kvpress") == "0.5.5"


def test_its_class_loads_the_folder_and_has_the_same_numbers(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = ExpectedAttentionStats.from_pretrained(str(peer.export))
    mean, spread = peer.own(monkeypatch)
    # Of a pretrained model the largest entries are in the hundreds, and its own sums are in float32.
    size = float(spread.abs().max())
    torch.testing.assert_close(stats.query_mean.data, mean, rtol=1e-5, atol=2e-6 * max(size, 1.0) ** 0.5)
    torch.testing.assert_close(stats.query_cov.data, spread, rtol=1e-5, atol=5e-6 * max(size, 1.0))
    assert (stats.n_sink, stats.sample_seq_len, stats.num_samples) == (SKIP_FIRST, peer.context, 8)


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
def test_its_press_keeps_the_same_keys(peer: Peer, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    ours = ExpectedAttentionStatsPress(compression_ratio=ratio, stats_folder=str(peer.export))
    theirs = ExpectedAttentionStatsPress(compression_ratio=ratio)
    theirs.mu, theirs.cov = peer.own(monkeypatch)
    found, expected = peer.kept(ours), peer.kept(theirs)
    same = []
    for one, other in zip(found, expected, strict=True):
        assert one.shape[2] == int(peer.context * (1 - ratio))
        same.append((one == other).all(dim=-1).float().mean())
    # Thousands of scores in a pretrained model: two that are equal to the last bit may change places.
    assert min(same) == 1.0 or (peer.folder.name == "smollm2" and np.mean(same) > 0.995)
    # The control: statistics of nothing keep others.
    blind = ExpectedAttentionStatsPress(compression_ratio=ratio)
    blind.mu, blind.cov = torch.zeros_like(theirs.mu), torch.zeros_like(theirs.cov)
    assert not all(torch.equal(one, other) for one, other in zip(peer.kept(blind), expected, strict=True))


def test_of_a_model_with_nope_layers_its_own_function_loses_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees queries where they are rotated: a layer that does not rotate is not seen, and those behind it move up."""
    peer = Peer("smollm3")
    assert peer.nope == [3]
    mean, _ = peer.own(monkeypatch)
    stats = ExpectedAttentionStats.from_pretrained(str(peer.export))
    assert len(mean) == 3
    assert len(stats.query_mean) == peer.model.config.num_hidden_layers == 4
    torch.testing.assert_close(stats.query_mean.data[:3], mean, rtol=1e-4, atol=1e-5)


def test_of_a_layer_that_does_not_rotate_its_press_turns_statistics_all_the_same() -> None:
    peer = Peer("smollm3")
    press = ExpectedAttentionStatsPress(stats_folder=str(peer.export))
    peer.kept(press)
    module = peer.model.model.layers[3].self_attn
    module.rotary_emb = peer.model.model.rotary_emb
    mean, _ = press.apply_avg_rope(module, press.mu[3], press.cov[3], 48)
    off = (mean - press.mu[3]).norm() / press.mu[3].norm()
    assert off > 0.1  # what queries of this layer do at later positions: nothing


def test_of_a_part_of_the_dimensions_its_press_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is right: its own function has the same numbers. Its press takes all dimensions for rotated."""
    peer = Peer("glm")
    stats = ExpectedAttentionStats.from_pretrained(str(peer.export))
    mean, spread = peer.own(monkeypatch)
    torch.testing.assert_close(stats.query_mean.data, mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(stats.query_cov.data, spread, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="size of tensor"):
        peer.kept(ExpectedAttentionStatsPress(compression_ratio=0.5, stats_folder=str(peer.export)))


def test_of_interleaved_pairs_its_press_turns_halves() -> None:
    peer = Peer("cohere2")
    press = ExpectedAttentionStatsPress(stats_folder=str(peer.export), n_future_positions=64)
    peer.kept(press)
    module = peer.model.model.layers[0].self_attn
    module.rotary_emb = peer.model.model.rotary_emb
    mean, _ = press.apply_avg_rope(module, press.mu[0], press.cov[0], 48)
    cosines, sines = peer.model.model.rotary_emb(press.mu[0], torch.arange(48, 48 + 64)[None])
    swapped = torch.stack([-press.mu[0][:, 1::2], press.mu[0][:, 0::2]], dim=2).flatten(1)
    true = press.mu[0] * cosines[0].mean(dim=0) + swapped * sines[0].mean(dim=0)
    assert (mean - true).norm() / true.norm() > 0.1


def test_its_own_function_counts_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sample_seq_len` cuts the text before it is tokenized: 60 is not 60 tokens."""
    peer = Peer("llama")
    seen: list[int] = []
    original = transformers.PreTrainedTokenizerFast.__call__

    def counting(self: Any, *arguments: Any, **options: Any) -> Any:
        found = original(self, *arguments, **options)
        seen.append(found["input_ids"].shape[1])
        return found

    monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "__call__", counting)
    peer.own(monkeypatch, characters=60)
    assert seen
    assert max(seen) == 60 / 4  # three characters and a space


def test_its_spread_after_the_rotation_is_that_of_a_mean_turn() -> None:
    """Queries of later positions spread as the mean of RΣRᵀ, and with their turning means; its press takes R̄ΣR̄ᵀ."""
    peer = Peer("llama")
    press = ExpectedAttentionStatsPress(stats_folder=str(peer.export), n_future_positions=64)
    peer.kept(press)
    module = peer.model.model.layers[0].self_attn
    module.rotary_emb = peer.model.model.rotary_emb
    mean, spread = press.apply_avg_rope(module, press.mu[0], press.cov[0], 48)
    cosines, sines = peer.model.model.rotary_emb(press.mu[0], torch.arange(48, 48 + 64)[None])
    half = press.mu.shape[-1] // 2
    swap = torch.zeros(2 * half, 2 * half)
    swap[half:, :half], swap[:half, half:] = torch.eye(half), -torch.eye(half)
    turns = torch.diag_embed(cosines[0]) + torch.diag_embed(sines[0]) @ swap
    means = torch.einsum("tij,hj->thi", turns, press.mu[0])
    torch.testing.assert_close(mean, means.mean(dim=0), rtol=1e-4, atol=1e-5)
    inside = torch.einsum("tij,hjk,tlk->hil", turns, press.cov[0], turns) / 64
    away = means - means.mean(dim=0)
    true = inside + torch.einsum("thi,thj->hij", away, away) / 64
    assert (spread - true).norm() / true.norm() > 0.1


def test_filters_load_and_keep_what_queries_point_to(peer: Peer) -> None:
    filters = QFilters.from_pretrained(str(peer.export / "qfilters")).q_filters
    press = QFilterPress(compression_ratio=0.5)
    press.post_init_from_model = lambda _: None  # it would load filters by the model's name from the hub
    press.q_filters = filters.detach()
    kept = peer.kept(press)
    whole = DynamicCache()
    with torch.no_grad():
        peer.model(peer.tokens[:1], past_key_values=whole)
    for layer, left in enumerate(kept):
        keys = whole.layers[layer].keys[0]
        for head in range(keys.shape[0]):
            along = keys[head] @ -filters[layer, head]
            best = keys[head][along.argsort(descending=True)[: peer.context // 2].sort().values]
            assert torch.equal(left[0, head].sort(dim=0).values, best.sort(dim=0).values)


def test_its_press_of_heads_reads_the_pattern(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model's name it would fetch a pattern from a repository; here the same files come from the folder."""

    def get(url: str) -> Any:
        text = (peer.export / "duo" / url.rsplit("/", 1)[1]).read_text()
        return SimpleNamespace(text=text, json=lambda: json.loads(text))

    name = peer.model.config.name_or_path
    monkeypatch.setitem(duo_attention_press.PATTERNS_DICT, name, "ours")
    monkeypatch.setattr(duo_attention_press.requests, "get", get)
    press = DuoAttentionPress(head_compression_ratio=0.5)
    with press(peer.model):
        pass
    pattern = np.loadtxt(peer.export / "duo/full_attention_heads.tsv", delimiter="\t")
    config = peer.model.config
    assert press.streaming_mask.shape == pattern.shape == (config.num_hidden_layers, config.num_key_value_heads)
    assert press.streaming_mask.sum() == pattern.size // 2
    assert pattern[press.streaming_mask.numpy()].max() <= pattern[~press.streaming_mask.numpy()].min()
    assert (press.sink_size, press.recent_size) == (128, 256)
