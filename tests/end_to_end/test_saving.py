"""Results measured in Python and saved are those of the command line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk
from ropewalk.capture.run import capture_study
from ropewalk.errors import RopewalkError
from ropewalk.figures.gallery import shown
from ropewalk.results import analyze
from ropewalk.studyfile import parse_study


def test_a_saved_result_is_that_of_the_command_line(
    study_data: dict[str, Any], tokenizer: Any, model_folder: Path, texts_folder: Path, tmp_path: Path
) -> None:
    """The same model and documents give the same bytes in tables, and everything can be redone there."""
    study_data["checkpoints"] = [{"name": "tiny", "label": "tiny", "phase": "one", "step": 5}]
    study = parse_study(study_data)
    capture_study(study)
    run = analyze(study.folder)
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder)
    texts = [path.read_text() for path in sorted(texts_folder.glob("*.txt"))]
    measured = ropewalk.measure(
        model, texts, tokenizer, context=64, shards=4, batch_tokens=130, label="tiny", phase="one", step=5
    )
    saved = measured.save(tmp_path / "saved")
    for name in ("qk.csv", "heads.csv", "replicates.parquet"):
        assert (saved / name).read_bytes() == (study.folder / name).read_bytes(), name
    before = (saved / "qk.csv").read_bytes()
    again = analyze(saved)
    assert (saved / "qk.csv").read_bytes() == before
    assert again.head(2, 1).row["r_k"] == run.head(2, 1).row["r_k"]
    np.testing.assert_allclose(again.head(2, 1).path["k"], measured.head(2, 1).path["k"])
    assert (saved / "report.html").is_file()
    assert len(list((saved / "figures").glob("*/figure.png"))) == len(shown(ropewalk.load(saved).view))
    with pytest.raises(RopewalkError, match="is not empty: give a new folder to save to"):
        measured.save(saved)
