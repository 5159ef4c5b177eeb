"""Files of statistics with a fault in them: what each wrong script makes of a model's queries and keys."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helpers.exporting import Case, tapped, theta_of, vectors
from ropewalk.models.proof import Finding
from ropewalk.results import Results
from ropewalk.scrutiny import examine_statistics

Arrays = dict[str, np.ndarray]
SUMS = {"moments": {}, "frame": {"full": True}}


class Subject:
    """A model, a right file of it, and its raw vectors on the documents of that file."""

    def __init__(self, case: Case, model: Any, results: Results, rows: list[list[int]], folder: Path) -> None:
        """`results` are of the model over `rows` of tokens."""
        self.case, self.model, self.rows, self.folder = case, model, rows, folder
        (self.file,) = results.export(folder / "right.npz", to="npz")
        self.calls = tapped(model, rows)

    @property
    def layers(self) -> range:
        return range(len(self.calls))

    def arrays(self) -> Arrays:
        with np.load(self.file) as archive:
            return {name: archive[name] for name in archive.files}

    def planted(self, edit: Callable[[Arrays], object]) -> Path:
        arrays = self.arrays()
        edit(arrays)
        # Who plants does not seal.
        header(arrays, lambda about: about.pop("seal", None))
        path = self.folder / "planted.npz"
        np.savez(path, **arrays)
        return path

    def raw(self, layer: int, kind: str) -> np.ndarray:
        """[heads, documents, tokens, d]."""
        return vectors(self.calls[layer], kind)

    def examine(self, path: Path, rows: Any) -> list[Finding]:
        return examine_statistics(self.model, path, None, documents=rows)


def state(arrays: Arrays, prefix: str, x: np.ndarray) -> None:
    """Put mean and covariance of vectors [heads, documents, tokens, d] into a file."""
    flat = x.reshape(len(x), -1, x.shape[-1])
    arrays[f"{prefix}.mean"] = flat.mean(axis=1)
    arrays[f"{prefix}.covariance"] = np.stack([np.cov(one, rowvar=False, bias=True) for one in flat])


def every(subject: Subject) -> Any:
    return [(layer, kind) for layer in subject.layers for kind in "qk"]


def not_rotated_back(subject: Subject, arrays: Arrays) -> None:
    for layer, kind in every(subject):
        state(arrays, f"l{layer:02d}.{kind}.pre", subject.raw(layer, kind))


def wrong_pairing(subject: Subject, arrays: Arrays) -> None:
    other = Case(subject.case.model_type, subject.case.rotated, not subject.case.interleaved, subject.case.nope)
    for layer, kind in every(subject):
        x = [other.turned_back(one, layer, theta_of(subject.model)) for one in subject.raw(layer, kind)]
        state(arrays, f"l{layer:02d}.{kind}.pre", np.stack(x))


def wrong_way(subject: Subject, arrays: Arrays) -> None:
    for layer, kind in every(subject):
        x = subject.raw(layer, kind)
        back = np.stack([subject.case.turned_back(one, layer, theta_of(subject.model)) for one in x])
        # Turning forth is turning back the mirror image.
        first, second = subject.case.pairs()
        mirrored = x.copy()
        mirrored[..., second] *= -1
        forth = np.stack([subject.case.turned_back(one, layer, theta_of(subject.model)) for one in mirrored])
        forth[..., second] *= -1
        assert layer in subject.case.nope or not np.allclose(back, forth)
        assert len(first) == len(second)
        state(arrays, f"l{layer:02d}.{kind}.pre", forth)


def rotated_back(subject: Subject, arrays: Arrays) -> None:
    for layer, kind in every(subject):
        for part in ("mean", "covariance"):
            arrays[f"l{layer:02d}.{kind}.post.{part}"] = arrays[f"l{layer:02d}.{kind}.pre.{part}"]


def missing_norm(subject: Subject, arrays: Arrays) -> None:
    seen: dict[tuple[int, str], torch.Tensor] = {}
    hooks = []
    for number, layer in enumerate(subject.model.model.layers):
        for kind in "qk":
            norm = getattr(layer.self_attn, f"{kind}_norm")

            def note(_: Any, inputs: Any, key: tuple[int, str] = (number, kind)) -> None:
                seen[key] = inputs[0]

            hooks.append(norm.register_forward_pre_hook(note))
    tapped(subject.model, subject.rows)
    for hook in hooks:
        hook.remove()
    for (number, kind), x in seen.items():
        state(arrays, f"l{number:02d}.{kind}.pre", x.permute(2, 0, 1, 3).double().numpy())


def nope_rotated(subject: Subject, arrays: Arrays) -> None:
    believed = Case(subject.case.model_type, subject.case.rotated, subject.case.interleaved)
    for layer in subject.case.nope:
        for kind in "qk":
            x = [believed.turned_back(one, layer, theta_of(subject.model)) for one in subject.raw(layer, kind)]
            state(arrays, f"l{layer:02d}.{kind}.pre", np.stack(x))


def scaled(subject: Subject, arrays: Arrays) -> None:
    for name in arrays:
        if name.endswith(".mean"):
            arrays[name] = arrays[name] * subject.case.head_dim**-0.5
        if name.endswith(".covariance"):
            arrays[name] = arrays[name] / subject.case.head_dim


def summed(subject: Subject, arrays: Arrays) -> None:
    for name in arrays:
        if name.endswith(".covariance"):
            arrays[name] = arrays[name] * np.size(subject.rows)


def not_centred(subject: Subject, arrays: Arrays) -> None:
    for name in arrays:
        if name.endswith(".covariance"):
            mean = arrays[name.replace("covariance", "mean")]
            arrays[name] = arrays[name] + mean[:, :, None] * mean[:, None, :]


def transposed(subject: Subject, arrays: Arrays) -> None:
    for layer, kind in every(subject):
        x = subject.raw(layer, kind)
        heads, rows, tokens, d = x.shape
        flat = x.transpose(1, 2, 0, 3).reshape(rows, tokens, heads * d)
        state(arrays, f"l{layer:02d}.{kind}.post", flat.reshape(rows, tokens, d, heads).transpose(3, 0, 1, 2))


def reordered(subject: Subject, arrays: Arrays) -> None:
    for name in arrays:
        if ".q." in name and name.endswith((".mean", ".covariance")):
            arrays[name] = np.roll(arrays[name], -1, axis=0)


def two_reordered(subject: Subject, arrays: Arrays) -> None:
    for name in arrays:
        if ".q." in name and name.endswith((".mean", ".covariance")):
            arrays[name][[0, 1]] = arrays[name][[1, 0]]


def exchanged(subject: Subject, arrays: Arrays) -> None:
    for layer in subject.layers:
        for part in ("mean", "covariance"):
            q, k = f"l{layer:02d}.q.pre.{part}", f"l{layer:02d}.k.pre.{part}"
            arrays[q], arrays[k] = arrays[k], arrays[q]


def shifted(subject: Subject, arrays: Arrays) -> None:
    kept = dict(arrays)
    for name in kept:
        if name.startswith("l") and ".frame." not in name:
            layer = int(name[1:3])
            arrays[name] = kept[f"l{(layer + 1) % len(subject.layers):02d}{name[3:]}"]


def header(arrays: Arrays, edit: Callable[[Any], object]) -> None:
    about = json.loads(bytes(arrays["ropewalk"]))
    edit(about)
    arrays["ropewalk"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)


def layer_count(subject: Subject, arrays: Arrays) -> None:
    last = subject.layers[-1]
    header(arrays, lambda about: about["model"].update(depth=last))
    for name in [name for name in arrays if name.startswith(f"l{last:02d}")]:
        del arrays[name]


def head_count(subject: Subject, arrays: Arrays) -> None:
    for name in arrays:
        if ".q." in name and ".frame." not in name:
            arrays[name] = arrays[name][:2]


def head_dim(subject: Subject, arrays: Arrays) -> None:
    for name in arrays:
        if name.endswith("mean"):
            arrays[name] = arrays[name][:, :4]
        if name.endswith("covariance"):
            arrays[name] = arrays[name][:, :4, :4]
