"""For a researcher with a model in hand: from Python objects to the table, without files."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from ropewalk.analysis import LayerMoments, checkpoint_facts, layer_inputs, tabulate
from ropewalk.capture.collector import Settings, collect
from ropewalk.capture.corpus import encode
from ropewalk.capture.shards import split_documents
from ropewalk.errors import RopewalkError
from ropewalk.models.layout import AttentionLayer
from ropewalk.models.probe import read_layout
from ropewalk.study import Capture, Checkpoint


def measure(
    model: nn.Module,
    documents: Iterable[str] | Iterable[Iterable[int]],
    tokenizer: Any = None,
    *,
    context: int,
    label: str = "model",
    **capture: Any,
) -> pd.DataFrame:
    """The qk table of a loaded model over documents: texts with a tokenizer, or rows of token ids without.

    Documents shorter than `context` are left out, longer ones cut. `capture` takes the fields of a study's `capture`
    (heads, seed, layers, pairs, skip_first, pre_rope, shards, batch_tokens, components, ...).
    """
    settings = Capture(**capture, keep=0.0)
    if settings.skip_first >= context - 1:
        raise RopewalkError(f"skip_first {settings.skip_first} leaves nothing of the context {context}: lower it")
    checkpoint = Checkpoint(repo=label, name=label, label=label, context=context)
    rows = [_ids(document, tokenizer, context) for document in documents]
    tokens = [row[:context] for row in rows if len(row) >= context]
    if not tokens:
        raise RopewalkError(
            f"none of the {len(rows)} documents has {context} tokens: lower `context` or give longer documents"
        )
    stacked = np.stack(tokens).astype(np.int32)
    was_training = model.training
    model.eval()
    try:
        layout = read_layout(model)
        heads = layout.choose(settings)
        collected = Settings(heads, checkpoint.bucket, skip_first=settings.skip_first, pre_rope=settings.pre_rope)
        batch = max(1, settings.batch_tokens // context)
        shards = [
            collect(model, layout, collected, stacked[part.start : part.stop], first_document=part.start, batch=batch)
            for part in split_documents(len(stacked), settings.shards)
        ]
    finally:
        model.train(was_training)

    def moments(layer: AttentionLayer, kind: str) -> list[LayerMoments]:
        return [(shard[layer.layer, kind].heads, shard[layer.layer, kind].moments) for shard in shards]

    layers = layer_inputs(layout, heads, moments)
    table, _ = tabulate(layers, checkpoint_facts(checkpoint, layout.depth), settings.components)
    return table


def _ids(document: Any, tokenizer: Any, context: int) -> Any:
    if isinstance(document, str):
        if tokenizer is None:
            raise RopewalkError(
                "documents are text, so a tokenizer is needed: measure(model, texts, tokenizer, context=...)"
            )
        return encode(tokenizer, document, context)
    return np.asarray(document.cpu() if isinstance(document, torch.Tensor) else list(document))
