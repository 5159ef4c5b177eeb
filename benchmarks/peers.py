"""What people would use instead of this project, as contenders beside it, and whether all of them capture the same.

Peers are imported by their contenders alone, so that this file can be without them. Each is used as its documentation
says, at its best; `.venv-bench` (`make bench-check`) has them.

    python benchmarks/peers.py                          # lists the contenders
    python benchmarks/peers.py --check [--tokens 128]   # compares what they capture
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import ropewalk
from contenders import (
    MODEL,
    Contender,
    Keeping,
    Kept,
    Plain,
    Reference,
    Ropewalk,
    Vectors,
    gguf_file,
    load,
    random_documents,
)
from ropewalk.models.probe import read_layout
from ropewalk.statistics.base import KINDS
from ropewalk.study import Capture
from ropewalk.text import table

LIMIT = 1e-4
"""The largest relative difference between what two contenders capture."""


class TransformerLens(Keeping):
    """TransformerLens: `run_with_cache` of a TransformerBridge, filtered to `hook_rot_q` and `hook_rot_k`.

    Its caches stay in memory, as it returns them, those of all documents until the last is done. The bridge is given
    the loaded model and the tokenizer of the same file (without one it asks the hub), and its weights stay as they are:
    compatibility mode, which would fold and centre them, is off. Only the last token's logits are computed: the last
    layer's vectors need the whole backbone, and `stop_at_layer` ends before a layer. Attention is the bridge's own,
    with scores of all pairs of tokens in memory: it offers no other.
    """

    name = "TransformerLens"
    keeps = "every query and key, in memory, as one ActivationCache a document"

    caches: list[Any]

    def prepare(self, folder: Path) -> None:
        """Put the bridge around the model."""
        from transformer_lens.model_bridge import TransformerBridge

        super().prepare(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file(folder))
        self._bridge = TransformerBridge.boot_transformers(
            str(folder), hf_model=self.model, tokenizer=tokenizer, device="cpu", dtype=torch.float32
        )
        layers = range(len(self.backbone.layers))
        self._names = [f"blocks.{layer}.attn.hook_rot_{kind}" for layer in layers for kind in KINDS]

    @torch.inference_mode()
    def run(self) -> None:
        """Run the documents, and keep their caches."""
        options = {"return_type": None, "logits_to_keep": 1, "use_cache": False}
        for ids in self.ids:
            _, cache = self._bridge.run_with_cache(ids, names_filter=self._names, **options)
            self.caches.append(cache)

    def clear(self) -> None:
        """Forget the caches."""
        super().clear()
        self.caches = []

    def vectors(self, document: int, layer: int) -> Vectors:
        """From its cache, [1, tokens, heads, d]."""
        cache = self.caches[document]
        return {kind: cache[f"blocks.{layer}.attn.hook_rot_{kind}"][0].transpose(0, 1).numpy() for kind in KINDS}


class NNsight(Keeping):
    """nnsight: one trace a document, which saves what `apply_rotary_pos_emb` returns in every layer.

    The saved tensors stay in memory, those of all documents until the last is done. The backbone is wrapped as it is
    loaded, so there are no logits, attention stays SDPA, and nothing is left to dispatch. The operation is found by
    `.source`, its way into a module's forward; `tracer.stop` ends the pass at the last layer's queries and keys.
    """

    name = "nnsight"
    keeps = "every query and key, in memory, as one saved list a document"

    saved: list[list[tuple[torch.Tensor, torch.Tensor]]]

    def prepare(self, folder: Path) -> None:
        """Wrap the backbone."""
        import nnsight

        super().prepare(folder)
        self._traced = nnsight.NNsight(self.backbone)

    @torch.inference_mode()
    def run(self) -> None:
        """Trace the documents, and keep what they save."""
        import nnsight

        traced = self._traced
        for ids in self.ids:
            with traced.trace(input_ids=ids, use_cache=False) as tracer:
                rotated = nnsight.save(
                    [layer.self_attn.source.apply_rotary_pos_emb_0.output for layer in traced.layers]
                )
                tracer.stop()
            self.saved.append(rotated)

    def clear(self) -> None:
        """Forget what was saved."""
        super().clear()
        self.saved = []

    def vectors(self, document: int, layer: int) -> Vectors:
        """From its list: (query, key) of each layer."""
        return {kind: part[0].numpy() for kind, part in zip(KINDS, self.saved[document][layer], strict=True)}


class Dump(Keeping):
    """A script of one's own: an attention function, registered with transformers, that writes what it is given.

    One folder per layer, head and kind, `l{LL}h{HH}{q|k}`, as published dumps have it, with one Parquet file a document
    and one row a token. Files are closed at once: writers that stay open for the next document hold some megabytes
    each, a gigabyte for all heads. No dictionary is tried, which vectors do not profit from.
    """

    name = "hooks and Parquet"
    keeps = "every query and key, on disk, as one Parquet file per layer, head, kind and document"

    def prepare(self, folder: Path) -> None:
        """Register the function, with SDPA's mask."""
        super().prepare(folder)
        AttentionInterface.register("dump", self._attend)
        AttentionMaskInterface.register("dump", sdpa_mask)
        self.model.set_attn_implementation("dump")  # type: ignore[operator]

    @torch.inference_mode()
    def run(self) -> None:
        """Run the documents."""
        for document, ids in enumerate(self.ids):
            self._document = document
            self.backbone(input_ids=ids, use_cache=False)

    def vectors(self, document: int, layer: int) -> Vectors:
        """Read back from the files."""
        return {kind: np.stack([_read(path) for path in self._paths(document, layer, kind)]) for kind in KINDS}

    def _attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
    ) -> Any:
        for kind, vectors in zip(KINDS, (query[0], key[0]), strict=True):
            for path, own in zip(self._paths(self._document, module.layer_idx, kind), vectors, strict=True):
                self._write(path, own.numpy())
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    def _paths(self, document: int, layer: int, kind: str) -> list[Path]:
        config = self.backbone.config
        heads = config.num_attention_heads if kind == "q" else config.num_key_value_heads
        return [self.output / f"l{layer:02d}h{head:02d}{kind}" / f"{document:05d}.parquet" for head in range(heads)]

    def _write(self, path: Path, vectors: NDArray[np.float32]) -> None:
        count, d = vectors.shape
        rows = pa.table(
            {
                "example_id": np.full(count, self._document),
                "position": np.arange(count),
                "vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), d),
            }
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, use_dictionary=False)


def _read(path: Path) -> NDArray[np.float32]:
    rows = pq.read_table(path, columns=["vector"])
    values: NDArray[np.float32] = rows["vector"].combine_chunks().flatten().to_numpy()
    return values.reshape(len(rows), -1)


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "plain": Plain,
    "kept": Kept,
    "moments": lambda: Ropewalk("moments", "moments"),
    "all": lambda: Ropewalk("all statistics", *Capture().statistics),
    "transformer_lens": TransformerLens,
    "nnsight": NNsight,
    "dump": Dump,
}
"""By the name on the command line."""


def tapped(model: nn.Module, tokens: NDArray[np.int32]) -> Reference:
    """Queries and keys of every layer and head, by this project's tap."""
    seen: dict[tuple[int, int], Vectors] = {}
    layout = read_layout(model)
    for document, row in enumerate(tokens):
        calls: list[Vectors] = []

        def view(call: Any, calls: list[Vectors] = calls) -> None:
            calls.append({"q": call.query[0].numpy().copy(), "k": call.key[0].numpy().copy()})

        with torch.inference_mode(), ropewalk.tap(model, view):
            model(input_ids=torch.from_numpy(row.astype(np.int64))[None], use_cache=False)
        seen |= {(document, layer.layer): calls[layer.call_index] for layer in layout.layers}
    return seen


def check(length: int) -> None:
    """Compare what every contender captures of two short documents with what the tap sees; fail where they differ."""
    tokens = random_documents(2, length)
    reference = tapped(load(MODEL), tokens)
    print(f"{len(tokens)} documents of {length} tokens, {len(reference) // len(tokens)} layers, all heads")
    wrong = []
    for key, make in CONTENDERS.items():
        contender = make()
        contender.prepare(MODEL)
        contender.take(tokens)
        contender.run()
        difference = contender.difference(reference)
        contender.clear()
        if difference is None:
            continue
        print(f"  {contender.name:<26} {difference:.1e}  (at most {LIMIT:.0e})")
        # Not `>`, which a NaN would pass.
        if not difference <= LIMIT:
            wrong.append(key)
    if wrong:
        raise SystemExit(f"not the same queries and keys: {', '.join(wrong)}")


def main() -> None:
    """List the contenders, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare what they capture")
    parser.add_argument("--tokens", type=int, default=128, help="length of the documents of the check")
    options = parser.parse_args()
    if options.check:
        check(options.tokens)
        return
    made = {key: make() for key, make in CONTENDERS.items()}
    print("\n".join(table(("", "name", "keeps"), [(key, one.name, one.keeps) for key, one in made.items()])))


if __name__ == "__main__":
    main()
