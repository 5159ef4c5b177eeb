"""The data of the explorer: every head at every checkpoint, its curves, and what the page says of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ropewalk.figures.style import CATEGORY_COLOURS, CATEGORY_MARKERS, NOPE, QUERY
from ropewalk.geometry.axes import AXES
from ropewalk.geometry.jackknife import critical, deviations
from ropewalk.geometry.taxonomy import (
    CATEGORIES,
    CONCORDANT,
    DISCORDANT,
    HIGH,
    LOW,
    MIXED,
    UNDECIDED,
    rule_conditions,
)
from ropewalk.report.head_curves import head_curves
from ropewalk.report.packing import (
    CODES,
    Floats,
    Packed,
    Packer,
    Spec,
    pack_errors,
    pack_moves,
    pack_values,
    pack_words,
)
from ropewalk.statistics.registry import described_columns
from ropewalk.summary.sample import Sample
from ropewalk.summary.view import View
from ropewalk.tables import FACTS, HEADS, QK

BUDGET = 2_100_000
"""Characters of the page that packed numbers may take."""
CURVES_SHARE = 0.35
"""Part of them that the curves of heads may take."""
FIRST = ("r_q", "r_k", "explained_variance")
"""Columns that come first."""
NOT_SHOWN = {*FACTS, "bin", "pc"}
"""Columns of the table that are no quantity of a head."""
WORDS: Mapping[str, Sequence[str]] = {"category": CATEGORIES, "concordance": (CONCORDANT, DISCORDANT, UNDECIDED)}
SIGNS: Sequence[Mapping[str, str]] = (
    {"name": CONCORDANT, "colour": str(QUERY), "marker": "o"},
    {"name": DISCORDANT, "colour": str(NOPE.colour), "marker": "^"},
    {"name": UNDECIDED, "colour": str(CATEGORY_COLOURS[MIXED]), "marker": "D"},
)
"""How the words of concordance look; blue and orange stay apart for colour-blind readers."""
NORMAL = 1.96
"""Errors that make a 95% interval where it is not known from how many groups of documents they are."""


@dataclass(frozen=True)
class Explorer:
    """`data` says what there is and how to read it, `arrays` are the numbers (see `packing`)."""

    data: Mapping[str, Any]
    arrays: str

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are in the page."""
        return [column["name"] for column in self.data["columns"]]


def explorer(view: View, budget: int = BUDGET) -> Explorer:
    """Pack a view's heads until the budget is spent; `left_out` says what was not packed.

    First r_q, r_k and explained variance with their errors, then curves, the other columns, how groups of documents
    move the first ones, the other errors, and how groups move the other columns. Columns are those of the table as it
    was written; on another axis, what is shown first ends with that axis' ending.
    """
    # r_q and r_k of another axis than the pooled one stand under their own names in the table as it was written.
    whole, ending = view.origin or view, AXES[view.axis]
    packer, parts = Packer(), whole.parts
    shapes, shape_of = _shapes(parts)
    stride = len(parts[0]) if len(shapes) == 1 and len(parts) > 1 else 0
    rows = pd.concat(parts, ignore_index=True)
    words = [_words(packer, rows, name, known) for name, known in _word_columns(rows, ending)]
    names = _number_columns(rows, ending)
    first = names[: len(FIRST)]
    columns: dict[str, Spec] = {}
    left_out: dict[str, list[str]] = {"values": [], "errors": [], "replicates": []}

    def fit(kind: str, name: str, always: bool = False, **packed: Packed) -> dict[str, Spec]:
        if not always and packer.spent + sum(one.cost for one in packed.values()) > budget:
            left_out[kind].append(name)
            return {}
        return {part: packer.add(one) for part, one in packed.items()}

    def add_values(chosen: Sequence[str]) -> None:
        for name in chosen:
            if found := fit("values", name, name in first, values=pack_values(_numbers(rows, name), stride)):
                columns[name] = {"name": name, "meaning": _meaning(name), **found}

    def add_errors(chosen: Sequence[str]) -> None:
        for name in chosen:
            if f"se_{name}" in rows and rows[f"se_{name}"].notna().any():
                columns[name] |= fit(
                    "errors", name, name in first, errors=pack_errors(_numbers(rows, f"se_{name}"), stride)
                )

    def add_replicates(chosen: Sequence[str]) -> None:
        for name in chosen:
            if (moves := _replicates(whole.samples, name)) is not None:
                columns[name] |= fit("replicates", name, replicates=moves[0], steps=moves[1])

    add_values(first)
    add_errors(first)
    curves = head_curves(view, packer, int(budget * CURVES_SHARE))
    add_values(names[len(first) :])
    further = [name for name in columns if name not in first]
    add_replicates(first)
    add_errors(further)
    add_replicates(further)
    return Explorer(
        {
            "noun": view.lineup.noun,
            "training": view.lineup.training,
            "checkpoints": list(_checkpoints(whole, shape_of)),
            "groups": [list(group) for group in view.lineup.groups],
            "shapes": shapes,
            "columns": [*columns.values(), *words],
            "first": {"category": f"category{ending}", "x": f"r_q{ending}", "y": f"r_k{ending}"},
            "thresholds": {f"{name}{end}": marks for end in AXES.values() for name, marks in _thresholds().items()},
            "looks": [*_categories(), *SIGNS],
            "nope_colour": str(NOPE.colour),
            "sizes": [f"r_k{end}" for end in AXES.values()],
            "packing": CODES,
            "curves": curves,
            "left_out": {kind: found for kind, found in left_out.items() if found},
        },
        packer.text(),
    )


def _shapes(parts: Sequence[pd.DataFrame]) -> tuple[list[dict[str, Any]], list[int]]:
    """The different sets of heads that checkpoints have, and which of them each has."""
    shapes: list[dict[str, Any]] = []
    numbers = []
    for part in parts:
        shape = {
            "layers": int(part["layers"].max()),
            **{name: part[name].astype(int).tolist() for name in ("layer", "head")},
            **{name: _flags(part, name) for name in ("rope", "sliding")},
            "k_head": [None if pd.isna(key) else int(key) for key in part["k_head"]] if "k_head" in part else None,
        }
        if shape not in shapes:
            shapes.append(shape)
        numbers.append(shapes.index(shape))
    return shapes, numbers


def _flags(part: pd.DataFrame, name: str) -> list[int | None]:
    if name not in part:
        return [None] * len(part)
    return [None if pd.isna(value) else int(bool(value)) for value in part[name]]


def _checkpoints(view: View, shape_of: Sequence[int]) -> Iterator[dict[str, Any]]:
    for index, (part, sample) in enumerate(zip(view.parts, view.samples, strict=True)):
        first = part.iloc[0]
        groups = len(sample.groups)
        shards = 0 if "shards" not in part or part["shards"].isna().all() else int(part["shards"].max())
        counted = max(groups, shards)
        yield {
            "name": view.lineup.names[index],
            "label": view.lineup.labels[index],
            "group": view.lineup.group_of(index).name,
            "step": None if pd.isna(first["step"]) else int(first["step"]),
            "shape": shape_of[index],
            "groups": list(sample.groups),
            "reach": critical(counted) if counted > 1 else NORMAL,
        }


def _word_columns(rows: pd.DataFrame, ending: str) -> Iterator[tuple[str, Sequence[str]]]:
    endings = [ending, *(other for other in AXES.values() if other != ending)]
    for end in endings:
        for name, words in WORDS.items():
            if f"{name}{end}" in rows and rows[f"{name}{end}"].notna().any():
                yield f"{name}{end}", words


def _words(packer: Packer, rows: pd.DataFrame, name: str, words: Sequence[str]) -> Spec:
    packed = pack_words(rows[name].to_numpy(dtype=object), list(words))
    return {"name": name, "meaning": _meaning(name), "words": list(words), "values": packer.add(packed)}


def _number_columns(rows: pd.DataFrame, ending: str) -> list[str]:
    """Columns of numbers that some head has, without errors: those of the chosen axis first."""
    names = [
        str(name)
        for name in rows
        if name not in NOT_SHOWN
        and not str(name).startswith("se_")
        and pd.api.types.is_numeric_dtype(rows[name])
        and not pd.api.types.is_bool_dtype(rows[name])
        and np.isfinite(_numbers(rows, str(name))).any()
    ]
    # Without any number they still are what the page is about.
    first = [f"{name}{ending}" if f"{name}{ending}" in rows else name for name in FIRST]
    return [*first, *(name for name in names if name not in first)]


def _numbers(rows: pd.DataFrame, name: str) -> Floats:
    return rows[name].to_numpy(dtype=float, na_value=np.nan)


def _meaning(name: str) -> str:
    """What a column holds, where the package knows it."""
    return {**QK, **HEADS, **described_columns()}.get(name, "")


def _replicates(samples: Sequence[Sample], name: str) -> tuple[Packed, Packed] | None:
    """How each group of documents moves each head, rows of heads one checkpoint after the other; None without."""
    if not any(name in sample.replicates and len(sample.groups) > 1 for sample in samples):
        return None
    groups = max(len(sample.groups) for sample in samples)
    found = []
    for sample in samples:
        own = np.full((len(sample), groups), np.nan)
        if name in sample.replicates and len(sample.groups) > 1:
            own[:, : len(sample.groups)] = deviations(sample.replicates[name]).T
            own[:, len(sample.groups) :] = 0
        found.append(own)
    return pack_moves(np.concatenate(found))


def _thresholds() -> dict[str, list[float]]:
    return {"r_q": [LOW, HIGH], "r_k": [-HIGH, -LOW, LOW, HIGH], "abs_r_k": [LOW, HIGH]}


def _categories() -> Iterator[dict[str, str]]:
    for name, conditions in rule_conditions():
        yield {
            "name": name,
            "colour": str(CATEGORY_COLOURS[name]),
            "marker": CATEGORY_MARKERS[name],
            "rule": " and ".join(conditions) or "every other head",
        }
