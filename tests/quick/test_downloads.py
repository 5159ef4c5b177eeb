"""Long series from the hub: one checkpoint ahead, in bounded space, on through failures, and nothing fetched twice."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from helpers.command import Run
from helpers.hub import HubStandIn, commit_of
from helpers.llama import save_llama, write_gguf
from helpers.logs import heard
from ropewalk.capture import account
from ropewalk.capture import downloads as of_studies
from ropewalk.capture.account import Account
from ropewalk.capture.fetched import FETCHED
from ropewalk.capture.run import capture_study, plan_study
from ropewalk.capture.work import Bench, Piece
from ropewalk.errors import IncompleteError, RopewalkError
from ropewalk.models import downloads
from ropewalk.models import hub as hub_module
from ropewalk.models.downloads import PAUSES, absent_weights
from ropewalk.record import need_record
from ropewalk.results import load
from ropewalk.study import Study
from ropewalk.studyfile import parse_study

Data = dict[str, Any]
REPO = "org/series"
STEPS = ("step1", "step2", "step3", "step4")
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Four checkpoints of a tiny llama in one file each; the last one has its weights in six."""
    home = tmp_path_factory.mktemp("series")
    found = {}
    for number, step in enumerate(STEPS):
        folder = save_llama(home / step, shards="20KB" if step == STEPS[-1] else "1GB")
        for path in folder.glob("*.safetensors"):
            state = {name: tensor * (1 + number / 10) for name, tensor in load_file(path).items()}
            save_file(state, path, metadata={"format": "pt"})
        found[step] = {path.name: path.read_bytes() for path in folder.iterdir()}
    return found


@pytest.fixture
def hub(serve: Callable[..., HubStandIn], branches: dict[str, dict[str, bytes]]) -> HubStandIn:
    return serve({REPO: branches})


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "PAUSES", (0.0, 0.0, 0.0))


@pytest.fixture
def data(tmp_path: Path) -> Data:
    (tmp_path / "texts").mkdir()
    for number in range(4):
        words = " ".join(str((7 * number + 5 * word) % 60 + 3) for word in range(40))
        (tmp_path / "texts" / f"{number}.txt").write_text(words)
    return {
        "name": "series",
        "results": str(tmp_path / "results"),
        "defaults": {"repo": REPO, "context": 24, "device": "cpu"},
        "checkpoints": [{"revision": step, "step": number} for number, step in enumerate(STEPS, 1)],
        "corpus": {"source": "files", "paths": [str(tmp_path / "texts" / "*.txt")]},
        "capture": {"shards": 2, "statistics": ["moments"]},
    }


def shards(study: Study) -> dict[str, bytes]:
    found = sorted(study.folder.glob("captures/*/shard-*.safetensors"))
    return {path.relative_to(study.folder).as_posix(): path.read_bytes() for path in found}


def transferred(hub: HubStandIn) -> list[str]:
    """The weight files whose content was sent, as step/name, in order."""
    steps = {commit_of(REPO, step): step for step in STEPS}
    paths = (path.split("/resolve/")[1] for path in hub.fetched() if path.endswith(".safetensors"))
    return [f"{steps[commit]}/{name}" for commit, name in (path.split("/") for path in paths)]


def in_cache(cache: Path) -> set[str]:
    """The steps of which weights are in the cache."""
    steps = {commit_of(REPO, step): step for step in STEPS}
    return {steps[path.parent.name] for path in cache.glob("models--*/snapshots/*/*.safetensors")}


def bytes_in_cache(cache: Path) -> int:
    """Bytes of weights in the cache; light files are smaller than any of them but one of the six."""
    return sum(path.stat().st_size for path in cache.glob("models--*/blobs/*") if len(path.name) == 64)


def sizes(branches: dict[str, dict[str, bytes]]) -> dict[str, int]:
    return {
        step: sum(len(data) for name, data in files.items() if name.endswith(".safetensors"))
        for step, files in branches.items()
    }


# One ahead


def test_the_next_weights_are_fetched_while_this_checkpoint_computes(
    hub: HubStandIn, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that computes waits for the transfer of the next one: it comes, and no other than that."""
    seen: dict[str, threading.Event] = {step: threading.Event() for step in STEPS}
    steps = {commit_of(REPO, step): step for step in STEPS}
    hub.transferring = lambda path: seen[steps[path.split("/")[0]]].set() if path.endswith(".safetensors") else None
    compute, ahead = Bench.shard, []

    def waiting(bench: Bench, piece: Piece, *arguments: Any) -> bytes:
        number = STEPS.index(bench.order.name)
        if piece.number == 0:
            if number + 1 < len(STEPS):
                assert seen[STEPS[number + 1]].wait(20)
            ahead.append([step for step in STEPS if seen[step].is_set()])
        return compute(bench, piece, *arguments)

    monkeypatch.setattr(Bench, "shard", waiting)
    capture_study(parse_study(data))
    assert ahead == [list(STEPS[:2]), list(STEPS[:3]), list(STEPS), list(STEPS)]


def test_shards_are_those_of_local_weights(
    hub: HubStandIn, data: Data, branches: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    remote = parse_study(data | {"downloads": "discard"})
    capture_study(remote)
    for step, files in branches.items():
        (tmp_path / step).mkdir()
        for name, content in files.items():
            (tmp_path / step / name).write_bytes(content)
    local = parse_study(
        data
        | {"results": str(tmp_path / "local"), "downloads": "keep"}
        | {"checkpoints": [{"repo": str(tmp_path / step), "name": step} for step in STEPS]}
    )
    capture_study(local)
    assert len(shards(remote)) == 8

    def sums(study: Study) -> list[bytes]:
        """What follows the header: the marks in it name the model by its commit, or by its contents."""
        found = shards(study).values()
        return [one[8 + int.from_bytes(one[:8], "little") :] for one in found]

    assert sums(remote) == sums(local)


# Space


def test_what_is_to_be_fetched_is_said_before_anything_is(
    hub: HubStandIn, data: Data, branches: dict[str, dict[str, bytes]], tmp_path: Path, run: Run
) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**data, "results": ""}))
    code, out, err = run("run", str(tmp_path / "study.yaml"), "--dry-run", "--results", str(tmp_path / "results"))
    assert code == 0, err
    total = sum(sizes(branches).values())
    line = next(line for line in out.splitlines() if line.startswith("to fetch"))
    assert f"to fetch from the hub: {total / 1000:.1f} KB of weights for 4 checkpoints; " in line
    assert line.endswith(f"are free in {constants.HF_HUB_CACHE}")
    assert transferred(hub) == []
    assert not (tmp_path / "results").exists()
    said: list[str] = []
    with heard(said.append):
        capture_study(parse_study(data), only=["step1"])
    assert said[0].startswith(f"to fetch from the hub: {sizes(branches)['step1'] / 1000:.1f} KB of weights for 1 check")
    rest = total - sizes(branches)["step1"]
    assert f"{rest / 1000:.1f} KB of weights for 3 checkpoints" in plan_study(parse_study(data))
    capture_study(parse_study(data))
    assert "to fetch" not in plan_study(parse_study(data))


def test_blobs_that_revisions_share_are_counted_once(
    serve: Callable[..., HubStandIn], branches: dict[str, dict[str, bytes]], data: Data
) -> None:
    serve({REPO: dict.fromkeys(STEPS, branches["step1"])})
    length = len(branches["step1"][WEIGHTS])
    assert f"{length / 1000:.1f} KB of weights for 4 checkpoints" in plan_study(parse_study(data))
    capture_study(parse_study(data), only=["step1"])
    assert "to fetch from the hub: 0 B of weights for 3 checkpoints" in plan_study(parse_study(data))


def free(monkeypatch: pytest.MonkeyPatch, space: int) -> None:
    monkeypatch.setattr(of_studies.shutil, "disk_usage", lambda path: SimpleNamespace(free=space))


def test_a_disk_that_is_too_small_is_said_and_nothing_fetched(
    hub: HubStandIn, data: Data, branches: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(sizes(branches).values())
    free(monkeypatch, total - 1)
    for step in (capture_study, plan_study):
        with pytest.raises(
            RopewalkError,
            match=r"^the weights still to be fetched take .* KB and .* KB are free in .*: free some space, or set "
            r"HF_HOME to a folder on a larger disk, or set `downloads: discard` in the study, which needs .*$",
        ):
            step(parse_study(data))
    assert transferred(hub) == []
    assert not (tmp_path / "results").exists()
    free(monkeypatch, total)
    plan_study(parse_study(data))


def test_discarding_needs_the_space_of_two_checkpoints(
    hub: HubStandIn, data: Data, branches: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, most = parse_study(data | {"downloads": "discard"}), sizes(branches)["step3"] + sizes(branches)["step4"]
    assert f"of which {most / 1000:.1f} KB are kept at a time" in plan_study(study)
    free(monkeypatch, most)
    plan_study(study)
    free(monkeypatch, most - 1)
    with pytest.raises(RopewalkError, match=r"take .* are free in .* set HF_HOME to a folder on a larger disk$"):
        plan_study(study)


def test_the_size_of_a_gguf_file_is_said_before_it_is_fetched(
    serve: Callable[..., HubStandIn], data: Data, tmp_path: Path
) -> None:
    """Its configuration is in it, so that checking it fetches it, but not before the line."""
    write_gguf(tmp_path / "tiny.gguf")
    hub = serve({"org/gguf": {"main": {"tiny.gguf": (tmp_path / "tiny.gguf").read_bytes()}}})
    data["checkpoints"] = [{"repo": "org/gguf", "gguf_file": "tiny.gguf", "name": "g"}]
    said: list[tuple[str, int]] = []
    with heard(lambda line: said.append((line, len(hub.fetched())))):
        plan = plan_study(parse_study(data))
    length = (tmp_path / "tiny.gguf").stat().st_size
    assert said[0][0].startswith(f"to fetch from the hub: {length / 1000:.1f} KB of weights for 1 checkpoint;")
    assert said[0][1] == 0
    assert "to fetch" not in plan


# Discarding


def watched(study: Study, cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes in the cache whenever a shard was written."""
    found: list[int] = []
    done = Account.done

    def writing(*arguments: Any) -> None:
        found.append(bytes_in_cache(cache))
        done(*arguments)

    monkeypatch.setattr(Account, "done", writing)
    return found


def test_discarded_weights_never_take_more_than_two_checkpoints(
    hub: HubStandIn, data: Data, branches: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = parse_study(data | {"downloads": "discard"})
    seen = watched(study, tmp_path / "cache", monkeypatch)
    capture_study(study)
    assert len(seen) == 8
    assert max(seen) <= 2 * max(sizes(branches).values())
    assert bytes_in_cache(tmp_path / "cache") == 0
    assert in_cache(tmp_path / "cache") == set()
    snapshot = tmp_path / "cache" / "models--org--series" / "snapshots" / commit_of(REPO, "step1")
    assert (snapshot / "config.json").is_file()


def test_weights_are_kept_by_default(hub: HubStandIn, data: Data, tmp_path: Path) -> None:
    capture_study(parse_study(data))
    assert in_cache(tmp_path / "cache") == set(STEPS)


def test_what_was_in_the_cache_before_stays(hub: HubStandIn, data: Data, tmp_path: Path) -> None:
    capture_study(parse_study(data | {"results": str(tmp_path / "first")}), only=["step2"])
    capture_study(parse_study(data | {"downloads": "discard"}))
    assert in_cache(tmp_path / "cache") == {"step2"}
    assert transferred(hub).count("step2/model.safetensors") == 1


def test_finished_checkpoints_need_their_weights_no_more(hub: HubStandIn, data: Data, tmp_path: Path, run: Run) -> None:
    study = parse_study(data | {"downloads": "discard"})
    capture_study(study)
    before, fetched = shards(study), transferred(hub)
    capture_study(study)
    plan_study(study)
    code, _, err = run("analyze", str(study.folder))
    assert code == 0, err
    assert transferred(hub) == fetched
    assert shards(study) == before
    assert in_cache(tmp_path / "cache") == set()


def test_finished_checkpoints_need_no_hub(
    hub: HubStandIn, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Light files stay in the cache."""
    study = parse_study(data | {"downloads": "discard"})
    capture_study(study)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub_module._commit.cache_clear()
    hub_module._remote_files.cache_clear()
    capture_study(study)
    assert "0 shards to compute" in plan_study(study)


def test_a_blob_that_a_later_checkpoint_needs_is_kept(
    serve: Callable[..., HubStandIn], branches: dict[str, dict[str, bytes]], data: Data, tmp_path: Path
) -> None:
    hub = serve({REPO: {**branches, "step3": branches["step1"]}})
    capture_study(parse_study(data | {"downloads": "discard"}))
    assert [name for name in transferred(hub) if name.endswith(f"/{WEIGHTS}")] == [
        "step1/model.safetensors",
        "step2/model.safetensors",
    ]
    assert bytes_in_cache(tmp_path / "cache") == 0


def test_weights_of_one_commit_serve_all_its_checkpoints(hub: HubStandIn, data: Data, tmp_path: Path) -> None:
    """Those of one that is not of this run too: it is known by its revision."""
    data["checkpoints"] = [
        {"revision": "step1", "name": "short", "context": 16},
        {"revision": "step2", "name": "other"},
        {"revision": "step1", "name": "long"},
        {"revision": "step1", "name": "longest", "context": 30},
    ]
    study = parse_study(data | {"downloads": "discard"})
    for only, left in ((["short", "other", "long"], {"step1"}), (["longest"], set())):
        capture_study(study, only=only)
        assert in_cache(tmp_path / "cache") == left
    assert transferred(hub) == ["step1/model.safetensors", "step2/model.safetensors"]


def test_blobs_of_other_commits_and_files_elsewhere_stay(hub: HubStandIn, data: Data, tmp_path: Path) -> None:
    """A file of the same blob in another snapshot is somebody's; a link out of the cache is not followed."""
    study = parse_study(data | {"downloads": "discard"})
    home = tmp_path / "cache" / "models--org--series"
    elsewhere = tmp_path / "elsewhere.safetensors"
    real = account.publish

    def linking(job: Any) -> None:
        real(job)
        file = home / "snapshots" / commit_of(REPO, job.checkpoint.name) / WEIGHTS
        if job.checkpoint.name == "step1":
            (home / "snapshots" / "other").mkdir()
            (home / "snapshots" / "other" / WEIGHTS).symlink_to(file.readlink())
        if job.checkpoint.name == "step2":
            shutil.copyfile(file, elsewhere)
            file.unlink()
            file.symlink_to(elsewhere)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(account, "publish", linking)
        capture_study(study)
    assert (home / "snapshots" / "other" / WEIGHTS).is_file()
    assert elsewhere.is_file()


def test_blobs_that_newer_clients_keep_for_all_repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot's file is a link to a blob, and that a link into a store; each goes when nothing else needs it."""
    cache = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    store = cache / "blobs" / "ab" / "abcd"
    store.parent.mkdir(parents=True)
    store.write_bytes(b"weights")
    folders = []
    for repo in ("one", "two"):
        blob = cache / f"models--org--{repo}" / "blobs" / "f00d"
        blob.parent.mkdir(parents=True)
        blob.symlink_to(Path("../../blobs/ab/abcd"))
        folders.append(blob.parents[1] / "snapshots" / "commit")
        folders[-1].mkdir(parents=True)
        (folders[-1] / WEIGHTS).symlink_to(Path("../../blobs/f00d"))
    outside = tmp_path / "mine.safetensors"
    outside.write_bytes(b"mine")
    for name in ("../../../../mine.safetensors", str(outside), f"../../../models--org--two/snapshots/commit/{WEIGHTS}"):
        assert downloads.discard(folders[0], [name], ()) == 0
    assert outside.is_file()
    assert (folders[1] / WEIGHTS).is_symlink()
    assert downloads.discard(folders[0], [WEIGHTS], ()) == 0
    assert not (folders[0] / WEIGHTS).is_symlink()
    assert not (folders[0].parents[1] / "blobs" / "f00d").is_symlink()
    assert (folders[1] / WEIGHTS).read_bytes() == b"weights"
    assert downloads.discard(folders[1], [WEIGHTS], ()) == 7
    assert not store.exists()


@pytest.mark.parametrize("moment", ["computing", "discarding"])
def test_a_killed_run_goes_on_and_leaves_nothing(
    moment: str, hub: HubStandIn, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with shards to come, or between the last of them and discarding: no weights twice, none left behind."""
    whole = parse_study(data | {"results": str(tmp_path / "whole")})
    capture_study(whole)
    shutil.rmtree(tmp_path / "cache")
    hub_module._commit.cache_clear()
    hub.log.clear()
    study = parse_study(data | {"downloads": "discard"})

    class Killed(BaseException):
        pass

    def killed(*arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if moment == "computing":
            done = Account.done
            patch.setattr(
                Account,
                "done",
                lambda own, order, *rest: killed() if order.name == "step2" else done(own, order, *rest),
            )
        else:
            patch.setattr(of_studies, "discard", killed)
        with pytest.raises(Killed):
            capture_study(study)
    for thread in threading.enumerate():
        if isinstance(thread, of_studies._Fetch):
            thread.join()
    assert (study.folder / FETCHED).is_file()
    capture_study(study)
    assert shards(study) == shards(whole)
    assert sorted(transferred(hub)) == sorted(set(transferred(hub)))
    assert bytes_in_cache(tmp_path / "cache") == 0
    assert not (study.folder / FETCHED).exists()


def test_weights_stay_until_the_last_shard_is_there(hub: HubStandIn, data: Data, tmp_path: Path) -> None:
    """As when a checkpoint's shards are computed by several processes on one machine."""
    study = parse_study(data | {"downloads": "discard"})
    capture_study(study, only=["step1"], shards=[1])
    assert in_cache(tmp_path / "cache") == {"step1"}
    capture_study(study, only=["step1"], shards=[1])
    capture_study(study, only=["step1"], shards=[0])
    assert in_cache(tmp_path / "cache") == set()
    assert transferred(hub) == ["step1/model.safetensors"]


def test_nothing_is_fetched_for_shards_that_are_there(hub: HubStandIn, data: Data) -> None:
    study = parse_study(data | {"downloads": "discard"})
    capture_study(study, only=["step1"], shards=[1])
    shutil.rmtree(constants.HF_HUB_CACHE)
    hub_module._commit.cache_clear()
    capture_study(study, only=["step1"], shards=[1])
    assert transferred(hub) == ["step1/model.safetensors"]


def test_a_damaged_note_is_cleared_and_nothing_else_deleted(hub: HubStandIn, data: Data, tmp_path: Path) -> None:
    study = parse_study(data | {"downloads": "discard"})
    capture_study(study, only=["step1"], shards=[1])
    (study.folder / FETCHED).write_text("{}")
    said: list[str] = []
    with heard(said.append):
        capture_study(study, only=["step1"])
    assert f"{study.folder / FETCHED} is damaged: weights that were fetched earlier are not discarded" in said
    assert in_cache(tmp_path / "cache") == {"step1"}
    assert not (study.folder / FETCHED).exists()


# Failures


@pytest.mark.parametrize("faults", ["failing", "garbled"])
def test_a_download_that_fails_is_tried_again(faults: str, hub: HubStandIn, data: Data, tmp_path: Path) -> None:
    """An error of the hub, and bytes that are not those it lists."""
    getattr(hub, faults)[f"{commit_of(REPO, 'step2')}/{WEIGHTS}"] = 3
    study, said = parse_study(data), list[str]()
    with heard(said.append):
        capture_study(study)
    assert sum("again in 0 s" in line for line in said) == 3
    assert transferred(hub).count("step2/model.safetensors") == 4
    assert len(shards(study)) == 8


@pytest.fixture
def broken(hub: HubStandIn) -> Iterator[HubStandIn]:
    """The second checkpoint cannot be fetched, and of the last one a part."""
    hub.failing[f"{commit_of(REPO, 'step2')}/{WEIGHTS}"] = 1000
    hub.failing["model-00003-of-00006.safetensors"] = 1000
    return hub


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_fetched_is_left_out(
    broken: HubStandIn, data: Data, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**data, "figures": {"portraits": ["step2", "step3"]}}))
    command = ("run", str(tmp_path / "study.yaml"), "--results", str(tmp_path / "results"))
    code, out, err = run(*command)
    assert code == 3
    lines = err.splitlines()
    left_out = [line for line in lines if "is left out" in line]
    assert [line.split()[0] for line in left_out] == ["step2", "step4"]
    assert left_out[0] == (
        f"step2 is left out: {WEIGHTS} of {REPO} could not be fetched in 4 attempts "
        f"(the hub answered 503 about {REPO}: wait a little and run again)"
    )
    assert "the tables lack step2, step4: not all shards are there" in lines
    assert lines[-3] == (
        "ropewalk: step2, step4 of 4 checkpoints could not be finished; all else is done, and the same command tries "
        "again what is missing:"
    )
    assert lines[-2].startswith("step2: model.safetensors of org/series could not be fetched in 4 attempts")
    assert "Traceback" not in err
    assert "report.html" in out
    results = load(tmp_path / "results")
    assert list(results.view.lineup.labels) == ["step1", "step3"]
    assert results.missing == ["step2", "step4"]
    assert (tmp_path / "results" / "report.html").is_file()
    assert [one.name for one in need_record(tmp_path / "results").study.checkpoints] == list(STEPS)
    code, _, err = run("analyze", str(tmp_path / "results"))
    assert code == 3
    assert err.splitlines()[-1] == (
        "ropewalk: the tables lack step2, step4: run `ropewalk capture STUDY` again, which computes them"
    )
    broken.failing.clear()
    broken.log.clear()
    code, _, err = run(*command)
    assert code == 0, err
    parts = [f"step4/model-0000{number}-of-00006.safetensors" for number in range(3, 7)]
    assert transferred(broken) == ["step2/model.safetensors", *parts]
    assert list(load(tmp_path / "results").view.lineup.labels) == list(STEPS)


def test_nothing_that_could_be_fetched_is_said_as_such(hub: HubStandIn, data: Data, tmp_path: Path, run: Run) -> None:
    hub.failing[".safetensors"] = 1000
    data["checkpoints"] = data["checkpoints"][:2]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(data))
    code, out, err = run("run", str(tmp_path / "study.yaml"), "--results", str(tmp_path / "results"))
    assert (code, out) == (3, ""), err
    assert err.splitlines()[-3].startswith("ropewalk: step1, step2 of 2 checkpoints could not be finished")


def test_a_mistake_is_found_before_anything_is_fetched(hub: HubStandIn, data: Data, tmp_path: Path) -> None:
    data["checkpoints"][3]["revision"] = "step5"
    with pytest.raises(RopewalkError, match=f"^{REPO} has no revision 'step5'") as caught:
        capture_study(parse_study(data))
    assert not isinstance(caught.value, IncompleteError)
    assert transferred(hub) == []
    assert not (tmp_path / "results").exists()


def test_a_repository_that_goes_away_is_not_tried_again(hub: HubStandIn, data: Data) -> None:
    hub.transferring = lambda path: (
        hub.repos.pop(REPO, None) if path == f"{commit_of(REPO, 'step1')}/{WEIGHTS}" else None
    )
    with pytest.raises(IncompleteError, match="step2, step3, step4 of 4 checkpoints could not be finished"):
        capture_study(parse_study(data))


def test_a_full_disk_stops_the_run(hub: HubStandIn, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(downloads, "repo_file", full)
    with pytest.raises(
        RopewalkError, match=r"cannot be written to .* \(No space left on device\): free some space"
    ) as it:
        capture_study(parse_study(data))
    assert not isinstance(it.value, IncompleteError)


def test_pauses_grow(hub: HubStandIn, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(downloads, "PAUSES", PAUSES)
    monkeypatch.setattr(downloads.time, "sleep", slept.append)
    hub.failing[f"{commit_of(REPO, 'step2')}/{WEIGHTS}"] = 1000
    with pytest.raises(IncompleteError):
        capture_study(parse_study(data), only=["step2"])
    assert tuple(slept) == PAUSES == tuple(sorted(set(PAUSES)))


def test_untrained_checkpoints_and_folders_need_no_weights_of_the_hub(hub: HubStandIn, data: Data) -> None:
    source = parse_study(data).checkpoints[0]
    found = absent_weights(source)
    assert found is not None
    assert found.absent == [WEIGHTS]
    assert absent_weights(source.model_copy(update={"random_weights": True})) is None
