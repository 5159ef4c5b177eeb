"""Disks that are full: one sentence, and with more space the run goes on to the same bytes."""

import ctypes
import os
import random
from pathlib import Path

from faults.workshop import Budget, Tally, Workshop, command

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
REMOUNT = 32


def disks(workshop: Workshop, budget: Budget, chance: random.Random) -> Tally:
    """Run on small disks in memory that are made larger once they are full."""
    tally = Tally()
    size = sum(path.stat().st_size for path in (workshop.reference / "results").rglob("*") if path.is_file())
    for _ in budget:
        folder = workshop.trial()
        space = int(chance.uniform(0.02, 0.98) * size)
        ended = workshop.command(folder, prepare=lambda folder=folder, space=space: _full(workshop, folder, space))
        if "cannot be mounted" in ended.said:
            tally.besides["not possible here: no disk can be mounted"] += 1
            break
        tally.tried["full, then with more space"] += 1
        if ended.code != 0:
            tally.wrong.append(f"a disk of {space} bytes: {ended.said[-700:]}")
    return tally


def _full(workshop: Workshop, folder: Path, space: int) -> None:
    """In a process of its own: run on a small disk until it is full, then on the same one with space."""
    disk = folder / "results"
    disk.mkdir()
    _mount(disk, space, 0)
    os.chdir(folder)
    words = ["run", str(workshop.study), "--results", "results"]
    code = command(*words)
    said = next(folder.glob("log-*.txt")).read_text(errors="replace")
    if code == 0:
        os._exit(0)  # it was large enough
    sentences = [line for line in said.splitlines() if line.startswith("ropewalk: ")]
    if code != 2 or len(sentences) != 1 or "no space left for" not in sentences[0] or "Traceback" in said:
        print("not one sentence:", code, sentences)
        os._exit(1)
    _mount(disk, 1 << 30, REMOUNT)
    code = command(*words)
    differences = workshop.differences(folder)
    print("after more space:", code, differences)
    os._exit(0 if code == 0 and not differences else 1)


def _mount(folder: Path, size: int, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not flags and libc.unshare(NEW_MOUNTS | (0 if os.geteuid() == 0 else NEW_USER)):
        print("cannot be mounted")
        os._exit(0)
    # Nothing that is mounted here is to be seen outside.
    libc.mount(b"none", b"/", None, ctypes.c_ulong(0x40000 | 0x4000), None)
    options = f"size={size}".encode()
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", ctypes.c_ulong(flags), options):
        print("cannot be mounted")
        os._exit(0)
