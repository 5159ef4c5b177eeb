"""Cores that a process may use, and work in as many threads."""

import os
import threading

import pytest

from ropewalk.threads import cores, work_on_each


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 7}, raising=False)
    assert cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


def test_work_comes_back_in_order_from_as_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    # Three of a kind let each other through: with fewer threads nobody comes.
    together = threading.Barrier(3)

    def work(item: int) -> int:
        together.wait(timeout=30)
        return item * item

    assert work_on_each(work, range(6)) == [0, 1, 4, 9, 16, 25]
