"""Studies: what is accepted, and the sentence for what is not."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.paths import ROOT
from ropewalk.capture.settings import choose_heads
from ropewalk.errors import RopewalkError
from ropewalk.models.layout import AttentionLayer, Layout
from ropewalk.studyfile import load_study, parse_study


def minimal(**changes: Any) -> dict[str, Any]:
    return {"name": "s", "checkpoints": [{"repo": "owner/name", "context": 64}], **changes}


def with_checkpoint(**changes: Any) -> dict[str, Any]:
    return minimal(checkpoints=[{"repo": "owner/name", "context": 64, **changes}])


def test_a_minimal_study_has_sensible_defaults() -> None:
    study = parse_study(minimal())
    checkpoint = study.checkpoints[0]
    assert (checkpoint.name, checkpoint.label, checkpoint.bucket) == ("name", "name", 4)
    assert study.folder == Path("results/s")
    assert study.corpus.source == "python-stdlib"
    assert not checkpoint.trust_remote_code


def test_defaults_are_merged_and_names_come_from_revisions() -> None:
    data = {
        "name": "s",
        "defaults": {"repo": "o/n", "context": 32, "dtype": "float16"},
        "checkpoints": [{"revision": "r1"}, {"revision": "r2", "context": 64}],
    }
    first, second = parse_study(data).checkpoints
    assert (first.name, first.context, second.context, second.dtype) == ("r1", 32, 64, "float16")


def test_random_weights_get_a_name_of_their_own() -> None:
    data = {"name": "s", "defaults": {"repo": "o/n", "context": 32}, "checkpoints": [{}, {"random_weights": True}]}
    assert [c.name for c in parse_study(data).checkpoints] == ["n", "n-random"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (minimal(corpse={}), "the study: corpse is not a known key: did you mean `corpus`?"),
        (with_checkpoint(contxt=3), "checkpoints.0.contxt is not a known key: did you mean `context`?"),
        (minimal(checkpoints=[{"repo": "o/n"}]), "checkpoints.0.context is missing: add it"),
        (with_checkpoint(context="long"), "checkpoints.0.context is 'long': input should be a valid integer"),
        (with_checkpoint(context=0), "checkpoints.0.context is 0: input should be greater than 1"),
        (
            with_checkpoint(dtype="int8"),
            "checkpoints.0.dtype is 'int8': input should be 'auto', 'float32', 'bfloat16' or 'float16'",
        ),
        (
            with_checkpoint(overrides={"max_position_embeddings": 32}),
            "context 64 is longer than overrides.max_position_embeddings 32",
        ),
        (minimal(checkpoints=[]), "checkpoints is []: input should have at least 1 item"),
        (
            minimal(checkpoints=[{"repo": "o/n", "context": 8}, {"repo": "o/n", "context": 8}]),
            "two checkpoints have the name 'n'",
        ),
        (
            minimal(
                checkpoints=[{"repo": "o/a", "context": 8, "label": "x"}, {"repo": "o/b", "context": 8, "label": "x"}]
            ),
            "two checkpoints have the label 'x'",
        ),
        (minimal(name="a/b"), "name is 'a/b'"),
        (minimal(corpus={"source": "files"}), "source `files` needs `paths`"),
        (minimal(corpus={"source": "dataset"}), "source `dataset` needs `repo`"),
        (minimal(capture={"heads": 0}), "must be a positive number (at most 10,000,000) or `all`"),
        (minimal(capture={"skip_first": 63}), "skip_first 63 leaves nothing of the context 64"),
        (minimal(figures={"portraits": ["nobody"]}), "figures.portraits names 'nobody', which is no checkpoint"),
        (minimal(checkpoints=[{"context": 8}]), "give `repo` (a model) or `source`"),
        (
            minimal(checkpoints=[{"repo": "./nowhere", "context": 8}]),
            "repo of checkpoint 'nowhere' is missing: there is no nowhere",
        ),
        (minimal(defaults=[1]), "`defaults` is a mapping of fields"),
        (minimal(capture={"pairs": []}), "capture.pairs is []"),
        (
            minimal(
                checkpoints=[{"repo": "o/a", "context": 8, "name": "A"}, {"repo": "o/b", "context": 8, "name": "a"}]
            ),
            "two checkpoints have the name 'a'",
        ),
        ([1, 2], "a study is a mapping with `name` and `checkpoints`"),
    ],
)
def test_mistakes_are_named(data: Any, message: str) -> None:
    with pytest.raises(RopewalkError, match=re.escape(message)):
        parse_study(data)


def test_every_mistake_is_listed() -> None:
    with pytest.raises(RopewalkError) as caught:
        parse_study({"name": "s", "checkpoints": [{"repo": "o/n", "context": -1, "steps": 3}]})
    assert "context is -1" in str(caught.value)
    assert "steps is not a known key" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_a_missing_file_and_bad_yaml_are_said(tmp_path: Path) -> None:
    with pytest.raises(RopewalkError, match="no study at"):
        load_study(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(RopewalkError, match="not valid YAML"):
        load_study(tmp_path / "bad.yaml")


def test_yaml_is_loaded_safely(tmp_path: Path) -> None:
    (tmp_path / "evil.yaml").write_text("name: !!python/object/apply:os.getcwd []")
    with pytest.raises(RopewalkError, match=r"`python/object/apply:os\.getcwd` is not plain data"):
        load_study(tmp_path / "evil.yaml")


def test_folders_are_relative_to_the_study_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "study.yaml").write_text(
        yaml.safe_dump({"name": "s", "checkpoints": [{"repo": "model", "context": 8}]})
    )
    assert load_study(tmp_path / "study.yaml").checkpoints[0].repo == str(tmp_path / "model")


def test_the_published_study() -> None:
    study = load_study(ROOT / "configs" / "smollm3_training_progress.yaml")
    assert study.folder == Path("results/smollm3_training_progress")
    published = (ROOT / "src/ropewalk/data/published/smollm3/checkpoints.csv").read_text().splitlines()
    header = published[0].split(",")
    assert len(study.checkpoints) == len(published) - 1 == 10
    for checkpoint, line in zip(study.checkpoints, published[1:], strict=True):
        row = dict(zip(header, line.split(","), strict=True))
        assert checkpoint.name == checkpoint.revision == row["checkpoint"]
        assert (checkpoint.label, checkpoint.phase, checkpoint.step) == (row["label"], row["phase"], int(row["step"]))
        assert checkpoint.context == checkpoint.overrides["max_position_embeddings"] == int(row["context"])
        assert checkpoint.bucket == int(row["bucket_size"])
        assert checkpoint.overrides["rope_theta"] == int(row["rope_theta"])
        assert checkpoint.tokenizer == "HuggingFaceTB/SmolLM3-3B"
    # 36 layers of 16 heads, as the model has them; the sample of 300 holds 73 heads of the layers without RoPE.
    layers = tuple(AttentionLayer(i, i, 16, 4, 128, 0.0 if i % 4 == 3 else 1.0, None) for i in range(36))
    heads = choose_heads(Layout("smollm3", 36, layers, False), study.capture)
    assert len(heads) == 300
    assert sum(head.layer % 4 == 3 for head in heads) == 73


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("checkpoints.0.context", (1, 10**12, 10**30, 2.5, float("inf"), float("nan"), True)),
        ("checkpoints.0.bucket_size", (0, 10**12)),
        ("checkpoints.0.step", (-1, 2**63)),
        ("checkpoints.0.weights_seed", (-1, 2**63)),
        ("capture.seed", (-1, 2**63, 10**30, 0.5)),
        ("capture.heads", (0, -3, 10**12)),
        ("capture.layers", ([-1], [10**12], [0.5])),
        ("capture.pairs", ([[-1, 0]], [[0, 10**12]], [[0]])),
        ("capture.skip_first", (-1, 10**12)),
        ("capture.shards", (0, 10**12, True, False)),
        ("capture.batch_tokens", (0, 10**12)),
        ("capture.components", (0, 10**12)),
        ("corpus.documents", (0, 10**12)),
    ],
)
def test_numbers_have_limits(path: str, values: tuple[Any, ...]) -> None:
    part, *rest = path.split(".")
    field = rest[-1]
    for value in values:
        data = with_checkpoint(**{field: value}) if part == "checkpoints" else minimal(**{part: {field: value}})
        with pytest.raises(RopewalkError, match=re.escape(path)) as caught:
            parse_study(data)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("field", ["name", "label", "phase", "family"])
@pytest.mark.parametrize("value", [False, 0, 1.5, ["a"], "\ud800", "x" * 1001])
def test_names_are_text(field: str, value: Any) -> None:
    with pytest.raises(RopewalkError, match=rf"checkpoints\.0\.{field} ") as caught:
        parse_study(with_checkpoint(**{field: value}))
    str(caught.value).encode()


@pytest.mark.parametrize(
    "name",
    [
        "NA",
        "null",
        "nan",
        "None",
        "True",
        "1e5",
        "007",
        " ",
        "a\nb",
        "\t",
        "\0",
        '"',
        ",",
        "..",
        "con",
        "日本語",
        "x" * 300,
    ],
)
def test_any_text_is_a_name(name: str) -> None:
    study = parse_study(with_checkpoint(name=name, phase=name, family=name))
    checkpoint = study.checkpoints[0]
    assert (checkpoint.name, checkpoint.label, checkpoint.phase, checkpoint.family) == (name,) * 4
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,80}", checkpoint.slug)


def test_a_place_without_a_name_is_named_by_its_number() -> None:
    assert parse_study({"name": "s", "checkpoints": [{"repo": ".", "context": 8}]}).checkpoints[0].name == "0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[moments, sampel]", "study.yaml line 3: no statistic is called 'sampel': did you mean `sample`?"),
        (
            "{sample: {rte: 0.5}}",
            "study.yaml line 3: capture.statistics.sample.rte is not a known key: did you mean `rate`?",
        ),
        ("{sample: {rate: 2}}", "study.yaml line 3: capture.statistics.sample.rate is 2: input should be less than"),
        ("{frame: ful}", "study.yaml line 3: capture.statistics.frame.ful is not a known key: did you mean `full`?"),
    ],
)
def test_statistics_and_their_options_are_known_by_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(f"name: s\ncheckpoints: [{{repo: o/n, context: 8}}]\ncapture: {{statistics: {text}}}\n")
    with pytest.raises(RopewalkError) as caught:
        load_study(file)
    assert str(caught.value).replace(str(file), "study.yaml").startswith(said)


@pytest.mark.parametrize("results", ["~", "~/results", "~somebody", "a\nb", "\x1b[2J"])
def test_a_results_folder_is_a_plain_path(results: str, study_data: dict[str, Any]) -> None:
    """Only a shell takes `~` for a home: a folder would get that name."""
    with pytest.raises(
        RopewalkError, match=r"results: a path must be on one line, without control characters, and wri"
    ):
        parse_study({**study_data, "results": results})
