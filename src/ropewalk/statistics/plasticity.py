"""Attention plasticity of a layer's heads: from kept vectors, or from means and covariances by bucket."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from ropewalk.geometry.gaussian_plasticity import Buckets, of_gaussians
from ropewalk.geometry.moments import Floats
from ropewalk.geometry.pca import ratio
from ropewalk.geometry.plasticity import CELLS, Kept, Trials, cells, over_context, pairwise, trials
from ropewalk.statistics.base import KINDS, LayerHeads, Readout, Scope, Sums, head_rows

PARTS: Mapping[str, str] = {
    "overall": "over all positions of the query",
    "first_20": "with the query in the first fifth of the context",
    "last_20": "with the query in the last fifth of the context",
    "drop": "in the first fifth less in the last",
}
FORMS: Mapping[str, str] = {
    "": "as the share of kept queries for which one key beats the other",
    "_gaussian": "with the scores of kept queries taken as Gaussian",
    "_sums": "with queries and keys taken as Gaussian in every bucket of positions, from sums over all tokens",
}
"""Endings of columns, and how p = Pr[q·k_i > q·k_j] is found."""
GAP = "ap_gap"


def columns(*endings: str) -> dict[str, str]:
    """Columns of `heads.csv` with these endings, and what they hold."""
    return {
        f"ap_{part}{ending}": f"attention plasticity {where}, {FORMS[ending]}"
        for ending in endings
        for part, where in PARTS.items()
    }


KEPT_COLUMNS: Mapping[str, str] = {
    **columns("", "_gaussian"),
    GAP: "ap_overall_gaussian - ap_overall: what taking the scores as Gaussian changes",
}
SUMS_COLUMNS: Mapping[str, str] = columns("_sums")
BUCKET: Mapping[str, str] = {"start": "first position of the bucket of queries", "stop": "first position beyond it"}
PROFILE: Mapping[str, str] = {
    **BUCKET,
    "queries": "kept queries in it",
    "pairs": "pairs of kept keys before it that they were tried on",
    "empirical": f"plasticity, {FORMS['']}",
    "gaussian": f"plasticity, {FORMS['_gaussian']}",
}
SUMS_PROFILE: Mapping[str, str] = {**BUCKET, "sums": f"plasticity, {FORMS['_sums']}"}
MAP: Mapping[str, str] = {
    "apart": "least distance between the two keys, as a share of the context; each cell spans 1/8 of it",
    "away": "least distance from the query to the middle of the pair, as a share of the context",
    "pairs": "pairs of keys in the cell, each with a bucket of queries",
    "plasticity": f"mean plasticity of them, {FORMS['']}",
}


def buckets_of(scope: Scope) -> list[range]:
    """The positions of each bucket, `bucket_size` at a time."""
    starts = range(0, scope.context, scope.bucket_size)
    return [range(start, min(start + scope.bucket_size, scope.context)) for start in starts]


def read_kept(parts: Sequence[Sums], heads: LayerHeads, scope: Scope) -> Readout:
    """Plasticity by the sample of vectors that each group of documents kept, as columns, profile and map."""
    kept = {kind: _kept(parts, kind) for kind in KINDS}
    vectors = {kind: np.concatenate([part[f"{kind}.vectors"] for part in parts], axis=1) for kind in KINDS}
    buckets, groups = buckets_of(scope), len(parts)
    shape = (1 + groups if groups > 1 else 1, len(heads.heads))
    empirical, gaussian = (np.full((*shape, len(buckets)), np.nan) for _ in range(2))
    totals, counts = np.zeros((*shape, CELLS * CELLS)), np.zeros((shape[0], CELLS * CELLS))
    tried: list[Trials] = []
    for number, bucket in enumerate(buckets):
        seed = (scope.seed % 2**64, heads.layer.layer, number)
        own = trials(kept["q"], kept["k"], bucket, heads.layer.window, seed)
        tried.append(own)
        if len(own.queries) < 2 or not len(own.first):
            continue
        # Differences in float64: keys of one head may share an offset a thousand times their spread.
        delta = vectors["k"][:, own.first].astype(np.float64) - vectors["k"][:, own.second]
        found = pairwise(
            vectors["q"][:, own.queries],
            delta[heads.key_index],
            kept["q"].group[own.queries],
            kept["k"].group[own.first],
            groups,
        )
        empirical[..., number], gaussian[..., number] = found.means()
        numbers, which = np.unique(cells(own.apart, own.away, scope.context), return_inverse=True)
        total, count = found.by_cell(np.eye(len(numbers))[which])
        totals[..., numbers] += total
        counts[:, numbers] += count
    values = {
        **_over(empirical, "", buckets, scope.context),
        **_over(gaussian, "_gaussian", buckets, scope.context),
    }
    values[GAP] = values["ap_overall_gaussian"] - values["ap_overall"]
    facts = {
        "start": np.array([bucket.start for bucket in buckets]),
        "stop": np.array([bucket.stop for bucket in buckets]),
        "queries": np.array([len(own.queries) for own in tried]),
        "pairs": np.array([len(own.first) for own in tried]),
    }
    profile = head_rows(heads, facts, {"empirical": empirical, "gaussian": gaussian})
    tables = {"plasticity_profile": _known(profile, "empirical"), "plasticity_map": _map_rows(heads, totals, counts)}
    return Readout.of_stacked(values, tables)


def read_sums(stacked: Iterable[tuple[Buckets, Buckets]], heads: LayerHeads, scope: Scope) -> Readout:
    """Plasticity by means and covariances of queries and keys in every bucket, of the whole and without each group."""
    buckets = buckets_of(scope)
    seen = visible(buckets, heads.layer.window, scope.skip_first)
    profile = np.stack([of_gaussians(q, k, seen) for q, k in stacked])
    facts = {"start": np.array([one.start for one in buckets]), "stop": np.array([one.stop for one in buckets])}
    table = _known(head_rows(heads, facts, {"sums": profile}), "sums")
    return Readout.of_stacked(_over(profile, "_sums", buckets, scope.context), {"plasticity_profile": table})


def visible(buckets: Sequence[range], window: int | None, skip_first: int = 0) -> Floats:
    """[buckets, buckets] How many positions of each bucket (second) every query of a bucket (first) sees, before it."""
    found = np.zeros((len(buckets), len(buckets)))
    for number, bucket in enumerate(buckets):
        oldest = skip_first if window is None else max(skip_first, bucket.stop - window)
        for other, earlier in enumerate(buckets[:number]):
            found[number, other] = max(0, earlier.stop - max(earlier.start, oldest))
    return found


def _kept(parts: Sequence[Sums], kind: str) -> Kept:
    sizes = [len(part[f"position.{kind}"]) for part in parts]
    return Kept(
        np.concatenate([part[f"document.{kind}"] for part in parts]),
        np.concatenate([part[f"position.{kind}"] for part in parts]),
        np.repeat(np.arange(len(parts)), sizes),
    )


def _over(profile: Floats, ending: str, buckets: Sequence[range], context: int) -> dict[str, Floats]:
    return {f"ap_{part}{ending}": values for part, values in over_context(profile, buckets, context).items()}


def _map_rows(heads: LayerHeads, totals: Floats, counts: Floats) -> pd.DataFrame:
    """Rows of the map from sums [1 + groups, heads, cells] over so many pairs [1 + groups, cells]."""
    means = ratio(totals, counts[:, None])
    numbers = np.arange(CELLS * CELLS)
    facts = {"apart": numbers // CELLS / CELLS, "away": numbers % CELLS / CELLS}
    table = head_rows(heads, facts, {"plasticity": means})
    table.insert(4, "pairs", np.tile(counts[0].astype(np.int64), len(heads.heads)))
    return _known(table, "plasticity")


def _known(table: pd.DataFrame, column: str) -> pd.DataFrame:
    return table[table[column].notna()].reset_index(drop=True)
