"""Workers of engines: what they wrote, and killing them."""

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

BEFORE_KILL = 6.0
"""Seconds between two kills at most: longer than a worker takes to start and compute some shards."""
RUNS = 40
"""Runs at most until all kills have been: a fast machine may be through with one before a worker's time has come."""


def captured(folder: Path) -> dict[str, bytes]:
    """What stands in the folders of the checkpoints of a results folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("captures/**/*") if path.is_file()}


def children_of(pid: int) -> list[int]:
    """The processes that a process started and those that these did."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            if int(path.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found += [int(path.parent.name), *children_of(int(path.parent.name))]
    return found


SPAWNED, FORKED = b"spawn_main", b"multiprocessing.forkserver"
LOCAL = (SPAWNED, FORKED)
"""What the commands of processes of the local engine have in them: workers, and what they are forked from."""


def _is_worker(pid: int, marks: Sequence[bytes]) -> bool:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(mark in command for mark in marks)
    return False


def commands_of(pid: int) -> dict[int, bytes]:
    """The commands of the processes that a process started and those that these did."""
    found = {}
    for child in children_of(pid):
        with suppress(OSError):
            found[child] = Path(f"/proc/{child}/cmdline").read_bytes()
    return found


def of_session(session: int) -> list[int]:
    """Processes of a session that are not over, whoever is their parent now."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            state, _, _, own = path.read_text().rsplit(")", 1)[1].split()[:4]
            if int(own) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def kill_driver(command: list[str], results: Path) -> list[int]:
    """Start a command and kill it when its first shard is there; the processes that it had started."""
    driver = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        while not list(results.glob("captures/*/shard-*")):
            assert driver.poll() is None
            time.sleep(0.05)
        return children_of(driver.pid)
    finally:
        driver.kill()
        driver.wait()


class Killer(threading.Thread):
    """Kills a worker of a process (known by one of `marks` in its command) at random moments, so many times."""

    def __init__(
        self, chance: random.Random, *, kills: int, marks: Sequence[bytes] = LOCAL, parent: int | None = None
    ) -> None:
        super().__init__(daemon=True)
        self._chance, self._kills, self._marks = chance, kills, marks
        self._parent = os.getpid() if parent is None else parent
        self._over = threading.Event()
        self.killed = 0

    def run(self) -> None:
        """Kill until it is enough, or over."""
        while self.killed < self._kills and not self._over.wait(self._chance.uniform(0, BEFORE_KILL)):
            workers = [pid for pid in children_of(self._parent) if _is_worker(pid, self._marks)]
            if workers:
                with suppress(ProcessLookupError):
                    os.kill(self._chance.choice(workers), signal.SIGKILL)
                    self.killed += 1

    def __enter__(self) -> "Killer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
