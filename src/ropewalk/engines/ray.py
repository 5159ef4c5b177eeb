"""A Ray cluster: an actor keeps a checkpoint's model loaded and takes shards of it."""

import logging
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ropewalk.capture.account import Account
from ropewalk.capture.plan import Cost
from ropewalk.capture.work import Order, Piece
from ropewalk.engines.crew import Advanced, Crew, Done, Event, Failed, Lost, Opened, conduct
from ropewalk.engines.needs import memory_of
from ropewalk.errors import RopewalkError
from ropewalk.placement import Placement
from ropewalk.progress import logger
from ropewalk.text import install_extra, one_line, size

PATIENCE, CONNECT = 0.5, 10.0
"""Seconds to wait for news at most, and for a cluster to answer."""


class RayEngine:
    """Actors of a Ray cluster: of one that is there (`address`), or of one that is started on this machine."""

    name = "ray"

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    def run(self, account: Account) -> None:
        """Compute everything that the account wants."""
        if not account.orders:
            return
        with _cluster(self._placement) as ray:
            crew = _Actors(ray, self._placement, account)
            try:
                conduct(crew, account)
            finally:
                crew.close()


@contextmanager
def _cluster(placement: Placement) -> Iterator[Any]:
    """Ray, connected to a cluster; one that was connected to before stays so afterwards."""
    try:
        import ray
    except ImportError as error:
        raise RopewalkError(f"the engine `ray` needs Ray: {install_extra('ray')}") from error
    if ray.is_initialized():
        yield ray
        return
    _check_reachable(placement.address)
    options: dict[str, Any] = {"address": placement.address} if placement.address else {"include_dashboard": False}
    try:
        # What workers say comes another way, one line at a time.
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(placement.address, error) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str | None) -> None:
    """Stop at an address of a machine and a port where nothing listens: Ray itself would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), CONNECT).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str | None, error: Exception) -> RopewalkError:
    where = f"at {address!r}" if address else "on this machine"
    return RopewalkError(
        f"no Ray cluster {where} ({one_line(error)}): start one with `ray start --head`, or leave `address` out"
    )


class _Actors(Crew):
    """Workers as actors. Each loads the model of an order with one call, and computes a shard with the next."""

    def __init__(self, ray: Any, placement: Placement, account: Account) -> None:
        self._ray, self._placement, self._account = ray, placement, account
        there = ray.cluster_resources()
        cpus, gpus = there.get("CPU", 1.0), there.get("GPU", 0.0)
        self._gpus = (1 if gpus else 0) if placement.gpus is None else placement.gpus
        nodes = sum(node["Alive"] for node in ray.nodes())
        most = placement.workers or max(1, int(gpus // self._gpus) if self._gpus else nodes)
        self.size = min(most, sum(map(len, account.wanted.values())))
        # Less than one CPU each, where there are more workers than CPUs: they take turns.
        share = cpus / max(most, 1)
        self._cpus: float = placement.cpus or (math.floor(share) if share >= 1 else share)
        self._costs: dict[str, Cost] = {}
        self._board = ray.remote(_Board).options(num_cpus=0).remote()
        self._actors: dict[int, tuple[Any, dict[str, float]]] = {}
        self._tasks: dict[int, tuple[int, Order, Piece]] = {}
        self._calls: dict[Any, int] = {}
        self._serial = 0

    def give(self, worker: int, order: Order, piece: Piece) -> None:
        """Let an actor open an order; the shard is asked for when it has."""
        needs = self._needs(order)
        if worker not in self._actors or self._actors[worker][1] != needs:
            self._drop(worker)
            actor = self._ray.remote(_Seat).options(**needs).remote(self._board, self._cpus, self._account.note.path)
            self._actors[worker] = actor, needs
        self._serial += 1
        self._tasks[worker] = self._serial, order, piece
        self._calls[self._actors[worker][0].open.remote(order.pinned())] = worker

    def events(self) -> Iterator[Event]:
        """What actors said and answered; one that does not answer any more is lost."""
        yield from self._said()
        ready, _ = self._ray.wait(list(self._calls), timeout=PATIENCE)
        for call in ready:
            worker = self._calls.pop(call)
            serial, _, piece = self._tasks[worker]
            try:
                kind, value = self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                self._drop(worker)
                yield Lost(worker, f"its worker was lost ({_reason(error)})")
                continue
            if kind == "failed":
                yield Failed(worker, *value)
            elif kind == "done":
                yield Done(worker, value)
            else:
                if value is not None:
                    yield Opened(worker, value)
                self._calls[self._actors[worker][0].shard.remote(serial, worker, piece)] = worker

    def close(self) -> None:
        """Let all actors go, and say what they still had to say."""
        for _ in self._said():
            pass
        for worker in list(self._actors):
            self._drop(worker)
        self._ray.kill(self._board)

    def _said(self) -> Iterator[Advanced]:
        with suppress(self._ray.exceptions.RayError):
            for serial, worker, value in self._ray.get(self._board.take.remote()):
                if serial is None:
                    logger.log(*value)
                # What comes late is of a shard that is done, or was lost.
                elif self._tasks[worker][0] == serial and worker in self._calls.values():
                    yield Advanced(worker, value)

    def _needs(self, order: Order) -> dict[str, float]:
        """What an actor asks the cluster for; in whole gigabytes, so that one serves several checkpoints."""
        if order.name not in self._costs:
            self._costs[order.name] = self._account.cost(order)
        stated, nodes = self._placement.memory_gb, [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        memory = memory_of(self._costs[order.name]) if stated is None else stated * 2**30
        if stated is None:
            # An estimate is no reason never to begin.
            memory = min(memory, max(node.get("memory", 0.0) for node in nodes) / self.size)
        wanted = {"CPU": self._cpus, "GPU": self._gpus, "memory": math.floor(memory / 2**28) * 2**28}
        # Ray would wait for such a node for ever.
        if not any(all(node.get(name, 0.0) >= number for name, number in wanted.items()) for node in nodes):
            raise RopewalkError(
                f"no node of the cluster has {self._cpus:g} CPUs, {self._gpus} GPUs and {size(wanted['memory'])} of "
                "memory for a worker: lower `cpus`, `gpus` or `memory_gb` of `engine`"
            )
        return {"num_cpus": wanted["CPU"], "num_gpus": wanted["GPU"], "memory": wanted["memory"]}

    def _drop(self, worker: int) -> None:
        actor, _ = self._actors.pop(worker, (None, None))
        if actor is not None:
            self._ray.kill(actor)


class _Board:
    """Where actors leave what they say and how far they are, until it is taken."""

    def __init__(self) -> None:
        self._lines: list[tuple[Any, ...]] = []

    def put(self, *line: Any) -> None:
        self._lines.append(line)

    def take(self) -> list[tuple[Any, ...]]:
        lines, self._lines = self._lines, []
        return lines


class _Seat:
    """An actor. It writes shards where it sees the results folder of the study, and sends them back where not."""

    def __init__(self, board: Any, cpus: float, note: Path) -> None:
        import torch

        from ropewalk.engines.hand import Hand

        torch.set_num_threads(max(1, int(cpus)))
        self._board, self._note, self._hand = board, note, Hand()
        logger.addHandler(_Posted(board))
        logger.setLevel(logging.INFO)

    def open(self, order: Order) -> tuple[str, Any]:
        try:
            return "opened", self._hand.open(order)
        except Exception as error:
            return _failed(error)

    def shard(self, serial: int, worker: int, piece: Piece) -> tuple[str, Any]:
        def advance(tokens: int) -> None:
            self._board.put.remote(serial, worker, tokens)

        try:
            if self._note.exists():
                self._hand.write(piece, advance)
                return "done", b""
            return "done", self._hand.shard(piece, advance)
        except Exception as error:
            return _failed(error)


def _reason(error: Exception) -> str:
    """What Ray says of a lost worker: the last line of it, which is what the worker died of where that is known."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {one_line(lines[-1], 200)}" if lines else type(error).__name__


def _failed(error: Exception) -> tuple[str, Any]:
    failed = Failed.of(0, error)
    return "failed", (failed.sentence, failed.final, failed.cannot_write)


class _Posted(logging.Handler):
    """What an actor says, put on the board."""

    def __init__(self, board: Any) -> None:
        super().__init__()
        self._board = board

    def emit(self, record: logging.LogRecord) -> None:
        self._board.put.remote(None, None, (record.levelno, record.getMessage()))
