"""Is a file of statistics true of a model? A short fresh capture, and every fault that could be told from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ropewalk.capture.encoding import encode
from ropewalk.capture.texts import texts
from ropewalk.corpora import Corpus
from ropewalk.errors import RopewalkError
from ropewalk.export.claims import Claim, Key, Stated, read_claim
from ropewalk.export.faults import OTHER_MODEL, OTHER_TEXTS, SWAPPED, Fresh, Verdict, judge
from ropewalk.geometry.moments import merge_all
from ropewalk.models.layout import AttentionLayer, Layout
from ropewalk.models.probe import position_limit, read_layout
from ropewalk.models.proof import Finding
from ropewalk.models.rotary import with_rotary
from ropewalk.models.tap import evaluating
from ropewalk.scrutiny.fresh import Capture
from ropewalk.statistics.base import KINDS
from ropewalk.statistics.frame import PRE
from ropewalk.text import count, spans

DOCUMENTS, CONTEXT, LONGEST = 8, 512, 4096
"""Fresh documents; their tokens where the file does not say, and at most."""
LAYERS = 8
"""Layers that are looked at: a short capture of them tells what a long one of all would."""

OTHER_LAYER = "layers in another order"


def examine_statistics(
    model: nn.Module, path: Path, tokenizer: Any, files: Sequence[str] = (), documents: Sequence[Any] = ()
) -> list[Finding]:
    """Hold a file of statistics against a model, over a few texts (those of Python's own library by default).

    `documents` are rows of token ids in place of texts.
    """
    claim = read_claim(path)
    context = min(claim.context or CONTEXT, LONGEST, position_limit(model))
    rows = np.array([list(row)[:context] for row in documents]) if len(documents) else _rows(tokenizer, files, context)
    if (claim.skip_first or 0) >= rows.shape[1] - 1:
        raise RopewalkError(
            f"{path} leaves the first {claim.skip_first} tokens out, and here {rows.shape[1]} can be run: nothing is "
            "left to compare"
        )
    with evaluating(model):
        layout = with_rotary(model, read_layout(model), rows.shape[1])
        shape = list(_shape(claim, layout))
        if shape:
            return shape
        looked_at = _chosen(layout, claim)
        fresh = Capture(layout, looked_at, claim.skip_first or 0).of(model, rows)
    numbers = {layer.layer for layer in looked_at}
    comparable = {key: one for key, one in claim.stated.items() if key in fresh and key[0] in numbers}
    if claim.context is not None and claim.context != rows.shape[1]:
        # After the rotation, statistics are of the positions that there were.
        comparable = {key: one for key, one in comparable.items() if key[2] == PRE}
    if not comparable:
        raise RopewalkError(
            f"{path} holds nothing that can be compared: its statistics are after the rotation over {claim.context} "
            f"tokens, and here {rows.shape[1]} can be run: export them with {PRE!r} (`frame: full`)"
        )
    verdicts = {key: _judged(key, one, fresh) for key, one in comparable.items()}
    return list(_told(verdicts))


def _shape(claim: Claim, layout: Layout) -> Iterator[Finding]:
    """What is wrong with the shape of a file, before anything is measured."""
    if claim.depth != layout.depth:
        yield Finding("wrong layer count", False, f"the file has {claim.depth} and the model {layout.depth}")
        return
    known = {layer.layer: layer for layer in layout.layers}
    for (number, kind, _), one in claim.stated.items():
        layer = known.get(number)
        if layer is None:
            yield Finding("wrong layer count", False, f"layer {number} of the model does not attend")
            return
        heads = layer.query_heads if kind == "q" else layer.key_heads
        if one.mean.shape[1] != layer.head_dim:
            yield Finding("wrong head_dim", False, f"{one.mean.shape[1]} in the file, {layer.head_dim} in the model")
            return
        if len(one.mean) != len(one.heads) or max(one.heads) >= heads:
            what = "query" if kind == "q" else "key"
            yield Finding("wrong head count", False, f"{len(one.mean)} in the file, {heads} {what} heads in the model")
            return


def _chosen(layout: Layout, claim: Claim) -> list[AttentionLayer]:
    """Layers to look at, spread over the depth; some of those that rotate and some of those that do not."""
    stated = [layer for layer in layout.layers if any(key[0] == layer.layer for key in claim.stated)]
    groups = [[one for one in stated if bool(one.rope) is rope] for rope in (True, False)]
    share = [
        min(len(group), LAYERS if not other else LAYERS // 2) for group, other in zip(groups, groups[::-1], strict=True)
    ]
    picked = [
        group[index]
        for group, wanted in zip(groups, share, strict=True)
        for index in sorted({round(at) for at in np.linspace(0, len(group) - 1, wanted)})
    ]
    return sorted(picked, key=lambda layer: layer.layer)


def _rows(tokenizer: Any, files: Sequence[str], context: int) -> NDArray[np.int64]:
    """Tokens [documents, context] of the first texts that are long enough."""
    corpus = Corpus(source="files", paths=tuple(files)) if files else Corpus()
    found: list[Any] = []
    for text in texts(corpus):
        ids = encode(tokenizer, text, context)
        if len(ids) >= context:
            found.append(ids[:context])
        if len(found) == DOCUMENTS:
            break
    if len(found) < 2:
        raise RopewalkError(
            f"{count(len(found), 'text')} of {context} tokens cannot tell how far statistics may be off by chance: "
            "give two longer ones or more with --text"
        )
    return np.stack(found).astype(np.int64)


def _judged(key: Key, stated: Stated, fresh: Mapping[Key, Fresh]) -> Verdict:
    """The verdict on one layer, kind and frame; vectors of the other kind and of other layers are explanations, too."""
    layer, kind, frame = key
    own = _of_heads(fresh[key], stated.heads)
    others = dict(own.others)
    twin = fresh.get((layer, KINDS[1 - KINDS.index(kind)], frame))
    if twin is not None and len(twin.documents[0]) == len(stated.mean):
        others[SWAPPED] = merge_all(twin.documents)
    for (number, of, where), one in fresh.items():
        if number != layer and (of, where) == (kind, frame) and one.documents[0].head_dim == own.documents[0].head_dim:
            whole = merge_all(one.documents)
            if max(stated.heads) < len(whole):
                others[f"{OTHER_LAYER} (it has layer {number}'s)"] = whole[np.array(stated.heads)]
    return judge(stated, replace(own, others=others))


def _of_heads(fresh: Fresh, heads: tuple[int, ...]) -> Fresh:
    index = np.array(heads)
    return replace(
        fresh,
        documents=[one[index] for one in fresh.documents],
        others={name: one[index] for name, one in fresh.others.items()},
    )


def _told(verdicts: Mapping[Key, Verdict]) -> Iterator[Finding]:
    """One finding for each fault with the layers that have it, kinds and frames apart."""
    groups: dict[tuple[str | None, str, str], list[tuple[int, Verdict]]] = {}
    strange = sum(one.fault == OTHER_MODEL for one in verdicts.values())
    for (layer, kind, frame), found in verdicts.items():
        # A model has all its layers: where most are its own, the others are so over other texts.
        few = found.fault == OTHER_MODEL and 2 * strange < len(verdicts)
        one = replace(found, fault=OTHER_TEXTS) if few else found
        groups.setdefault((one.fault, kind, frame), []).append((layer, one))
    for (fault, kind, frame), own in groups.items():
        where = f"{'queries' if kind == 'q' else 'keys'}, {frame}, {_layers([layer for layer, _ in own])}"
        worst = max((one for _, one in own), key=lambda one: one.distance / max(one.error, 1e-300))
        off = f"off by {worst.distance:.2g}, where chance alone gives {worst.error:.2g}"
        if fault is None:
            yield Finding("the statistics are the model's", True, f"{where}: {off}")
        elif fault == OTHER_TEXTS:
            detail = "more than chance, less than another model: they are of other texts (give those with --text)"
            yield Finding(OTHER_TEXTS, None, f"{where}: {off}; {detail}")
        else:
            more = f" ({worst.detail})" if worst.detail else ""
            yield Finding(f"{fault}{more}", False, f"{where}: {off}, and {worst.left:.2g} is left with it")


def _layers(numbers: list[int]) -> str:
    return f"layer{'s' if len(numbers) > 1 else ''} {spans(sorted(numbers))}"
