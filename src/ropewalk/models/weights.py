"""The weight files of a model: which they are, whether they are whole, and whether they fit its configuration."""

import json
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from safetensors import SafetensorError, safe_open

from ropewalk.errors import RopewalkError
from ropewalk.models.hub import repo_file, repo_names

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
PICKLED = "pytorch_model.bin"
PICKLE_INDEX = f"{PICKLED}.index.json"
"""What transformers calls the files of a model."""


def index_files(index: Any) -> list[str] | None:
    """The weight files that a parsed index names, sorted, each once; None where it is no index.

    A name that leads out of the model's folder makes it none: an index comes from elsewhere.
    """
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names or not all(_is_inside(name) for name in names.values()):
        return None
    return sorted(set(names.values()))


def _is_inside(name: Any) -> bool:
    """Whether a name is one of a file in a folder or below it, read by the rules of any system."""
    if not isinstance(name, str) or not name.isprintable():
        return False
    paths = PurePosixPath(name), PureWindowsPath(name)
    return all(path.parts and not path.anchor and ".." not in path.parts for path in paths)


def check_present(place: str, folder: Path) -> None:
    """Stop when a repository or folder lists no safetensors weights, before any is fetched."""
    if (folder / WEIGHTS).exists() or (folder / INDEX).exists():
        return
    names = repo_names(place, folder)
    if WEIGHTS in names or INDEX in names:
        return
    if any(name.endswith(".bin") for name in names):
        raise RopewalkError(
            f"{place} has its weights as .bin files, which can run code when read: convert them to safetensors first"
        )
    raise RopewalkError(f"{place} has no weights: it needs {WEIGHTS}, or {INDEX} and the files it names")


def weight_files(place: str, folder: Path) -> list[Path]:
    """The safetensors files that hold a model's weights: one, or those its index names; each must be there."""
    single = repo_file(place, folder, WEIGHTS)
    if single is not None:
        return [single]
    check_present(place, folder)
    index = repo_file(place, folder, INDEX)
    if index is None:
        raise RopewalkError(f"{place} lists {INDEX} and does not have it: fetch it")
    names = _index(index)
    if names is None:
        raise RopewalkError(f"{INDEX} of {place} is damaged: fetch it again")
    files = {name: repo_file(place, folder, name) for name in names}
    for name, path in files.items():
        if path is None:
            raise RopewalkError(f"{place} lacks the weight file {name}, which {INDEX} names: fetch it")
    return [path for path in files.values() if path is not None]


def _index(path: Path) -> list[str] | None:
    try:
        return index_files(json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        return None


def check_complete(label: str, report: dict[str, Any]) -> None:
    """Stop with the name of the first tensor that is missing, of another shape or left over in a loading report."""
    problems = (
        ("missing_keys", "the files of {label} lack the tensor {name}, which the configuration asks for"),
        ("mismatched_keys", "the tensor {name} of {label} has another shape than the configuration asks for"),
        ("unexpected_keys", "the files of {label} hold the tensor {name}, for which the configuration has no place"),
    )
    for kind, sentence in problems:
        names = sorted(str(name[0] if isinstance(name, tuple) else name) for name in report.get(kind) or ())
        if names:
            others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise RopewalkError(
                sentence.format(label=repr(label), name=names[0])
                + others
                + f": the weights and {CONFIG} do not belong together"
            )


def is_whole(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says."""
    try:
        with safe_open(path, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False
