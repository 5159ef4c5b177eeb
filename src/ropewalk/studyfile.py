"""Reading a study: from its file or from plain data, checked whole before anything heavy starts."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.models.source import locate
from ropewalk.ownership import Owner
from ropewalk.reading import check_name
from ropewalk.statistics.registry import find
from ropewalk.study import KIND, Checkpoint, Study, content_fingerprint
from ropewalk.validation import validated
from ropewalk.yamlfile import Lines, Location, read_yaml


def load_study(path: Path | str, results: Path | str | None = None) -> Study:
    """Read and check a study file; relative folders in it are taken from where the file stands.

    `results` is the results folder in place of the one that the study names, which must lie below the current folder
    or below the study's: a study may come from elsewhere, and where it writes is not for it to choose.
    """
    path = Path(path)
    check_name(path.absolute())
    file = read_yaml(path, "study")
    study = parse_study(file.data, base=path.parent, name=str(path), lines=file.line)
    study = study.owned_by(Owner(KIND, study.name, str(path.resolve()), content_fingerprint(file.data)))
    if results is not None:
        check_name(results)
        return study.model_copy(update={"results": str(results)})
    homes = [folder.resolve() for folder in (Path(), path.parent)]
    if study.results and not any(study.folder.resolve().is_relative_to(home) for home in homes):
        raise RopewalkError(
            f"{path} wants to write to {study.folder}, which is neither below the current folder nor below its own: "
            f"if that is right, add `--results {study.folder}`; else take `results` out of the study"
        )
    return study


def check_study(data: Any, name: str, lines: Lines | None = None) -> Study:
    """Check a study given as plain data, without looking for what it names; `name` is what messages call it.

    `lines` tells where in a file a value stands.
    """
    return validated(Study, data, name, lines, lambda location: _written(location, data))


def parse_study(data: Any, base: Path = Path(), name: str = "the study", lines: Lines | None = None) -> Study:
    """Check a study given as plain data and find its folders; see `load_study`."""
    study = check_study(data, name, lines)
    _check_statistics(study.capture.statistics, name, lines)
    checkpoints = tuple(_placed(checkpoint, base) for checkpoint in study.checkpoints)
    corpus = study.corpus.model_copy(
        update={
            "paths": tuple(str(base / pattern) for pattern in study.corpus.paths),
            "repo": study.corpus.repo and locate(study.corpus.repo, base, "corpus.repo"),
        }
    )
    placed = study.model_copy(update={"checkpoints": checkpoints, "corpus": corpus})
    return placed.owned_by(Owner(KIND, study.name, "", content_fingerprint(data)))


def _check_statistics(statistics: Mapping[str, Mapping[str, Any]], name: str, lines: Lines | None) -> None:
    """Say which statistic, or option of one, is not known; a record may name some that are not known here."""
    for statistic, options in statistics.items():
        place: Location = ("capture", "statistics", statistic)
        try:
            known = find(statistic)
        except RopewalkError as error:
            line = lines(place) if lines is not None else None
            raise RopewalkError(f"{name}{f' line {line}' if line else ''}: {error}") from error
        validated(known, dict(options), name, lines, partial(_below, place))


def _below(place: Location, location: Location) -> Location:
    return (*place, *location)


def _written(location: Location, data: Any) -> Location:
    """Where a value of a merged checkpoint was written: in the checkpoint or among the defaults."""
    match location:
        case "checkpoints", int(index), field, *rest if isinstance(data["checkpoints"][index], dict):
            if field in data["checkpoints"][index]:
                return location
            if field in (data.get("defaults") or {}):
                return "defaults", field, *rest
            if field == "label":
                return _written(("checkpoints", index, "name", *rest), data)
    return location


def _placed(checkpoint: Checkpoint, base: Path) -> Checkpoint:
    places = {
        field: locate(getattr(checkpoint, field), base, f"{field} of checkpoint {checkpoint.label!r}")
        for field in ("repo", "tokenizer", "source")
        if getattr(checkpoint, field)
    }
    if checkpoint.gguf_file and checkpoint.repo and Path(places["repo"]).is_dir():
        file = Path(places["repo"]) / checkpoint.gguf_file
        if not file.is_file():
            raise RopewalkError(f"gguf_file of checkpoint {checkpoint.label!r} is missing: there is no {file}")
    return checkpoint.model_copy(update=places)
