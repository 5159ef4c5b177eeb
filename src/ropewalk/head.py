"""One head, looked at closely: its row, its components, its path through the context."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ropewalk.errors import RopewalkError
from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import describe, eigenbasis, pooled_scatter
from ropewalk.statistics.base import Captured, LayerHeads, layers_of
from ropewalk.statistics.moments import MomentSums, moments_of
from ropewalk.statistics.profile import Profile, bucket_edges


@dataclass(frozen=True)
class HeadDetail:
    """What is known of one head at one checkpoint.

    `row` is its row of `heads.csv`. From the sums, and None where only tables are at hand: `spectrum` [d], the share of
    the pooled variance on each component; `components` [m, d], the leading ones as unit vectors, oriented as in
    `qk.csv`; `path`, per bucket of positions (start, stop, tokens) the mean projections of queries `q` and keys `k` on
    PC0; `mean_q` and `mean_k` [buckets, d], the mean vectors behind it.
    """

    checkpoint: str
    layer: int
    head: int
    row: "pd.Series[float]"
    spectrum: Floats | None = None
    components: Floats | None = None
    path: pd.DataFrame | None = None
    mean_q: Floats | None = None
    mean_k: Floats | None = None

    @property
    def category(self) -> str | None:
        """Category by the taxonomy on PC0; None where a correlation is missing."""
        value = self.row["category"]
        return None if pd.isna(value) else str(value)

    @property
    def certainty(self) -> float:
        """Probability of the category, given the errors of r_q and r_k; NaN without errors."""
        return float(self.row.get("certainty", np.nan))

    def __repr__(self) -> str:
        chance = "" if np.isnan(self.certainty) else f" (certainty {self.certainty:.0%})"
        return (
            f"<head {self.head} of layer {self.layer} at {self.checkpoint}: r_q {self.row['r_q']:.3f}, "
            f"r_k {self.row['r_k']:.3f}, {self.category or 'no category'}{chance}>"
        )


def head_detail(heads: pd.DataFrame, captured: Captured | None, checkpoint: str, layer: int, head: int) -> HeadDetail:
    """Put together what tables and sums know of a head; an unknown one is named with what there is."""
    own = heads[heads["checkpoint"] == checkpoint]
    rows = own[(own["layer"] == layer) & (own["head"] == head)]
    if rows.empty:
        known = own.loc[own["layer"] == layer, "head"].tolist()
        hint = f"heads {_listed(known)}" if known else f"no heads, but layers {_listed(own['layer'].unique().tolist())}"
        raise RopewalkError(f"no head {head} of layer {layer} was measured at {checkpoint!r}: layer {layer} has {hint}")
    row = rows.iloc[0]
    if captured is None:
        return HeadDetail(checkpoint, layer, head, row)
    layer_heads = next(one for one in layers_of(captured.layout, captured.heads) if one.layer.layer == layer)
    index = layer_heads.heads.index(head)
    q, k = moments_of(MomentSums().merge(captured.parts(MomentSums.name, layer_heads)), layer_heads)
    q, k = q[np.array([index])], k[np.array([index])]
    scatter = pooled_scatter(q, k)
    spectrum, basis = eigenbasis(scatter)
    leading = captured.scope.components
    pca = describe(q, k, scatter, spectrum[:, :leading], basis[:, :, :leading]).oriented()
    total = spectrum.sum()
    detail = HeadDetail(
        checkpoint,
        layer,
        head,
        row,
        spectrum=spectrum[0] / total if total > 0 else np.full_like(spectrum[0], np.nan),
        components=np.ascontiguousarray(pca.vectors[0].T),
    )
    return _with_path(detail, captured, layer_heads, index) if Profile.name in captured.statistics else detail


def _with_path(detail: HeadDetail, captured: Captured, heads: LayerHeads, index: int) -> HeadDetail:
    assert detail.components is not None
    sums = Profile().merge(captured.parts(Profile.name, heads))
    edges = bucket_edges(captured.scope.context)
    n = sums["n"]
    with np.errstate(invalid="ignore"):
        # A bucket that lies among the tokens left out at the start has none: its mean is missing.
        mean_q = sums["q.sum"][index] / n[:, None]
        mean_k = sums["k.sum"][heads.key_index[index]] / n[:, None]
    path = pd.DataFrame(
        {
            "start": edges[:-1],
            "stop": edges[1:],
            "tokens": n.astype(np.int64),
            "q": mean_q @ detail.components[0],
            "k": mean_k @ detail.components[0],
        }
    )
    return replace(detail, path=path, mean_q=mean_q, mean_k=mean_k)


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:12]))
    return f"{shown}, ..." if len(numbers) > 12 else shown
