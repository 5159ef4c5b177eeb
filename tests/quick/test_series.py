"""Checkpoint series: names by rule, order, thinning, the audit and the study, through the real hub client."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import HfApi, constants
from hypothesis import given
from hypothesis import strategies as st

from helpers.hub import HubStandIn, commit_of
from ropewalk import series
from ropewalk.errors import RopewalkError
from ropewalk.series.branches import in_order, select, short_number
from ropewalk.studyfile import check_study, parse_study

SMOLLM3 = "HuggingFaceTB/SmolLM3-3B-checkpoints"
PUBLISHED = {
    "stage1-step-40000": ("S1-40K", "stage 1", 40_000, 4096, 50_000),
    "stage1-step-1200000": ("S1-1.2M", "stage 1", 1_200_000, 4096, 50_000),
    "stage1-step-2400000": ("S1-2.4M", "stage 1", 2_400_000, 4096, 50_000),
    "stage1-step-3440000": ("S1-3.4M", "stage 1", 3_440_000, 4096, 50_000),
    "stage2-step-4200000": ("S2-4.2M", "stage 2", 4_200_000, 4096, 50_000),
    "stage3-step-4720000": ("S3-4.7M", "stage 3", 4_720_000, 4096, 50_000),
    "lc-4k-to-32k-step-4000": ("LC1-4K", "LC 4K->32K", 4000, 32_768, 2_000_000),
    "lc-4k-to-32k-step-20000": ("LC1-20K", "LC 4K->32K", 20_000, 32_768, 2_000_000),
    "lc-32k-to-64k-step-4000": ("LC2-4K", "LC 32K->64K", 4000, 65_536, 5_000_000),
    "lc-32k-to-64k-step-20000": ("LC2-20K", "LC 32K->64K", 20_000, 65_536, 5_000_000),
}
PYTHIA = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 144_000, 1000)]


def config(**values: Any) -> bytes:
    return json.dumps({"model_type": "llama", "max_position_embeddings": 2048, "rope_theta": 10_000} | values).encode()


def checkpoint(weights: str, **values: Any) -> dict[str, bytes]:
    """A branch with one weight file, large beside everything else."""
    return {
        "config.json": config(**values),
        "model.safetensors": weights.encode() * 10_000,
        "tokenizer.json": b"{}",
        ".gitattributes": b"",
    }


def sharded(*weights: str, lost: tuple[str, ...] = (), kind: str = "safetensors") -> dict[str, bytes]:
    stem, index = {
        "safetensors": ("model", "model.safetensors.index.json"),
        "bin": ("pytorch_model", "pytorch_model.bin.index.json"),
    }[kind]
    names = [f"{stem}-{number:05d}-of-{len(weights):05d}.{kind}" for number in range(1, len(weights) + 1)]
    files = {name: text.encode() * 10_000 for name, text in zip(names, weights, strict=True) if text not in lost}
    weight_map = {f"layer.{number}.weight": name for number, name in enumerate(names)}
    return {
        "config.json": config(),
        "tokenizer.json": b"{}",
        index: json.dumps({"weight_map": weight_map}).encode(),
        **files,
    }


Serve = Callable[..., HubStandIn]


def scanned(repo: str) -> series.Series:
    return series.scan(series.list_series(repo))


def texts(findings: list[series.Finding], kind: str) -> list[str]:
    return [finding.text for finding in findings if finding.kind == kind]


# Names


@pytest.mark.parametrize(
    ("name", "phase", "step", "tokens"),
    [
        ("stage1-step-40000", "stage 1", 40_000, None),
        ("stage3-step-4720000", "stage 3", 4_720_000, None),
        ("lc-4k-to-32k-step-4000", "LC 4K->32K", 4000, None),
        ("lc-32k-to-64k-step-20000", "LC 32K->64K", 20_000, None),
        ("step-125000", "", 125_000, None),
        ("step0", "", 0, None),
        ("step143000", "", 143_000, None),
        ("stage1-step1000-tokens5B", "stage 1", 1000, 5 * 10**9),
        ("stage1-step928646-tokens3896B", "stage 1", 928_646, 3896 * 10**9),
        ("stage2-ingredient1-step11931-tokens50B", "stage 2 ingredient 1", 11_931, 50 * 10**9),
        ("stage2-ingredient3-step1000-tokens5B", "stage 2 ingredient 3", 1000, 5 * 10**9),
        ("step150-tokens1B", "", 150, 10**9),
        ("stage1-step656000", "stage 1", 656_000, None),
        ("stage2-ingredient1-step0", "stage 2 ingredient 1", 0, None),
        ("stage3-step11000", "stage 3", 11_000, None),
        ("ckpt_000", "", 0, None),
        ("ckpt_358", "", 358, None),
        ("step-50K-105b", "", 50_000, 105 * 10**9),
        ("step-480k-1007B", "", 480_000, 1007 * 10**9),
        ("step-715k-1.5T", "", 715_000, 15 * 10**11),
        ("TinyLlama-1.1B-step-50K-105b", "", 50_000, 105 * 10**9),
        ("TinyLlama-1.1B-intermediate-step-1195k-token-2.5T", "", 1_195_000, 25 * 10**11),
        ("step-001000-2BT", "", 1000, 2 * 10**9),
    ],
)
def test_names_are_read_by_rule(name: str, phase: str, step: int, tokens: int | None) -> None:
    branch = series.parse_branch(name)
    assert branch is not None
    assert (branch.name, branch.phase, branch.step, branch.tokens) == (name, phase, step, tokens)


@pytest.mark.parametrize(
    "name",
    [
        "main", "", "refs/pr/1", "it-SFT", "it-mid-training", "stage1", "step", "step-", "stepper100", "step1000-seed3",
        "mystep100", "step1.5", "step-1e5", "stage-step100", "stageX-step100", "stage1-tokens5B",
        "stage1-step100-tokens5",
        "lc-4k-step-4000", "lc-4-to-32-step-4000", "ckpt_", "ckpt_1a", "ckpt-100", "v1.0", "step\u0661", "step100\n",
    ],
)  # fmt: skip
def test_other_names_are_not_read(name: str) -> None:
    assert series.parse_branch(name) is None


@given(st.integers(0, 10**7), st.integers(1, 9), st.integers(1, 20_000))
def test_a_made_up_name_gives_its_parts_back(step: int, stage: int, billions: int) -> None:
    branch = series.parse_branch(f"stage{stage}-step{step}-tokens{billions}B")
    assert branch is not None
    assert (branch.phase, branch.step, branch.tokens) == (f"stage {stage}", step, billions * 10**9)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (512, "512"), (1000, "1K"), (40_000, "40K"), (999_999, "1M"), (3_440_000, "3.4M"), (5 * 10**9, "5B"),
     (25 * 10**11, "2.5T"), (10**16, "10000T")],
)  # fmt: skip
def test_short_numbers(number: int, text: str) -> None:
    assert short_number(number) == text


# Order, labels, thinning


def branches(names: list[str]) -> list[series.Branch]:
    parsed = [series.parse_branch(name) for name in names]
    assert None not in parsed
    return in_order(branch for branch in parsed if branch is not None)


def test_phases_come_in_training_order_and_steps_by_number() -> None:
    names = [
        "step9", "step10", "stage1-step900", "stage1-step1000", "stage2-ingredient1-step5", "stage2-ingredient2-step1",
        "stage3-step1", "stage10-step1", "lc-4k-to-32k-step-4000", "lc-4k-to-32k-step-20000", "lc-32k-to-64k-step-4000",
        "lc-64k-to-128k-step-1",
    ]  # fmt: skip
    assert [branch.name for branch in branches(sorted(names))] == names


def test_labels_are_the_published_ones(serve: Serve) -> None:
    serve({SMOLLM3: {name: {} for name in reversed(PUBLISHED)} | {"main": {}}})
    found = series.list_series(SMOLLM3)
    assert series.labels(found.branches) == {name: row[0] for name, row in PUBLISHED.items()}
    only_last = series.thin(found, phases=["LC 32K->64K"])
    assert list(series.labels(only_last.branches).values()) == ["LC2-4K", "LC2-20K"]


def test_labels_take_more_digits_where_they_would_meet() -> None:
    met = branches(["stage1-step-1200000", "stage1-step-1240000", "stage1-step-40000"])
    assert list(series.labels(met).values()) == ["S1-40K", "S1-1.2M", "S1-1.24M"]
    same = branches(["step1000", "step-1000", "step2000"])
    assert series.labels(same) == {"step1000": "step1000", "step-1000": "step-1000", "step2000": "2K"}


def test_every_keeps_the_ends_of_each_phase() -> None:
    whole = branches([f"stage1-step{step}" for step in range(0, 1000, 100)] + ["stage2-step5", "stage2-step6"])
    kept = [branch.name for branch in select(whole, every=4)]
    steps = [0, 400, 800, 900]
    assert kept == [f"stage1-step{step}" for step in steps] + ["stage2-step5", "stage2-step6"]
    assert select(whole, every=1) == whole


def test_log_spaced_picks_the_powers_of_pythia() -> None:
    whole = branches([f"step{step}" for step in PYTHIA])
    assert len(whole) == 154
    kept = [branch.step for branch in select(whole, log_spaced=18)]
    assert len(kept) == 18
    powers = [0, 1, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 4000]
    assert kept == [*powers, 9000, 18_000, 35_000, 71_000, 143_000]


@given(st.sets(st.integers(0, 10**6), min_size=2, max_size=60), st.integers(2, 40))
def test_log_spaced_gives_exactly_n_with_both_ends(steps: set[int], count: int) -> None:
    whole = branches([f"step{step}" for step in steps])
    kept = select(whole, log_spaced=count)
    assert len(kept) == min(count, len(whole))
    assert kept[0] == whole[0]
    assert kept[-1] == whole[-1]
    assert kept == [branch for branch in whole if branch in kept]
    assert kept == select(whole, log_spaced=count)


def test_log_spaced_counts_on_where_a_phase_starts_again() -> None:
    names = [f"stage1-step-{step}" for step in range(100, 1100, 100)] + ["lc-4k-to-32k-step-500"]
    kept = [branch.name for branch in select(branches(names), log_spaced=3)]
    # From log(1 + 100) to log(1 + 1000 + 500): half way is at about 388 steps.
    assert kept == ["stage1-step-100", "stage1-step-400", "lc-4k-to-32k-step-500"]


def test_phase_is_given_by_name_or_by_its_label() -> None:
    whole = branches(["stage1-step1", "stage2-step2", "lc-4k-to-32k-step-3"])
    assert [branch.step for branch in select(whole, phases=["Stage 1", "lc 4k->32k"])] == [1, 3]
    assert [branch.step for branch in select(whole, phases=["s2"])] == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log_spaced": 1},
         "--log-spaced 1 is too few: the first and the last checkpoint are always kept, give at least 2"),
        ({"log_spaced": -3},
         "--log-spaced -3 is too few: the first and the last checkpoint are always kept, give at least 2"),
        ({"every": 0}, "--every 0 keeps nothing: give a number of at least 1"),
        ({"every": 2, "log_spaced": 4}, "--every and --log-spaced exclude each other: give one of them"),
        ({"phases": ["stage 9"]}, "no phase 'stage 9' in this series: its phases are 'stage 1', 'LC 4K->32K'"),
        ({"phases": [""]}, "no phase '' in this series: its phases are 'stage 1', 'LC 4K->32K'"),
    ],
)  # fmt: skip
def test_thinning_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RopewalkError) as error:
        select(branches(["stage1-step1", "lc-4k-to-32k-step-3"]), **options)
    assert str(error.value) == message


def test_a_series_without_phases_says_so() -> None:
    with pytest.raises(RopewalkError, match="no phase 'S1' in this series: its phases are none: its branches have no"):
        select(branches(["step1"]), phases=["S1"])


# Listing


def test_listing_takes_one_request_and_counts_what_it_skips(serve: Serve) -> None:
    hub = serve({"org/pythia": {"main": {}, "step1000": {}, "step0": {}, "notes": {}}})
    found = series.list_series("org/pythia")
    assert [branch.name for branch in found.branches] == ["step0", "step1000"]
    assert found.skipped == ("main", "notes")
    assert [request.path for request in hub.log] == ["/api/models/org/pythia/refs"]


def test_an_api_of_ones_own_is_used(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = serve({"org/pythia": {"step1": checkpoint("a"), "step2": checkpoint("b")}})
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    api = HfApi(endpoint=hub.endpoint)
    found = series.scan(series.list_series("org/pythia", api=api), api=api)
    assert set(found.contents) == {"step1", "step2"}


def test_the_endpoint_of_the_environment_is_honoured(serve: Serve, tmp_path: Path) -> None:
    hub = serve({"org/pythia": {"step1": {}, "main": {}}})
    code = "from ropewalk import series; print(series.describe(series.list_series('org/pythia')))"
    environment = os.environ | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
    }
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("org/pythia: 1 checkpoint; 1 other branch skipped (main)\n")
    assert [request.path for request in hub.log] == ["/api/models/org/pythia/refs"]


def raised(call: Callable[[], object]) -> str:
    with pytest.raises(RopewalkError) as error:
        call()
    return str(error.value)


LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


def test_repos_that_cannot_be_read(serve: Serve) -> None:
    hub = serve({"org/there": {"main": {}, "a": {}, "b": {}, "c": {}, "d": {}}, "org/kept": {"step1": checkpoint("a")}},
                gated=("org/kept",))  # fmt: skip
    assert raised(lambda: series.list_series("org/gone")) == (
        f"no repo org/gone on the hub: check the spelling (owner/name), and if it is private, {LOG_IN}"
    )
    assert raised(lambda: series.list_series("../there")) == (
        "'../there' is not the name of a hub repo: give it as owner/name"
    )
    assert raised(lambda: series.list_series("org/there")) == (
        "no branch of org/there is named like a checkpoint (stage1-step-40000, step-1000, step1000, ckpt_100, ...): "
        "it has main, a, b and 2 more; write its checkpoints into a study by hand"
    )
    gated = f"org/kept is gated: ask for access on its page on the hub, then {LOG_IN}"
    assert raised(lambda: scanned("org/kept")) == gated
    hub.fail("/refs", 403, "GatedRepo", "Access to this model is restricted.")
    assert raised(lambda: series.list_series("org/kept")) == gated


def test_a_hub_that_fails(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = serve({"org/pythia": {"step1": checkpoint("a"), "step2": checkpoint("b")}})
    found = series.list_series("org/pythia")
    hub.fail("/tree/step2", 404, "RevisionNotFound")
    assert raised(lambda: series.scan(found)) == (
        "a branch of org/pythia went away while it was read: run the command again"
    )
    hub.faults.clear()
    hub.fail("/refs", 503)
    assert raised(lambda: series.list_series("org/pythia")) == (
        "the hub answered 503 about org/pythia: wait a little and run again"
    )
    closed = "http://127.0.0.1:9"
    assert raised(lambda: series.list_series("org/pythia", api=HfApi(endpoint=closed))) == (
        f"cannot reach the hub at {closed} for org/pythia: check the connection (or HF_ENDPOINT) and run again"
    )
    for wrong in ("http://[::1", "http://\x1b[2J"):
        message = raised(lambda wrong=wrong: series.list_series("org/pythia", api=HfApi(endpoint=wrong)))
        assert message.startswith("cannot reach the hub at http://")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert raised(lambda: series.list_series("org/pythia")) == (
        "HF_HUB_OFFLINE is set, and org/pythia is on the hub: unset it and run again"
    )


# Audit


def test_a_sound_series_has_no_findings_and_no_weights_are_fetched(serve: Serve) -> None:
    hub = serve({"org/pythia": {"main": {}} | {f"step{n}": checkpoint(f"w{n}") for n in range(160)}})
    seen: list[tuple[int, int]] = []
    found = series.scan(series.list_series("org/pythia"), progress=lambda done, total: seen.append((done, total)))
    assert series.audit(found) == []
    assert seen == [(done, 160) for done in range(1, 161)]
    # One listing for each branch, and the config that all of them share once.
    assert sum("/tree/" in request.path for request in hub.log) == 160
    assert [path.rsplit("/", 1)[-1] for path in hub.fetched()] == ["config.json"]
    assert not any("model.safetensors" in request.path for request in hub.log)
    assert series.describe(found, []).endswith("audit:\n- nothing to report")


def test_one_look_per_phase_is_enough_for_a_study_without_audit(serve: Serve) -> None:
    hub = serve({"org/olmo": {f"stage{s}-step{n}": checkpoint(f"{s}{n}") for s in (1, 2) for n in (1, 2, 3)}})
    found = series.scan(series.list_series("org/olmo"), one_per_phase=True)
    assert set(found.contents) == {"stage1-step1", "stage2-step1"}
    assert yaml.safe_load(series.to_study(found))["defaults"]["context"] == 2048
    assert sum("/tree/" in request.path for request in hub.log) == 2


def test_identical_weights_are_found_by_their_digests(serve: Serve) -> None:
    serve({"org/pythia": {f"step{n}": checkpoint("same" if n in (0, 1, 5, 6, 7) else f"w{n}") for n in range(10)}})
    findings = series.audit(scanned("org/pythia"))
    assert [(finding.kind, finding.branches) for finding in findings] == [
        ("identical weights", ("step0", "step1", "step5", "step6", "step7"))
    ]
    assert findings[0].text == ("step0, step1, step5 and 2 more have identical weights: one checkpoint under 5 names.")


def test_shards_that_some_branches_share_are_found(serve: Serve) -> None:
    hub = serve({"org/big": {
        "step1": sharded("a", "b", "c"), "step2": sharded("final", "d", "e"), "step3": sharded("final", "f", "g"),
        "step4": sharded("h", "i", "j"), "step5": sharded("h", "i", "j"), "step6": sharded("k", "l", "m"),
    }})  # fmt: skip
    findings = series.audit(scanned("org/big"))
    assert texts(findings, "identical weights") == [
        "step4, step5 have identical weights: one checkpoint under 2 names."
    ]
    assert texts(findings, "shared weights") == [
        "step2, step3 share a weight file: a part of their weights is the same."
    ]
    assert len(findings) == 2
    assert {path.rsplit("/", 1)[-1] for path in hub.fetched()} == {"config.json", "model.safetensors.index.json"}


def test_what_would_be_loaded_is_compared_not_what_lies_beside_it(serve: Serve) -> None:
    both = [checkpoint("same") | {"pytorch_model.bin": text} for text in (b"one", b"two")]
    serve({"org/two": {"step1": both[0], "step2": both[1]}})
    findings = series.audit(scanned("org/two"))
    assert [finding.kind for finding in findings] == ["identical weights"]


def test_any_names_of_branches_give_a_study_that_is_right(serve: Serve) -> None:
    names = ("step-1", "STEP-1", "step1", "step-" + "9" * 23, "ckpt_" + "1" * 200)
    serve({"org/odd": {name: checkpoint("a") for name in names}})
    found = scanned("org/odd")
    assert set(found.skipped) == set(names[3:])
    study = check_study(yaml.safe_load(series.to_study(found)), "the study")
    assert sorted(one.name for one in study.checkpoints) == ["STEP-1", "step-1 (2)", "step1"]


def test_missing_files_make_a_branch_unusable(serve: Serve) -> None:
    bare = checkpoint("x")
    serve({"org/holes": {
        "step1": checkpoint("a"),
        "step2": {name: data for name, data in bare.items() if name != "model.safetensors"},
        "step3": sharded("a1", "b1", "c1", lost=("b1",)),
        "step4": {name: data for name, data in bare.items() if name != "config.json"},
        "step5": checkpoint("e") | {"config.json": b"\xff not text"},
        "step6": {"model-00001-of-00002.safetensors": b"f", "config.json": config(), "tokenizer.json": b""},
        "step7": sharded("a7", "b7") | {"model.safetensors.index.json": b"[]"},
        "step8": {},
    }})  # fmt: skip
    found = scanned("org/holes")
    findings = series.audit(found)
    assert texts(findings, "missing weights") == [
        "step2, step6, step7 and 1 more have no weights "
        "(no model.safetensors, no readable index, no pytorch_model.bin).",
        "step3 lacks model-00002-of-00003.safetensors: 1 of the 3 weight files its index names.",
    ]
    assert texts(findings, "missing config") == ["step4, step5, step8 have no config.json that can be read."]
    assert texts(findings, "no tokenizer") == ["step8 has no tokenizer: name one in the study's defaults."]
    text = series.to_study(found, findings=findings)
    assert [checkpoint["revision"] for checkpoint in yaml.safe_load(text)["checkpoints"]] == ["step1"]
    assert "# - step4, step5, step8 have no config.json that can be read. Left out.\n" in text


def test_a_config_that_changes_names_key_old_and_new(serve: Serve) -> None:
    rope = {"rope_scaling": {"type": "linear", "factor": 2.0}}
    serve({"org/olmo": {
        "stage1-step1": checkpoint("a"),
        "stage1-step2": checkpoint("b", transformers_version="5.0", _name_or_path="elsewhere"),
        "stage2-step1": checkpoint("c", rope_theta=500_000, **rope),
        "stage2-step2": checkpoint("d", rope_theta=500_000, **rope),
        "stage3-step1": checkpoint("e"),
        "stage3-step2": checkpoint("f", rope_theta=500_000),
    }})  # fmt: skip
    assert texts(series.audit(scanned("org/olmo")), "config change") == [
        "config.json changes at stage2-step1: rope_scaling.factor from (absent) to 2.0.",
        "config.json changes at stage2-step1: rope_scaling.type from (absent) to linear.",
        "config.json changes at stage2-step1, stage3-step2: rope_theta from 10000 to 500000.",
        "config.json changes at stage3-step1: rope_scaling.factor from 2.0 to (absent).",
        "config.json changes at stage3-step1: rope_scaling.type from linear to (absent).",
        "config.json changes at stage3-step1: rope_theta from 500000 to 10000.",
    ]


def test_pickled_weights_and_missing_tokenizers_are_told(serve: Serve) -> None:
    serve({"org/old": {"ckpt_000": {"config.json": config(), "pytorch_model.bin": b"a"},
                       "ckpt_001": sharded("a", "b", kind="bin")}})  # fmt: skip
    findings = series.audit(scanned("org/old"))
    assert [(finding.text, finding.unusable) for finding in findings] == [
        ("All 2 branches have weights as .bin files only: convert them to safetensors first.", True),
        ("ckpt_000 has no tokenizer: name one in the study's defaults.", False),
    ]


# Study and listing


def smollm3(serve: Serve, **options: Any) -> HubStandIn:
    """The published series; its long-context configs are as before the extension, so that overrides are needed."""
    short = {"max_position_embeddings": 4096, "rope_theta": 50_000}
    repo = {name: checkpoint(name, **short) for name in PUBLISHED}
    for files in repo.values():
        del files["tokenizer.json"]
    return serve({SMOLLM3: {"main": {"README.md": b""}, "it-SFT": {}} | repo}, **options)


def test_the_published_study_comes_out_of_its_repo(serve: Serve) -> None:
    smollm3(serve)
    found = scanned(SMOLLM3)
    findings = series.audit(found)
    assert texts(findings, "no tokenizer") == [
        "All 10 branches have no tokenizer: the study takes it from HuggingFaceTB/SmolLM3-3B."
    ]
    study = yaml.safe_load(series.to_study(found, findings=findings))
    assert study["name"] == "smollm3_3b_checkpoints"
    assert study["defaults"] == {"repo": SMOLLM3, "tokenizer": "HuggingFaceTB/SmolLM3-3B", "dtype": "bfloat16"}
    assert study["capture"] == {"heads": 300, "seed": 0}
    assert study["corpus"]["repo"] == "viktoroo/longbench-pro-128k-plus"
    rows = [
        (row["revision"], (row["label"], row["phase"], row["step"], row["context"])) for row in study["checkpoints"]
    ]
    assert rows == [(name, row[:4]) for name, row in PUBLISHED.items()]
    checked = parse_study(study)
    assert [(row.name, row.label, row.context) for row in checked.checkpoints] == [
        (name, row[0], row[3]) for name, row in PUBLISHED.items()
    ]
    overrides = {row["revision"]: row.get("overrides") for row in study["checkpoints"]}
    assert overrides == {
        name: None if row[3] == 4096 else {"rope_theta": row[4], "max_position_embeddings": row[3]}
        for name, row in PUBLISHED.items()
    }


def test_the_context_is_at_most_the_one_asked_for(serve: Serve) -> None:
    smollm3(serve)
    found = scanned(SMOLLM3)
    rows = yaml.safe_load(series.to_study(found, context=8192))["checkpoints"]
    assert [row["context"] for row in rows] == [4096] * 6 + [8192] * 4
    capped = yaml.safe_load(series.to_study(found, context=1024))
    assert capped["defaults"]["context"] == 1024
    assert all("context" not in row for row in capped["checkpoints"])


def test_a_series_nobody_knows_takes_its_values_from_its_configs(serve: Serve) -> None:
    nested = {"rope_parameters": {"rope_theta": 2_000_000, "rope_type": "default"}, "max_position_embeddings": 8192}
    later = checkpoint("b")
    later["config.json"] = json.dumps({"text_config": nested}).encode()
    serve({"org/My.Model-1B": {"stage1-step512": checkpoint("a"), "stage2-step1000": later}})
    found = scanned("org/My.Model-1B")
    study = yaml.safe_load(series.to_study(found, corpus={"source": "files", "paths": ["*.txt"]}))
    assert study == {
        "name": "my_model_1b",
        "defaults": {"repo": "org/My.Model-1B", "dtype": "bfloat16"},
        "checkpoints": [
            {"revision": "stage1-step512", "label": "S1-512", "phase": "stage 1", "step": 512, "context": 2048},
            {
                "revision": "stage2-step1000",
                "label": "S2-1K",
                "phase": "stage 2",
                "step": 1000,
                "context": 8192,
                "overrides": {"rope_theta": 2_000_000, "max_position_embeddings": 8192},
            },
        ],
        "corpus": {"source": "files", "paths": ["*.txt"]},
        "capture": {"heads": 300, "seed": 0},
    }
    assert yaml.safe_load(series.to_study(found, name="mine"))["name"] == "mine"


def test_labels_that_look_like_numbers_stay_text(serve: Serve) -> None:
    serve({"org/pythia": {"step0": checkpoint("a"), "step512": checkpoint("b")}})
    study = yaml.safe_load(series.to_study(scanned("org/pythia")))
    assert [row["label"] for row in study["checkpoints"]] == ["0", "512"]
    assert study["corpus"] == {"source": "python-stdlib"}


def test_studies_that_cannot_be_written(serve: Serve) -> None:
    silent = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"a", "tokenizer.json": b""}
    serve({"org/silent": {"step1": silent}, "org/empty": {"step1": {"config.json": b"{}", "tokenizer.json": b""}}})
    found = scanned("org/silent")
    assert raised(lambda: series.to_study(found)) == (
        "the config of step1 in org/silent does not give max_position_embeddings: name a context with --context"
    )
    assert yaml.safe_load(series.to_study(found, context=512))["defaults"]["context"] == 512
    assert raised(lambda: series.to_study(found, context=1)) == ("--context 1 is too short: give at least 2 tokens")
    empty = scanned("org/empty")
    assert raised(lambda: series.to_study(empty, findings=series.audit(empty))) == (
        "no checkpoint of org/empty can be loaded: step1 has no weights "
        "(no model.safetensors, no readable index, no pytorch_model.bin)"
    )


def test_the_terminal_shows_a_row_for_each_checkpoint(serve: Serve) -> None:
    serve({"org/olmo": {
        "main": {},
        "stage1-step1000-tokens5B": checkpoint("a" * 500),
        "stage2-ingredient1-step20-tokens1B": checkpoint("b" * 1500, max_position_embeddings=4096),
        "stage2-ingredient1-step40-tokens2B": checkpoint("b" * 1500, max_position_embeddings=4096),
    }})  # fmt: skip
    found = scanned("org/olmo")
    assert (
        series.describe(found, series.audit(found))
        == """\
org/olmo: 3 checkpoints in 2 phases (stage 1, stage 2 ingredient 1); 1 other branch skipped (main)

   label    branch                              phase                 step  tokens  context  weights
1  S1-1K    stage1-step1000-tokens5B            stage 1               1000      5B     2048   5.0 MB
2  S2i1-20  stage2-ingredient1-step20-tokens1B  stage 2 ingredient 1    20      1B     4096  15.0 MB
3  S2i1-40  stage2-ingredient1-step40-tokens2B  stage 2 ingredient 1    40      2B     4096  15.0 MB

weights to download: 35.0 MB

audit:
- stage2-ingredient1-step20-tokens1B, stage2-ingredient1-step40-tokens2B have identical weights: \
one checkpoint under 2 names.
- config.json changes at stage2-ingredient1-step20-tokens1B: max_position_embeddings from 2048 to 4096."""
    )


def test_a_listing_that_was_not_scanned_leaves_out_what_it_does_not_know(serve: Serve) -> None:
    serve({"org/pythia": {"step0": {}, "step1000": {}}})
    assert (
        series.describe(series.list_series("org/pythia"))
        == """\
org/pythia: 2 checkpoints

   label  branch    step
1  0      step0        0
2  1K     step1000  1000"""
    )


# The stand-in itself answers as the client expects


def test_the_stand_in_serves_what_the_client_asks(serve: Serve) -> None:
    model = checkpoint("a") | {"sub/notes.txt": b"hello"}
    hub = serve({"org/model": {"main": model}, "datasets/org/data": {"main": {"a.txt": b"a"}}})
    api = HfApi()
    info = api.model_info("org/model", files_metadata=True)
    assert info.sha == commit_of("org/model", "main")
    listed = {sibling.rfilename: sibling for sibling in info.siblings or []}
    tree = {entry.path: entry for entry in api.list_repo_tree("org/model", recursive=True)}
    assert set(listed) == set(tree)
    lfs = listed["model.safetensors"].lfs
    assert lfs is not None
    assert lfs.sha256 == tree["model.safetensors"].lfs.sha256  # type: ignore[union-attr]
    assert [entry.path for entry in api.get_paths_info("org/model", ["config.json", "absent"])] == ["config.json"]
    assert "sub" in {entry.path for entry in api.list_repo_tree("org/model")}
    assert Path(api.hf_hub_download("org/model", "sub/notes.txt")).read_bytes() == b"hello"
    assert Path(api.hf_hub_download("org/data", "a.txt", repo_type="dataset")).read_bytes() == b"a"
    assert hub.fetched() == ["/org/model/resolve/main/sub/notes.txt", "/datasets/org/data/resolve/main/a.txt"]


# Repositories of strangers

HOSTILE = "x\nresults: stolen\n\x1b[2J\r\u202e\u2028name: other\x85\x9b31m"


def hostile(number: int) -> dict[str, bytes]:
    values = {"note": HOSTILE if number else "a", HOSTILE: number, "nested": {"deep": {HOSTILE: [HOSTILE * number]}}}
    return checkpoint(str(number), **values)


def test_text_of_a_repository_stays_in_its_comment(serve: Serve, run: Any, tmp_path: Path) -> None:
    branches = {f"step{number}": hostile(number) for number in range(3)}
    serve({"org/bad": {**branches, f"odd{HOSTILE}": {}}})
    found = scanned("org/bad")
    text = series.to_study(found, findings=series.audit(found))
    assert set(yaml.safe_load(text)) == {"name", "defaults", "checkpoints", "corpus", "capture"}
    assert text.replace("\n", "").isprintable()
    assert sum(line.startswith("#") for line in text.splitlines()) > 3
    parse_study(yaml.safe_load(text))
    code, out, _ = run("checkpoints", "org/bad", "--output", str(tmp_path / "study.yaml"))
    assert code == 0
    assert out.replace("\n", "").isprintable()
    assert "\\x1b[2J" in out
    assert not any(line.startswith("results") for line in out.splitlines())
    assert (tmp_path / "study.yaml").read_text() == text
    assert max(map(len, out.splitlines())) < 700


@pytest.mark.parametrize("value", [True, -5, 0, 1, "9", None, [1], {}, 10**40, 1e300, float("nan"), float("inf"), 2.5])
@pytest.mark.parametrize("key", ["max_position_embeddings", "rope_theta"])
def test_values_of_a_repository_are_numbers_or_left_out(key: str, value: Any, serve: Serve) -> None:
    serve({"org/bad": {"step1": checkpoint("a"), "step2": checkpoint("b", **{key: value})}})
    study = parse_study(yaml.safe_load(series.to_study(scanned("org/bad"), context=64)))
    assert [one.context for one in study.checkpoints] == [64, 64]
    usable = key == "rope_theta" and value == 2.5
    assert study.checkpoints[1].overrides.get(key) == (value if usable else None)


@pytest.mark.parametrize(
    "content", [b"[" * 10**5, b'{"a":' * 10**4, b"\xff", b"[]", b"null", b'{"a": ' + b"9" * 10**4 + b"}"]
)
def test_a_config_that_cannot_be_read_is_a_finding(content: bytes, serve: Serve) -> None:
    serve({"org/bad": {"step1": checkpoint("a"), "step2": {**checkpoint("b"), "config.json": content}}})
    found = series.audit(scanned("org/bad"))
    assert texts(found, "missing config") == ["step2 has no config.json that can be read."]


def test_an_index_of_pickles_is_no_index(serve: Serve) -> None:
    files = sharded("a", "b")
    index = {"weight_map": {"layer.0.weight": "pytorch_model-00001-of-00001.bin"}}
    serve({"org/bad": {"step1": files, "step2": {**files, "model.safetensors.index.json": json.dumps(index).encode()}}})
    (finding,) = [one for one in series.audit(scanned("org/bad")) if one.kind == "missing weights"]
    assert finding.branches == ("step2",)
    assert finding.unusable
