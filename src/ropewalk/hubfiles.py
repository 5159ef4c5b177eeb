"""Which files of a results folder belong on the hub, and where results that are there stand on this machine."""

import re
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from ropewalk.errors import RopewalkError

CARD = "README.md"
TABLES = ("study.yaml", "seals.json", "*.csv", "*.parquet")
SUMS = ("captures/*/manifest.json", "captures/*/shard-*.safetensors")
PICTURES = (
    "figures*/seals.json",
    "figures*/*/figure.png",
    "figures*/*/figure.pdf",
    "figures*/*/README.md",
    "report.html",
)
"""Patterns of what is pushed. Tokens, kept vectors and the mark with its path of this machine stay here."""

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def pushed_names(folder: Path, *, sums: bool) -> list[str]:
    """Names of the files of a results folder that are pushed, in order; with or without the sums of shards."""
    patterns = (*TABLES, *(SUMS if sums else ()), *PICTURES)
    found = {path.relative_to(folder).as_posix() for pattern in patterns for path in folder.glob(pattern)}
    return sorted(name for name in found if not any(part.startswith(".") for part in PurePosixPath(name).parts))


def is_ours(name: str) -> bool:
    """Whether a file of a dataset has the name of one that is pushed."""
    return name == CARD or _is_one_of(name, (*TABLES, *SUMS, *PICTURES))


def _is_one_of(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name matches a pattern, folder by folder."""
    parts = name.split("/")
    return any(
        len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
        for wanted in (pattern.split("/") for pattern in patterns)
    )


def local_results(path: Path | str) -> Path:
    """Where results stand: a path as it is, and for `owner/name` the hub dataset's tables and sums in the cache.

    A path whose first part is a folder here is a path.
    """
    local, name = Path(path), str(path)
    if local.exists() or not NAME.fullmatch(name) or Path(name.split("/")[0]).exists():
        return local
    # Only here: what reads folders does not wait for the hub's client.
    from ropewalk.models.hub import dataset_folder, dataset_names

    commit, names = dataset_names(name, None)
    wanted = [one for one in names if _is_one_of(one, (*TABLES, *SUMS))]
    if "qk.csv" not in wanted:
        raise RopewalkError(
            f"the dataset {name} on the hub holds no results: it has no qk.csv; give one that `ropewalk push` wrote, "
            "or the folder of a run"
        )
    return dataset_folder(name, commit, wanted)
