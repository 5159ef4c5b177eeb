"""Memory that is really not there, and a device tried with the model that comes with the package."""

import subprocess
import sys
from typing import Any

import pytest

from helpers.paths import ROOT


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on what a process may have")
def test_a_process_that_may_not_have_more_goes_on_with_less() -> None:
    script = ROOT / "tests" / "helpers" / "scarcity.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("no memory for 16 documents of 128 tokens at once: going on with 8 at a time")
    assert lines[-1] == "the same sums"


def test_a_device_is_tried_with_the_model_of_the_package(run: Any) -> None:
    code, out, _ = run("doctor", "--device", "cpu")
    assert code == 0
    assert len(out.splitlines()) == 10
    assert "12 calls compared" in out
