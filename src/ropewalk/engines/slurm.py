"""An array of SLURM jobs, each of some shards of one checkpoint, by submitit."""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.capture.account import Account, ComputedElsewhereError
from ropewalk.capture.shards import is_whole, shard_path
from ropewalk.capture.work import Order, Piece
from ropewalk.capture.working import working
from ropewalk.engines.needs import memory_of, minutes_of
from ropewalk.engines.schedule import ATTEMPTS
from ropewalk.engines.submissions import (
    Outcome,
    Submission,
    need_submitit,
    outcome_path,
    read_submissions,
    submissions_folder,
    write_submissions,
)
from ropewalk.errors import RopewalkError
from ropewalk.files import CannotWriteError
from ropewalk.notes import write_note
from ropewalk.placement import Placement
from ropewalk.progress import logger
from ropewalk.text import count, one_line

PATIENCE = 2.0
"""Seconds between two looks at what is done."""

LONGEST = 1000
"""Characters of a sentence that a job tells."""


@dataclass(frozen=True)
class _Element:
    """One job: shards of one checkpoint."""

    order: Order
    numbers: tuple[int, ...]


class SlurmEngine:
    """Jobs of SLURM. They are left alone once they are submitted, or waited for."""

    name = "slurm"

    def __init__(self, placement: Placement, *, wait: bool = False) -> None:
        self._placement, self._wait = placement, wait
        self._started: list[Any] = []

    def run(self, account: Account) -> None:
        """Submit what is wanted and is not under way yet; with `wait`, stay until it is done."""
        under_way = _under_way(account.study.folder)
        left = {
            name: [number for number in numbers if (name, number) not in under_way]
            for name, numbers in account.wanted.items()
        }
        elements = list(self._elements(account, left))
        if elements:
            self._submit(account, elements)
        if account.orders and not self._wait:
            shards = sum(map(len, account.wanted.values()))
            raise ComputedElsewhereError(
                f"{count(shards, 'shard')} of {account.study.name!r} are with SLURM ({count(len(elements), 'job')} "
                f"submitted now): `ropewalk status {account.study.folder}` tells how far they are; when they are done, "
                "the same command goes on"
            )
        self._await(account)

    def _elements(self, account: Account, left: dict[str, list[int]]) -> Iterator[_Element]:
        """Shards cut into jobs: a checkpoint each, or as many as keep all workers busy."""
        total, workers = sum(map(len, left.values())), self._placement.workers
        most = total if workers is None else -(-total // workers)
        for order in account.orders:
            numbers = left[order.name]
            for start in range(0, len(numbers), max(1, most)):
                yield _Element(order, tuple(numbers[start : start + most]))

    def _submit(self, account: Account, elements: Sequence[_Element]) -> None:
        submitit, place, results = need_submitit(), self._placement, account.study.folder
        cpus, gpus = place.cpus or 1, place.gpus or 0
        costs = {one.order.name: account.cost(one.order) for one in elements}
        memory = place.memory_gb or max(map(memory_of, costs.values())) / 2**30
        minutes = place.minutes or max(
            minutes_of(costs[one.order.name], len(one.numbers), cpus, gpus) for one in elements
        )
        parameters: dict[str, Any] = {
            "name": f"ropewalk-{account.study.name}",
            "timeout_min": minutes,
            "mem_gb": math.ceil(memory),
            "cpus_per_task": cpus,
            "gpus_per_node": gpus,
        }
        if place.cluster == "slurm":
            parameters |= {"slurm_array_parallelism": place.workers or len(elements), **_options(place)}
        try:
            executor = submitit.AutoExecutor(
                folder=submissions_folder(results), cluster="local" if place.cluster == "here" else "slurm"
            )
            executor.update_parameters(**parameters)
            jobs = executor.map_array(
                work_off,
                [one.order.pinned() for one in elements],
                [[account.piece(one.order, number) for number in one.numbers] for one in elements],
                [results.absolute()] * len(elements),
            )
        # submitit says what is missing, and what sbatch did not like, each in its own way.
        except (RuntimeError, ValueError, NameError, OSError, submitit.core.utils.FailedSubmissionError) as error:
            raise RopewalkError(
                f"SLURM did not take the jobs ({one_line(error)}): run this where `sbatch` is, or correct `options` of "
                "`engine`"
            ) from error
        self._started += jobs
        made = [
            Submission(
                job=job.job_id,
                cluster=place.cluster,
                checkpoint=one.order.name,
                shards=one.numbers,
                since=time.time(),
                minutes=minutes,
            )
            for job, one in zip(jobs, elements, strict=True)
        ]
        write_submissions(results, [*read_submissions(results), *made])
        logger.info("%s submitted, of %d minutes at most", count(len(jobs), "job"), minutes)

    def _await(self, account: Account) -> None:
        """Tell the account of shards as they come; jobs that end without theirs are submitted again.

        What cannot be written stops everything.
        """
        results = account.study.folder
        left = {(order.name, number): order for order in account.orders for number in account.wanted[order.name]}
        tries = 1
        while True:
            submissions = read_submissions(results)
            for job in self._started:
                job.done()  # where they are processes of this one, they are not gone before it asked
            ended = [one for one in submissions if one.has_ended(results)]
            # After asking who ended: they have written their shards.
            for (name, number), order in list(left.items()):
                path = shard_path(order.folder, number)
                if path.is_file() and is_whole(path):
                    account.begun(order, number)
                    account.done(order, number)
                    del left[name, number]
            for one in ended:
                outcome = one.outcome(results)
                if outcome is not None and outcome.cannot_write is not None:
                    raise CannotWriteError(one_line(outcome.cannot_write, LONGEST))
            if len(ended) < len(submissions):
                time.sleep(PATIENCE)
                continue
            for order, numbers, reason, final in _missed(results, submissions, left):
                if final or tries == ATTEMPTS:
                    often = "" if final else f" (in each of {ATTEMPTS} attempts)"
                    account.failed(order, numbers, reason + often)
                    for number in numbers:
                        del left[order.name, number]
            write_submissions(results, [])
            if not left:
                return
            tries += 1
            again = {name: [number for own, number in left if own == name] for name in account.wanted}
            logger.warning("%s did not come from their jobs: they are submitted again", count(len(left), "shard"))
            self._submit(account, list(self._elements(account, again)))


def _under_way(results: Path) -> set[tuple[str, int]]:
    """The shards of jobs that were submitted earlier and have not ended; those that have are forgotten."""
    living = [one for one in read_submissions(results) if not one.has_ended(results)]
    write_submissions(results, living)
    return {(one.checkpoint, number) for one in living for number in one.shards}


def _missed(
    results: Path, submissions: Sequence[Submission], left: Mapping[tuple[str, int], Order]
) -> Iterator[tuple[Order, list[int], str, bool]]:
    """The shards that jobs ended without: whose, which, why, and whether the same would come again."""
    for submission in submissions:
        numbers = [number for number in submission.shards if (submission.checkpoint, number) in left]
        if not numbers:
            continue
        order, outcome = left[submission.checkpoint, numbers[0]], submission.outcome(results)
        failures = {} if outcome is None else outcome.failures
        for reason in dict.fromkeys(failures[number] for number in numbers if number in failures):
            told = [number for number in numbers if failures.get(number) == reason]
            yield order, told, one_line(reason, LONGEST), True
        silent = [number for number in numbers if number not in failures]
        if silent:
            log = f"its log is in {submissions_folder(results)}"
            yield order, silent, f"its job {submission.job} ended without it ({log})", False


def _options(placement: Placement) -> dict[str, Any]:
    """What is passed to sbatch as it is: by submitit where it knows the option, and past it where not."""
    known = set(need_submitit().SlurmExecutor._valid_parameters())
    options = {f"slurm_{name}": value for name, value in placement.options.items() if name in known}
    others = {name.replace("_", "-"): value for name, value in placement.options.items() if name not in known}
    return {**options, **({"slurm_additional_parameters": others} if others else {})}


def work_off(order: Order, pieces: Sequence[Piece], results: Path) -> None:
    """What a job does: compute shards of one checkpoint, and write down those that cannot be, each with a sentence."""
    try:
        outcome = Outcome(failures=_worked_off(order, pieces, results))
    except CannotWriteError as error:
        outcome = Outcome(cannot_write=str(error))
    write_note(outcome_path(results, need_submitit().JobEnvironment().job_id), outcome)


def _worked_off(order: Order, pieces: Sequence[Piece], results: Path) -> dict[int, str]:
    import torch

    from ropewalk.engines.hand import Hand
    from ropewalk.progress import listening

    failures: dict[int, str] = {}
    if "SLURM_CPUS_PER_TASK" in os.environ:
        torch.set_num_threads(int(os.environ["SLURM_CPUS_PER_TASK"]))
    with listening(), working(results, "slurm") as note:
        hand = Hand()
        try:
            facts = hand.open(order)
        except CannotWriteError:
            raise
        except RopewalkError as error:
            return {piece.number: str(error) for piece in pieces}
        if facts is not None:
            order.write_manifest(facts)
        for piece in pieces:
            note.begin(order.name, piece.number)
            try:
                hand.write(piece, lambda _: None)
            except CannotWriteError:
                raise
            except RopewalkError as error:
                failures[piece.number] = str(error)
            note.end(order.name, piece.number)
    return failures
