"""The manifest of a checkpoint's capture: what its shards are of, as JSON beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from ropewalk._version import __version__
from ropewalk.capture.settings import described
from ropewalk.errors import RopewalkError
from ropewalk.files import write_bytes
from ropewalk.models.layout import Head, Layout
from ropewalk.record import FORMAT, outdated
from ropewalk.seals import read_sealed_json, sealed_json
from ropewalk.statistics.base import Scope, Statistic
from ropewalk.study import LONGEST_CONTEXT, MOST_COMPONENTS
from ropewalk.text import cut, slug

if TYPE_CHECKING:
    from ropewalk.capture.shards import Provenance

MANIFEST = "manifest.json"
MODEL_FACTS = ("layout", "heads", "dtype", "proof")
"""What of a manifest only the loaded model could tell."""

NO_MODEL: Mapping[str, Any] = {"outcome": "no model"}
"""The proof of a capture that was read from vectors on disk: there was nothing to prove."""


class _Chosen(BaseModel):
    options: dict[str, Any]


class _Check(BaseModel):
    check: str
    passed: bool | None
    detail: str


class _Proof(BaseModel):
    """What the page shows of a proof."""

    outcome: str
    checks: list[_Check] = []
    tokens: StrictInt | None = None
    compared: StrictInt | None = None
    dtype: str | None = None
    half: str | None = None
    difference: float | None = None
    limit: float | None = None
    added: float | None = None


_Length = Annotated[StrictInt, Field(gt=0, le=LONGEST_CONTEXT)]


class _Scope(BaseModel):
    """Settings of a capture, within what a study can say."""

    model_config = ConfigDict(extra="forbid")

    context: _Length
    documents: Annotated[StrictInt, Field(gt=0)]
    bucket_size: _Length
    seed: StrictInt = 0
    skip_first: Annotated[StrictInt, Field(ge=0)] = 0
    components: Annotated[StrictInt, Field(gt=0, le=MOST_COMPONENTS)] = 10
    common_context: _Length | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "_Scope":
        if self.skip_first >= self.context:
            raise ValueError("skip_first leaves nothing of the context")
        return self


class _Contents(BaseModel):
    """What a manifest holds, as far as it is relied on; what only the model tells may be missing of older ones."""

    # `model` begins as names do that the oldest pydantic keeps to itself.
    model_config = ConfigDict(protected_namespaces=())

    checkpoint: str = ""
    shards: Annotated[StrictInt, Field(gt=0)]
    tokens_of_shards: Annotated[list[str], Field(min_length=1)]
    model: str
    settings: str
    scope: _Scope
    statistics: dict[str, _Chosen]
    heads: Annotated[list[tuple[StrictInt, StrictInt, StrictInt]], Field(min_length=1)]
    dtype: str | None = None
    proof: _Proof | None = None


def manifest_facts(
    scope: Scope, provenances: Sequence["Provenance"], statistics: Sequence[Statistic]
) -> dict[str, Any]:
    """What a manifest says of a capture's settings and shards."""
    return {
        "documents": scope.documents,
        "shards": len(provenances),
        "tokens": scope.documents * scope.context,
        "tokens_of_shards": [one.tokens for one in provenances],
        "model": provenances[0].model,
        "settings": provenances[0].settings,
        "scope": asdict(scope),
        "statistics": described(statistics),
    }


def model_facts(
    layout: Layout, heads: Sequence[Head], dtype: str | None, proof: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a manifest says of a capture's model and the heads chosen of it (the `MODEL_FACTS`)."""
    return {
        "layout": layout.to_dict(),
        "heads": [list(head) for head in heads],
        "dtype": dtype,
        "proof": None if proof is None else dict(proof),
    }


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of a checkpoint's capture."""
    write_bytes(folder / MANIFEST, sealed_json({"format": FORMAT, "ropewalk": __version__, **manifest}))


def known_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest if there is one that can be read, for a capture that would write it anew otherwise."""
    try:
        return read_manifest(folder)
    except RopewalkError:
        return None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint's capture."""
    path = folder / MANIFEST
    if not path.is_file():
        raise RopewalkError(
            f"{folder} holds no finished capture, {MANIFEST} is missing: run `ropewalk capture STUDY` first"
        )
    manifest = read_sealed_json(path)
    if manifest is None:
        raise damaged(path)
    if manifest.get("format") != FORMAT:
        raise outdated(path, manifest.get("format"))
    try:
        _Contents.model_validate(manifest)
    except ValidationError as error:
        # It may come from a stranger, who can write a seal.
        raise damaged(path) from error
    if "checkpoint" in manifest and slug(str(manifest["checkpoint"])) != folder.name:
        raise RopewalkError(
            f"{path} is of the checkpoint {cut(repr(manifest['checkpoint']), 100)} and stands in the folder of "
            "another: give the folder its name back, or run `ropewalk capture STUDY` again, which writes it anew"
        )
    return manifest


def damaged(path: Path) -> RopewalkError:
    """What to say of a manifest that is not what was written."""
    return RopewalkError(f"{path} is damaged: run `ropewalk capture STUDY` again, which writes it anew")
