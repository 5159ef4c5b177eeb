"""The weights that a study fetches from the hub: said beforehand, one checkpoint ahead, and discarded where it asks."""

import shutil
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from ropewalk.capture.checks import is_computed
from ropewalk.capture.fetched import clear_damaged, forget, note, noted
from ropewalk.errors import RopewalkError
from ropewalk.models.downloads import Weights, absent_weights, discard, fetch
from ropewalk.models.hub import model_folder
from ropewalk.progress import logger
from ropewalk.study import Checkpoint, Study
from ropewalk.text import count, size

DISCARD = "discard"


@dataclass(frozen=True)
class Needs:
    """What checkpoints still need from the hub, by their names and in their order."""

    weights: Mapping[str, Weights]
    discarded: bool

    @classmethod
    def of(cls, study: Study, checkpoints: Sequence[Checkpoint]) -> "Needs":
        """What of the checkpoints' weights must be fetched, by what the hub lists; finished ones need nothing."""
        left = (one for one in checkpoints if not is_computed(study, one))
        found = {one.name: absent_weights(one) for one in left}
        return cls({name: one for name, one in found.items() if one is not None}, study.downloads == DISCARD)

    @property
    def total(self) -> int:
        """Bytes to fetch."""
        return sum(_joined(one.blobs for one in self.weights.values()).values())

    @property
    def peak(self) -> int:
        """Bytes of them in the cache at one time: all, or where they are discarded, those of two checkpoints."""
        waiting = [one.blobs for one in self.weights.values()]
        here: dict[str, int] = {}
        most = 0
        while waiting and self.discarded:
            here |= _joined(waiting[:2])
            most = max(most, sum(here.values()))
            later = _joined(waiting := waiting[1:])
            here = {blob: length for blob, length in here.items() if blob in later}
        return most if self.discarded else self.total

    def describe(self) -> str:
        """One line for people."""
        at_once = f", of which {size(self.peak)} are kept at a time" if self.peak < self.total else ""
        return (
            f"to fetch from the hub: {size(self.total)} of weights for {count(len(self.weights), 'checkpoint')}"
            f"{at_once}; {size(free_space())} are free in {constants.HF_HUB_CACHE}"
        )

    def check_space(self) -> None:
        """Stop where the disk is too small for what is to be fetched, before anything is."""
        free = free_space()
        if self.peak <= free:
            return
        fewer = Needs(self.weights, True).peak
        remedy = "free some space, or set HF_HOME to a folder on a larger disk"
        if not self.discarded and fewer <= free:
            remedy += f", or set `downloads: discard` in the study, which needs {size(fewer)} at a time"
        raise RopewalkError(
            f"the weights still to be fetched take {size(self.peak)} and {size(free)} are free in "
            f"{constants.HF_HUB_CACHE}: {remedy}"
        )


def free_space() -> int:
    """Bytes that are free where the hub's cache is, or will be."""
    cache = Path(constants.HF_HUB_CACHE).absolute()
    return shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.exists())).free


def survey(study: Study, checkpoints: Sequence[Checkpoint]) -> Needs:
    """What of a study must be fetched; stops where there is no space for it."""
    needs = Needs.of(study, checkpoints)
    needs.check_space()
    return needs


class Downloads:
    """Weights for the jobs of a run: those of the next one are fetched while one computes."""

    def __init__(self, study: Study, needs: Needs) -> None:
        self._study, self._needs = study, needs
        self._labels = {checkpoint.name: checkpoint.label for checkpoint in study.checkpoints}
        self._fetches: dict[str, _Fetch] = {}
        clear_damaged(study.folder)

    def finish(self, name: str, later: Sequence[str]) -> None:
        """Wait until the weights of a checkpoint are here; meanwhile those of the next one of `later` begin to come."""
        if name in self._needs.weights:
            self._begun(name).finish()
        ahead = next((one for one in later if one in self._needs.weights), None)
        if ahead is not None:
            self._begun(ahead)

    def expect(self, name: str) -> None:
        """A checkpoint is begun: whoever fetches its weights, they are to be discarded where the study says so."""
        weights = self._needs.weights.get(name)
        if weights is not None and name not in self._fetches and self._study.downloads == DISCARD:
            note(self._study.folder, weights.commit, weights.absent)

    def release(self, checkpoint: Checkpoint, later: Collection[str]) -> None:
        """The shards of a checkpoint are there: its weights may go, but for what `later` ones need."""
        if self._study.downloads == DISCARD:
            self._discard(checkpoint, later)

    def _begun(self, name: str) -> "_Fetch":
        """The download of a checkpoint's weights, which begins unless it did."""
        if name not in self._fetches:
            weights = self._needs.weights[name]
            if self._study.downloads == DISCARD:
                note(self._study.folder, weights.commit, weights.absent)
            logger.info("%s: fetching %s of weights", self._labels[name], size(sum(weights.blobs.values())))
            self._fetches[name] = _Fetch(weights)
            self._fetches[name].start()
        return self._fetches[name]

    def _discard(self, checkpoint: Checkpoint, later: Collection[str]) -> None:
        """Delete what the study fetched for a checkpoint that is done, but for what others of it still need."""
        repo = str(checkpoint.repo)
        folder = model_folder(repo, checkpoint.revision)
        commit = f"{repo}@{folder.name}"
        names = noted(self._study.folder).get(commit, [])
        others = (one for one in self._study.checkpoints if one.name != checkpoint.name)
        if not names or any(self._shares(checkpoint, other, later) for other in others):
            return
        weights = (self._needs.weights[name] for name in later if name in self._needs.weights)
        kept = {file.blob for one in weights for file in one.files.values()}
        logger.info("%s: %s of weights discarded", checkpoint.label, size(discard(folder, names, kept)))
        forget(self._study.folder, commit)

    def _shares(self, checkpoint: Checkpoint, other: Checkpoint, later: Collection[str]) -> bool:
        """Whether another checkpoint, which is not computed yet, needs the weights of the same commit.

        Those that do not come later in this run are not opened: such a one is known by its repository and revision.
        """
        if other.source is not None or other.random_weights:
            return False
        if other.name in later:
            folders = {model_folder(str(one.repo), one.revision) for one in (checkpoint, other)}
            same = len(folders) == 1
        else:
            same = (other.repo, other.revision) == (checkpoint.repo, checkpoint.revision)
        return same and not is_computed(self._study, other)


class _Fetch(threading.Thread):
    """Fetches weights in the background; what goes wrong is raised where they are waited for."""

    def __init__(self, weights: Weights) -> None:
        # A run that is stopped does not wait for gigabytes, and a part of a file is none in the cache.
        super().__init__(daemon=True)
        self._weights = weights
        self._error: BaseException | None = None

    def run(self) -> None:
        """Fetch."""
        try:
            fetch(self._weights)
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Wait until all is there."""
        self.join()
        if self._error is not None:
            raise self._error


def _joined(blobs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return {blob: length for own in blobs for blob, length in own.items()}
