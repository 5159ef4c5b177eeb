"""A statistic of a user's own through a whole run."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import ropewalk
from helpers.paths import ROOT
from helpers.tiny import tiny_smollm3
from ropewalk.cli import main
from ropewalk.models.tap import Call, tap
from ropewalk.studyfile import load_study

NORMS = ROOT / "docs/examples/norms.py"


pytestmark = pytest.mark.usefixtures("registry_as_before")


def test_a_statistic_of_ones_own_goes_through_a_whole_run(study_data: dict[str, Any], tmp_path: Path) -> None:
    """Shards computed apart, resuming, standard errors: the values against norms taken by hand."""
    study_data["capture"] = {"shards": 4, "statistics": ["moments", "norms"]}
    study_data["checkpoints"] = study_data["checkpoints"][:1]  # type: ignore[index]
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study_data))
    main(["--plugin", str(NORMS), "capture", str(path), "--shard", "2"])
    main(["--plugin", str(NORMS), "run", str(path)])
    study = load_study(path)
    heads = pd.read_csv(study.folder / "heads.csv")
    tokens = np.fromfile(next((study.folder / "tokens").glob("*.bin")), dtype=np.int32).reshape(-1, 64)
    calls: list[Call] = []
    model = tiny_smollm3()
    with torch.inference_mode(), tap(model, calls.append):
        model(input_ids=torch.from_numpy(tokens.astype(np.int64)), use_cache=False)
    groups = np.array_split(np.arange(12), 4)
    for row in heads.itertuples():
        q = calls[row.layer].query[:, row.head].double().norm(dim=-1).numpy()
        k = calls[row.layer].key[:, row.k_head].double().norm(dim=-1).numpy()
        assert row.norm_q == pytest.approx(q.mean(), rel=1e-5)
        assert row.norm_k == pytest.approx(k.mean(), rel=1e-5)
        assert row.spread_q == pytest.approx(q.std() / q.mean(), rel=1e-4)
        left_out = np.array([np.delete(q, group, axis=0).mean() for group in groups])
        assert row.se_norm_q == pytest.approx(np.sqrt(3 / 4 * ((left_out - left_out.mean()) ** 2).sum()), rel=1e-3)
    replicates = pd.read_parquet(study.folder / "replicates.parquet")
    assert {"norm_q", "norm_k", "spread_q", "r_q"} <= set(replicates.columns)
    loaded = ropewalk.load(study.folder)
    assert loaded.head(1, 1).row["norm_q"] == pytest.approx(heads.query("layer == 1 and head == 1")["norm_q"].iloc[0])


def test_results_with_an_unknown_statistic_can_still_be_looked_at(study_data: dict[str, Any], tmp_path: Path) -> None:
    """Who gets a results folder without the code of its statistic sees its tables, and is told what is missing."""
    study_data["capture"] = {"shards": 2, "statistics": ["moments", "norms"]}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study_data))
    main(["--plugin", str(NORMS), "run", str(path)])
    folder = load_study(path).folder
    code = (
        "import ropewalk, ropewalk.results\n"
        f"r = ropewalk.load({str(folder)!r})\n"
        "print(r.heads['norm_q'].notna().all())\n"
        f"try: ropewalk.results.analyze({str(folder)!r})\n"
        "except ropewalk.RopewalkError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0] == "True"
    assert out[1].startswith("no statistic is called 'norms': ")
