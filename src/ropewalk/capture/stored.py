"""A checkpoint's capture as one object: on disk (its manifest now, its sums when asked for), or in memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ropewalk.capture.manifest import MANIFEST, damaged, manifest_facts, model_facts, read_manifest, write_manifest
from ropewalk.capture.shards import (
    Provenance,
    Shard,
    ShardSums,
    WrongShardError,
    capture_folder,
    open_shards,
    prefix_of,
    shard_path,
    shard_versions,
    write_shard,
)
from ropewalk.capture.vector_layouts import checked_layout
from ropewalk.errors import RopewalkError
from ropewalk.models.layout import Head, Layout
from ropewalk.progress import logger
from ropewalk.seals import Ledger
from ropewalk.statistics.arrays import Checked, unlike_heads
from ropewalk.statistics.base import KINDS, LayerHeads, Scope, Statistic, Sums, layers_of
from ropewalk.statistics.moments import MomentSums
from ropewalk.statistics.registry import build, is_known
from ropewalk.study import Study
from ropewalk.text import one_line, some
from ropewalk.versions import Versions, installed


class StoredCapture:
    """A checkpoint's finished capture on disk: its manifest now, its sums when they are asked for.

    `dtype` and `proof` are None where the manifest was written before captures proved themselves.
    """

    def __init__(self, folder: Path, label: str) -> None:
        self.folder, self.label = folder, label
        self._checked: set[int] = set()
        manifest = read_manifest(folder)
        try:
            self.layout = checked_layout(manifest["layout"])
            self.heads = [Head(*head) for head in manifest["heads"]]
            self.scope = Scope(**manifest["scope"])
            self.statistics = {name: one["options"] for name, one in manifest["statistics"].items()}
            self.dtype: str | None = manifest.get("dtype")
            self.proof: Mapping[str, Any] | None = manifest.get("proof")
            self.provenances = [
                Provenance(manifest["model"], tokens, manifest["settings"]) for tokens in manifest["tokens_of_shards"]
            ]
            known = {layer.layer: layer for layer in self.layout.layers}
            if not all(
                head.head in range(known[head.layer].query_heads) and head.k_head in range(known[head.layer].key_heads)
                for head in self.heads
            ):
                raise ValueError("it names heads that are not in its layout")
            if MomentSums.name not in self.statistics:
                raise ValueError("it has no moments")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise damaged(folder / MANIFEST) from error

    @property
    def provenance(self) -> str:
        """A fingerprint of all shards together."""
        return _joined(self.provenances)

    @property
    def versions(self) -> dict[int, Versions]:
        """Versions of what each shard was made with."""
        if "_files" in vars(self):  # all are there, and known to be whole
            return {number: shard.versions for number, shard in enumerate(self._files)}
        return {number: made for number, made in shard_versions(self.folder).items() if number < len(self.provenances)}

    def shard(self, number: int) -> ShardSums:
        """All sums of one shard."""
        return {(name, layer): sums for name, layer, sums in self._sums(self._files[number], self.statistics)}

    def check_shard(self, number: int) -> None:
        """Stop where a shard is not what the manifest says of it; of statistics that are not known here, its heads."""
        for _, _, sums in self._sums(self._open([number])[0], [name for name in self.statistics if is_known(name)]):
            for name in sums:
                sums[name]

    def parts(self, statistic: str, heads: LayerHeads) -> list[Sums]:
        """Sums of one statistic and layer, per shard."""
        if heads.layer.layer not in self._checked:
            for shard in self._files:
                _check_heads(shard, heads)
            # Once: all statistics of a layer are of the same heads.
            self._checked.add(heads.layer.layer)
        parts = [self._read(shard, statistic, heads) for shard in self._files]
        if self._built[statistic].same_names:
            for shard, part in zip(self._files, parts, strict=True):
                if part.keys() != parts[0].keys():
                    which = prefix_of(statistic, heads.layer.layer)
                    raise WrongShardError(shard.path, f"its arrays {which} are not those of {self._paths[0].name}")
        return parts

    @property
    def is_complete(self) -> bool:
        """Whether all its shards are there."""
        return all(path.is_file() for path in self._paths)

    @property
    def _paths(self) -> list[Path]:
        return [shard_path(self.folder, number) for number in range(len(self.provenances))]

    @cached_property
    def _built(self) -> dict[str, Statistic]:
        return {
            one.name: one for one in build({name: self.statistics[name] for name in filter(is_known, self.statistics)})
        }

    @cached_property
    def _files(self) -> list[Shard]:
        paths = self._paths
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise RopewalkError(
                f"{self.label!r} has {len(paths) - len(missing)} of its {len(paths)} shards ({missing[0]} is missing): "
                "run `ropewalk capture STUDY` again, which computes the others"
            )
        return self._open(range(len(paths)))

    def _open(self, numbers: Sequence[int]) -> list[Shard]:
        shards = open_shards([self._paths[number] for number in numbers])
        for number, shard in zip(numbers, shards, strict=True):
            if shard.provenance != self.provenances[number]:
                raise RopewalkError(
                    f"{shard.path} was made from another model, documents or settings than {MANIFEST} beside it "
                    "names: run `ropewalk capture STUDY` again, which tells them apart"
                )
        return shards

    def _sums(self, shard: Shard, statistics: Iterable[str]) -> Iterator[tuple[str, int, Sums]]:
        for heads in layers_of(self.layout, self.heads):
            _check_heads(shard, heads)
            for name in statistics:
                yield name, heads.layer.layer, self._read(shard, name, heads)

    def _read(self, shard: Shard, statistic: str, heads: LayerHeads) -> Sums:
        prefix = prefix_of(statistic, heads.layer.layer)
        sums = shard.read(prefix)

        def refusal(wrong: str) -> WrongShardError:
            return WrongShardError(shard.path, f"in {prefix}, {one_line(wrong, 200)}")

        # A shard may come from a stranger, who can write a seal.
        expected = self._built[statistic].stored_arrays(heads, self.scope, sums.keys())
        if expected is not None:
            return Checked(sums, expected, refusal)
        wrong = unlike_heads(sums, {kind: len(heads.numbers(kind)) for kind in KINDS})
        if wrong is not None:
            raise refusal(wrong)
        return sums


def _check_heads(shard: Shard, heads: LayerHeads) -> None:
    found = shard.read(prefix_of("heads", heads.layer.layer))
    if any(kind not in found or found[kind].tolist() != list(heads.numbers(kind)) for kind in KINDS):
        raise WrongShardError(shard.path, f"its heads of layer {heads.layer.layer} are others")


def stored_captures(results: Path, study: Study) -> dict[str, StoredCapture]:
    """The captures of a results folder, by checkpoint: those that have a manifest, be all shards there or not."""
    folders = {(one.name, one.label): capture_folder(results, one.slug) for one in study.checkpoints}
    return {
        name: StoredCapture(folder, label) for (name, label), folder in folders.items() if (folder / MANIFEST).is_file()
    }


def finished_captures(results: Path, study: Study) -> dict[str, StoredCapture]:
    """The captures of a results folder that have all their shards, by checkpoint; it is said which do not."""
    captures = {name: captured for name, captured in stored_captures(results, study).items() if captured.is_complete}
    if not captures:
        raise RopewalkError(f"{results} holds no finished capture of a checkpoint: run `ropewalk capture STUDY` first")
    left_out = [one.label for one in study.checkpoints if one.name not in captures]
    if left_out:
        logger.warning("the tables lack %s: not all shards are there", some(left_out, 10))
    return captures


def tabulated_captures(folder: Path, study: Study) -> dict[str, StoredCapture]:
    """The captures that the tables of a folder are of, or would be of: shards that were lost since do not change that.

    One that was never finished is in none.
    """
    ledger = Ledger.read(folder)
    known = {} if ledger is None else ledger.shards
    captures = stored_captures(folder, study)
    return {name: captured for name, captured in captures.items() if captured.is_complete or name in known}


def one_layout(layouts: Sequence[Layout]) -> Layout:
    """Layers and heads of the model that captures are of, where all have the same."""
    if not layouts:
        raise RopewalkError("these results are tables alone, which do not hold a layout: load the folder of a run")
    if any(layout != layouts[0] for layout in layouts):
        raise RopewalkError("these results are of models with different layouts: use `layouts`, by checkpoint")
    return layouts[0]


@dataclass(frozen=True)
class MemoryCapture:
    """A checkpoint's capture that was never written: the sums of each group of documents, by (statistic, layer)."""

    layout: Layout
    heads: list[Head]
    scope: Scope
    statistics: Mapping[str, Mapping[str, Any]]
    provenances: Sequence[Provenance]
    shards: Sequence[ShardSums]
    made_with: Versions = field(default_factory=installed)
    dtype: str | None = None
    proof: Mapping[str, Any] | None = None

    @property
    def versions(self) -> dict[int, Versions]:
        """Versions of what each group was made with."""
        return dict.fromkeys(range(len(self.provenances)), self.made_with)

    @property
    def provenance(self) -> str:
        """A fingerprint of all groups together."""
        return _joined(self.provenances)

    def shard(self, number: int) -> ShardSums:
        """All sums of one group of documents."""
        return self.shards[number]

    def parts(self, statistic: str, heads: LayerHeads) -> list[Sums]:
        """Sums of one statistic and layer, per group of documents."""
        return [shard[statistic, heads.layer.layer] for shard in self.shards]


def write_captures(results: Path, study: Study, captures: "Mapping[str, StoredCapture | MemoryCapture]") -> None:
    """Write captures, by checkpoint, into a results folder."""
    for checkpoint in study.checkpoints:
        if checkpoint.name in captures:
            write_capture(capture_folder(results, checkpoint.slug), captures[checkpoint.name], checkpoint.name)


def write_capture(folder: Path, captured: "StoredCapture | MemoryCapture", checkpoint: str) -> None:
    """Write a capture as a run of its study would have: its manifest and its shards."""
    manifest = {
        "checkpoint": checkpoint,
        **manifest_facts(captured.scope, captured.provenances, build(captured.statistics)),
        **model_facts(captured.layout, captured.heads, captured.dtype, captured.proof),
    }
    write_manifest(folder, manifest)
    heads, versions = layers_of(captured.layout, captured.heads), captured.versions
    for number, provenance in enumerate(captured.provenances):
        write_shard(shard_path(folder, number), captured.shard(number), heads, provenance, versions[number])


def _joined(provenances: Sequence[Provenance]) -> str:
    return "".join(f"{one.model} {one.tokens} {one.settings}\n" for one in provenances)
