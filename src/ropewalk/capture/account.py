"""The account of a capture while it is computed: what is wanted, begun, done and failed, wherever it is computed."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ropewalk.capture.downloads import Downloads
from ropewalk.capture.jobs import Job
from ropewalk.capture.plan import Cost, cost
from ropewalk.capture.shards import Pieces, shard_path
from ropewalk.capture.stored import StoredCapture
from ropewalk.capture.work import Bench, Order, Piece
from ropewalk.capture.working import Working
from ropewalk.errors import IncompleteError, RopewalkError
from ropewalk.files import CannotWriteError, write_bytes
from ropewalk.progress import Progress, logger
from ropewalk.study import Study
from ropewalk.text import count, cut, some, spans

MOST_TOLD = 10
"""Failures that a message lists."""


class ComputedElsewhereError(RopewalkError):
    """Shards that other machines compute now, without anybody who waits for them."""


class Account:
    """What is wanted of a study, as orders, and what became of it.

    An engine takes orders and pieces from it and tells it what happens; it writes manifests and shards that were sent
    back, shows progress, and publishes what statistics keep of a checkpoint when its last shard is there.
    `wanted` has the numbers of the shards to compute, by the name of their checkpoint.
    """

    def __init__(
        self,
        study: Study,
        jobs: Sequence[Job],
        orders: Sequence[Order],
        wanted: Mapping[str, Sequence[int]],
        note: Working,
        downloads: Downloads,
    ) -> None:
        self.study, self.note = study, note
        self._downloads = downloads
        self.orders = list(orders)
        self.wanted = {order.name: list(wanted[order.name]) for order in orders}
        self._jobs = {job.checkpoint.name: job for job in jobs}
        self._left = {name: set(numbers) for name, numbers in self.wanted.items()}
        self._opened: set[str] = set()
        self._seen: dict[tuple[str, int], int] = {}
        self._failures: list[str] = []
        self._broken: dict[str, None] = {}
        total = sum(self._jobs[order.name].tokens for order in orders)
        left = sum(self._tokens(order, number) for order in orders for number in self.wanted[order.name])
        self.progress = Progress(study.name, total, total - left)

    def piece(self, order: Order, number: int) -> Piece:
        """What is needed to compute one shard of an order."""
        job = self._jobs[order.name]
        return Piece(number, job.shards[number].start, np.array(job.rows(number)), job.provenance(number))

    def opened(self, order: Order, facts: Mapping[str, Any]) -> None:
        """A model is loaded: its facts are those of the manifest. Of several workers, the first one tells them."""
        if order.name not in self._opened:
            order.write_manifest(facts)
            self._opened.add(order.name)

    def fetch(self, order: Order) -> None:
        """Have the weights of an order on this machine, and begin to fetch those of the next."""
        names = [one.name for one in self.orders]
        self._downloads.finish(order.name, names[names.index(order.name) + 1 :])

    def cost(self, order: Order) -> Cost:
        """What the plan says of an order."""
        return cost(self.study, self._jobs[order.name])

    def begun(self, order: Order, number: int) -> None:
        """A shard is being computed."""
        self._downloads.expect(order.name)
        self._seen[order.name, number] = 0
        self.note.begin(order.name, number)

    def advanced(self, order: Order, number: int, tokens: int) -> None:
        """Tokens of a shard are done."""
        self._seen[order.name, number] += tokens
        self.progress.advance(tokens, f"{order.label}, shard {number + 1}/{order.shards}")

    def dropped(self, order: Order, number: int) -> None:
        """A shard is not being computed any more, and is not there: what was counted of it is not done."""
        self.progress.add(-self._seen.pop((order.name, number)))
        self.note.end(order.name, number)

    def done(self, order: Order, number: int, data: Pieces = ()) -> None:
        """A shard is there, or came back as bytes and is written."""
        if data:
            write_bytes(shard_path(order.folder, number), *data)
        self.progress.add(self._tokens(order, number) - self._seen.pop((order.name, number)))
        self.note.end(order.name, number)
        self._settle(order, [number])

    def failed(self, order: Order, numbers: Sequence[int], sentence: str) -> None:
        """Shards cannot be computed; the sentence says why."""
        what, verb = order.checkpoint.label, "is"
        if set(numbers) != set(self.wanted[order.name]):
            noun, verb = ("shards", "are") if len(numbers) > 1 else ("shard", "is")
            what += f", {noun} {spans(numbers)} of {order.shards}"
        self._broken[order.checkpoint.label] = None
        self._failures.append(f"{what}: {sentence}")
        logger.warning("%s %s left out: %s", what, verb, sentence)
        self._settle(order, numbers)

    def check(self) -> None:
        """Stop with what failed, if anything did."""
        if self._failures:
            told = [cut(failure, 500) for failure in self._failures[:MOST_TOLD]]
            more = len(self._failures) - len(told)
            raise IncompleteError(
                "\n".join(
                    [
                        f"{some(self._broken, 10)} of {count(len(self.study.checkpoints), 'checkpoint')} could not be "
                        "finished; all else is done, and the same command tries again what is missing:",
                        *told,
                        *([f"and {more} more, named above"] if more else []),
                    ]
                )
            )

    def _tokens(self, order: Order, number: int) -> int:
        return len(self._jobs[order.name].shards[number]) * order.checkpoint.context

    def _settle(self, order: Order, numbers: Sequence[int]) -> None:
        """Nothing more will come of these shards; with the last ones, a checkpoint is ended."""
        left = self._left[order.name]
        left.difference_update(numbers)
        if not left and order.checkpoint.label not in self._broken:
            logger.info("%s: %s done", order.label, count(len(self.wanted[order.name]), "shard"))
            job = self._jobs[order.name]
            if not job.missing():
                publish(job)
                self._downloads.release(order.checkpoint, [name for name, numbers in self._left.items() if numbers])


def publish(job: Job) -> None:
    """Lay out what statistics keep beside the shards of a checkpoint, which are all there."""
    captured = StoredCapture(job.folder, job.checkpoint.label)
    for statistic in job.statistics:
        statistic.publish(captured, job.folder)


class Engine(Protocol):
    """What computes the shards of an account."""

    name: str

    def run(self, account: Account) -> None:
        """Compute everything that the account wants, and tell it all that happens."""


class InOneProcess:
    """The plainest engine: one checkpoint after the other, here."""

    name = "local"

    def run(self, account: Account) -> None:
        """Compute everything that the account wants."""
        for order in account.orders:
            try:
                account.fetch(order)
                bench = Bench(order)
            except CannotWriteError:
                raise
            except RopewalkError as error:
                account.failed(order, account.wanted[order.name], str(error))
                continue
            account.opened(order, bench.facts)
            for number in account.wanted[order.name]:
                account.begun(order, number)
                try:
                    data = bench.shard(
                        account.piece(order, number),
                        lambda tokens, order=order, number=number: account.advanced(order, number, tokens),  # type: ignore[misc]
                    )
                except RopewalkError as error:
                    account.dropped(order, number)
                    account.failed(order, [number], str(error))
                else:
                    account.done(order, number, data)
            del bench
