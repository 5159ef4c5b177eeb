"""The doctor of statistics: a right file passes, and planted faults are called by their names."""

import contextlib
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from helpers import planting
from helpers.command import Run
from helpers.exporting import CASES, CONTEXT, documents, measured
from helpers.planting import SUMS, Arrays, Subject
from helpers.tiny import make_texts, save_tokenizer, tiny_smollm3
from ropewalk.errors import RopewalkError
from ropewalk.export.claims import read_claim

MANY = 24
FRESH = documents(50, MANY)
"""Other documents than those that files are made from."""


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    found: dict[str, Subject] = {}

    def get(name: str) -> Subject:
        if name not in found:
            case, folder = CASES[name], tmp_path_factory.mktemp("subject")
            model = case.model()
            results = measured(model, MANY, shards=2, statistics=SUMS)
            found[name] = Subject(case, model, results, documents(count=MANY), folder)
        return found[name]

    return get


@pytest.mark.parametrize("name", CASES)
def test_a_right_file_passes(subjects: Callable[[str], Subject], name: str) -> None:
    subject = subjects(name)
    findings = subject.examine(subject.file, FRESH)
    assert {one.check for one in findings} == {"the statistics are the model's"}
    assert all(one.passed for one in findings)
    assert "queries, pre, layers 0-3: off by" in " ".join(one.detail for one in findings)


def other_weights(subject: Subject, arrays: Arrays) -> None:
    model = subject.case.model()
    torch.manual_seed(99)
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                projection.weight.copy_(0.4 * torch.randn(projection.weight.shape))
    path = subject.folder / "other.npz"
    path.unlink(missing_ok=True)
    measured(model, MANY, shards=2, statistics=SUMS).export(path, to="npz")
    with np.load(path) as archive:
        arrays.update({name: archive[name] for name in archive.files})


FAULTS: list[tuple[str, str, Callable[[Subject, Arrays], None], str]] = [
    ("full", "not rotated back", planting.not_rotated_back, "pre, layers 0-3"),
    ("interleaved, with NoPE layers", "not rotated back", planting.not_rotated_back, "pre, layers 0-2"),
    ("partial and interleaved", "wrong pairing", planting.wrong_pairing, "pre, layers 0-3"),
    ("full", "wrong pairing", planting.wrong_pairing, "pre, layers 0-3"),
    ("full", "rotated back the wrong way", planting.wrong_way, "pre, layers 0-3"),
    ("full", "rotated back", planting.rotated_back, "post, layers 0-3"),
    ("QK-norm", "missing QK-norm", planting.missing_norm, "pre, layers 0-3"),
    ("NoPE layers", "NoPE layers counted as rotated", planting.nope_rotated, "pre, layer 3"),
    ("full", "wrong scale (0.3", planting.scaled, "which is the model's score scale"),
    ("full", "wrong scale of the covariance (11", planting.summed, "post, layers 0-3"),
    ("full", "second moments in place of the covariance", planting.not_centred, "layers"),
    ("full", "transposed heads", planting.transposed, "post, layers 0-3"),
    ("full", "heads in another order (as 3, 0, 1, 2)", planting.reordered, "layers 0-3"),
    ("full", "heads in another order (as 1, 0, 2, 3)", planting.two_reordered, "layers 0-3"),
    ("partial", "queries and keys exchanged", planting.exchanged, "pre, layers 0-3"),
    ("full", "layers in another order (it has layer 1's)", planting.shifted, "layer 0"),
    ("full", "other model", other_weights, "layers 0-3"),
    ("full", "wrong layer count", planting.layer_count, "the file has 3 and the model 4"),
    ("full", "wrong head count", planting.head_count, "2 in the file, 4 query heads in the model"),
    ("full", "wrong head_dim", planting.head_dim, "4 in the file, 8 in the model"),
]


@pytest.mark.parametrize(("name", "fault", "plant", "detail"), FAULTS, ids=[f"{one[1]}-{one[0]}" for one in FAULTS])
def test_a_planted_fault_is_named(
    subjects: Callable[[str], Subject],
    name: str,
    fault: str,
    plant: Callable[[Subject, Arrays], None],
    detail: str,
) -> None:
    subject = subjects(name)
    findings = subject.examine(subject.planted(lambda arrays: plant(subject, arrays)), FRESH)
    failed = [one for one in findings if one.passed is False]
    assert failed
    named = [one for one in failed if one.check.startswith(fault)]
    assert named, [one.check for one in failed]
    assert any(detail in f"{one.check}: {one.detail}" for one in named), named
    if fault != "layers in another order (it has layer 1's)":
        assert len(named) == len(failed), [one.check for one in failed]


def test_faults_are_many() -> None:
    assert len({fault for _, fault, _, _ in FAULTS}) >= 8


def test_other_texts_are_neither_right_nor_a_fault(subjects: Callable[[str], Subject]) -> None:
    subject = subjects("full")
    few = np.random.default_rng(3).integers(3, 20, (MANY, CONTEXT)).tolist()
    findings = subject.examine(subject.file, few)
    assert False not in {one.passed for one in findings}, findings
    found = [one for one in findings if one.passed is None]
    assert {one.check for one in found} == {"other texts"}
    assert all("they are of other texts (give those with --text)" in one.detail for one in found)


def test_after_the_rotation_only_the_same_positions_compare(subjects: Callable[[str], Subject]) -> None:
    subject = subjects("full")
    findings = subject.examine(subject.file, [row[:32] for row in FRESH])
    assert all(", pre, " in one.detail for one in findings)
    (path,) = measured(subject.model, statistics={"moments": {}}).export(subject.folder / "post.npz", to="npz")
    with pytest.raises(RopewalkError, match=r"holds nothing that can be compared: .* over 48 tokens, and here 32 can"):
        subject.examine(path, [row[:32] for row in FRESH])


def test_a_folder_of_kvpress_is_examined(subjects: Callable[[str], Subject], tmp_path: Path) -> None:
    subject = subjects("NoPE layers")
    folder = tmp_path / "kvpress"
    measured(subject.model, MANY, statistics=SUMS).export(folder, to="kvpress")
    assert all(one.passed for one in subject.examine(folder, FRESH))
    # What a patched rotation sees of a model of which one layer does not rotate: three layers.
    arrays = load_file(folder / "model.safetensors")
    save_file({name: array[:3] for name, array in arrays.items()}, folder / "model.safetensors")
    with pytest.raises(RopewalkError, match=r"model\.safetensors is not as it was exported \(damaged, or changed"):
        subject.examine(folder, FRESH)
    (folder / "seals.json").unlink()
    (finding,) = subject.examine(folder, FRESH)
    assert (finding.check, finding.detail) == ("wrong layer count", "the file has 3 and the model 4")


def test_files_that_are_none_are_said(subjects: Callable[[str], Subject], tmp_path: Path) -> None:
    subject = subjects("full")
    for name, content, message in [
        ("a.npz", b"PK", r"a.npz cannot be read \(.*\): give a file of `ropewalk export"),
        ("a.safetensors", b"no", r"a.safetensors cannot be read"),
        ("missing.npz", None, r"missing.npz cannot be read \(there is no such file\)"),
    ]:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(RopewalkError, match=message):
            subject.examine(tmp_path / name, FRESH)
    save_file({"x": np.zeros(2)}, tmp_path / "b.safetensors")
    with pytest.raises(RopewalkError, match=r"b.safetensors is not a file of ropewalk-statistics"):
        subject.examine(tmp_path / "b.safetensors", FRESH)
    with pytest.raises(RopewalkError, match=r"has version 9 of ropewalk-statistics, and this ropewalk reads version 1"):
        subject.examine(
            subject.planted(lambda arrays: planting.header(arrays, lambda about: about.update(version=9))), FRESH
        )
    with pytest.raises(RopewalkError, match=r"has numbers that are none \(NaN, infinite or huge\) in layer 0, q, post"):
        subject.examine(subject.planted(lambda arrays: arrays["l00.q.post.mean"].fill(np.nan)), FRESH)
    bare = {"ropewalk": subject.arrays()["ropewalk"]}
    planting.header(bare, lambda about: about.pop("seal"))
    np.savez(tmp_path / "bare.npz", **bare)
    with pytest.raises(RopewalkError, match=r"holds no mean with its covariance, so a model cannot tell"):
        subject.examine(tmp_path / "bare.npz", FRESH)


def fact(**changes: Any) -> Callable[[Arrays], None]:
    """An edit of what a file says of its first layer, or of its tokens and model."""

    def edit(about: dict[str, Any]) -> None:
        for name, value in changes.items():
            next(part for part in (about["layers"][0], about["tokens"], about["model"]) if name in part)[name] = value

    return lambda arrays: planting.header(arrays, edit)


def array(name: str, change: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({f"l00.q.post.{name}": change(arrays[f"l00.q.post.{name}"])})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (fact(heads="abcd"), "and 4 heads in layer 0, q, post, which do not go together: make it again"),
        (fact(heads=[]), "and 0 heads in layer 0, q, "),
        (fact(heads=[0, 1, 2, -1]), "which do not go together"),
        (fact(heads=None), "cannot be read"),
        (fact(depth=float("inf")), "cannot be read"),
        (fact(context=-5), "says that it is of -5 tokens without the first 0, which cannot be"),
        (fact(skip_first=-3), "without the first -3, which cannot be"),
        (fact(skip_first=10**6), "leaves the first 1000000 tokens out, and here 48 can be run"),
        (array("mean", lambda mean: mean[0]), "has means [8], covariances "),
        (array("mean", lambda mean: mean[0, 0]), "has means [], covariances "),
        (array("covariance", lambda covariance: covariance[..., :5]), "which do not go together"),
        (array("covariance", lambda covariance: covariance * 1e200), "NaN, infinite or huge"),
        (array("mean", lambda mean: np.full(mean.shape, "x")), "cannot be read"),
        (array("count", lambda count: count[:0]), "cannot be read"),
    ],
    ids=range(14),
)
def test_what_does_not_go_together_is_said(
    subjects: Callable[[str], Subject], edit: Callable[[Arrays], None], message: str
) -> None:
    subject = subjects("full")
    with pytest.raises(RopewalkError, match=re.escape(message)):
        subject.examine(subject.planted(edit), FRESH)


def packed(content: bytes, times: int = 1) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as entry:
            for _ in range(times):
                entry.write(content)

    return write


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b""), "is not a zip file"),
        (packed(bytes(10**6), times=200), "it would be 200.0 MB when unpacked"),
        (packed(b"\x93NUMPY\1\0\x40\0{'descr':'<f8','fortran_order':False,'shape':(10**15,)}".ljust(74)), "cannot be"),
    ],
)
def test_an_archive_is_not_believed(write: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    write(tmp_path / "x.npz")
    with pytest.raises(RopewalkError, match=message):
        read_claim(tmp_path / "x.npz")


def test_every_bit_that_counts_is_sealed(subjects: Callable[[str], Subject], tmp_path: Path) -> None:
    """A NumPy archive has checksums of its entries, and not of how they are named and read."""
    right, chance = subjects("full").file, random.Random(0)
    data, claim, changed = right.read_bytes(), read_claim(right), tmp_path / "x.npz"
    # The last part lists the entries.
    for at in (*chance.sample(range(len(data)), 40), *chance.sample(range(len(data) - 4000, len(data)), 200)):
        changed.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
        with contextlib.suppress(RopewalkError):
            found = read_claim(changed)
            assert found.stated.keys() == claim.stated.keys()
            for key, one in found.stated.items():
                np.testing.assert_array_equal(one.mean, claim.stated[key].mean)


def test_the_command_says_how_it_went(tmp_path: Path, run: Run) -> None:
    folder, texts = tmp_path / "model", tmp_path / "texts"
    model = tiny_smollm3(num_hidden_layers=4)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    texts.mkdir()
    for number, text in enumerate(make_texts(10, seed=5)):
        (texts / f"{number}.txt").write_text(text)
    from transformers import AutoTokenizer

    import ropewalk

    results = ropewalk.measure(
        model, make_texts(10), AutoTokenizer.from_pretrained(folder), context=64, statistics={"frame": {"full": True}}
    )
    (file,) = results.export(tmp_path / "x.safetensors", to="safetensors")
    words = ["doctor", str(folder), "--text", str(texts / "*.txt"), "--statistics"]
    code, out, error = run(*words, str(file))
    assert (code, error) == (0, "")
    assert out.count("ok    the statistics are the model's: ") == 4
    other = tmp_path / "y.npz"
    results.export(other, to="npz")
    with np.load(other) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name in arrays:
        if name.endswith(".covariance"):
            arrays[name] *= 2
    np.savez(other, **arrays)
    code, out, error = run(*words, str(other))
    assert (code, out) == (2, "")
    assert error == f"ropewalk: {other} is not as it was exported (damaged, or changed since): export it again\n"
    planting.header(arrays, lambda about: about.pop("seal"))
    np.savez(other, **arrays)
    code, out, error = run(*words, str(other))
    assert code == 2
    assert "FAIL  wrong scale (1." in out
    assert error == f"ropewalk: {other} is not true of {folder}: see what failed above\n"
    code, _, error = run("doctor", str(folder), "--text", "x")
    assert (code, error) == (
        2,
        "ropewalk: --text goes with --statistics: give the file that is to be held against these texts\n",
    )
    (texts / "0.txt").rename(tmp_path / "0.txt")
    code, _, error = run("doctor", str(folder), "--statistics", str(file), "--text", str(tmp_path / "0.txt"))
    assert code == 2
    assert "1 text of 64 tokens cannot tell how far statistics may be off by chance: give two longer ones" in error
