"""What is wrong with a checkpoint series, told from file metadata before any weights are downloaded."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ropewalk.models.documents import CONFIG, TOKENIZERS
from ropewalk.models.weights import INDEX, PICKLE_INDEX, PICKLED, SAFETENSORS, WEIGHTS, index_files
from ropewalk.series.hub import Contents, Series
from ropewalk.series.known import KNOWN
from ropewalk.text import LONGEST_NAME, one_line, some

_BOOKKEEPING = frozenset({"_name_or_path", "transformers_version"})
_ABSENT = "(absent)"

# The order in which a model's weights are looked for: the first that is there is the one loaded.
_WEIGHTS = (WEIGHTS, INDEX, PICKLED, PICKLE_INDEX)


@dataclass(frozen=True)
class Finding:
    """One fact about some branches, in one sentence; `unusable` branches cannot be loaded at all."""

    kind: str
    branches: tuple[str, ...]
    text: str
    unusable: bool = False


@dataclass(frozen=True)
class Weights:
    """The weight files that loading a branch would fetch, in order, and those its index names that are not there."""

    files: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def pickled(self) -> bool:
        """Whether they are .bin files, not safetensors."""
        return any(name.endswith(".bin") for name in self.files + self.missing)


def weights(contents: Contents) -> Weights | None:
    """Find the weights of a branch; None where it has none, or an index that cannot be read."""
    for name in _WEIGHTS:
        if name not in contents.files:
            continue
        if name not in (INDEX, PICKLE_INDEX):
            return Weights((name,))
        shards = index_files(contents.documents.get(name), SAFETENSORS if name == INDEX else ".bin")
        if shards is None:
            return None
        return Weights(
            tuple(shard for shard in shards if shard in contents.files),
            tuple(shard for shard in shards if shard not in contents.files),
        )
    return None


def download_size(contents: Contents) -> int | None:
    """Bytes of weights that loading a branch would fetch; None where it has none."""
    found = weights(contents)
    return None if found is None else sum(contents.files[name].size for name in found.files)


def audit(series: Series) -> list[Finding]:
    """List what is wrong or worth knowing in the branches of a scanned series, the gravest first.

    Branches with missing weights or config, branches with identical weights (equal digests of the files that would be
    loaded), branches that share some of their weight files, config values that change along the series, branches with
    pickled weights only, branches without a tokenizer.
    """
    held = {branch.name: series.contents[branch.name] for branch in series.branches if branch.name in series.contents}
    found = {name: weights(contents) for name, contents in held.items()}
    return [
        *_missing(held, found),
        *_identical(held, found),
        *_config_changes(held),
        *_pickled(found),
        *_without_tokenizer(series.repo, held),
    ]


def _missing(held: Mapping[str, Contents], found: Mapping[str, Weights | None]) -> Iterator[Finding]:
    gone = [name for name, weights_ in found.items() if weights_ is None]
    if gone:
        what = f"no weights (no {WEIGHTS}, no readable index, no {PICKLED})"
        text = f"{_named(gone, held)} {_has(gone)} {what}."
        yield Finding("missing weights", tuple(gone), text, unusable=True)
    for name, weights_ in found.items():
        if weights_ is not None and weights_.missing:
            lacking, count = len(weights_.missing), len(weights_.files + weights_.missing)
            text = f"{name} lacks {some(weights_.missing)}: {lacking} of the {count} weight files its index names."
            yield Finding("missing weights", (name,), text, unusable=True)
    bare = [name for name, contents in held.items() if contents.config is None]
    if bare:
        text = f"{_named(bare, held)} {_has(bare)} no {CONFIG} that can be read."
        yield Finding("missing config", tuple(bare), text, unusable=True)


def _identical(held: Mapping[str, Contents], found: Mapping[str, Weights | None]) -> Iterator[Finding]:
    by_weights: dict[tuple[str, ...], list[str]] = defaultdict(list)
    holders: dict[str, list[str]] = defaultdict(list)
    for name, weights_ in found.items():
        if weights_ is None:
            continue
        digests = tuple(held[name].files[file].digest for file in weights_.files)
        if not weights_.missing:
            by_weights[digests].append(name)
        for digest in dict.fromkeys(digests):
            holders[digest].append(name)
    same = [tuple(names) for names in by_weights.values() if len(names) > 1]
    for names in same:
        text = f"{_named(names, held)} have identical weights: one checkpoint under {len(names)} names."
        yield Finding("identical weights", names, text)
    shared: dict[tuple[str, ...], int] = defaultdict(int)
    for group in holders.values():
        if len(group) > 1 and tuple(group) not in same:
            shared[tuple(group)] += 1
    for names, count in shared.items():
        files = "a weight file" if count == 1 else f"{count} weight files"
        yield Finding(
            "shared weights", names, f"{_named(names, held)} share {files}: a part of their weights is the same."
        )


def _config_changes(held: Mapping[str, Contents]) -> Iterator[Finding]:
    configs = [(name, _flat(contents.config)) for name, contents in held.items() if contents.config is not None]
    changes: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (_, before), (name, after) in pairwise(configs):
        for key in sorted(before.keys() | after.keys()):
            old, new = before.get(key, _ABSENT), after.get(key, _ABSENT)
            if old != new:
                changes[key, old, new].append(name)
    for (key, old, new), names in changes.items():
        key, old, new = (one_line(text, LONGEST_NAME) for text in (key, old, new))
        text = f"{CONFIG} changes at {some(names)}: {key} from {old} to {new}."
        yield Finding("config change", tuple(names), text)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Map dotted keys to printable values, so that a nested change names the one value that differs."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif key not in _BOOKKEEPING:
            flat[prefix + key] = str(value)
    return flat


def _pickled(found: Mapping[str, Weights | None]) -> Iterator[Finding]:
    names = tuple(name for name, weights_ in found.items() if weights_ is not None and weights_.pickled)
    if names:
        yield Finding(
            "pickled weights",
            names,
            f"{_named(names, found)} {_has(names)} weights as .bin files only: convert them to safetensors first.",
            unusable=True,
        )


def _without_tokenizer(repo: str, held: Mapping[str, Contents]) -> Iterator[Finding]:
    names = tuple(name for name, contents in held.items() if not contents.files.keys() & set(TOKENIZERS))
    if names:
        source = (
            f"the study takes it from {KNOWN[repo].tokenizer}" if repo in KNOWN else "name one in the study's defaults"
        )
        yield Finding("no tokenizer", names, f"{_named(names, held)} {_has(names)} no tokenizer: {source}.")


def _named(names: Sequence[str], held: Mapping[str, object]) -> str:
    return f"All {len(names)} branches" if 1 < len(names) == len(held) else some(names)


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"
