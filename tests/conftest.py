"""What tests share: rooms and their markers, one thread each, a tiny model with tokenizer and texts, a small study."""

import os
import sys

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from helpers.command import Run, exit_code

collect_ignore = ["peers"]
"""What other tools make of exports is tested in their own environments."""

ROOMS = {
    "quick": (),
    "model_types": ("models", "slow"),
    "end_to_end": ("slow",),
    "packaging": ("slow",),
    "ray": ("ray", "slow"),
}
"""Folders of tests, and the markers of all tests in them."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the slow rooms when they are not wanted: that takes as long as the quick tests."""
    room = collection_path.name if collection_path.parent == Path(__file__).parent else ""
    return True if config.option.markexpr == "not slow" and "slow" in ROOMS.get(room, ()) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the room they are in."""
    for item in items:
        for marker in ROOMS[item.path.relative_to(Path(__file__).parent).parts[0]]:
            item.add_marker(marker)


@pytest.fixture(scope="session", autouse=True)
def _one_quiet_thread() -> None:
    # Imported here and not above: the process that hands out the tests need not wait for them.
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from helpers.tiny import save_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from helpers.tiny import tiny_smollm3

    folder = tmp_path_factory.mktemp("model")
    tiny_smollm3().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def texts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from helpers.tiny import make_texts

    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(make_texts(12)):
        (folder / f"{number:02d}.txt").write_text(text)
    (folder / "short.txt").write_text("too short")
    return folder


@pytest.fixture
def study_data(model_folder: Path, tokenizer_folder: Path, texts_folder: Path, tmp_path: Path) -> dict[str, object]:
    """A small study as plain data: the model at two contexts, twelve documents, four shards."""
    return {
        "name": "small",
        "results": str(tmp_path / "results"),
        "defaults": {"repo": str(model_folder), "tokenizer": str(tokenizer_folder), "context": 64, "device": "cpu"},
        "checkpoints": [
            {"name": "first", "label": "A", "phase": "one", "step": 1},
            {
                "name": "second",
                "label": "B",
                "phase": "two",
                "step": 2,
                "context": 96,
                "overrides": {"rope_theta": 500000.0},
            },
        ],
        "corpus": {"source": "files", "paths": [str(texts_folder / "*.txt")]},
        "capture": {"shards": 4, "batch_tokens": 130},
    }


@pytest.fixture
def whole(study_data: dict[str, Any], tmp_path: Path) -> dict[str, bytes]:
    """What one process writes into the folders of the checkpoints of the small study, with vectors kept."""
    from helpers.workers import captured
    from ropewalk.capture.run import capture_study
    from ropewalk.studyfile import parse_study

    study_data["capture"] = {**study_data["capture"], "statistics": ["moments", "profile", "sample"]}
    study = parse_study({**study_data, "results": str(tmp_path / "whole")})
    capture_study(study)
    return captured(study.folder)


@pytest.fixture
def registry_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten afterwards; the package's own statistics stay."""
    from ropewalk.statistics import registry

    for name in registry.BUILT_IN:
        registry.find(name)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(registry, "_plugins", dict(registry._plugins))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in-process: (exit code, standard output, standard error)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = exit_code(*arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Serve repositories on loopback as the hub that the client talks to."""
    from helpers.hub import HubStandIn

    with ExitStack() as stack:

        def start(repos: dict[str, dict[str, dict[str, bytes]]], **options: Any) -> Any:
            hub = stack.enter_context(HubStandIn(repos, **options))
            hub.connect(monkeypatch, tmp_path / "cache")
            return hub

        yield start


@pytest.fixture(autouse=True)
def _no_commits_of_other_tests() -> None:
    """A stand-in hub may get the port of an earlier one: what was remembered of that is forgotten."""
    hub = sys.modules.get("ropewalk.models.hub")
    if hub is not None:
        hub._commit.cache_clear()
        hub._dataset_commit.cache_clear()
        hub._remote_files.cache_clear()
