"""The doctor of statistics on models that were trained: faults that its thresholds were not chosen by.

A file is made over some texts and held against others of the same kind, as users do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk
from helpers import planting
from helpers.exporting import Case
from helpers.planting import SUMS, Arrays, Subject
from ropewalk.capture.encoding import encode
from ropewalk.capture.texts import texts
from ropewalk.corpora import Corpus
from ropewalk.models.loading import load_model, load_tokenizer
from ropewalk.study import Checkpoint

CONTEXT = 256
MADE_FROM, HELD_AGAINST = 16, 8
"""Documents of a file, and those that it is held against."""


def rows(tokenizer: Any) -> list[list[int]]:
    """Tokens of the first files of Python's standard library that are long enough."""
    found = []
    for text in texts(Corpus()):
        ids = encode(tokenizer, text, CONTEXT)
        if len(ids) >= CONTEXT:
            found.append([int(token) for token in ids[:CONTEXT]])
        if len(found) == MADE_FROM + HELD_AGAINST:
            break
    return found


class Trained:
    """A trained model, what was measured of it, and other documents."""

    def __init__(self, case: Case, checkpoint: Checkpoint, folder: Path) -> None:
        model, tokenizer = load_model(checkpoint), load_tokenizer(checkpoint)
        both = rows(tokenizer)
        # Every third, so that files of one package are on both sides.
        made_from = [row for index, row in enumerate(both) if index % 3]
        self.held_against = both[::3]
        results = ropewalk.measure(model, made_from, context=CONTEXT, shards=4, statistics=SUMS)
        self.subject = Subject(case, model, results, made_from, folder)

    def faults(self, plant: Callable[[Subject, Arrays], None]) -> list[str]:
        path = self.subject.planted(lambda arrays: plant(self.subject, arrays))
        findings = self.subject.examine(path, self.held_against)
        return [one.check for one in findings if one.passed is False]


@pytest.fixture(scope="module")
def trained(smollm2: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    miniature = Path(ropewalk.__file__).parent / "data" / "miniature"
    checkpoints = {
        "miniature": (
            Case("smollm3", 16, False, (3, 7, 11), 16),
            Checkpoint(
                repo=str(miniature / "checkpoints" / "lc-1024-to-2048-step-120"),
                tokenizer=str(miniature / "tokenizer"),
                name="miniature",
                label="miniature",
                context=CONTEXT,
                dtype="float32",
            ),
        ),
        "SmolLM2-135M": (Case("llama", 64, False, (), 64), smollm2),
    }
    made: dict[str, Trained] = {}

    def get(name: str) -> Trained:
        if name not in made:
            made[name] = Trained(*checkpoints[name], tmp_path_factory.mktemp("trained"))
        return made[name]

    return get


FAULTS: dict[str, Callable[[Subject, Arrays], None]] = {
    "not rotated back": planting.not_rotated_back,
    "wrong pairing": planting.wrong_pairing,
    "rotated back the wrong way": planting.wrong_way,
    "rotated back": planting.rotated_back,
    "wrong scale": planting.scaled,
    "wrong scale of the covariance": planting.summed,
    "second moments in place of the covariance": planting.not_centred,
    "transposed heads": planting.transposed,
    "heads in another order": planting.reordered,
    "layers in another order": planting.shifted,
    "wrong layer count": planting.layer_count,
}


@pytest.mark.parametrize("name", ["miniature", "SmolLM2-135M"])
def test_a_right_file_over_other_documents_is_not_called_wrong(trained: Callable[[str], Trained], name: str) -> None:
    one = trained(name)
    findings = one.subject.examine(one.subject.file, one.held_against)
    assert False not in {finding.passed for finding in findings}, findings


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["miniature", "SmolLM2-135M"])
def test_a_planted_fault_is_named(trained: Callable[[str], Trained], name: str, fault: str) -> None:
    found = trained(name).faults(FAULTS[fault])
    assert found
    assert {one.split(" (")[0] for one in found} == {fault}, found


def test_the_same_model_earlier_in_its_training_is_another(trained: Callable[[str], Trained], tmp_path: Path) -> None:
    one = trained("miniature")
    early = Path(ropewalk.__file__).parent / "data" / "miniature" / "checkpoints" / "stage1-step-350"
    model = load_model(Checkpoint(repo=str(early), name="early", label="early", context=CONTEXT, dtype="float32"))
    results = ropewalk.measure(model, one.subject.rows, context=CONTEXT, shards=4, statistics=SUMS)
    (path,) = results.export(tmp_path / "early.npz", to="npz")
    findings = one.subject.examine(path, one.held_against)
    assert "other model" in {finding.check for finding in findings if finding.passed is False}, findings
    assert np.size(one.held_against) == HELD_AGAINST * CONTEXT
