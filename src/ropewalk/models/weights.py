"""The weight files of a model: which they are, whether they are whole, and whether they fit its configuration."""

from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from safetensors import SafetensorError, safe_open

from ropewalk.errors import RopewalkError
from ropewalk.models.documents import CONFIG, read_document
from ropewalk.models.hub import HubUnreachableError, repo_file, repo_names
from ropewalk.reading import open_regular, unreadable
from ropewalk.text import one_line, some

SAFETENSORS = ".safetensors"
WEIGHTS = f"model{SAFETENSORS}"
INDEX = f"{WEIGHTS}.index.json"
PICKLED = "pytorch_model.bin"
PICKLE_INDEX = f"{PICKLED}.index.json"
"""What transformers calls the weight files of a model."""

LONGEST_NAME = 255
"""Characters of a file's name."""


def index_files(index: Any, suffix: str = SAFETENSORS) -> list[str] | None:
    """The weight files that a parsed index names, sorted, each once; None where it is no index.

    A name that leads out of the model's folder, or to a file of another kind than `suffix`, makes it none: an index
    comes from elsewhere.
    """
    names = _named_files(index)
    return None if names is None or not all(name.endswith(suffix) for name in names) else names


def _named_files(index: Any) -> list[str] | None:
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names or not all(_is_inside(name) for name in names.values()):
        return None
    return sorted(set(names.values()))


def _is_inside(name: Any) -> bool:
    """Whether a name is one of a file in a folder or below it, read by the rules of any system."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > LONGEST_NAME:
        return False
    paths = PurePosixPath(name), PureWindowsPath(name)
    return all(path.parts and not path.anchor and ".." not in path.parts for path in paths)


def check_present(place: str, folder: Path) -> None:
    """Stop when a repository or folder does not list all its safetensors weights, before any is fetched."""
    if (folder / WEIGHTS).is_file():
        return
    if (folder / INDEX).is_file():
        _check_listed(place, folder)
        return
    names = repo_names(place, folder)
    if WEIGHTS in names:
        if folder == Path(place):
            raise RopewalkError(f"{folder / WEIGHTS} is not a file that can be read: fetch it again")
        return
    if INDEX in names:
        _index(place, folder)
        return
    if any(name.endswith(".bin") for name in names):
        raise RopewalkError(
            f"{place} has its weights as .bin files, which can run code when read: convert them to safetensors first"
        )
    raise RopewalkError(f"{place} has no weights: it needs {WEIGHTS}, or {INDEX} and the files it names")


def _check_listed(place: str, folder: Path) -> None:
    absent = [name for name in _index(place, folder) if not (folder / name).is_file()]
    try:
        listed = repo_names(place, folder) if absent else []
    except HubUnreachableError:
        # Shards that are there already need no weights any more, and loading says it where they do.
        return
    for name in absent:
        if name not in listed or folder == Path(place):
            raise RopewalkError(f"{place} lacks the weight file {name}, which {INDEX} names: fetch it")


def weight_names(place: str, folder: Path) -> list[str]:
    """Names of the safetensors files that hold a model's weights, at hand or not: one, or those its index names."""
    files, complete = files_at_hand(place, folder)
    if complete:
        return [path.relative_to(folder).as_posix() for path in files]
    check_present(place, folder)
    return [WEIGHTS] if WEIGHTS in repo_names(place, folder) else _index(place, folder)


def weight_files(place: str, folder: Path) -> list[Path]:
    """The safetensors files that hold a model's weights; each must be there, or is fetched."""
    files = []
    for name in weight_names(place, folder):
        path = repo_file(place, folder, name)
        if path is None:
            raise RopewalkError(f"{place} lacks the weight file {name}, which {INDEX} names: fetch it")
        files.append(path)
    return files


def files_at_hand(place: str, folder: Path) -> tuple[list[Path], bool]:
    """The weight files that need not be fetched, and whether those are all: of a repository, what is in the cache."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS], True
    if not (folder / INDEX).is_file():
        return [], False
    names = _index(place, folder)
    files = [folder / name for name in names if (folder / name).is_file()]
    return files, len(files) == len(names)


def _index(place: str, folder: Path) -> list[str]:
    """The files that the index of a model names, each a safetensors file in its folder; a sentence where not."""
    path = repo_file(place, folder, INDEX)
    if path is None:
        raise RopewalkError(f"{place} lists {INDEX} and does not have it: fetch it")
    try:
        index = read_document(path)
    except ValueError:
        index = {}
    except OSError as error:
        raise RopewalkError(
            f"{INDEX} of {place} cannot be read ({error.strerror}): check who may read it, and the disk"
        ) from error
    names = _named_files(index)
    if names is None or not isinstance(index.get("metadata", {}), dict):
        raise RopewalkError(f"{INDEX} of {place} is damaged: fetch it again")
    for name in names:
        if not name.endswith(SAFETENSORS):
            raise RopewalkError(
                f"{INDEX} of {place} names {name}, which is not a safetensors file and is not read: "
                "convert the weights to safetensors first"
            )
    if "metadata" not in index:
        raise RopewalkError(f'{INDEX} of {place} lacks its `metadata`: add "metadata": {{}} to it')
    return names


Header = tuple[tuple[str, str, tuple[int, ...]], ...]
"""What a safetensors file says that it holds: name, type and shape of each tensor."""


def read_header(path: Path) -> Header:
    """The tensors of a safetensors file, without reading them; a sentence where the file is not whole."""
    try:
        # The library says of what may not be read that it is not there.
        open_regular(path).close()
    except OSError as error:
        raise unreadable(path, error, "check who may read it, and the disk") from error
    try:
        with safe_open(path, framework="pt") as file:
            slices = ((name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118 - not a mapping
            return tuple((name, str(one.get_dtype()), tuple(map(int, one.get_shape()))) for name, one in slices)
    # An empty file cannot be mapped into memory at all.
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        raise damaged(path, error) from error


def damaged(path: object, error: object) -> RopewalkError:
    """The sentence on a weight file that is not what its header says."""
    return RopewalkError(f"the weight file {path} is damaged or cut short ({one_line(error)}): fetch it again")


def check_complete(label: str, report: dict[str, Any]) -> None:
    """Stop with the name of the first tensor that is missing, of another shape or left over in a loading report."""
    problems = (
        ("missing_keys", "the files of {label} lack the tensor {name}, which the configuration asks for"),
        ("mismatched_keys", "the tensor {name} of {label} has another shape than the configuration asks for"),
        ("unexpected_keys", "the files of {label} hold the tensor {name}, for which the configuration has no place"),
    )
    for kind, sentence in problems:
        names = sorted(str(name[0] if isinstance(name, tuple) else name) for name in report.get(kind) or ())
        shown = some(names[:1])
        if names:
            others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise RopewalkError(
                sentence.format(label=repr(label), name=shown)
                + others
                + f": the weights and {CONFIG} do not belong together"
            )
