"""Sums of a model in hand, in one call."""

from typing import Any

import numpy as np

from ropewalk.capture.collector import Collection, collect
from ropewalk.capture.shards import ShardSums
from ropewalk.models.layout import Head, Layout
from ropewalk.models.probe import read_layout
from ropewalk.statistics.base import Scope, Statistic


def collected(
    model: Any,
    tokens: np.ndarray,
    *statistics: Statistic,
    layout: Layout | None = None,
    heads: list[Head] | None = None,
    scope: Scope | None = None,
    pre_rope: bool = False,
    **options: Any,
) -> ShardSums:
    """What statistics add up over tokens [documents, context]; all heads and buckets of 4 positions by default."""
    layout = layout or read_layout(model)
    scope = scope or Scope(context=tokens.shape[1], documents=len(tokens), bucket_size=4)
    collection = Collection(layout, heads or layout.heads(), statistics, scope, pre_rope)
    return collect(model, collection, tokens.astype(np.int32), **options)
