"""Memory: freed, it is kept from layer to layer by who asks for that, and given back; large tensors in huge pages."""

import ctypes
import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ropewalk._version import __version__
from ropewalk.allocator import HUGE_PAGES, KEPT_BLOCK
from ropewalk.capture.work import Bench
from ropewalk.threads import work_on_each

FAULTS = """
import ctypes, resource, sys
from ropewalk.allocator import KEPT_BLOCK, give_back_freed, keep_freed

if sys.argv[1] != "leave":
    keep_freed()

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def layer():
    # Blocks as of a layer's activations: taken, written to, freed.
    size = ctypes.c_size_t(KEPT_BLOCK // 2)
    blocks = [ctypes.c_void_p(libc.malloc(size)) for _ in range(6)]
    for block in blocks:
        libc.memset(block, 1, size)
    for block in reversed(blocks):
        libc.free(block)

layer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    layer()
    if sys.argv[1] == "give back":
        give_back_freed()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_freed_memory_is_kept_for_the_next_layer() -> None:
    def faults(mode: str) -> int:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", FAULTS, mode]
        return int(subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout)

    pages = KEPT_BLOCK // resource.getpagesize()
    assert faults("keep") < pages / 4
    assert faults("leave") > 2 * pages
    assert faults("give back") > 2 * pages


PLACES = """
import os, sys
import torch, transformers
from ropewalk.allocator import HUGE_PAGES, suit_passes

if sys.argv[1] == "suit":
    suit_passes()
# Of the size of activations; where each begins in its page tells whether torch was asked for huge ones.
tensors = [torch.ones(1 << 20) for _ in range(6)]
print(os.environ.get(HUGE_PAGES), all(tensor.data_ptr() % 4096 == 0 for tensor in tensors))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are of Linux")
@pytest.mark.parametrize(
    ("mode", "decided", "expected"), [("suit", None, "1 True"), ("leave", None, "None False"), ("suit", "0", "0 False")]
)
def test_large_tensors_are_of_huge_pages_unless_the_user_has_decided(
    mode: str, decided: str | None, expected: str
) -> None:
    """After all imports, as in a worker that is forked."""
    environment = {name: value for name, value in os.environ.items() if name != HUGE_PAGES}
    if decided is not None:
        environment[HUGE_PAGES] = decided
    command = [sys.executable, "-c", PLACES, mode]
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    assert done.stdout.strip() == expected


def test_every_process_that_computes_shards_takes_and_keeps_memory_for_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    monkeypatch.setattr("ropewalk.capture.work.suit_passes", lambda: kept.append(True))
    monkeypatch.setattr("ropewalk.capture.work.load_config", lambda *_: pytest.fail("loaded before", pytrace=False))
    order = SimpleNamespace(version=__version__, plugins=(), checkpoint=SimpleNamespace(context=8), capture=None)
    with pytest.raises(pytest.fail.Exception):
        Bench(order)  # type: ignore[arg-type]
    assert kept == [True]


def test_threads_that_work_on_layers_keep_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    monkeypatch.setattr("ropewalk.threads.keep_freed", lambda: kept.append(True))
    assert work_on_each(lambda number: number**2, range(5)) == [0, 1, 4, 9, 16]
    assert kept == [True]
