"""Which model it is: where it came from, for people, and a fingerprint of what decides its numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ropewalk.fingerprint import file_fingerprint, fingerprint, local_origin
from ropewalk.models.device import compute_dtype
from ropewalk.models.documents import CONFIG, read_config
from ropewalk.models.hub import model_folder, repo_file
from ropewalk.models.source import ModelSource
from ropewalk.models.weights import weight_files

Digest = Callable[[Path], str]
"""What gives the SHA-256 of a file: by reading it, or from memory."""


def model_origin(source: ModelSource, digest: Digest = file_fingerprint) -> str:
    """Where a model comes from: `repo@commit` of the hub, or the contents of the files in a folder."""
    repo = str(source.repo)
    folder = model_folder(repo, source.revision)
    return local_origin(_contents(source, folder, digest)) if folder == Path(repo) else f"{repo}@{folder.name}"


def model_fingerprint(source: ModelSource, config: Any, origin: str | None = None) -> str:
    """A hash of what decides the model's numbers: weights, configuration, overrides, type, attention.

    The type is the one that the model runs in: where `auto` comes to another one on another machine, its shards are not
    taken for the same. Neither the label counts, nor the device, nor the version of transformers: shards say that for
    themselves. `origin` is what `model_origin` gave, if it is at hand. Weights that are random do not depend on a
    commit, but on the configuration.
    """
    folder = model_folder(str(source.repo), source.revision)
    if source.random_weights:
        weights: Any = [_contents(source, folder), source.weights_seed]
    else:
        weights = model_origin(source) if origin is None else origin
    return fingerprint(
        [
            weights,
            source.overrides,
            compute_dtype(source, config),
            source.attention,
            source.gguf_file,
            _runs_own_code(source, folder),
        ]
    )


def _contents(source: ModelSource, folder: Path, digest: Digest = file_fingerprint) -> str:
    """A hash of the files of a model that decide its numbers; of random weights, of the configuration alone."""
    repo = str(source.repo)
    if source.gguf_file:
        return digest(_needed(source, folder, source.gguf_file))
    parts: list[Any] = [_config(source, folder)]
    if not source.random_weights:
        parts += [[path.name, digest(path)] for path in weight_files(repo, folder)]
    if _runs_own_code(source, folder):
        parts += [[name, file_fingerprint(folder / name)] for name in _code(folder)]
    return fingerprint(parts)


def _config(source: ModelSource, folder: Path) -> dict[str, Any]:
    """config.json, without what says nothing of the model."""
    data = read_config(str(source.repo), _needed(source, folder, CONFIG))
    return {key: value for key, value in data.items() if key not in ("_name_or_path", "transformers_version")}


def _code(folder: Path) -> list[str]:
    """The names of all Python files in a folder and below, which code that is trusted may import."""
    paths = (path.relative_to(folder) for path in folder.rglob("*.py") if path.is_file())
    return sorted(path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts))


def _runs_own_code(source: ModelSource, folder: Path) -> bool:
    return source.trust_remote_code and not source.gguf_file and bool(_config(source, folder).get("auto_map"))


def _needed(source: ModelSource, folder: Path, name: str) -> Path:
    path = repo_file(str(source.repo), folder, name)
    # `load_config` comes first, and says so where it is missing.
    assert path is not None, name
    return path
