"""One head, looked at closely: its row, its components, its frame, what it does, its path through the context."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.analysis import Tables
from ropewalk.errors import RopewalkError
from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import describe, drift_axis, eigenbasis, pooled_scatter
from ropewalk.geometry.rotation import separation_axis
from ropewalk.statistics.base import Captured, Sums, layers_of
from ropewalk.statistics.moments import MomentSums, moments_of
from ropewalk.statistics.profile import Profile
from ropewalk.statistics.sample import VectorSample
from ropewalk.tables import HEAD_FACTS


@dataclass(frozen=True)
class HeadDetail:
    """What is known of one head at one checkpoint.

    `row` is its row of `heads.csv`. Its rows of other tables, None where there are none: `frame` of `spectrum.csv`, per
    pair of dimensions that turn together; `distance` of `distance.csv`, its kernel, mean score and attention by
    distance; `path` of `profiles.csv`, the mean projections of its queries and keys on PC0 by position. From the sums,
    and None where only tables are at hand: `spectrum` [d], the share of the pooled variance on each component;
    `components` [m, d], the leading ones as unit vectors, oriented as in `qk.csv`; `mean_q` and `mean_k` [buckets, d],
    the mean vectors by position. `vectors_q` and `vectors_k`, where vectors were kept, have a row per vector: its
    `document`, `position`, and projections on `pc0`, `pc1`, the drift axis `a` and the separation axis `b`.
    """

    checkpoint: str
    layer: int
    head: int
    row: "pd.Series[float]"
    spectrum: Floats | None = None
    components: Floats | None = None
    frame: pd.DataFrame | None = None
    distance: pd.DataFrame | None = None
    path: pd.DataFrame | None = None
    mean_q: Floats | None = None
    mean_k: Floats | None = None
    vectors_q: pd.DataFrame | None = None
    vectors_k: pd.DataFrame | None = None

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


TABLES = {"frame": "spectrum", "distance": "distance", "path": "profiles"}
"""Tables with several rows per head, by the field that holds a head's own."""


def head_detail(tables: Tables, captured: Captured | None, checkpoint: str, layer: int, head: int) -> HeadDetail:
    """Put together what tables and sums know of a head; an unknown one is named with what there is."""
    heads = tables.heads
    own = heads[heads["checkpoint"] == checkpoint]
    rows = own[(own["layer"] == layer) & (own["head"] == head)]
    if rows.empty:
        known = own.loc[own["layer"] == layer, "head"].tolist()
        hint = f"heads {_listed(known)}" if known else f"no heads, but layers {_listed(own['layer'].unique().tolist())}"
        raise RopewalkError(f"no head {head} of layer {layer} was measured at {checkpoint!r}: layer {layer} has {hint}")
    found: dict[str, Any] = {
        field: _rows(tables.others[name], checkpoint, layer, head)
        for field, name in TABLES.items()
        if name in tables.others
    }
    detail = HeadDetail(checkpoint, layer, head, rows.iloc[0], **found)
    if captured is None:
        return detail
    layer_heads = next(one for one in layers_of(captured.layout, captured.heads) if one.layer.layer == layer)
    index = layer_heads.heads.index(head)
    q, k = moments_of(MomentSums().merge(captured.parts(MomentSums.name, layer_heads)), layer_heads)
    q, k = q[np.array([index])], k[np.array([index])]
    scatter = pooled_scatter(q, k)
    spectrum, basis = eigenbasis(scatter)
    leading = captured.scope.components
    pca = describe(q, k, scatter, spectrum[:, :leading], basis[:, :, :leading]).oriented()
    total = spectrum.sum()
    detail = replace(
        detail,
        spectrum=spectrum[0] / total if total > 0 else np.full_like(spectrum[0], np.nan),
        components=np.ascontiguousarray(pca.vectors[0].T),
    )
    if VectorSample.name in captured.statistics:
        kept = VectorSample().merge(captured.parts(VectorSample.name, layer_heads))
        drift = drift_axis(q, k)[:, :, 0]
        axes = {
            **{f"pc{number}": pca.vectors[0, :, number] for number in range(min(2, pca.vectors.shape[2]))},
            **{"a": drift[0], "b": separation_axis(q, k, drift)[0]},
        }
        places = {"q": index, "k": layer_heads.key_index[index]}
        vectors = {kind: _projected(kept, kind, place, axes) for kind, place in places.items()}
        detail = replace(detail, vectors_q=vectors["q"], vectors_k=vectors["k"])
    if Profile.name not in captured.statistics:
        return detail
    sums = Profile().merge(captured.parts(Profile.name, layer_heads))
    with np.errstate(invalid="ignore"):
        # A bucket that lies among the tokens left out at the start has none: its mean is missing.
        means = {
            "mean_q": sums["q.sum"][index] / sums["n"][:, None],
            "mean_k": sums["k.sum"][layer_heads.key_index[index]] / sums["n"][:, None],
        }
    return replace(detail, **means)


def _projected(kept: Sums, kind: str, place: int, axes: Mapping[str, Floats]) -> pd.DataFrame:
    """A row per kept vector of one head: where it stands, and its projections on axes [d]."""
    vectors = kept[f"{kind}.vectors"][place].astype(np.float64)
    return pd.DataFrame(
        {
            "document": kept[f"document.{kind}"],
            "position": kept[f"position.{kind}"],
            **{name: vectors @ axis for name, axis in axes.items()},
        }
    )


def _rows(table: pd.DataFrame, checkpoint: str, layer: int, head: int) -> pd.DataFrame | None:
    """The rows of a head, without what is the same in all of them; None where it has none."""
    own = table[(table["checkpoint"] == checkpoint) & (table["layer"] == layer) & (table["head"] == head)]
    facts = [name for name in HEAD_FACTS if name in own]
    return None if own.empty else own.drop(columns=facts).reset_index(drop=True)


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:12]))
    return f"{shown}, ..." if len(numbers) > 12 else shown
